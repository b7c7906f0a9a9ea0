"""Loops that are to go on for as long as the replica does: one that ends with an error is started again.

The wait before it grows while they go on failing. Who asks whether the replica is well is told which do.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from service.core.claims.tasks import Tasks

log = logging.getLogger("oncebox.background")

BACKOFF = (0.5, 30.0)
"""Seconds before a loop is started again: at first, and at most. Doubled each time, a half of it at random."""
STEADY = 60.0
"""Seconds for which a loop must have run for its failures before to be over."""
GOES_ON = 3
"""Failures in a row after which a loop goes on failing."""

Run = Callable[[], Awaitable[None]]


class Background:
    """Keeps named loops running in ``tasks``. ``restarted`` is told the name of each that is started again."""

    def __init__(self, tasks: Tasks, restarted: Callable[[str], None] = lambda _: None) -> None:
        self._tasks = tasks
        self._restarted = restarted
        self._failures: dict[str, int] = {}
        """Failures in a row, by name."""
        self._since: dict[str, float] = {}
        """When the present run began, by the event loop's clock."""

    def start(self, name: str, run: Run) -> None:
        """Run ``run``, and again whenever it raises; where it returns there is nothing left to do."""
        self._tasks.start(self._kept_running(name, run), name)

    def failing(self) -> list[str]:
        """The names of the loops that go on failing."""
        now = asyncio.get_running_loop().time()
        return [
            name for name, failures in self._failures.items() if failures >= GOES_ON and not self._steady(name, now)
        ]

    def _steady(self, name: str, now: float) -> bool:
        return now - self._since.get(name, now) >= STEADY

    async def _kept_running(self, name: str, run: Run) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._since[name] = loop.time()
            try:
                return await run()
            except asyncio.CancelledError:
                if _is_cancelled():
                    raise
                log.error("%s was cancelled by its own work: starting it again", name)
            except Exception as error:
                log.error("%s ended with an error: starting it again", name, exc_info=error)
            steady = self._steady(name, loop.time())
            failures = self._failures[name] = 1 if steady else self._failures.get(name, 0) + 1
            del self._since[name]
            first, most = BACKOFF
            await asyncio.sleep(min(most, first * 2 ** min(failures - 1, 20)) * random.uniform(0.5, 1.0))
            self._restarted(name)


def _is_cancelled() -> bool:
    """Somebody cancels this task; else the ``CancelledError`` came out of what it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
