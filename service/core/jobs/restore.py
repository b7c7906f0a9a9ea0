"""Jobs that Redis forgot: found by the fences in their sandboxes."""

from __future__ import annotations

import contextlib

from service import errors
from service.core import records
from service.core.fence.client import Fences
from service.core.fence.protocol import Fence
from service.core.jobs import outcome
from service.core.jobs.ledger import Ledger
from service.core.model import identity
from service.core.problems import refusal
from service.core.records import JobBody
from service.core.sandboxes.access import Access
from service.ports.engine import EngineError, SandboxMissing
from service.ports.store import Record, Store

MAX_ATTEMPTS = 64
"""Attempts that a walk through voided fences goes at the most."""


class Restorer:
    """Finds jobs. ``interval``: seconds for which a job that is not there is remembered."""

    def __init__(self, store: Store, fences: Fences, ledger: Ledger, access: Access, *, interval: float) -> None:
        self._store = store
        self._fences = fences
        self._ledger = ledger
        self._access = access
        self._interval = interval

    async def find(self, tenant: str, command_id: str) -> Record:
        """The record of a job of this tenant, found by its fence where Redis forgot it. Raises ``JobNotFound``."""
        missing = errors.JobNotFound(command_id=command_id)
        if identity.parse_command_id(command_id) is None:
            raise missing
        record = await self._store.get(command_id)
        if record is None or records.job_body(record).tenant != tenant:
            # One of another tenant goes the way of one that does not exist: its sandbox is not this tenant's.
            record = await self._restored(tenant, command_id)
        if records.job_body(record).tenant != tenant:
            raise missing
        return record

    async def _restored(self, tenant: str, command_id: str) -> Record:
        """The job that a fence in its sandbox is of. Raises ``JobNotFound``, ``EngineUnavailable``.

        One that is made up costs the engine one look an interval: misses are remembered.
        """
        missing = errors.JobNotFound(command_id=command_id)
        parsed = identity.parse_command_id(command_id)
        if parsed is None:
            raise missing
        sandbox_id, ref = parsed
        try:
            await self._access.known(tenant, sandbox_id)
        except errors.SandboxNotFound:
            raise missing from None
        if await self._store.recall(f"miss:{command_id}") is not None:
            raise missing
        attempt, found = 0, None
        try:
            attempt, found = await self._walk(sandbox_id, ref)
        except SandboxMissing:
            pass
        except EngineError as error:
            raise refusal(error, sandbox_id=sandbox_id) from error
        if found is None:
            await self._store.remember(f"miss:{command_id}", b"1", ttl=self._interval)
            raise missing
        return await self._ledger.restore(command_id, attempt, await self.body_of(tenant, sandbox_id, found))

    async def _walk(self, sandbox_id: str, ref: str) -> tuple[int, Fence | None]:
        for attempt in range(1, MAX_ATTEMPTS):
            found = await self._fences.read(sandbox_id, identity.fence_token(ref, attempt))
            if found is None or found.kind != "void":
                return attempt, found
        return MAX_ATTEMPTS, None

    async def body_of(self, tenant: str, sandbox_id: str, found: Fence) -> JobBody:
        """What a run's fence tells of its job."""
        now = await self._store.now() / 1000
        engine_id = outcome.engine_id_of(found.log)
        return JobBody(
            tenant=tenant,
            sandbox_id=sandbox_id,
            fingerprint=found.fingerprint or "",
            command="",
            timeout=found.timeout or 0,
            dispatched_at=now,
            kind="exec" if found.log is not None and found.log.endswith(".stdout") else "job",
            boot=await self._boot(sandbox_id),
            engine_id=engine_id,
            log=found.log,
            apart=found.apart,
            by_fence=engine_id is None,
        )

    async def _boot(self, sandbox_id: str) -> str | None:
        with contextlib.suppress(EngineError):
            mark = await self._fences.boot(sandbox_id)
            return mark.text if mark is not None else None
        return None
