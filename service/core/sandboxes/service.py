"""Sandboxes: create once (`core.sandboxes.create`), show, list, renew, pause and delete."""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

from service import errors
from service.core import records
from service.core.fence.client import Fences
from service.core.limits.quotas import Quotas
from service.core.model.answers import Answer
from service.core.model.states import ClaimState
from service.core.problems import not_executed, refusal
from service.core.records import SandboxRecord
from service.core.sandboxes.access import Access
from service.core.sandboxes.create import Creator, Order, Seen
from service.core.sandboxes.expiry import Expiry
from service.core.sandboxes.liveness import Liveness
from service.core.sandboxes.records import SandboxRecords
from service.messages import CreateSandbox, Sandbox, SandboxState
from service.ports.engine import Engine, EngineError, NotReached, SandboxInfo, Unclear
from service.ports.store import Record, Store

DEFAULT_WAIT_READY = 30
PAUSE_SEEN = 5.0
"""Seconds for which a pause that was taken is watched: the engine gives up what it can't do within 2 s."""
PROBE = 4.0
"""Seconds for seeing whether a sandbox runs commands."""


class Jobs(Protocol):
    """The jobs in a sandbox that ends."""

    async def record_before_delete(self, sandbox_id: str) -> None:
        """Record what they have written."""
        ...

    async def sandbox_ended(self, sandbox_id: str) -> None:
        """Close them: the sandbox is gone."""
        ...


class Sandboxes:
    """The use cases around sandboxes, for one replica."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        fences: Fences,
        creator: Creator,
        access: Access,
        sandboxes: SandboxRecords,
        expiry: Expiry,
        liveness: Liveness,
        quotas: Quotas,
        jobs: Jobs,
    ) -> None:
        self._store = store
        self._engine = engine
        self._fences = fences
        self._creator = creator
        self._access = access
        self._records = sandboxes
        self._expiry = expiry
        self._liveness = liveness
        self._quotas = quotas
        self._jobs = jobs

    # -- create

    async def create(self, tenant: str, request: CreateSandbox, key: str | None) -> Answer[Sandbox]:
        """The sandbox of this key: made now, waited for, or replayed.

        Raises ``IdempotencyInProgress``, ``IdempotencyKeyReused``, ``OutcomeUnknown`` and what the engine's refusal
        means.
        """
        order = self._creator.order(tenant, request, key)
        wait = DEFAULT_WAIT_READY if request.wait_ready is None else request.wait_ready
        record, replayed = await self._creator.settle(order)
        try:
            return await self._answer(order, record, replayed, wait)
        except errors.SandboxNotFound:
            if not replayed:
                raise
            # It was alive a moment ago (``LIVENESS``), and has been deleted or has ended since.
            self._liveness.note_over(records.claim_body(record).sandbox_id or "")
        record, replayed = await self._creator.settle(order)
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

    # -- show and change

    async def get(self, tenant: str, sandbox_id: str) -> Sandbox:
        """The sandbox as it is now. Raises ``SandboxNotFound``, ``EngineUnavailable``."""
        record = await self._access.known(tenant, sandbox_id)
        return await self._shown(sandbox_id, record, await self._asked(sandbox_id))

    async def _shown(self, sandbox_id: str, record: SandboxRecord, info: SandboxInfo) -> Sandbox:
        ready = await self._ready(sandbox_id, record, info)
        return records.sandbox_view(sandbox_id, record, info, ready=ready)

    async def _shown_as(self, tenant: str, sandbox_id: str, seen: Seen | None) -> Sandbox:
        """The sandbox as it was ``seen``, or as the engine shows it now."""
        if seen is None:
            return await self.get(tenant, sandbox_id)
        return await self._shown(sandbox_id, seen.record or await self._access.known(tenant, sandbox_id), seen.info)

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
                await self._fences.ready(sandbox_id)
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
                record = await self._access.known(tenant, sandbox_id)
                sandbox = records.sandbox_view(sandbox_id, record, None, ready=False)
            seen, left = None, deadline - loop.time()
            if sandbox.ready or sandbox.state.over or left <= 0:
                return sandbox
            await asyncio.sleep(min(delay, left))
            delay = min(delay * 1.6, 1.0)

    async def renew(self, tenant: str, sandbox_id: str, timeout: int) -> Sandbox:
        """Let it live for ``timeout`` seconds from now; running jobs keep it alive all the same."""
        record = await self._access.known(tenant, sandbox_id)
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
        record = await self._access.known(tenant, sandbox_id)
        try:
            await (self._engine.pause_sandbox if pause else self._engine.resume_sandbox)(sandbox_id)
        except EngineError as error:
            there = (
                {SandboxState.PAUSED, SandboxState.PAUSING} if pause else {SandboxState.RUNNING, SandboxState.RESUMING}
            )
            if isinstance(error, Unclear | NotReached) or (await self._asked(sandbox_id)).state not in there:
                raise refusal(error, sandbox_id=sandbox_id) from error
        self._liveness.forget(sandbox_id)
        if pause:
            return await self._shown(sandbox_id, record, await self._paused(sandbox_id))
        for job in await self._store.active_of(sandbox_id):  # its looks got rare while nothing answered
            await self._store.schedule(job, after=0.0)
        return await self.get(tenant, sandbox_id)

    async def _paused(self, sandbox_id: str) -> SandboxInfo:
        """The sandbox as it is once it is paused, or about to be.

        Raises ``EngineRejected`` where the engine took the pause and does not carry it out: on Kubernetes it needs a
        registry for snapshots, and without one the sandbox is pausing for a moment, then running.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PAUSE_SEEN
        begun = False
        while True:
            info = await self._asked(sandbox_id)
            late = loop.time() > deadline
            if info.state not in (SandboxState.RUNNING, SandboxState.PAUSING):
                return info
            if info.state is SandboxState.RUNNING and (begun or late):
                raise errors.EngineRejected(
                    "The engine took the pause and did not carry it out: the sandbox runs. On Kubernetes a pause needs "
                    "a registry for snapshots.",
                    sandbox_id=sandbox_id,
                )
            if late:
                return info
            begun = begun or info.state is SandboxState.PAUSING
            await asyncio.sleep(0.2)

    async def delete(self, tenant: str, sandbox_id: str) -> None:
        """Delete it, after recording what its jobs have written; again is fine."""
        record = await self._access.known(tenant, sandbox_id, deleted=True)
        if record.deleted:
            return
        await self._jobs.record_before_delete(sandbox_id)
        try:
            await self._engine.delete_sandbox(sandbox_id)
        except EngineError as error:
            raise refusal(error, sandbox_id=sandbox_id) from error
        self._liveness.forget(sandbox_id)
        await self._records.amend(sandbox_id, record, deleted=True)
        if record.digest is not None:
            await self._quotas.free_sandbox(tenant, record.digest)
        await self._jobs.sandbox_ended(sandbox_id)
