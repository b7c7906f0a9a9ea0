"""Tables for people, and how times and sizes are written in them.

On a terminal a table fits its width; elsewhere (a pipe, a file) nothing is ever cut.
"""

from __future__ import annotations

import io
import shutil
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
import msgspec

from service.cli.output.terminal import coloured, encodable, printable, put
from service.messages import JobState, SandboxState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STYLES = {
    JobState.RUNNING.value: "green",
    JobState.PENDING.value: "cyan",
    JobState.UNKNOWN.value: "yellow",
    JobState.TIMED_OUT.value: "yellow",
    JobState.CANCELLED.value: "yellow",
    JobState.FAILED.value: "red",
    JobState.LOST.value: "red",
    SandboxState.PAUSED.value: "yellow",
    "ok": "green",
    "warning": "yellow",
    "wrong": "red",
}
"""The colour of a state."""


GAP = 2
"""Blanks between two columns."""
NARROWEST = 8
"""Characters that are left of a column that shrinks."""


class Column(msgspec.Struct, frozen=True):
    """A column. ``shrinks``: it is cut before any other where the terminal is narrow."""

    title: str
    shrinks: bool = False
    right: bool = False


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout, its cells made printable."""
    if sys.stdout.isatty():
        put(drawn_table(columns, rows), colour=True)
        return
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(line[at]) for line in [[c.title for c in columns], *cells]) for at in range(len(columns))]
    for line in [[column.title for column in columns], *cells]:
        padded = (cell.rjust(width) if column.right else cell.ljust(width)
                  for column, width, cell in zip(columns, widths, line, strict=True))  # fmt: skip
        put((" " * GAP).join(padded).rstrip())


def print_details(title: str, fields: Mapping[str, str]) -> None:
    """One thing in full: a line a field, the empty ones left out."""
    shown = {name: printable(value) for name, value in fields.items() if value}
    width = max(map(len, shown), default=0)
    bold = coloured(sys.stdout)
    put(click.style(title, bold=True) if bold else title)
    for name, value in shown.items():
        style = STYLES.get(value.split(" ")[0]) if bold and name == "state" else None
        put(f"  {name.ljust(width)}  {click.style(value, fg=style) if style else value}")


def drawn_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    """A table as this terminal shows it, its cells made printable."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = [[printable(cell) for cell in row] for row in rows]
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for column, width in zip(columns, _widths(columns, rows), strict=True):
        table.add_column(
            column.title,
            width=width,
            no_wrap=True,
            overflow="ellipsis" if encodable("…") else "crop",
            justify="right" if column.right else "left",
        )
    for row in rows:
        table.add_row(*(Text(cell, style=STYLES.get(cell.split(" ")[0], "")) for cell in row))
    # Drawn first and written after: a reader that goes away is an error like any other then.
    drawn = io.StringIO()
    console = Console(
        file=drawn,
        force_terminal=True,
        color_system="auto" if coloured(sys.stdout) else None,
        highlight=False,
        width=terminal_width(),
    )
    console.print(table)
    return "\n".join(line.rstrip() for line in drawn.getvalue().splitlines())


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    """What each column needs; the first that shrinks gives up what the terminal has not."""
    from rich.cells import cell_len

    widths = [
        max(cell_len(cell) for cell in (column.title, *(row[at] for row in rows))) for at, column in enumerate(columns)
    ]
    excess = sum(widths) + GAP * (len(widths) - 1) - terminal_width()
    for at, column in enumerate(columns):
        if column.shrinks and excess > 0:
            given = min(excess, widths[at] - NARROWEST)
            widths[at] -= max(given, 0)
            excess -= max(given, 0)
    return widths


def terminal_width() -> int:
    """Columns of the terminal that stdout is."""
    return shutil.get_terminal_size((80, 24)).columns


def labels(metadata: Mapping[str, str]) -> str:
    """Metadata in one cell."""
    return ",".join(f"{name}={value}" for name, value in metadata.items())


def size(count: int) -> str:
    """Bytes, as people write them."""
    if count < 1000:
        return f"{count} B"
    number = float(count)
    for unit in ("kB", "MB", "GB"):
        number /= 1000
        if number < 999.5:
            return f"{number:.3g} {unit}"
    return f"{number:.0f} GB"


def duration(seconds: float) -> str:
    """Seconds as ``7 s``, ``3:07`` or ``1:03:07``."""
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def moment(text: str | None) -> datetime | None:
    """A time of the API; None for none, and for one that can't be read."""
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None


def ago(text: str | None, now: datetime | None = None) -> str:
    """How long since, in one unit: ``5 s``, ``3 min``, ``2 h``, ``4 d``; or until, for a time to come."""
    then = moment(text)
    if then is None:
        return ""
    seconds = abs(((now or datetime.now(UTC)) - then).total_seconds())
    for unit, length, limit in (("s", 1, 90), ("min", 60, 90), ("h", 3600, 48)):
        if seconds < limit * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def between(first: str | None, last: str | None) -> str:
    """How long from one to the other (or to now)."""
    start, end = moment(first), moment(last)
    if start is None:
        return ""
    return duration(((end or datetime.now(UTC)) - start).total_seconds())
