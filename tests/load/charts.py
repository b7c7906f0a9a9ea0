"""Charts as inline SVG: no script, no fonts, nothing from elsewhere."""

import html
import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT = 860, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 16, 34
COLOURS = ("#3465a4", "#c4572b", "#4e9a06", "#75507b", "#c4a000", "#06989a", "#888a85")
TICKS = 5
LABEL_GAP = 14.0

Points = Sequence[tuple[float, float]]


def lines(
    series: Mapping[str, Points],
    *,
    unit: str,
    marks: Sequence[tuple[float, str]] = (),
    limit: float | None = None,
    stacked: bool = False,
) -> str:
    """Lines over seconds, each named at its end. `marks`: moments; `limit`: a line that must not be passed."""
    drawn = _stacked(series) if stacked else dict(series)
    everything = [point for points in drawn.values() for point in points]
    last = max((at for at, _ in everything), default=1.0) or 1.0
    top = _ceiling(max([value for _, value in everything] + [limit or 0.0, 1e-9]))
    frame = _Frame(last, top)
    parts = [frame.axes(unit)]
    for at, what in marks:
        parts.append(frame.mark(at, what))
    if limit is not None:
        y = frame.y(limit)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="limit"/>')
        parts.append(f'<text x="{LEFT + 4}" y="{y - 4:.1f}" class="limit">limit {limit:g}</text>')
    ends = []
    order = list(drawn.items())
    for place, (name, points) in reversed(list(enumerate(order))):
        colour = COLOURS[place % len(COLOURS)]
        floor = order[place - 1][1] if stacked and place else None
        parts.append(frame.area(points, floor, colour) if stacked else frame.line(points, colour))
        if points:
            ends.append((frame.y(points[-1][1]), name, colour))
    parts.extend(_names(ends))
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'


class _Frame:
    def __init__(self, last: float, top: float) -> None:
        self.last, self.top = last, top

    def x(self, at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / self.last

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(value, self.top) / self.top

    def axes(self, unit: str) -> str:
        parts = []
        for step in range(TICKS + 1):
            value, at = self.top * step / TICKS, self.last * step / TICKS
            y, x = self.y(value), self.x(at)
            parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
            parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
            parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{at:.0f} s</text>')
        parts.append(f'<text x="4" y="11">{html.escape(unit)}</text>')
        return "".join(parts)

    def mark(self, at: float, what: str) -> str:
        x = self.x(at)
        title = f"<title>{html.escape(what)} at {at:.0f} s</title>"
        return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" class="mark">{title}</line>'

    def line(self, points: Points, colour: str) -> str:
        path = " ".join(f"{self.x(at):.1f},{self.y(value):.1f}" for at, value in points)
        return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>'

    def area(self, points: Points, floor: Points | None, colour: str) -> str:
        under = floor or [(at, 0.0) for at, _ in points]
        path = " ".join(f"{self.x(at):.1f},{self.y(value):.1f}" for at, value in [*points, *reversed(under)])
        return f'<polygon points="{path}" fill="{colour}" fill-opacity="0.75"/>'


def dots(points: Points, bad: Points, *, unit: str, marks: Sequence[tuple[float, str]] = ()) -> str:
    """Single values over seconds, on a logarithmic scale: what went well, and what did not."""
    everything = [*points, *bad]
    last = max((at for at, _ in everything), default=1.0) or 1.0
    low, high = -3, max(1, math.ceil(math.log10(max([value for _, value in everything] + [1.0]))))

    def height(value: float) -> float:
        share = (math.log10(max(value, 10.0**low)) - low) / (high - low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    frame = _Frame(last, 1.0)
    parts = [f'<text x="4" y="11">{html.escape(unit)}</text>']
    for power in range(low, high + 1):
        y = height(10.0**power)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for step in range(TICKS + 1):
        at = last * step / TICKS
        parts.append(f'<text x="{frame.x(at):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{at:.0f} s</text>')
    parts.extend(frame.mark(at, what) for at, what in marks)
    for found, colour in ((points, COLOURS[0]), (bad, "#cc0000")):
        path = "".join(f"M{frame.x(at):.0f},{height(value):.0f}h2" for at, value in found)
        parts.append(f'<path d="{path}" stroke="{colour}" stroke-width="2" fill="none" stroke-opacity="0.6"/>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'


def _stacked(series: Mapping[str, Points]) -> dict[str, Points]:
    found: dict[str, Points] = {}
    below: dict[float, float] = {}
    for name, points in series.items():
        below = {at: value + below.get(at, 0.0) for at, value in points}
        found[name] = list(below.items())
    return found


def _names(ends: list[tuple[float, str, str]]) -> list[str]:
    parts, free = [], float(TOP)
    for y, name, colour in sorted(ends):
        free = max(y, free)
        parts.append(f'<text x="{WIDTH - RIGHT + 6}" y="{free + 4:.1f}" fill="{colour}">{html.escape(name)}</text>')
        free += LABEL_GAP
    return parts


def _ceiling(value: float) -> float:
    """The next round number."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * power >= value)
