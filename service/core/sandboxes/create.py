"""Create a sandbox once.

The rules: claim the digest; look for the sandbox by its metadata and check every item; else create; when a create's
outcome is not known, look again before anything is created anew; among several, everybody takes the oldest.
`tests/unit/core/sandboxes/test_sandbox_protocol.py` explores them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

import msgspec

from service import errors
from service.core import records
from service.core.claims import failpoints
from service.core.claims.once import Claims
from service.core.claims.ownership import Ownership
from service.core.fence.protocol import reserved
from service.core.limits.quotas import Quotas
from service.core.model import identity, labels, validation
from service.core.model.policy import Policy
from service.core.model.states import ClaimState
from service.core.problems import not_executed, refusal
from service.core.records import SandboxClaim, SandboxRecord
from service.core.sandboxes.liveness import Liveness
from service.core.sandboxes.records import SandboxRecords
from service.core.telemetry import Telemetry
from service.messages import CreateSandbox, Resources, SandboxState
from service.ports.engine import Engine, EngineError, Mount, SandboxInfo, SandboxSpec, TakenBack
from service.ports.store import Record, Store
from service.settings import Settings

log = logging.getLogger("oncebox.sandboxes")

DEFAULT_TIMEOUT = 3600
DEFAULT_CPU, DEFAULT_MEMORY = "2", "4Gi"
DEFAULT_ENTRYPOINT = ("sleep", "infinity")

LOOKUP_TRIES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0, 15.0, 15.0)
"""Seconds before each look for a sandbox whose create was not answered: about as long as an engine may take."""


class Seen(msgspec.Struct, frozen=True):
    """A sandbox as the engine showed it a moment ago. ``record``: what was written of it then; None: read it."""

    info: SandboxInfo
    record: SandboxRecord | None = None


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request for a sandbox."""

    tenant: str
    owner: str | None
    fingerprint: str
    digest: str
    key: str
    new_key: bool
    """The key was made for this very request, so nothing of it can exist."""
    spec: SandboxSpec
    resources: Resources
    seen: list[Seen] = msgspec.field(default_factory=list)
    """What the engine said of the sandbox on the way: the last is the latest."""


