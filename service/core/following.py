"""Every job reaches its recorded final state although nobody polls; and news is asked for at a bounded pace.

Active jobs stand in the store by their next look. Replicas take due ones, each under a short lease; one that dies
is replaced within it. A job that somebody watches is looked at at the pace of ``service.core.pacing``, over all
replicas together; one that nobody watches every 2 s growing to 15 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import TYPE_CHECKING

from service import context
from service.core import records
from service.core.records import JobBody
from service.core.sandboxes import SLOW
from service.core.states import ClaimState
from service.core.watching import POLL
from service.errors import OnceboxError, StoreUnavailable
from service.ports.store import Record

if TYPE_CHECKING:
    from service.core.app import Core

log = logging.getLogger("oncebox.follower")

ROUND = 0.25
"""Seconds between two rounds of the follower."""
BATCH = 64
"""Looks that one round takes at the most."""
AT_ONCE = 256
"""Looks under way at once on one replica: one at a sandbox that does not answer (paused, say) takes its time."""
LOOK_LEASE = 20.0
"""Seconds after which a look that was taken and not finished is due again."""
FIRST, SLOWEST, GROWTH = 2.0, 15.0, 1.4
"""Seconds between looks at a job that nobody watches, and how fast they grow without news."""
TROUBLED = 60.0
"""Seconds that they grow to while its sandbox does not answer."""
CONFIRM_AFTER = 0.3
STALE = 0.2
"""Seconds after which a record is read again before a look; one that changed meanwhile costs no more than that look."""
THOROUGH_TRIES = 3
"""Looks before a delete at a job that others look at as well."""
RECORD_BEFORE_DELETE = 15.0
"""Seconds for recording what a sandbox's jobs have written before it is deleted."""


