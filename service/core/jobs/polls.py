"""Polls of jobs: one at a time of each in a replica, shared by all who ask for it; and what comes of them, carried out.

A poll that lost its race wrote nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from service import context
from service.core import records
from service.core.claims.ownership import Ownership
from service.core.claims.tasks import Tasks
from service.core.jobs.decisions import Decision, NextAttempt, gone
from service.core.jobs.dispatch import Dispatcher
from service.core.jobs.foreground import Listener
from service.core.jobs.ledger import Ledger
from service.core.jobs.observe import Observer
from service.core.jobs.orders import Submission
from service.core.jobs.pacing import Pace
from service.core.jobs.prepare import Prepared
from service.core.model.states import ClaimState
from service.core.records import JobBody, SandboxRecord
from service.core.telemetry import Telemetry
from service.errors import OnceboxError, StoreUnavailable
from service.ports.store import Record, Store

log = logging.getLogger("oncebox.poller")

STALE = 0.2
"""Seconds after which a record is read again before a poll; one that changed meanwhile costs no more than that poll."""
FIRST_POLLS = (0.05, 0.1)
"""Seconds after the dispatch until a job's first poll: the wrapper needs a few ms to make its fence; and from there to
another where it has not on a busy machine, since callers wait for it.
"""
END_POLLS = (0.0, 0.02, 0.1, 0.3)
"""Seconds before each poll of an exec whose stream has ended; after them the poller goes on."""
CANCEL_POLLS = (0.0, 0.1, 0.3, 0.5, 1.0, 1.0, 2.0)
"""Seconds before each poll of a job that is to be cancelled."""
THOROUGH_TRIES = 3
"""Polls before a delete of a job that others poll as well."""
RECORD_BEFORE_DELETE = 15.0
"""Seconds for recording what a sandbox's jobs have written before it is deleted."""


