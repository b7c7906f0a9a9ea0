"""Tasks that belong to the application, not to a request: held by strong references, their exceptions never lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from service.errors import OnceboxError, StoreUnavailable

T = TypeVar("T")
log = logging.getLogger("oncebox.tasks")


class Tasks:
    """Starts tasks, keeps them alive, and ends them with the application."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T], name: str, *, told: bool = True) -> asyncio.Task[T]:
        """Run ``work`` in a task of the application; what it raises is logged, if it is to be ``told``."""
        task = asyncio.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended if told else self._over)
        return task

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # whoever wants it has the task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, OnceboxError):
                # The engine's own words may repeat what it was sent; the store's never do.
                said = error.detail if isinstance(error, StoreUnavailable) else error.code
                log.warning("task %s: %s", task.get_name(), said)
                return
            log.error("task %s ended with an error", task.get_name(), exc_info=error)

    async def cancel_all(self) -> None:
        """Cancel what still runs and wait for it."""
        running = {task for task in self._running if task is not asyncio.current_task()}
        while running:
            for task in running:
                task.cancel()
            # A task may swallow one: before Python 3.12, `asyncio.wait_for` loses a cancellation that meets an answer.
            _, running = await asyncio.wait(running, timeout=1.0)