class Creator:
    """Creates sandboxes, for one replica."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        ownership: Ownership,
        claims: Claims,
        sandboxes: SandboxRecords,
        liveness: Liveness,
        quotas: Quotas,
        policy: Policy,
        telemetry: Telemetry,
        settings: Settings,
        *,
        lookup_tries: Sequence[float] = LOOKUP_TRIES,
    ) -> None:
        self._store = store
        self._engine = engine
        self._ownership = ownership
        self._claims = claims
        self._sandboxes = sandboxes
        self._liveness = liveness
        self._quotas = quotas
        self._policy = policy
        self._telemetry = telemetry
        self._settings = settings
        self._lookup_tries = lookup_tries

    def order(self, tenant: str, request: CreateSandbox, key: str | None) -> Order:
        owner = validation.owner(request.workspace_owner)
        if owner is not None and not self._policy.may_use(tenant, owner):
            raise errors.Forbidden("This tenant may not use this workspace_owner.")
        labels = validation.metadata(request.metadata)
        meaning = msgspec.structs.replace(request, metadata=labels if request.metadata is not None else None)
        fingerprint = identity.fingerprint(meaning, leave_out=frozenset({"wait_ready"}))
        own_key = key or identity.random_token()
        asked = validation.resources(request.resources)
        resources = Resources(cpu=asked.cpu or DEFAULT_CPU, memory=asked.memory or DEFAULT_MEMORY)
        spec = SandboxSpec(
            image=validation.image(request.image) or self._settings.image,
            entrypoint=validation.texts("entrypoint", request.entrypoint) or DEFAULT_ENTRYPOINT,
            cpu=resources.cpu or DEFAULT_CPU,
            memory=resources.memory or DEFAULT_MEMORY,
            timeout=request.timeout or DEFAULT_TIMEOUT,
            env=validation.sandbox_env(request.env, reserved=reserved),
            metadata=labels,
            volumes=self._mounts(owner),
        )
        return Order(
            tenant=tenant,
            owner=owner,
            fingerprint=fingerprint,
            digest=identity.sandbox_digest(tenant, owner, fingerprint, own_key),
            key=own_key,
            new_key=key is None or isinstance(key, identity.MadeKey),
            spec=spec,
            resources=resources,
        )

    def _mounts(self, owner: str | None) -> list[Mount]:
        if owner is None:
            return []
        volume = self._settings.volume
        if volume is None:
            raise errors.InvalidRequest.of(
                "workspace_owner", "needs a volume for workspaces, and none is set (ONCEBOX_VOLUME)"
            )
        kind, _, name = volume.partition(":")
        return [
            Mount(
                name=f"workspace-{number}",
                host=name if kind == "host" else None,
                claim=name if kind == "pvc" else None,
                sub_path=f"{owner}/{directory}",
                mount_path=mount,
            )
            for number, (directory, mount) in enumerate(self._settings.workspace_dirs)
        ]

    async def settle(self, order: Order) -> tuple[Record, bool]:
        """The claim as far as it got within ``claim_wait``, and whether somebody else's work answered.

        Raises ``InvalidRequest`` for a value that the engine may read otherwise than it is written.
        """
        await self._check_dollars(order.spec)
        fresh = SandboxClaim(
            tenant=order.tenant,
            fingerprint=order.fingerprint,
            owner=order.owner,
            generation=identity.random_token()[:16],
        )
        return await self._claims.once(
            order.digest,
            make=lambda token: self._claim(order.digest, token, records.encode(fresh)),
            take=lambda record, token: self._take(record, order, token),
            work=lambda mine: self._make(mine, order),
            wait=self._settings.claim_wait,
        )

    async def _check_dollars(self, spec: SandboxSpec) -> None:
        field = validation.expandable(spec.entrypoint, spec.env)
        if field is None:
            return
        try:
            runtime = await self._engine.runtime()
        except EngineError as error:
            raise refusal(error) from error
        if runtime is None:
            raise errors.InvalidRequest.of(
                field,
                "holds '$(' or '$$', which Kubernetes alone expands; ONCEBOX_ENGINE_RUNTIME must say what runs here",
            )

    async def _claim(self, digest: str, token: str, body: bytes) -> tuple[bool, Record]:
        made = await self._ownership.claim(digest, token, body)
        return made.done, made.record

    async def _take(self, record: Record, order: Order, token: str) -> tuple[bool, Record | None] | None:
        """Take over what may be taken over: (ours, as it is now). None: it stands, wait for it or replay it."""
        claim = records.claim_body(record)
        if claim.fingerprint != order.fingerprint and not record.state.failed:
            self._telemetry.claim("sandbox", "conflict")
            raise errors.IdempotencyKeyReused("This key was used for another sandbox; nothing was created.")
        match record.state:
            case ClaimState.CLAIMED if record.lease_expired:
                return await self._ownership.take_over(record, token)
            case ClaimState.DISPATCHED if record.lease_expired:
                _, now = await self._store.abandon(record, body=record.body, ttl=None)
                return False, now
            case ClaimState.DONE if claim.sandbox_id is not None and await self._gone(claim.sandbox_id, order):
                return await self._reopen(record, order, token, claim.given_up)
            case ClaimState.UNKNOWN:
                return await self._reopen(record, order, token, [*claim.given_up, record.attempt])
            case ClaimState.REFUSED | ClaimState.VOIDED:
                return await self._reopen(record, order, token, claim.given_up)
        return None

    async def _gone(self, sandbox_id: str, order: Order) -> bool:
        gone, info = await self._liveness.asked_if_gone(sandbox_id)
        if info is not None:
            order.seen.append(Seen(info))
        if gone and info is not None and info.state is SandboxState.FAILED and not info.over:
            return await self._ended(sandbox_id)
        return gone

    async def _ended(self, sandbox_id: str) -> bool:
        """End a failed sandbox whose container may come back, so that it is never there beside the next one."""
        try:
            await self._engine.delete_sandbox(sandbox_id)
        except EngineError:
            return False
        self._liveness.note_over(sandbox_id)
        return True

    async def _reopen(
        self, record: Record, order: Order, token: str, given_up: Sequence[int]
    ) -> tuple[bool, Record | None]:
        claim = records.claim_body(record)
        body = msgspec.structs.replace(
            claim, fingerprint=order.fingerprint, given_up=list(given_up), sandbox_id=None, failure=None
        )
        next_attempt = record.state is not ClaimState.REFUSED
        return await self._ownership.reopen(record, token, records.encode(body), next_attempt=next_attempt)

    async def _make(self, mine: Record, order: Order) -> Record | None:
        """The owner's work: find it or create it, and settle the claim."""
        claim = records.claim_body(mine)
        if not (order.new_key and mine.epoch == 1):
            with contextlib.suppress(EngineError):
                found = await self._find(order.digest, claim)
                if found is not None:
                    return await self._done(mine, order, claim, found, adopted=True)
        try:
            await self._quotas.take_sandbox(order.tenant, order.digest)
        except errors.QuotaExceeded as error:
            return await self._failed(mine, claim, error)
        await failpoints.reach(failpoints.BEFORE_DISPATCH)
        sent, record = await self._ownership.dispatch(mine, mine.body)
        if not sent:
            return record
        await failpoints.reach(failpoints.DISPATCHED)
        await self._quotas.sending_sandbox(order.tenant, order.digest)
        reserved = records.reserved_metadata(order.digest, claim, mine.attempt, self._settings.secret)
        spec = msgspec.structs.replace(order.spec, metadata={**order.spec.metadata, **reserved})
        made: SandboxInfo | None
        try:
            made = await self._engine.create_sandbox(spec)
        except EngineError as error:
            if not_executed(error):
                await self._quotas.free_sandbox(order.tenant, order.digest)
                return await self._failed(mine, claim, refusal(error))
            if isinstance(error, TakenBack) and await self._nothing_left(order.digest, claim):
                await self._quotas.free_sandbox(order.tenant, order.digest)
                return await self._failed(mine, claim, refusal(error))
            # Never the engine's own words in the log: they may repeat what it was sent.
            log.warning("create of %s not answered: %s", order.digest, type(error).__name__)
            made = await self._find_late(order.digest, claim)
        await failpoints.reach(failpoints.AFTER_DISPATCH)
        if made is None:
            return await self._unknown(mine)
        if mine.attempt > 1:
            with contextlib.suppress(EngineError):
                oldest = await self._find(order.digest, claim)
                if oldest is not None and oldest.id != made.id:
                    claim = msgspec.structs.replace(claim, given_up=[*claim.given_up, mine.attempt])
                    made = oldest
        return await self._done(mine, order, claim, made, adopted=mine.attempt > 1)

    async def _find(self, digest: str, claim: SandboxClaim) -> SandboxInfo | None:
        """The oldest live sandbox of this digest; each item is checked here, whatever the engine's filter did."""
        wanted = records.reserved_metadata(digest, claim, 0, self._settings.secret)
        keys = [f"{labels.RESERVED}{name}" for name in ("idem", "idem-owner", "tenant", "signature")]
        matches = []
        page, more = 1, True
        while more and page <= 5:
            listing = await self._engine.list_sandboxes({keys[0]: digest}, page=page)
            more, page = listing.has_next, page + 1
            matches += [
                item
                for item in listing.items
                if (item.state.live or item.state is SandboxState.FAILED)
                and not item.over
                and all(item.metadata.get(key, "") == wanted[key] for key in keys)
            ]
        return records.oldest([item for item in matches if await self._adoptable(item, digest, claim)])

    async def _adoptable(self, info: SandboxInfo, digest: str, claim: SandboxClaim) -> bool:
        """What is remembered of a sandbox counts more than its labels, which others may have written.

        Of a failed one it counts whether its daemon is there.
        """
        if info.state is SandboxState.FAILED and await self._liveness.refuses(info.id):
            return False
        raw = await self._ownership.persist(lambda: self._store.get_sandbox(info.id))
        if raw is None:
            return True
        record = records.sandbox_record(raw)
        return record.tenant == claim.tenant and record.digest == digest and not record.deleted

    async def _nothing_left(self, digest: str, claim: SandboxClaim) -> bool:
        """A look after a moment, since a list may lag behind the removal; not answered: False."""
        await asyncio.sleep(max(self._lookup_tries[:2], default=0.0))
        with contextlib.suppress(EngineError):
            return await self._find(digest, claim) is None
        return False

    async def _find_late(self, digest: str, claim: SandboxClaim) -> SandboxInfo | None:
        for delay in self._lookup_tries:
            await asyncio.sleep(delay)
            with contextlib.suppress(EngineError):
                found = await self._find(digest, claim)
                if found is not None:
                    return found
        return None

    async def _done(
        self, mine: Record, order: Order, claim: SandboxClaim, info: SandboxInfo, *, adopted: bool
    ) -> Record | None:
        remembered = SandboxRecord(
            tenant=order.tenant,
            owner=order.owner,
            digest=order.digest,
            image=order.spec.image,
            resources=order.resources,
            metadata=dict(order.spec.metadata),
            created_at=info.created_at,
            expires_at=info.expires_at,
            asked_until=info.expires_at,
            found=adopted,
        )
        sandboxes, persist = self._sandboxes, self._ownership.persist
        await persist(lambda: sandboxes.remember(info.id, remembered))
        order.seen.append(Seen(info, remembered))
        await failpoints.reach(failpoints.BEFORE_SETTLE)
        body = records.encode(msgspec.structs.replace(claim, sandbox_id=info.id, failure=None))
        record = await self._ownership.settle(mine, ClaimState.DONE, body, ttl=self._settings.retention)
        if not adopted and (record is None or record.token != mine.token):
            # Redis was emptied meanwhile: what happened in the sandbox by then may be forgotten as well.
            await persist(lambda: sandboxes.amend(info.id, remembered, found=True))
        return record

    async def _failed(self, mine: Record, claim: SandboxClaim, error: errors.OnceboxError) -> Record | None:
        await failpoints.reach(failpoints.BEFORE_SETTLE)
        body = records.encode(msgspec.structs.replace(claim, failure=records.Failure.of(error)))
        return await self._ownership.settle(mine, ClaimState.REFUSED, body, ttl=self._settings.retention)

    async def _unknown(self, mine: Record) -> Record | None:
        self._telemetry.unknown("sandbox")
        return await self._ownership.settle(mine, ClaimState.UNKNOWN, mine.body, ttl=None)
