"""Sandboxes: create once (`core.creating`), show, list, renew, pause and delete; and whose a sandbox is."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from service import errors
from service.core import identity, listing, records
from service.core.answers import Answer
from service.core.creating import Order, Seen
from service.core.problems import not_executed, refusal
from service.core.records import SandboxRecord
from service.core.room import ROW, UNBOUNDED, Share
from service.core.states import ClaimState
from service.messages import CreateSandbox, Sandbox, SandboxPage, SandboxState
from service.ports.engine import EngineError, NotReached, SandboxInfo, SandboxMissing, Unclear
from service.ports.store import Record

if TYPE_CHECKING:
    from service.core.app import Core

T = TypeVar("T")

DEFAULT_WAIT_READY = 30
LIVENESS = 2.0
"""Seconds for which a replayed sandbox is believed to live."""
PROBE = 4.0
"""Seconds for seeing whether a sandbox runs commands."""
SLOW = 0.4
"""Seconds of silence after which a sandbox may be paused."""
ASLEEP = 2.0
"""Seconds for the engine to say whether it is."""
MISS = 3.0
"""Seconds for which an id that nobody knows is remembered."""


class Sandboxes:
    """The use cases around sandboxes, for one replica."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = core.store
        self._engine = core.engine
        self._settings = core.settings
        self._records = core.sandbox_records
        self._expiry = core.expiry
        self._alive: dict[str, tuple[float, bool]] = {}
        self._asleep: dict[str, tuple[float, bool]] = {}

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
            seen = next((each for each in reversed(order.seen) if each.info.id == claim.sandbox_id), None)
            shown = await self._shown_when_ready(order.tenant, claim.sandbox_id, wait, seen)
            return Answer(shown, replayed, order.key)
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
            asked_until=info.expires_at,
            found=True,
        )
        await self._records.remember(sandbox_id, record)
        return record

    async def gone(self, sandbox_id: str) -> bool:
        """The engine says with certainty that the sandbox is gone.

        No certainty: False. Believed for ``LIVENESS`` seconds.
        """
        return (await self.asked_if_gone(sandbox_id))[0]

    async def asked_if_gone(self, sandbox_id: str) -> tuple[bool, SandboxInfo | None]:
        """``gone``, and what the engine said of the sandbox, if it was asked for that."""
        loop = asyncio.get_running_loop()
        known = self._alive.get(sandbox_id)
        if known is not None and known[0] > loop.time():
            return known[1], None
        info = None
        try:
            info = await self._engine.get_sandbox(sandbox_id)
            over = info.state.over
        except SandboxMissing:
            over = True
        except EngineError:
            return False, None
        self._note(sandbox_id, over=over)
        return over, info

    async def while_awake(self, sandbox_id: str, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` inside a sandbox comes to.

        Raises ``NotReached`` where that takes longer than ``SLOW`` and the engine says that the sandbox is paused: its
        daemon would not answer until it is resumed.
        """
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task}, timeout=SLOW)
            if not task.done() and await self.asleep(sandbox_id):
                raise NotReached("the sandbox is paused")
            return await task
        finally:
            if not task.done():
                task.cancel()

    async def asleep(self, sandbox_id: str) -> bool:
        """The engine says that the sandbox is paused. No certainty: False. Believed for ``LIVENESS`` seconds."""
        loop = asyncio.get_running_loop()
        known = self._asleep.get(sandbox_id)
        if known is not None and known[0] > loop.time():
            return known[1]
        try:
            async with asyncio.timeout(ASLEEP):
                state = (await self._engine.get_sandbox(sandbox_id)).state
        except (EngineError, TimeoutError):
            return False
        if len(self._asleep) >= 10_000:
            self._asleep.clear()
        asleep = state in (SandboxState.PAUSED, SandboxState.PAUSING)
        self._asleep[sandbox_id] = (loop.time() + LIVENESS, asleep)
        return asleep

    def _note(self, sandbox_id: str, *, over: bool) -> None:
        if len(self._alive) >= 10_000:
            self._alive.clear()
        self._alive[sandbox_id] = (asyncio.get_running_loop().time() + LIVENESS, over)

    # -- show and change

    async def get(self, tenant: str, sandbox_id: str) -> Sandbox:
        """The sandbox as it is now. Raises ``SandboxNotFound``, ``EngineUnavailable``."""
        record = await self.known(tenant, sandbox_id)
        return await self._shown(sandbox_id, record, await self._asked(sandbox_id))

    async def _shown(self, sandbox_id: str, record: SandboxRecord, info: SandboxInfo) -> Sandbox:
        ready = await self._ready(sandbox_id, record, info)
        return records.sandbox_view(sandbox_id, record, info, ready=ready)

    async def _shown_as(self, tenant: str, sandbox_id: str, seen: Seen | None) -> Sandbox:
        """The sandbox as it was ``seen``, or as the engine shows it now."""
        if seen is None:
            return await self.get(tenant, sandbox_id)
        return await self._shown(sandbox_id, seen.record or await self.known(tenant, sandbox_id), seen.info)

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
        """Running, and seen to run a command: "Running" alone proves nothing, and neither does a ping."""
        if info.state is not SandboxState.RUNNING:
            return False
        if record.ready:
            return True
        try:
            async with asyncio.timeout(PROBE):
                await self._core.fences.ready(sandbox_id)
        except (EngineError, TimeoutError):
            return False
        await self._records.amend(sandbox_id, record, ready=True)
        return True

    async def _shown_when_ready(self, tenant: str, sandbox_id: str, wait: float, seen: Seen | None) -> Sandbox:
        """The sandbox once it is ready, failed, or ``wait`` seconds are over. ``seen``: as it was a moment ago."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        delay = 0.05
        while True:
            try:
                async with asyncio.timeout(max(5.0, deadline - loop.time())):
                    sandbox = await self._shown_as(tenant, sandbox_id, seen)
            except (errors.EngineUnavailable, TimeoutError):
                record = await self.known(tenant, sandbox_id)
                sandbox = records.sandbox_view(sandbox_id, record, None, ready=False)
            seen, left = None, deadline - loop.time()
            if sandbox.ready or sandbox.state.over or left <= 0:
                return sandbox
            await asyncio.sleep(min(delay, left))
            delay = min(delay * 1.6, 1.0)

    async def renew(self, tenant: str, sandbox_id: str, timeout: int) -> Sandbox:
        """Let it live for ``timeout`` seconds from now; running jobs keep it alive all the same."""
        record = await self.known(tenant, sandbox_id)
        asked = await self._store.now() / 1000 + timeout
        before = await self._records.amend(sandbox_id, record, asked_until=asked)
        try:
            await self._expiry.settle(sandbox_id, tell=True)
        except EngineError as error:
            if not_executed(error):
                await self._not_renewed(sandbox_id, asked, before)
            raise refusal(error, sandbox_id=sandbox_id) from error
        return await self.get(tenant, sandbox_id)

    async def _not_renewed(self, sandbox_id: str, asked: float, before: SandboxRecord) -> None:
        """What was asked for before counts again, unless somebody asked for something else meanwhile."""
        raw, record = await self._records.read(sandbox_id)
        if record is not None and record.asked_until == asked:
            again = msgspec.structs.replace(record, asked_until=before.asked_until)
            await self._records.swap(sandbox_id, raw, again)

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
        self._asleep.pop(sandbox_id, None)
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
        await self._records.amend(sandbox_id, record, deleted=True)
        if record.digest is not None:
            await self._core.quotas.free_sandbox(tenant, record.digest)
        await self._core.follower.sandbox_ended(sandbox_id)
