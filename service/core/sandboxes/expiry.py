"""How long a sandbox is kept: until what its caller asked for is over, and every active job in it; no longer.

The caller's own expiry stands apart in the sandbox's record (``asked_until``). Whoever changes what is needed notes it
first (a job is listed as active, a renewal writes ``asked_until``) and compares then; whoever has set an expiry
compares once more. So of two that meet, the later one sees what the earlier one noted.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from service.core import records
from service.core.claims.tasks import Tasks
from service.core.records import JobBody, SandboxRecord
from service.core.sandboxes.records import SandboxRecords
from service.errors import OnceboxError, StoreUnavailable
from service.ports.engine import Engine, EngineError
from service.ports.store import Store

log = logging.getLogger("oncebox.expiry")

MARGIN = 120.0
"""Seconds that a sandbox is kept beyond a job's deadline; and from now on, where all that was asked for is over."""
STEP = 300.0
"""Seconds that a job adds to that, so that not every job of a sandbox renews it."""
CLOSE = 1.0
"""Seconds by which two expiries may differ and are the same: engines round them."""
TOGETHER = 2.0
"""Seconds after a job's end until the expiry is set: once for all jobs that end by then."""
TRIES = 20
"""Rounds in which others may come in between; what begins or ends later sets it again."""


class Span(msgspec.Struct, frozen=True):
    """Between which times (Unix seconds) an expiry is right, and which one to set where it is not."""

    least: float
    wanted: float

    def holds(self, expires_at: float) -> bool:
        """Whether an expiry needs no change."""
        return self.least - CLOSE <= expires_at <= self.wanted + CLOSE


def enough(known: SandboxRecord, body: JobBody) -> bool:
    """Whether a sandbox is kept for as long as a job needs it."""
    return known.expires_at is None or known.expires_at >= records.deadline(body) + MARGIN


class Expiry:
    """Sets the expiry of sandboxes, for one replica."""

    def __init__(self, store: Store, engine: Engine, sandboxes: SandboxRecords, tasks: Tasks) -> None:
        self._store = store
        self._engine = engine
        self._sandboxes = sandboxes
        self._tasks = tasks
        self._ending: set[str] = set()

    def keep_soon(self, body: JobBody) -> None:
        """The same, behind what is being done."""
        self._tasks.start(self.keep(body), f"keep alive {body.sandbox_id}")

    async def keep(self, body: JobBody) -> None:
        """Keep a sandbox for a job that is listed as active. Asked again now and then by whoever follows the job."""
        try:
            raw, known = await self._sandboxes.read(body.sandbox_id)
            if known is not None and not enough(known, body):
                await self.settle(body.sandbox_id, found=(raw, known))
        except EngineError as error:
            log.warning("sandbox %s could not be renewed for a job: %s", body.sandbox_id, type(error).__name__)
        except OnceboxError as error:
            log.warning("sandbox %s could not be renewed for a job: %s", body.sandbox_id, error.code)

    async def keep_for_transfer(self, sandbox_id: str, known: SandboxRecord | None) -> bool:
        """Keep a sandbox for ``MARGIN`` seconds from now, at least; whether that was needed. Asked again while bytes
        are under way; ``job_ended`` when they are not. ``known``: its record, read this moment.
        """
        now = await self._store.now() / 1000
        if known is not None and (known.expires_at is None or known.expires_at >= now + MARGIN):
            return False
        raw, record = await self._sandboxes.read(sandbox_id)
        if record is None or record.deleted or record.expires_at is None or record.expires_at >= now + MARGIN:
            return False
        noted = False
        try:
            told = await self._engine.renew_sandbox(sandbox_id, now + MARGIN + STEP)
            noted = await self._sandboxes.swap(sandbox_id, raw, msgspec.structs.replace(record, expires_at=told))
        except EngineError as error:
            log.warning("sandbox %s could not be renewed for a transfer: %s", sandbox_id, type(error).__name__)
            return False
        finally:
            if not noted:  # the engine may have been told what the record does not say, after others told it more
                self._tasks.start(self._settle_again(sandbox_id), f"expiry {sandbox_id}")
        return True

    async def _settle_again(self, sandbox_id: str) -> None:
        try:
            await self.settle(sandbox_id, tell=True)
        except (EngineError, StoreUnavailable) as error:
            log.warning("the expiry of sandbox %s stays as it is: %s", sandbox_id, type(error).__name__)

    def job_ended(self, sandbox_id: str) -> None:
        """Nothing of a job holds its sandbox any more."""
        if sandbox_id not in self._ending:
            self._ending.add(sandbox_id)
            self._tasks.start(self._let_go(sandbox_id), f"expiry {sandbox_id}")

    async def _let_go(self, sandbox_id: str) -> None:
        try:
            await asyncio.sleep(TOGETHER)
        finally:
            self._ending.discard(sandbox_id)
        try:
            raw, known = await self._sandboxes.read(sandbox_id)
            if known is None or known.expires_at is None or known.asked_until is None:
                return
            if known.expires_at > known.asked_until + CLOSE:
                await self.settle(sandbox_id, found=(raw, known))
        except (EngineError, StoreUnavailable) as error:
            log.warning("the expiry of sandbox %s stays as it is: %s", sandbox_id, type(error).__name__)

    async def settle(
        self, sandbox_id: str, *, tell: bool = False, found: tuple[bytes | None, SandboxRecord] | None = None
    ) -> None:
        """Make the expiry what is needed now; with ``tell`` the engine is told in any case. ``found``: how the record
        stands, read this moment.

        1. What is needed is read after it was noted, and read again after the engine was told.
        2. A shorter one is written before the engine hears of it, a longer one after: who ends in between leaves a
           sandbox that lives too long, never one that ends too early.
        3. Who has told the engine anything goes on until the record says the same: others may have told it, too.

        Raises ``EngineError``, ``StoreUnavailable``.
        """
        told: float | None = None
        for _ in range(TRIES):
            raw, record = found or await self._sandboxes.read(sandbox_id)
            found = None
            if record is None or record.deleted or record.expires_at is None:
                return
            span = await self._span(sandbox_id, record)
            agrees = (not tell) if told is None else abs(told - record.expires_at) <= CLOSE
            if agrees and span.holds(record.expires_at):
                return
            if span.wanted < record.expires_at:
                shorter = msgspec.structs.replace(record, expires_at=span.wanted)
                if await self._sandboxes.swap(sandbox_id, raw, shorter):
                    told = await self._engine.renew_sandbox(sandbox_id, span.wanted)
            else:
                told = await self._engine.renew_sandbox(sandbox_id, span.wanted)
                await self._sandboxes.swap(sandbox_id, raw, msgspec.structs.replace(record, expires_at=told))
        log.warning("the expiry of sandbox %s changes too often to be settled now", sandbox_id)

    async def _span(self, sandbox_id: str, record: SandboxRecord) -> Span:
        assert record.expires_at is not None
        asked = record.expires_at if record.asked_until is None else record.asked_until
        least = wanted = asked
        for job in await self._store.get_many(await self._store.active_of(sandbox_id)):
            if job is None:  # being submitted: nobody knows yet what it needs, so nothing is taken away
                wanted = max(wanted, record.expires_at)
            elif job.state.active:
                needed = records.deadline(records.job_body(job)) + MARGIN
                least, wanted = max(least, needed), max(wanted, needed + STEP)
        return Span(least, max(wanted, await self._store.now() / 1000 + MARGIN))
