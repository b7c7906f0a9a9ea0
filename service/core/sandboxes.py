"""Sandboxes: create once (`core.creating`), show, list, renew, pause and delete; and whose a sandbox is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from service import errors
from service.core import identity, listing, records
from service.core.answers import Answer
from service.core.creating import Order
from service.core.problems import refusal
from service.core.records import SandboxRecord
from service.core.room import ROW, UNBOUNDED, Share
from service.core.states import ClaimState
from service.messages import CreateSandbox, Sandbox, SandboxPage, SandboxState
from service.ports.engine import EngineError, NotReached, SandboxInfo, SandboxMissing, Unclear
from service.ports.store import Record

if TYPE_CHECKING:
    from service.core.app import Core

DEFAULT_WAIT_READY = 30
LIVENESS = 2.0
"""Seconds for which a replayed sandbox is believed to live."""
PROBE = 4.0
"""Seconds for seeing whether a sandbox runs commands."""
MISS = 3.0
"""Seconds for which an id that nobody knows is remembered."""


class Sandboxes:
    """The use cases around sandboxes, for one replica."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = core.store
        self._engine = core.engine
        self._settings = core.settings
        self._alive: dict[str, tuple[float, bool]] = {}

    # -- create

    async def create(self, tenant: str, request: CreateSandbox, key: str | None) -> Answer[Sandbox]:
        """The sandbox of this key: made now, waited for, or replayed.

        Raises ``IdempotencyInProgress``, ``IdempotencyKeyReused``, ``OutcomeUnknown`` and what the engine's refusal
        means.
        """
        order = self._core.creator.order(tenant, request, key)
        wait = DEFAULT_WAIT_READY if request.wait_ready is None else request.wait_ready
        record, replayed = await self._core.creator.settle(order)
        try:
            return await self._answer(order, record, replayed, wait)
        except errors.SandboxNotFound:
            if not replayed:
                raise
            # It was alive a moment ago (``LIVENESS``), and has been deleted or has ended since.
            self._note(records.claim_body(record).sandbox_id or "", over=True)
        record, replayed = await self._core.creator.settle(order)
        return await self._answer(order, record, replayed, wait)

    async def _answer(self, order: Order, record: Record, replayed: bool, wait: float) -> Answer[Sandbox]:
        claim = records.claim_body(record)
        if record.state is ClaimState.DONE and claim.sandbox_id is not None:
            return Answer(await self._shown_when_ready(order.tenant, claim.sandbox_id, wait), replayed, order.key)
        with errors.replaying(replayed):
            if record.state.failed and claim.failure is not None:
                raise claim.failure.exception()
            if record.state is ClaimState.UNKNOWN:
                raise errors.OutcomeUnknown(
                    "The engine did not say whether it made the sandbox; the next try looks for it again.",
                    retry_after=2,
                    retryable=not order.new_key,
                )
        raise errors.IdempotencyInProgress("The sandbox of this key is still being created.", retry_after=2)

    # -- whose it is

    async def remember(self, sandbox_id: str, record: SandboxRecord) -> None:
        """Keep a sandbox's record until its expiry plus the retention."""
        left = await self._left(record)
        await self._store.put_sandbox(sandbox_id, records.encode(record), ttl=left + self._settings.retention)
        await self._hold(record, left)

    async def _amend(self, sandbox_id: str, known: SandboxRecord, **changes: Any) -> SandboxRecord:
        """Change a sandbox's record, whatever others change in it meanwhile; the record as it was before.

        ``known`` counts where it has been forgotten.
        """
        while True:
            raw = await self._store.get_sandbox(sandbox_id)
            before = records.sandbox_record(raw) if raw is not None else known
            after = msgspec.structs.replace(before, **changes)
            left = await self._left(after)
            ttl = left + self._settings.retention
            if after == before or await self._store.swap_sandbox(sandbox_id, raw, records.encode(after), ttl=ttl):
                await self._hold(after, left)
                return before

    async def _left(self, record: SandboxRecord) -> float:
        now = await self._store.now() / 1000
        return max(0.0, (record.expires_at or now + 86_400) - now)

    async def _hold(self, record: SandboxRecord, left: float) -> None:
        if record.digest is not None and not record.deleted:
            await self._core.quotas.hold_sandbox(record.tenant, record.digest, left)

    async def known(self, tenant: str, sandbox_id: str, *, deleted: bool = False) -> SandboxRecord:
        """The record of a sandbox of this tenant.

        Raises ``SandboxNotFound`` for all others. One of another tenant goes the way of one that does not exist, the
        look at the engine included, so that neither the answer nor its time tells the two apart.
        """
        missing = errors.SandboxNotFound(sandbox_id=sandbox_id)
        if not identity.plausible_sandbox_id(sandbox_id):
            raise missing
        raw = await self._store.get_sandbox(sandbox_id)
        if raw is not None:
            record = records.sandbox_record(raw)
            if record.tenant == tenant:
                if record.deleted and not deleted:
                    raise missing
                return record
        miss = f"miss:{tenant}:{sandbox_id}"
        if await self._store.recall(miss) is not None:
            raise missing
        try:
            info = await self._engine.get_sandbox(sandbox_id)
        except SandboxMissing:
            info = None
        except EngineError as error:
            raise refusal(error, sandbox_id=sandbox_id) from error
        if info is None or raw is not None or not records.belongs(info, tenant, self._settings.secret):
            await self._store.remember(miss, b"1", ttl=MISS)
            raise missing
        labels = info.metadata
        record = SandboxRecord(
            tenant=tenant,
            digest=labels.get(f"{records.RESERVED}idem") or None,
            image=info.image,
            metadata={key: value for key, value in labels.items() if not records.is_reserved(key)},
            created_at=info.created_at,
            expires_at=info.expires_at,
        )
        await self.remember(sandbox_id, record)
        return record

    async def gone(self, sandbox_id: str) -> bool:
        """The engine says with certainty that the sandbox is gone.

        No certainty: False. Believed for ``LIVENESS`` seconds.
        """
        loop = asyncio.get_running_loop()
        known = self._alive.get(sandbox_id)
        if known is not None and known[0] > loop.time():
            return known[1]
        try:
            over = (await self._engine.get_sandbox(sandbox_id)).state.over
        except SandboxMissing:
            over = True
        except EngineError:
            return False
        self._note(sandbox_id, over=over)
        return over

    def _note(self, sandbox_id: str, *, over: bool) -> None:
        if len(self._alive) >= 10_000:
            self._alive.clear()
        self._alive[sandbox_id] = (asyncio.get_running_loop().time() + LIVENESS, over)

    # -- show and change

    async def get(self, tenant: str, sandbox_id: str) -> Sandbox:
        """The sandbox as it is now. Raises ``SandboxNotFound``, ``EngineUnavailable``."""
        record = await self.known(tenant, sandbox_id)
        info = await self._asked(sandbox_id)
        ready = await self._ready(sandbox_id, record, info)
        return records.sandbox_view(sandbox_id, record, info, ready=ready)

    async def list(
        self,
        tenant: str,
        *,
        metadata: Mapping[str, str],
        states: set[SandboxState],
        page_size: int,
        page_token: str | None,
        share: Share = UNBOUNDED,
    ) -> SandboxPage:
        """A tenant's sandboxes, newest first; see `core.listing`. Raises ``RateLimited`` without room."""
        await share.hold((listing.ENGINE_PAGE + page_size) * ROW)
        return await listing.sandboxes(
            self._core, tenant, metadata=metadata, states=states, page_size=page_size, page_token=page_token
        )

    async def _asked(self, sandbox_id: str) -> SandboxInfo:
        try:
            return await self._engine.get_sandbox(sandbox_id)
        except EngineError as error:
            raise refusal(error, sandbox_id=sandbox_id) from error

    async def _ready(self, sandbox_id: str, record: SandboxRecord, info: SandboxInfo) -> bool:
        """Running, and seen to run a command: "Running" alone proves nothing."""
        if info.state is not SandboxState.RUNNING:
            return False
        if record.ready:
            return True
        try:
            async with asyncio.timeout(PROBE):
                await self._engine.ping(sandbox_id)
                await self._core.fences.ready(sandbox_id)
        except (EngineError, TimeoutError):
            return False
        await self._amend(sandbox_id, record, ready=True)
        return True

    async def _shown_when_ready(self, tenant: str, sandbox_id: str, wait: float) -> Sandbox:
        """The sandbox once it is ready, failed, or ``wait`` seconds are over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        delay = 0.05
        while True:
            try:
                sandbox = await asyncio.wait_for(self.get(tenant, sandbox_id), max(5.0, deadline - loop.time()))
            except (errors.EngineUnavailable, TimeoutError):
                record = await self.known(tenant, sandbox_id)
                sandbox = records.sandbox_view(sandbox_id, record, None, ready=False)
            left = deadline - loop.time()
            if sandbox.ready or sandbox.state.over or left <= 0:
                return sandbox
            await asyncio.sleep(min(delay, left))
            delay = min(delay * 1.6, 1.0)

    async def renew(self, tenant: str, sandbox_id: str, timeout: int) -> Sandbox:
        """Let it live for ``timeout`` seconds from now; running jobs keep it alive all the same."""
        record = await self.known(tenant, sandbox_id)
        wanted = await self._store.now() / 1000 + timeout
        for job in await self._store.get_many(await self._store.active_of(sandbox_id)):
            if job is not None and job.state.active:
                wanted = max(wanted, self._core.looker.deadline(records.job_body(job)))
        await self.extend(sandbox_id, record, wanted)
        return await self.get(tenant, sandbox_id)

    async def extend(self, sandbox_id: str, record: SandboxRecord, expires_at: float) -> None:
        """Set the expiry (Unix seconds), and remember it.

        Where somebody else set it since ``record`` was read, the engine may have heard the two in any order: then
        the later expiry is set once more.
        """
        while True:
            try:
                agreed = await self._engine.renew_sandbox(sandbox_id, expires_at)
            except EngineError as error:
                raise refusal(error, sandbox_id=sandbox_id) from error
            before = await self._amend(sandbox_id, record, expires_at=agreed)
            if before.expires_at is None or before.expires_at in (record.expires_at, agreed):
                return
            expires_at = max(agreed, before.expires_at)
            record = msgspec.structs.replace(before, expires_at=agreed)

    async def pause(self, tenant: str, sandbox_id: str) -> Sandbox:
        """Pause it; pausing the paused is fine."""
        return await self._switch(tenant, sandbox_id, pause=True)

    async def resume(self, tenant: str, sandbox_id: str) -> Sandbox:
        """Resume it; resuming the running is fine."""
        return await self._switch(tenant, sandbox_id, pause=False)

    async def _switch(self, tenant: str, sandbox_id: str, *, pause: bool) -> Sandbox:
        await self.known(tenant, sandbox_id)
        try:
            await (self._engine.pause_sandbox if pause else self._engine.resume_sandbox)(sandbox_id)
        except EngineError as error:
            there = (
                {SandboxState.PAUSED, SandboxState.PAUSING} if pause else {SandboxState.RUNNING, SandboxState.RESUMING}
            )
            if isinstance(error, Unclear | NotReached) or (await self._asked(sandbox_id)).state not in there:
                raise refusal(error, sandbox_id=sandbox_id) from error
        if not pause:
            for job in await self._store.active_of(sandbox_id):  # its looks got rare while nothing answered
                await self._store.next_look(job, after=0.0)
        return await self.get(tenant, sandbox_id)

    async def delete(self, tenant: str, sandbox_id: str) -> None:
        """Delete it, after recording what its jobs have written; again is fine."""
        record = await self.known(tenant, sandbox_id, deleted=True)
        if record.deleted:
            return
        await self._core.follower.record_before_delete(sandbox_id)
        try:
            await self._engine.delete_sandbox(sandbox_id)
        except EngineError as error:
            raise refusal(error, sandbox_id=sandbox_id) from error
        self._alive.pop(sandbox_id, None)
        await self._amend(sandbox_id, record, deleted=True)
        if record.digest is not None:
            await self._core.quotas.free_sandbox(tenant, record.digest)
        await self._core.follower.sandbox_ended(sandbox_id)
