"""Chores that one replica does at a time: late duplicates of sandboxes, and the budget of recorded output."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from service import audit
from service.core import records
from service.core.fence.client import Fences
from service.core.files.leftovers import Leftovers
from service.core.model import identity
from service.core.model.labels import RESERVED
from service.core.model.states import ClaimState
from service.core.sandboxes.liveness import Liveness
from service.core.telemetry import Telemetry
from service.errors import OnceboxError, StoreUnavailable
from service.messages import SandboxState
from service.ports.engine import Engine, EngineError, SandboxInfo
from service.ports.store import Store
from service.settings import Settings

log = logging.getLogger("oncebox.sweeper")

EVERY = 60.0
"""Seconds between two rounds, over all replicas."""
GRACE = 120.0
"""Seconds for which a late duplicate is left alone."""
CLEANED = 200
"""Jobs whose fences one round cleans away at the most."""
LEAVING = (SandboxState.STOPPING, SandboxState.TERMINATED)
"""Of a late duplicate that need not be deleted. One that failed must: its pod is there, and its daemon may be."""
PAGES = 100
"""Pages of the engine's list that one round reads at the most."""


class Sweeper:
    """Keeps things tidy."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        fences: Fences,
        liveness: Liveness,
        telemetry: Telemetry,
        settings: Settings,
        leftovers: Leftovers,
    ) -> None:
        self._store = store
        self._engine = engine
        self._fences = fences
        self._liveness = liveness
        self._telemetry = telemetry
        self._settings = settings
        self._leftovers = leftovers

    async def run(self) -> None:
        """A round now and then, for ever."""
        while True:
            await asyncio.sleep(EVERY / 6)
            with contextlib.suppress(StoreUnavailable, EngineError):
                if await self._store.lease("sweep", EVERY * 0.9):
                    await self.round()

    async def round(self) -> None:
        """Every chore; one that can't be done now holds up no other."""
        for chore in (self.trim_outputs, self.clean_fences, self.clean_uploads, self.delete_duplicates):
            try:
                await chore()
            except (StoreUnavailable, EngineError) as error:
                said = error.detail if isinstance(error, StoreUnavailable) else type(error).__name__
                log.warning("%s: not this time: %s", chore.__name__, said)

    async def trim_outputs(self) -> None:
        """Drop the oldest recorded outputs beyond the budget."""
        await self._store.trim_outputs(self._settings.record_budget)

    async def delete_duplicates(self) -> None:
        """Delete sandboxes that came late and were never handed out."""
        page, more = 1, True
        while more and page <= PAGES:
            listing = await self._engine.list_sandboxes({}, page=page)
            more, page = listing.has_next, page + 1
            if listing.left_out:
                log.warning("%d sandboxes in the engine's list can't be read", listing.left_out)
            for info in listing.items:
                if await self._may_go(info):
                    await self._delete(info)

    async def _may_go(self, info: SandboxInfo) -> bool:
        """``given_up``, as far as that can be read: else the sandbox stays, and the others have their turn."""
        try:
            return await self.given_up(info)
        except StoreUnavailable as error:
            log.warning("sandbox %s is left alone: %s", info.id, error.detail)
            self._telemetry.unreadable()
            return False

    async def _delete(self, info: SandboxInfo) -> None:
        log.warning("deleting sandbox %s, a late duplicate that was never handed out", info.id)
        tenant = info.metadata.get(f"{RESERVED}tenant")
        try:
            await self._engine.delete_sandbox(info.id)
        except EngineError as error:
            log.warning("sandbox %s was not deleted: %s", info.id, error.code or type(error).__name__)
            audit.record("sandbox.sweep", "failed", tenant=tenant, sandbox_id=info.id)
            return
        audit.record("sandbox.sweep", "done", tenant=tenant, sandbox_id=info.id)

    async def clean_fences(self) -> None:
        """Remove fences and output files of jobs whose record has ended by itself, sandbox by sandbox."""
        tokens: dict[str, list[tuple[str, str]]] = {}
        for chore in await self._store.due_chores("fences", limit=CLEANED, lease=EVERY * 10):
            command_id, _, attempts = chore.partition(" ")
            parsed, last = identity.parse_command_id(command_id), identity.parse_attempt(attempts)
            if parsed is None or last is None:  # nothing that we have listed
                await self._store.complete("fences", chore)
                continue
            found = tokens.setdefault(parsed[0], [])
            found += [(chore, identity.fence_token(parsed[1], n)) for n in range(1, last + 1)]
        for sandbox_id, some in tokens.items():
            try:
                await self._fences.clean(sandbox_id, [token for _, token in some], age=int(self._settings.retention))
            except EngineError:
                if not await self._liveness.gone(sandbox_id):
                    continue
            for chore in {chore for chore, _ in some}:
                await self._store.complete("fences", chore)

    async def clean_uploads(self) -> None:
        """Remove what uploads and reads of replicas that are gone have left, sandbox by sandbox.

        Taken off the list first: whoever begins meanwhile lists it again.
        """
        for sandbox_id in await self._store.due_chores("uploads", limit=CLEANED, lease=EVERY * 10):
            await self._store.complete("uploads", sandbox_id)
            try:
                left = await self._leftovers.remove(sandbox_id)
            except OnceboxError:
                left = not await self._liveness.gone(sandbox_id)
            if left:
                await self._store.plan("uploads", sandbox_id, after=EVERY * 10)

    async def given_up(self, info: SandboxInfo, *, grace: float = GRACE) -> bool:
        """The present claim is of the same generation, names another sandbox, and gave this attempt up."""
        labels = info.metadata
        digest = labels.get(f"{RESERVED}idem")
        attempt = identity.parse_attempt(labels.get(f"{RESERVED}attempt", ""))
        if not digest or attempt is None or info.state in LEAVING:
            return False
        record = await self._store.get(digest)
        if record is None or record.state is not ClaimState.DONE:
            return False
        claim = records.claim_body(record)
        generation = labels.get(f"{RESERVED}generation", "")
        if not records.never_handed_out(claim, sandbox_id=info.id, generation=generation, attempt=attempt):
            return False
        if not records.belongs(info, claim.tenant, self._settings.secret):
            return False
        remembered = await self._store.get_sandbox(info.id)
        if remembered is not None and records.sandbox_record(remembered).digest != digest:
            return False  # somebody else's, whatever its labels say by now
        return record.now / 1000 - (info.created_at or record.now / 1000) > grace
