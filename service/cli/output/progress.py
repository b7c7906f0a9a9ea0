"""The progress line: one line on stderr that says how a long command is doing, and leaves no trace."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Self

from service.cli.output.tables import duration, size
from service.cli.output.terminal import OutputWriter, coloured, is_terminal, making_room

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

QUIET_BEFORE = 0.7
"""Seconds without output before the line shows itself: what is quick is not commented on."""
REDRAW = 0.25
"""Seconds between two drawings."""
ERASE = "\r\x1b[K"


class Progress:
    """State, time and bytes of output, while nothing else is being written.

    It is drawn only where stderr is a terminal. Where stdout is one too, it is erased before output is
    written and stays away while the output's last line is open, so that the two never mix.
    """

    def __init__(self, output: OutputWriter) -> None:
        self._output = output
        self._enabled = is_terminal(sys.stderr)
        self._shared = sys.stdout.isatty()
        self._dim = coloured(sys.stderr)
        self._started = self._quiet_since = time.monotonic()
        self._drawn = ""
        self._room = making_room(self._clear)
        self._ticker: asyncio.Task[None] | None = None
        self.state: Callable[[], str] = lambda: "starting"
        """Asked at each drawing."""

    async def __aenter__(self) -> Self:
        self._room.__enter__()
        if self._enabled:
            self._ticker = asyncio.create_task(self._tick())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticker
        self.erase()
        self._room.__exit__(kind, error, trace)

    async def write(self, chunk: bytes) -> None:
        """Write output, with the line out of its way."""
        if self._shared:
            self.erase()
            self._quiet_since = time.monotonic()
        await self._output.write(chunk)

    def _clear(self) -> None:
        """Before a line on stderr that stays."""
        self.erase()
        if self._enabled and self._shared and self._output.line_open:
            self._put("\n")
            self._output.line_open = False

    def erase(self) -> None:
        """Take the line away, where it is drawn."""
        if self._drawn:
            self._drawn = ""
            self._put(ERASE)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(REDRAW)
            quiet = time.monotonic() - self._quiet_since >= QUIET_BEFORE
            if quiet and not (self._shared and self._output.line_open):
                self._draw()

    def _draw(self) -> None:
        line = f"{self.state()} {duration(time.monotonic() - self._started)}"
        if self._output.written:
            line += f", {size(self._output.written)} of output"
        try:
            width = os.get_terminal_size(sys.stderr.fileno()).columns
        except OSError:
            width = 80
        line = line[: max(width - 1, 0)]
        if line == self._drawn:
            return
        self._drawn = line
        self._put(f"{ERASE}\x1b[2m{line}\x1b[0m" if self._dim else f"{ERASE}{line}")

    def _put(self, text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()
