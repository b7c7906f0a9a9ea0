"""Signals that ask a command to stop, as something that coroutines can wait for."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

INTERRUPTED = 130
"""128 + SIGINT: the exit code."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """In its context the first of ``SIGNALS`` sets ``first``; the second calls ``leave``, never to return.

    A terminal that went away (SIGHUP) is no wish to stop what runs elsewhere: it leaves at once, where
    ``hangup_leaves``. A signal that was ignored when the process started stays so: ``nohup``, and a shell's
    ``&``, mean it.
    """

    def __init__(self, leave: Callable[[], None], *, hangup_leaves: Callable[[], bool] = lambda: True) -> None:
        self.first = asyncio.Event()
        self.signal: signal.Signals | None = None
        """The first one that came."""
        self._leave = leave
        self._hangup_leaves = hangup_leaves
        self._handled: list[signal.Signals] = []

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as a shell has it: 130 for Ctrl-C."""
        return 128 + (self.signal or signal.SIGINT)

    async def outlasted_by(self, work: asyncio.Task[Any]) -> bool:
        """Wait for the end of ``work`` or for the first interrupt; true where it is the end, and no interrupt came."""
        first = asyncio.create_task(self.first.wait())
        await asyncio.wait({work, first}, return_when=asyncio.FIRST_COMPLETED)
        first.cancel()
        return not self.first.is_set()

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._come, number)
                self._handled.append(number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in self._handled:
            asyncio.get_running_loop().remove_signal_handler(number)

    def _come(self, number: signal.Signals) -> None:
        leave = self.first.is_set() or (number is signal.SIGHUP and self._hangup_leaves())
        self.signal = self.signal or number
        if leave:
            self._leave()
        self.first.set()
