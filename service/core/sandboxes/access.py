"""Whose a sandbox is: by what is remembered of it, else by its labels at the engine."""

from __future__ import annotations

from service import errors
from service.core import records
from service.core.model import identity
from service.core.model.labels import RESERVED, is_reserved
from service.core.problems import refusal
from service.core.records import SandboxRecord
from service.core.sandboxes.records import SandboxRecords
from service.ports.engine import Engine, EngineError, SandboxMissing
from service.ports.store import Store

MISS = 3.0
"""Seconds for which an id that nobody knows is remembered."""


class Access:
    """Lets tenants at their own sandboxes. ``secret``: what their labels are signed with."""

    def __init__(self, store: Store, engine: Engine, sandboxes: SandboxRecords, *, secret: str | None) -> None:
        self._store = store
        self._engine = engine
        self._sandboxes = sandboxes
        self._secret = secret

    async def known(self, tenant: str, sandbox_id: str, *, deleted: bool = False) -> SandboxRecord:
        """The record of a sandbox of this tenant.

        Raises ``SandboxNotFound`` for all others. One of another tenant goes the way of one that does not exist, the
        look at the engine included, so that neither the answer nor its time tells the two apart.
        """
        missing = errors.SandboxNotFound(sandbox_id=sandbox_id)
        if not identity.plausible_sandbox_id(sandbox_id):
            raise missing
        raw, record = await self._sandboxes.read(sandbox_id)
        if record is not None and record.tenant == tenant:
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
        if info is None or raw is not None or not records.belongs(info, tenant, self._secret):
            await self._store.remember(miss, b"1", ttl=MISS)
            raise missing
        labels = info.metadata
        record = SandboxRecord(
            tenant=tenant,
            digest=labels.get(f"{RESERVED}idem") or None,
            image=info.image,
            metadata={key: value for key, value in labels.items() if not is_reserved(key)},
            created_at=info.created_at,
            expires_at=info.expires_at,
            asked_until=info.expires_at,
            found=True,
        )
        await self._sandboxes.remember(sandbox_id, record)
        return record
