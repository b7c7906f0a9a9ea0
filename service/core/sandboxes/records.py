"""The records of sandboxes, by id: read, written, and changed by compare-and-set."""

from __future__ import annotations

from typing import Any

import msgspec

from service.core import records
from service.core.limits.quotas import Quotas
from service.core.records import SandboxRecord
from service.ports.store import Store

UNKNOWN_LIFE = 86_400.0
"""Seconds for which a sandbox is remembered whose expiry is not known."""


class SandboxRecords:
    """What is remembered of sandboxes. Every method raises ``StoreUnavailable``."""

    def __init__(self, store: Store, quotas: Quotas, *, retention: float) -> None:
        self._store = store
        self._quotas = quotas
        self._retention = retention

    async def get(self, sandbox_id: str) -> SandboxRecord | None:
        """The record, whosever it is."""
        return (await self.read(sandbox_id))[1]

    async def read(self, sandbox_id: str) -> tuple[bytes | None, SandboxRecord | None]:
        """The record, and how it stands in the store: for ``swap``."""
        raw = await self._store.get_sandbox(sandbox_id)
        return raw, None if raw is None else records.sandbox_record(raw)

    async def remember(self, sandbox_id: str, record: SandboxRecord) -> None:
        """Keep a record until its expiry plus the retention."""
        left = await self._left(record)
        await self._store.put_sandbox(sandbox_id, records.encode(record), ttl=left + self._retention)
        await self._hold(record, left)

    async def swap(self, sandbox_id: str, raw: bytes | None, record: SandboxRecord) -> bool:
        """Keep a record where it still stands as ``raw``; False where it does not."""
        left = await self._left(record)
        if not await self._store.swap_sandbox(sandbox_id, raw, records.encode(record), ttl=left + self._retention):
            return False
        await self._hold(record, left)
        return True

    async def amend(self, sandbox_id: str, known: SandboxRecord, **changes: Any) -> SandboxRecord:
        """Change a record, whatever others change in it meanwhile; the record as it was before.

        ``known`` counts where it has been forgotten; what happened in the sandbox then has been forgotten as well.
        """
        raw: bytes | None = records.encode(known)
        found: SandboxRecord | None = known
        read = False
        while True:  # most often nobody has changed it since ``known`` was read or written: that is compared first
            before = found or msgspec.structs.replace(known, found=True)
            after = msgspec.structs.replace(before, **changes)
            if read if after == before else await self.swap(sandbox_id, raw, after):
                return before
            raw, found = await self.read(sandbox_id)
            read = True

    async def _left(self, record: SandboxRecord) -> float:
        now = await self._store.now() / 1000
        return max(0.0, (record.expires_at or now + UNKNOWN_LIFE) - now)

    async def _hold(self, record: SandboxRecord, left: float) -> None:
        if record.digest is not None and not record.deleted:
            await self._quotas.hold_sandbox(record.tenant, record.digest, left)
