"""Every job reaches its recorded final state although nobody polls; and news is asked for at a bounded pace.

Active jobs stand in the store by their next poll. Replicas take due ones, each under a short lease; one that dies
is replaced within it. A job that somebody watches is polled at the pace of ``service.core.jobs.pacing``, over all
replicas together; one that nobody watches every 2 s growing to 15 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import random

from service.core import records
from service.core.claims.tasks import Tasks
from service.core.claims.watches import POLL
from service.core.jobs.pacing import Pace, next_poll
from service.core.jobs.polls import STALE, Polls
from service.core.model import identity
from service.core.sandboxes.liveness import SLOW, Liveness
from service.core.telemetry import Telemetry
from service.errors import StoreUnavailable
from service.ports.store import Record, Store

ROUND = 0.25
"""Seconds between two rounds of the poller."""
BATCH = 64
"""Polls that one round takes at the most."""
AT_ONCE = 256
"""Polls under way at once on one replica: one of a sandbox that does not answer (paused, say) takes its time."""
POLL_LEASE = 20.0
"""Seconds after which a poll that was taken and not finished is due again."""


class Poller:
    """Says when jobs are polled, for one replica."""

    def __init__(
        self, store: Store, polls: Polls, liveness: Liveness, pace: Pace, tasks: Tasks, telemetry: Telemetry
    ) -> None:
        self._store = store
        self._polls = polls
        self._liveness = liveness
        self._pace = pace
        self._tasks = tasks
        self._telemetry = telemetry

    async def run(self) -> None:
        """Take due polls, for ever."""
        while True:
            room = AT_ONCE - len(self._polls.under_way)
            try:
                self._pace.active = await self._store.active_count()
                self._telemetry.active(self._pace.active)
                due = await self._store.due(limit=min(BATCH, room), lease=POLL_LEASE) if room > 0 else []
                for id in due:
                    self._tasks.start(self._due(id), f"due {id}")
            except StoreUnavailable:
                due = []
                await asyncio.sleep(1.0)
            await asyncio.sleep(ROUND * random.uniform(0.8, 1.2) if len(due) < BATCH else 0.0)

    async def _due(self, id: str) -> None:
        """A poll that is due, unless a watcher's came before it.

        1. The record is read: somebody may have polled since the poll was listed.
        2. A place in the queue is taken; where another replica polls, or just did, the poll is listed again.
        3. It begins when its place comes. A store that is away holds it up no longer than that.
        """
        wait = record = None
        with contextlib.suppress(StoreUnavailable):
            record = await self._store.get(id)
            if record is not None and record.state.active and record.state.settled:
                body = records.job_body(record)
                since = record.now / 1000 - body.polled_at
                self._telemetry.look(max(0.0, since - next_poll(record, record.state, body)))
                left = self._until_due(record)
                if left > 0 or (wait := await self._pace.poll_slot(id)) is None:
                    await self._store.schedule(id, after=max(left, self._pace.seconds()))
                    return
        self._polls.start(id, wait, record)

    async def on_read(self, record: Record) -> float:
        """Called for each reading of a watched record: poll a job if that is due; seconds to the next reading."""
        if identity.parse_command_id(record.id) is None:
            return POLL
        if not record.state.active:
            return 10.0
        if record.state.pending and not record.lease_expired:
            return POLL
        left = self._until_due(record)
        if left <= 0 and (wait := await self._pace.poll_slot(record.id)) is not None:
            self._polls.start(record.id, wait, record)
            return wait + self._pace.seconds()
        return max(0.05, left) if left > 0 else self._pace.seconds() / 2

    async def refreshed(self, record: Record, *, timeout: float = 2.0) -> Record:
        """The record after a poll, if one is due at once and nobody else is at it; else as it is."""
        if not record.state.active or (record.state.pending and not record.lease_expired):
            return record
        if self._until_due(record) > 0 or record.id in self._polls.under_way:
            return record
        if (wait := await self._pace.poll_slot(record.id)) is None:
            return record
        body = records.job_body(record)
        task = self._polls.start(record.id, wait, record)
        patience = timeout if wait <= STALE else 0.0
        await asyncio.wait({task}, timeout=min(patience, SLOW))
        if not task.done() and patience > SLOW and not await self._liveness.asleep(body.sandbox_id):
            await asyncio.wait({task}, timeout=patience - SLOW)
        if task.done() and not task.cancelled() and task.exception() is None:
            return task.result() or record
        return record

    def _until_due(self, record: Record) -> float:
        return records.job_body(record).polled_at + self._pace.seconds() - record.now / 1000