class Polls:
    """The polls of one replica."""

    def __init__(
        self,
        store: Store,
        ownership: Ownership,
        ledger: Ledger,
        observer: Observer,
        dispatcher: Dispatcher,
        pace: Pace,
        tasks: Tasks,
        telemetry: Telemetry,
    ) -> None:
        self._store = store
        self._ownership = ownership
        self._ledger = ledger
        self._observer = observer
        self._dispatcher = dispatcher
        self._pace = pace
        self._tasks = tasks
        self._telemetry = telemetry
        self.under_way: dict[str, asyncio.Task[Record | None]] = {}

    # -- one poll

    async def poll(self, id: str, record: Record | None = None) -> Record | None:
        """One poll, shared by all who ask for it at the same time. ``record`` has just been read or written."""
        return await asyncio.shield(self.start(id, None, record))

    def start(self, id: str, wait: float | None, record: Record | None) -> asyncio.Task[Record | None]:
        """A poll in ``wait`` seconds; None: at once, without a place in the queue. ``record`` has just been read."""
        task = self.under_way.get(id)
        if task is None:
            task = self._tasks.start(self._poll(id, wait, record), f"poll {id}")
            self.under_way[id] = task
            task.add_done_callback(lambda _: self.under_way.pop(id, None))
        return task

    async def _poll(self, id: str, wait: float | None, record: Record | None) -> Record | None:
        context.command_id.set(id)
        if wait is None:
            self._pace.charge()
        else:
            await asyncio.sleep(wait)
        try:
            if record is None or (wait or 0.0) > STALE:
                record = await self._store.get(id)
            if record is None or not record.state.active:
                await self._store.forget(id)
                return record
            return await self.carry_on(record)
        except StoreUnavailable:
            return None
        except OnceboxError as error:
            log.warning("poll of %s: %s", id, error.code)
            return None

    async def carry_on(self, record: Record, *, thorough: bool = False) -> Record:
        """Observe a job and carry out what is to be done about it; the record then. Raises ``StoreUnavailable``.

        1. A claim whose lease ran out is written down as that: where nothing was sent that is all.
        2. Nothing but the record that was observed is written to: who wrote meanwhile has won.
        """
        if record.state.pending:
            if not record.lease_expired:
                return record
            done, record = await self._ledger.abandon(record)
            if not done or record.state is not ClaimState.UNKNOWN:
                return record
        return await self._carry_out(record, await self._observer.observe(record, thorough=thorough))

    async def _carry_out(self, record: Record, decision: Decision | None) -> Record:
        match decision:
            case None:
                return record
            case NextAttempt():
                return await self._next_attempt(record, decision.body)
        return await self._ledger.apply(record, decision)

    # -- attempts, and what follows them

    async def _next_attempt(self, record: Record, body: JobBody) -> Record:
        """Not from a replica that is stopping: another one's poll finds the same void."""
        self._telemetry.reconciled("next_attempt")
        if self._ownership.drained:
            return record
        now, submission = await self._dispatcher.reopen(record, body)
        if submission is not None:
            again = submission
            await self._ownership.take_up(now, lambda mine: self.attempt(mine, again, Listener.nobody()))
        return now

    async def attempt(
        self,
        mine: Record,
        submission: Submission,
        listener: Listener,
        *,
        stdin: bytes | None = None,
        reading: asyncio.Task[Prepared] | None = None,
        known: SandboxRecord | None = None,
        sent: list[Record] | None = None,
    ) -> Record | None:
        """The owner's work: send an attempt, see ``Dispatcher.attempt``, and poll it as soon as there may be news."""
        record = await self._dispatcher.attempt(
            mine, submission, listener, stdin=stdin, reading=reading, known=known, sent=sent
        )
        if record is None or not record.state.active or record.state.pending:
            return record
        if record.state is ClaimState.UNKNOWN:
            await self.poll(mine.id)
        elif record.state is ClaimState.ACCEPTED and records.job_body(record).kind == "exec":
            return await self._poll_on(mine.id, END_POLLS) or record
        elif record.state is ClaimState.ACCEPTED:
            self.poll_soon(mine.id, record)
        return record

    def poll_soon(self, id: str, record: Record | None = None) -> None:
        """Poll a command as soon as its wrapper can have made the fence; ``record``: just written."""
        self._tasks.start(self._first_polls(id, record), f"first poll {id}")

    async def _first_polls(self, id: str, record: Record | None) -> None:
        for delay in FIRST_POLLS:
            await asyncio.sleep(delay)
            record = await self.poll(id, record)
            if record is None or record.state is not ClaimState.ACCEPTED:
                return

    def cancel_soon(self, id: str) -> None:
        """Poll a job that is to be cancelled until it is over, quicker than the poller would; which goes on if this
        replica ends.
        """
        self._tasks.start(self._poll_on(id, CANCEL_POLLS), f"cancel {id}")

    async def _poll_on(self, id: str, delays: Sequence[float]) -> Record | None:
        record: Record | None = None
        for delay in delays:
            await asyncio.sleep(delay)
            record = await self.poll(id)
            if record is None or not record.state.active:
                break
        return record

    # -- a sandbox that ends

    async def record_before_delete(self, sandbox_id: str) -> None:
        """Record what the sandbox's jobs have written; as much as can be done in ``RECORD_BEFORE_DELETE``."""
        ids = await self._store.active_of(sandbox_id)
        tasks = [self._tasks.start(self._poll_thoroughly(id), f"last poll {id}") for id in ids]
        if tasks:
            await asyncio.wait(tasks, timeout=RECORD_BEFORE_DELETE)

    async def _poll_thoroughly(self, id: str) -> None:
        """A poll that lost its race wrote nothing of what it read: then once more."""
        with contextlib.suppress(OnceboxError):
            for _ in range(THOROUGH_TRIES):
                record = await self._store.get(id)
                if record is None or not record.state.active:
                    return
                self._pace.charge()
                now = await self.carry_on(record, thorough=True)
                if records.job_body(now).polled_at == record.now / 1000:
                    return

    async def sandbox_ended(self, sandbox_id: str) -> None:
        """The sandbox is gone: so are its jobs."""
        for id in await self._store.active_of(sandbox_id):
            try:
                await self.poll(id)
                record = await self._store.get(id)
                if record is not None and record.state.settled and record.state.active:
                    await self._ledger.apply(record, gone(record))
            except Exception as error:  # the others have ended just as much
                log.error("job %s, whose sandbox is gone, could not be closed", id, exc_info=error)
