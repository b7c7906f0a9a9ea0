"""Quotas over all replicas: slots in the store that end by themselves, so that no crash can leak one.

A slot is taken before the engine is asked for anything, by whoever owns the claim, under the claim's own name: a
retry or a takeover finds it taken already.
"""

from __future__ import annotations

import contextlib

from service.core.model.policy import Policy
from service.errors import QuotaExceeded, StoreUnavailable
from service.ports.store import Store

BEGINNING = 30.0
"""Seconds for which a slot is held until the create is about to leave: a crash before it gives the slot back."""
LEAKS_EVERY = 5.0
"""Seconds between two looks for slots that nobody gave back."""
CREATING = 900.0
"""Seconds for which a slot is held while its sandbox is being created: longer than any create may take."""


class Quotas:
    """Counts what tenants have; asks the store only where a tenant has a limit."""

    def __init__(self, store: Store, policy: Policy) -> None:
        self._store = store
        self._policy = policy

    async def take_sandbox(self, tenant: str, digest: str) -> None:
        """A slot for a sandbox that is about to be created. Raises ``QuotaExceeded``."""
        limit = self._policy.quota(tenant).sandboxes
        if limit is not None and not await self._store.reserve(
            f"sandboxes:{tenant}", digest, limit=limit, ttl=BEGINNING
        ):
            raise QuotaExceeded(f"This tenant has its {limit} live sandboxes.", retry_after=10)

    async def sending_sandbox(self, tenant: str, digest: str) -> None:
        """The create is about to leave. A store that is away is no reason to stop now: the slot ends early then."""
        with contextlib.suppress(StoreUnavailable):
            await self.hold_sandbox(tenant, digest, CREATING)

    async def hold_sandbox(self, tenant: str, digest: str, seconds: float) -> None:
        """The sandbox lives for ``seconds`` from now."""
        if self._policy.quota(tenant).sandboxes is not None:
            await self._store.reserve(f"sandboxes:{tenant}", digest, limit=None, ttl=seconds)

    async def free_sandbox(self, tenant: str, digest: str) -> None:
        """The sandbox is gone, or was never made."""
        if self._policy.quota(tenant).sandboxes is not None:
            await self._store.vacate(f"sandboxes:{tenant}", digest)

    async def take_job(self, tenant: str, command_id: str) -> None:
        """A slot for a job that is about to be sent, for ``BEGINNING``. Raises ``QuotaExceeded``."""
        limit = self._policy.quota(tenant).jobs
        if limit is None:
            return
        if await self._store.reserve(f"jobs:{tenant}", command_id, limit=limit, ttl=BEGINNING):
            return
        if await self._freed(tenant) and await self._store.reserve(
            f"jobs:{tenant}", command_id, limit=limit, ttl=BEGINNING
        ):
            return
        raise QuotaExceeded(f"This tenant has its {limit} running jobs.", retry_after=5)

    async def _freed(self, tenant: str) -> bool:
        """Give back slots of jobs that are over: whoever wrote their end may have ended before it gave them back.

        Looked for once in ``LEAKS_EVERY`` at the most.
        """
        if not await self._store.lease(f"leaks:{tenant}", LEAKS_EVERY):
            return False
        holders = await self._store.holders(f"jobs:{tenant}")
        settled = [id for id, left in holders.items() if left > BEGINNING]
        records = await self._store.get_many(settled)
        over = [id for id, job in zip(settled, records, strict=True) if job is None or not job.state.active]
        for id in over:
            await self._store.vacate(f"jobs:{tenant}", id)
        return bool(over)

    async def sending_job(self, tenant: str, command_id: str, seconds: float) -> None:
        """The job is about to be sent, and holds its slot for ``seconds`` at most. A store that is away is no reason to
        stop now: the slot ends early then.
        """
        if self._policy.quota(tenant).jobs is not None:
            with contextlib.suppress(StoreUnavailable):
                await self._store.reserve(f"jobs:{tenant}", command_id, limit=None, ttl=seconds)

    async def free_job(self, tenant: str, command_id: str) -> None:
        """The job is over, or was never sent."""
        if self._policy.quota(tenant).jobs is not None:
            await self._store.vacate(f"jobs:{tenant}", command_id)
