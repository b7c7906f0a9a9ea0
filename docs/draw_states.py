"""Draws the states of a claim from ``service.core.model.states.SCRIPTS``: ``python docs/draw_states.py``.

The table says which arrows there are and what they are called; here is only where the boxes stand and how far an
arrow bends. A state or an arrow that the table gains or loses shows up in the pictures, or stops the drawing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from service.core.model.states import SCRIPTS, ClaimState

HERE = Path(__file__).resolve().parent / "concepts"

State = ClaimState | None
Edge = tuple[str, State, State]
S = ClaimState

WIDTH, HEIGHT = 118, 54
COLOURS = {"pending": "#fff3c4", "unknown": "#ffd8d8", "failed": "#e4e4e4", "done": "#d9f2dc", "absent": "#ffffff"}

SANDBOXES_ONLY = frozenset({("reopen", S.UNKNOWN, S.CLAIMED)})
"""What the scripts refuse to do with a job, besides all that touches ``done``."""
JOBS_ONLY = frozenset({S.ACCEPTED, S.RUNNING, S.ENDED, S.CLOSED, S.VOIDED})
SCRIPTS_OF_JOBS = frozenset({"restore", "request_cancel", "advance", "finish"})
AT_ONCE = ("claim", None, S.DISPATCHED)
"""A job's boot mark is known before its claim."""


def edges() -> set[Edge]:
    """Every transition of the table: script, from, to."""
    return {
        (script, before, after)
        for script, moves in SCRIPTS.items()
        for before, afters in moves.items()
        for after in afters
    }


def of_jobs(edge: Edge) -> bool:
    """Whether a job can take it."""
    return S.DONE not in edge and edge not in SANDBOXES_ONLY


def of_sandboxes(edge: Edge) -> bool:
    """Whether the claim of a sandbox can take it."""
    return edge[0] not in SCRIPTS_OF_JOBS and edge != AT_ONCE and not JOBS_ONLY.intersection(edge[1:])


@dataclass
class Picture:
    """Where things stand."""

    width: int
    height: int
    places: Mapping[State, tuple[int, int]]
    bends: Mapping[tuple[State, State], int] = field(default_factory=dict)
    """How far the middle of an arrow stands from the straight line, to the right of its direction."""


JOBS = Picture(
    width=1280,
    height=560,
    places={
        None: (70, 280),
        S.CLAIMED: (250, 280),
        S.DISPATCHED: (440, 280),
        S.ACCEPTED: (640, 280),
        S.RUNNING: (840, 280),
        S.ENDED: (1020, 280),
        S.CLOSED: (1200, 280),
        S.UNKNOWN: (540, 110),
        S.REFUSED: (340, 440),
        S.VOIDED: (700, 440),
    },
    bends={
        (None, S.RUNNING): -440,
        (None, S.ENDED): -530,
        (None, S.DISPATCHED): -110,
        (S.CLAIMED, S.RUNNING): 330,
        (S.CLAIMED, S.CLOSED): 470,
        (S.ACCEPTED, S.CLAIMED): 60,
        (S.REFUSED, S.CLAIMED): 30,
        (S.CLAIMED, S.REFUSED): 30,
        (S.VOIDED, S.CLAIMED): -60,
        (S.UNKNOWN, S.REFUSED): -230,
        (S.UNKNOWN, S.VOIDED): -245,
        (S.UNKNOWN, S.ACCEPTED): -45,
        (S.ACCEPTED, S.UNKNOWN): -25,
        (S.UNKNOWN, S.RUNNING): -25,
        (S.RUNNING, S.UNKNOWN): -25,
        (S.UNKNOWN, S.CLOSED): -90,
        (S.ACCEPTED, S.ENDED): 70,
        (S.ACCEPTED, S.CLOSED): 130,
        (S.RUNNING, S.CLOSED): -60,
    },
)

SANDBOXES = Picture(
    width=870,
    height=450,
    places={
        None: (80, 240),
        S.CLAIMED: (280, 240),
        S.DISPATCHED: (520, 240),
        S.DONE: (790, 240),
        S.UNKNOWN: (520, 120),
        S.REFUSED: (400, 390),
    },
    bends={
        (S.CLAIMED, S.DONE): -380,
        (S.DONE, S.CLAIMED): -190,
        (S.UNKNOWN, S.CLAIMED): 20,
        (S.REFUSED, S.CLAIMED): 35,
        (S.CLAIMED, S.REFUSED): 35,
    },
)