class Follower:
    """The looks of one replica."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = core.store
        self._pace = core.pace
        self._looking: dict[str, asyncio.Task[Record | None]] = {}

    async def run(self) -> None:
        """Take due looks, for ever."""
        while True:
            room = AT_ONCE - len(self._looking)
            try:
                self._pace.active = await self._store.active_count()
                self._core.telemetry.active(self._pace.active)
                due = await self._store.due(limit=min(BATCH, room), lease=LOOK_LEASE) if room > 0 else []
                for id in due:
                    self._core.tasks.start(self._due(id), f"due {id}")
            except StoreUnavailable:
                due = []
                await asyncio.sleep(1.0)
            await asyncio.sleep(ROUND * random.uniform(0.8, 1.2) if len(due) < BATCH else 0.0)

    async def _due(self, id: str) -> None:
        """A look that is due, unless a watcher's look came before it."""
        wait = record = None
        with contextlib.suppress(StoreUnavailable):
            record = await self._store.get(id)
            if record is not None and record.state.active and record.state.settled:
                since = record.now / 1000 - records.job_body(record).looked_at
                self._core.telemetry.look(max(0.0, since - self.delay(record, record.state, records.job_body(record))))
                left = self._until_due(record)
                if left > 0 or (wait := await self._pace.turn(id)) is None:
                    await self._store.next_look(id, after=max(left, self._pace.seconds()))
                    return
        self._start(id, wait, record)

    async def tend(self, record: Record) -> float:
        """Called for each reading of a watched job: start a look if one is due; seconds to the next reading."""
        if not record.state.active:
            return 10.0
        if record.state.pending and not record.lease_expired:
            return POLL
        left = self._until_due(record)
        if left <= 0 and (wait := await self._pace.turn(record.id)) is not None:
            self._start(record.id, wait, record)
            return wait + self._pace.seconds()
        return max(0.05, left) if left > 0 else self._pace.seconds() / 2

    async def refreshed(self, record: Record, *, timeout: float = 2.0) -> Record:
        """The record after a look, if one is due at once and nobody else is at it; else as it is."""
        if not record.state.active or (record.state.pending and not record.lease_expired):
            return record
        if self._until_due(record) > 0 or record.id in self._looking:
            return record
        if (wait := await self._pace.turn(record.id)) is None:
            return record
        body = records.job_body(record)
        task = self._start(record.id, wait, record)
        patience = timeout if wait <= STALE else 0.0
        await asyncio.wait({task}, timeout=min(patience, SLOW))
        if not task.done() and patience > SLOW and not await self._core.sandboxes.asleep(body.sandbox_id):
            await asyncio.wait({task}, timeout=patience - SLOW)
        if task.done() and not task.cancelled() and task.exception() is None:
            return task.result() or record
        return record

    def _until_due(self, record: Record) -> float:
        return records.job_body(record).looked_at + self._pace.seconds() - record.now / 1000

    async def look(self, id: str, record: Record | None = None) -> Record | None:
        """One look, shared by all who ask for it at the same time. ``record`` has just been read or written."""
        return await asyncio.shield(self._start(id, None, record))

    def _start(self, id: str, wait: float | None, record: Record | None) -> asyncio.Task[Record | None]:
        """A look in ``wait`` seconds; None: at once, without a place in the queue. ``record`` has just been read."""
        task = self._looking.get(id)
        if task is None:
            task = self._core.tasks.start(self._look(id, wait, record), f"look {id}")
            self._looking[id] = task
            task.add_done_callback(lambda _: self._looking.pop(id, None))
        return task

    async def _look(self, id: str, wait: float | None, record: Record | None) -> Record | None:
        context.command_id.set(id)
        if wait is None:
            self._pace.besides()
        else:
            await asyncio.sleep(wait)
        try:
            if record is None or (wait or 0.0) > STALE:
                record = await self._store.get(id)
            if record is None or not record.state.active:
                await self._store.forget(id)
                return record
            return await self._core.looker.look(record)
        except StoreUnavailable:
            return None
        except OnceboxError as error:
            log.warning("look at %s: %s", id, error.code)
            return None

    def delay(self, record: Record, state: ClaimState, body: JobBody) -> float:
        """Seconds until the follower looks again, where ``state`` and ``body`` are the record's."""
        if state.pending:
            return max(0.1, (record.lease_until - record.now) / 1000 + 0.1)
        looks, slowest = body.looks, SLOWEST if body.troubled_since is None else TROUBLED
        match state:
            case ClaimState.ACCEPTED:
                return CONFIRM_AFTER * GROWTH**looks if looks < 10 else SLOWEST
            case ClaimState.ENDED:
                return 1.0
            case ClaimState.UNKNOWN:
                return min(slowest, 0.5 * GROWTH ** min(looks, 20)) * random.uniform(0.8, 1.2)
        return min(slowest, FIRST * GROWTH ** min(looks, 20))

    # -- a sandbox that ends

    async def record_before_delete(self, sandbox_id: str) -> None:
        """Record what the sandbox's jobs have written; as much as can be done in ``RECORD_BEFORE_DELETE``."""
        ids = await self._store.active_of(sandbox_id)
        tasks = [self._core.tasks.start(self._look_thoroughly(id), f"last look {id}") for id in ids]
        if tasks:
            await asyncio.wait(tasks, timeout=RECORD_BEFORE_DELETE)

    async def _look_thoroughly(self, id: str) -> None:
        """A look that lost its race wrote nothing of what it read: then once more."""
        with contextlib.suppress(OnceboxError):
            for _ in range(THOROUGH_TRIES):
                record = await self._store.get(id)
                if record is None or not record.state.active:
                    return
                self._pace.besides()
                now = await self._core.looker.look(record, thorough=True)
                if records.job_body(now).looked_at == record.now / 1000:
                    return

    async def sandbox_ended(self, sandbox_id: str) -> None:
        """The sandbox is gone: so are its jobs."""
        for id in await self._store.active_of(sandbox_id):
            try:
                await self.look(id)
                record = await self._store.get(id)
                if record is not None and record.state.settled and record.state.active:
                    await self._core.looker.gone(record)
            except Exception as error:  # the others have ended just as much
                log.error("job %s, whose sandbox is gone, could not be closed", id, exc_info=error)
