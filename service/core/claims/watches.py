"""Waiting for a record to change: one watch an id in a process, however many wait on it.

A watch reads its record when a message says that it changed (from whichever replica), and now and then besides,
since messages may get lost. One subscription a replica carries the messages of all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from service.core.claims.tasks import Tasks
from service.errors import StoreUnavailable
from service.ports.store import Record, Store

log = logging.getLogger("oncebox.watches")

POLL = 1.0
"""Seconds between two readings of a watched record when no message comes."""

OnRead = Callable[[Record], Awaitable[float]]
"""Called with each reading of a watched record; says in how many seconds to read again."""


class Watch:
    """The latest of one record, shared by all who wait for it."""

    def __init__(self) -> None:
        self.record: Record | None = None
        self.users = 0
        self.poked = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._seen = False

    def put(self, record: Record | None, *, notify: bool = True) -> None:
        """A newer reading: wake everybody if it differs; not where ``notify`` says that it differs from the one before
        it in nothing they wait for.
        """
        old = self.record
        if old and record and _older(record, old):
            return  # a reading that was under way while this replica itself wrote
        self.record = record
        first, self._seen = not self._seen, True
        if not notify and old and record and (record.token, record.revision) == (old.token, old.revision + 1):
            return
        if (
            first
            or (old is None) != (record is None)
            or (old and record and (old.token, old.revision) != (record.token, record.revision))
        ):
            self.wake()

    def wake(self) -> None:
        """Wake everybody, news or not."""
        self._news.set()
        self._news = asyncio.Event()

    async def change(self, timeout: float) -> bool:
        """Wait until the record changes; False when ``timeout`` seconds went by."""
        news = self._news
        try:
            async with asyncio.timeout(timeout):  # `wait_for` loses a cancellation that meets the news, before 3.12
                await news.wait()
        except TimeoutError:
            return False
        return True


def _older(record: Record, known: Record) -> bool:
    """Whether a reading is from before another one. A claim that was made anew, after Redis lost its data, begins at
    epoch 1 again: then the store's time tells.
    """
    if record.token == known.token:
        return record.revision < known.revision
    return (record.epoch, record.revision) < (known.epoch, known.revision) and record.now < known.now


class Board:
    """The watches of a replica, by id: where it tells itself what it has written."""

    def __init__(self) -> None:
        self.watches: dict[str, Watch] = {}

    def tell(self, record: Record, *, notify: bool = True) -> None:
        """This replica wrote ``record``: who waits for it here need not ask the store."""
        watch = self.watches.get(record.id)
        if watch is not None:
            watch.put(record, notify=notify)

    def wake_all(self) -> None:
        """Wake every waiter: the replica is stopping."""
        for watch in self.watches.values():
            watch.wake()


class Watches:
    """Keeps the watches on a board up to date."""

    def __init__(self, board: Board, store: Store, tasks: Tasks, on_read: OnRead) -> None:
        self._watches = board.watches
        self._store = store
        self._tasks = tasks
        self._on_read = on_read

    @contextlib.asynccontextmanager
    async def of(self, id: str, known: Record | None = None) -> AsyncIterator[Watch]:
        """Watch ``id`` for as long as the block lasts. ``known`` was read or written this moment, and is not read again
        at once.
        """
        watch = self._watches.get(id)
        if watch is None:
            watch = self._watches[id] = Watch()
            if known is not None:
                watch.put(known)
            watch.task = self._tasks.start(self._follow(id, watch, read=known is None), f"watch {id}")
        watch.users += 1
        try:
            yield watch
        finally:
            watch.users -= 1
            if watch.users == 0 and watch.task is not None:
                del self._watches[id]
                watch.task.cancel()

    async def _follow(self, id: str, watch: Watch, *, read: bool) -> None:
        delay = 0.0 if read else POLL
        while True:
            if delay > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await watch.poked.wait()
            watch.poked.clear()
            delay = await self._read(id, watch)

    async def _read(self, id: str, watch: Watch) -> float:
        """Read the record anew; seconds to the next time."""
        try:
            record = await self._store.get(id)
            watch.put(record)
            if record is not None:
                return await self._on_read(record)
        except StoreUnavailable:
            pass
        except Exception as error:  # who waits on the watch is to hear of the next change all the same
            log.error("a reading of %s failed", id, exc_info=error)
        return POLL

    async def listen(self) -> None:
        """Carry messages to the watches, for ever."""
        async for id in self._store.changes():
            if id is None:
                for watch in self._watches.values():
                    watch.poked.set()
            elif (named := self._watches.get(id)) is not None:
                named.poked.set()