def draw(picture: Picture, chosen: set[Edge]) -> str:
    """The picture of these transitions."""
    arrows: dict[tuple[State, State], list[str]] = {}
    inside: dict[State, list[str]] = {}
    for script, before, after in sorted(chosen, key=lambda edge: list(SCRIPTS).index(edge[0])):
        if before is after:
            inside.setdefault(before, []).append(script)
        else:
            arrows.setdefault((before, after), []).append(script)
    drawn = [arrow(picture, pair, ", ".join(names)) for pair, names in sorted(arrows.items(), key=by_name)]
    states = sorted({state for pair in arrows for state in pair}, key=name_of)
    boxes = [box(state, picture.places[state], inside.get(state, [])) for state in states]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {picture.width} {picture.height}" '
        f'width="{picture.width}" font-family="sans-serif" font-size="12">\n'
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 10 5 0 10z" fill="#456"/></marker></defs>\n'
        f'<rect width="{picture.width}" height="{picture.height}" fill="#ffffff"/>\n'
        + "".join(line for line, _ in drawn)
        + "".join(boxes)
        + "".join(label for _, label in drawn)
        + "</svg>\n"
    )


def by_name(item: tuple[tuple[State, State], list[str]]) -> tuple[str, str]:
    """A stable order."""
    return name_of(item[0][0]), name_of(item[0][1])


def name_of(state: State) -> str:
    """What stands in the box."""
    return "(absent)" if state is None else state.value


def group_of(state: State) -> str:
    """What a caller's request with the key meets."""
    if state is None:
        return "absent"
    if state.pending:
        return "pending"
    if state.failed:
        return "failed"
    return "unknown" if state is S.UNKNOWN else "done"


def box(state: State, place: tuple[int, int], inside: list[str]) -> str:
    """A state, and what leaves it as it is."""
    x, y = place
    dash = ' stroke-dasharray="4 3"' if state is None else ""
    text = (
        f'<rect x="{x - WIDTH // 2}" y="{y - HEIGHT // 2}" width="{WIDTH}" height="{HEIGHT}" rx="8" '
        f'fill="{COLOURS[group_of(state)]}" stroke="#456"{dash}/>\n'
        f'<text x="{x}" y="{y - 6 if inside else y + 4}" text-anchor="middle" font-weight="bold">'
        f"{name_of(state)}</text>\n"
    )
    for line in range(0, len(inside), 2):
        words = ", ".join(inside[line : line + 2])
        text += f'<text x="{x}" y="{y + 9 + 6 * line}" text-anchor="middle" font-size="9" fill="#555">{words}</text>\n'
    return text


def arrow(picture: Picture, pair: tuple[State, State], words: str) -> tuple[str, str]:
    """An arrow, and its label."""
    (x1, y1), (x2, y2) = picture.places[pair[0]], picture.places[pair[1]]
    length = math.hypot(x2 - x1, y2 - y1)
    bend = picture.bends.get(pair, 0)
    # The control point of the curve; its middle is half as far out.
    cx = (x1 + x2) / 2 - (y2 - y1) / length * bend
    cy = (y1 + y2) / 2 + (x2 - x1) / length * bend
    sx, sy = border((x1, y1), (cx, cy))
    ex, ey = border((x2, y2), (cx, cy))
    mx, my = (sx + 2 * cx + ex) / 4, (sy + 2 * cy + ey) / 4
    line = (
        f'<path d="M{sx:.0f} {sy:.0f}Q{cx:.0f} {cy:.0f} {ex:.0f} {ey:.0f}" fill="none" stroke="#456" '
        'marker-end="url(#tip)"/>\n'
    )
    label = (
        f'<text x="{mx:.0f}" y="{my + 4:.0f}" text-anchor="middle" font-size="11" stroke="#ffffff" stroke-width="4" '
        f'paint-order="stroke">{words}</text>\n'
    )
    return line, label


def border(place: tuple[float, float], towards: tuple[float, float]) -> tuple[float, float]:
    """Where the line from a box's middle leaves the box."""
    x, y = place
    dx, dy = towards[0] - x, towards[1] - y
    scale = min(
        WIDTH / 2 / abs(dx) if dx else math.inf,
        HEIGHT / 2 / abs(dy) if dy else math.inf,
    )
    return x + dx * scale, y + dy * scale


def pictures() -> dict[str, str]:
    """File name -> picture."""
    return {
        "claim-of-a-job.svg": draw(JOBS, set(filter(of_jobs, edges()))),
        "claim-of-a-sandbox.svg": draw(SANDBOXES, set(filter(of_sandboxes, edges()))),
    }


def main() -> None:
    """Write what differs."""
    for name, text in pictures().items():
        path = HERE / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
