"""A live view: the terminal's other screen, drawn over and over, and put away again at the end."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, NoReturn, Self

from service.cli.interrupts import INTERRUPTED
from service.cli.output.terminal import making_room, put

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""To the other screen, without the cursor; and back."""
HOME, TO_LINE_END, TO_SCREEN_END = "\x1b[H", "\x1b[K", "\x1b[J"


class Screen:
    """In its context ``show`` draws lines in place of those before."""

    def __init__(self) -> None:
        self._room = making_room(self._away)
        self._entered = False

    def show(self, lines: Sequence[str]) -> None:
        """The lines from the top, as many as there is room for."""
        room = shutil.get_terminal_size().lines - 1
        shown = "\n".join(line + TO_LINE_END for line in lines[:room])
        put(f"{'' if self._entered else ENTER}{HOME}{shown}{TO_SCREEN_END}", colour=True)
        self._entered = True

    def _away(self) -> None:
        if self._entered:
            self._entered = False
            put(LEAVE, colour=True)

    def leave(self) -> NoReturn:
        """Leave this very moment."""
        self._away()
        os._exit(INTERRUPTED)

    def __enter__(self) -> Self:
        self._room.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._away()
        self._room.__exit__(kind, error, trace)
        sys.stdout.flush()
