"""Many pieces of work in tasks, some at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from typing import Generic, TypeVar

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")


class AsyncPool(Generic[I, R]):
    """Does ``work`` with each of ``items``, ``concurrency`` at a time; what it raises ends everything."""

    def __init__(
        self, work: Callable[[I], Awaitable[R]], items: Iterable[I] | AsyncIterable[I], concurrency: int
    ) -> None:
        self._do = work
        self._items = _each(items)
        self._concurrency = concurrency
        self._lock = asyncio.Lock()
        # Bounded: when the results are taken slowly, no more is begun than that.
        self._done: asyncio.Queue[tuple[R] | BaseException | None] = asyncio.Queue(concurrency)

    async def results(self) -> AsyncIterator[R]:
        """What came of each, in the order in which it comes. Left early, what is under way is cancelled."""
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
                    yield done[0]
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self) -> None:
        try:
            async for item in self._taken():
                await self._done.put((await self._do(item),))
        except Exception as error:  # noqa: BLE001  (raised again where the results are taken)
            await self._done.put(error)
        await self._done.put(None)

    async def _taken(self) -> AsyncIterator[I]:
        while True:
            async with self._lock:
                try:
                    item = await anext(self._items)
                except StopAsyncIteration:
                    return
            yield item


async def _each(items: Iterable[I] | AsyncIterable[I]) -> AsyncIterator[I]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
