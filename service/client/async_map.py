"""``map()`` in tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable

from .calls import Calls
from .driver import AsyncDriver
from .mapping import Task, TaskMaker
from .results import MapResult
from .views import SandboxView


class AsyncMap:
    """Carries tasks through, ``concurrency`` at a time."""

    def __init__(
        self,
        calls: Calls,
        driver: AsyncDriver,
        maker: TaskMaker,
        sandboxes: Iterable[SandboxView | str] | AsyncIterable[SandboxView | str],
        concurrency: int,
    ) -> None:
        self._calls = calls
        self._driver = driver
        self._tasks = _tasks(maker, sandboxes)
        self._concurrency = concurrency
        self._lock = asyncio.Lock()
        # Bounded: when the results are taken slowly, no more jobs are started than that.
        self._done: asyncio.Queue[MapResult | BaseException | None] = asyncio.Queue(concurrency)

    async def results(self) -> AsyncIterator[MapResult]:
        """The results, in the order in which they come."""
        workers = [asyncio.create_task(self._work()) for _ in range(self._concurrency)]
        working = len(workers)
        try:
            while working:
                done = await self._done.get()
                if done is None:
                    working -= 1
                elif isinstance(done, BaseException):
                    raise done
                else:
                    yield done
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self) -> None:
        try:
            while (task := await self._next()) is not None:
                await self._done.put(await self._driver.run(task.flow(self._calls)))
        except Exception as error:  # noqa: BLE001  (raised again where the results are taken)
            await self._done.put(error)
        await self._done.put(None)

    async def _next(self) -> Task | None:
        async with self._lock:
            return await anext(self._tasks, None)


async def _tasks(
    maker: TaskMaker, sandboxes: Iterable[SandboxView | str] | AsyncIterable[SandboxView | str]
) -> AsyncIterator[Task]:
    if isinstance(sandboxes, AsyncIterable):
        async for sandbox in sandboxes:
            yield maker.task(sandbox)
    else:
        for sandbox in sandboxes:
            yield maker.task(sandbox)
