"""Create a sandbox once; find, show, renew, pause and delete it.

The rules are those of `model/`'s sandbox protocol: claim the digest; look for the sandbox by its metadata and
check every item; else create; when a create's outcome is not known, look again before anything is created anew;
among several, everybody takes the oldest.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from service import errors
from service.core import identity, listing, pauses, records, rules
from service.core.answers import Answer
from service.core.fence import RESERVED_VARIABLES
from service.core.problems import not_executed, refusal
from service.core.records import SandboxClaim, SandboxRecord
from service.core.states import ClaimState
from service.messages import CreateSandbox, Resources, Sandbox, SandboxPage, SandboxState
from service.ports.engine import (
    EngineError,
    Mount,
    NotReached,
    SandboxInfo,
    SandboxMissing,
    SandboxSpec,
    Unclear,
)
from service.ports.store import Record

if TYPE_CHECKING:
    from service.core.app import Core

log = logging.getLogger("oncebox.sandboxes")

DEFAULT_TIMEOUT = 3600
DEFAULT_WAIT_READY = 30
DEFAULT_CPU, DEFAULT_MEMORY = "2", "4Gi"
DEFAULT_ENTRYPOINT = ("sleep", "infinity")

LOOKUP_TRIES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0, 15.0, 15.0)
"""Seconds before each look for a sandbox whose create was not answered: about as long as an engine may take."""
LIVENESS = 2.0
"""Seconds for which a replayed sandbox is believed to live."""
MISS = 3.0
"""Seconds for which an id that nobody knows is remembered."""


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
        order = self._order(tenant, request, key)
        record, replayed = await self._settle(order)
        claim = records.claim_body(record)
        if record.state is ClaimState.DONE and claim.sandbox_id is not None:
            wait = DEFAULT_WAIT_READY if request.wait_ready is None else request.wait_ready
            return Answer(await self._shown_when_ready(tenant, claim.sandbox_id, wait), replayed, order.key)
        if record.state.failed and claim.failure is not None:
            raise claim.failure.exception()
        if record.state is ClaimState.UNKNOWN:
            raise errors.OutcomeUnknown(
                "The engine did not say whether it made the sandbox; the next try looks for it again.",
                retry_after=2,
                retryable=key is not None,
            )
        raise errors.IdempotencyInProgress("The sandbox of this key is still being created.", retry_after=2)

    def _order(self, tenant: str, request: CreateSandbox, key: str | None) -> Order:
        owner = rules.owner(request.workspace_owner)
        if owner is not None and not self._core.policy.may_use(tenant, owner):
            raise errors.Forbidden("This tenant may not use this workspace_owner.")
        labels = rules.metadata(request.metadata)
        meaning = msgspec.structs.replace(request, metadata=labels if request.metadata is not None else None)
        print_ = identity.fingerprint(meaning, leave_out=frozenset({"wait_ready"}))
        own_key = key or identity.random_token()
        resources = Resources(
            cpu=(request.resources and request.resources.cpu) or DEFAULT_CPU,
            memory=(request.resources and request.resources.memory) or DEFAULT_MEMORY,
        )
        spec = SandboxSpec(
            image=rules.path("image", request.image) or self._settings.image,
            entrypoint=rules.texts("entrypoint", request.entrypoint) or DEFAULT_ENTRYPOINT,
            cpu=resources.cpu or DEFAULT_CPU,
            memory=resources.memory or DEFAULT_MEMORY,
            timeout=request.timeout or DEFAULT_TIMEOUT,
            env=rules.env(request.env, reserved=RESERVED_VARIABLES),
            metadata=labels,
            volumes=self._mounts(owner),
        )
        return Order(
            tenant=tenant,
            owner=owner,
            fingerprint=print_,
            digest=identity.sandbox_digest(tenant, owner, print_, own_key),
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

    async def _settle(self, order: Order) -> tuple[Record, bool]:
        """The claim as far as it got within ``claim_wait``, and whether somebody else's work answered."""
        fresh = SandboxClaim(
            tenant=order.tenant,
            fingerprint=order.fingerprint,
            owner=order.owner,
            generation=identity.random_token()[:16],
        )
        return await self._core.claims.once(
            order.digest,
            body=records.encode(fresh),
            request=b"",
            take=lambda record, token: self._take(record, order, token),
            work=lambda mine: self._make(mine, order),
            wait=self._settings.claim_wait,
        )

    async def _take(self, record: Record, order: Order, token: str) -> tuple[bool, Record | None] | None:
        """Take over what may be taken over: (ours, as it is now). None: it stands, wait for it or replay it."""
        claims = self._core.claims
        claim = records.claim_body(record)
        if claim.fingerprint != order.fingerprint and not record.state.failed:
            self._core.telemetry.claim("sandbox", "conflict")
            raise errors.IdempotencyKeyReused("This key was used for another sandbox; nothing was created.")
        match record.state:
            case ClaimState.CLAIMED if record.lease_expired:
                return await self._store.take_over(record, token=token, owner=claims.owner, lease=claims.lease)
            case ClaimState.DISPATCHED if record.lease_expired:
                _, now = await self._store.abandon(record, body=record.body, ttl=None)
                return False, now
            case ClaimState.DONE if claim.sandbox_id is not None and await self.gone(claim.sandbox_id):
                return await self._reopen(record, order, token, claim.given_up)
            case ClaimState.UNKNOWN:
                return await self._reopen(record, order, token, [*claim.given_up, record.attempt])
            case ClaimState.REFUSED | ClaimState.VOIDED:
                return await self._reopen(record, order, token, claim.given_up)
        return None

    async def _reopen(
        self, record: Record, order: Order, token: str, given_up: Sequence[int]
    ) -> tuple[bool, Record | None]:
        claim = records.claim_body(record)
        body = msgspec.structs.replace(
            claim, fingerprint=order.fingerprint, given_up=list(given_up), sandbox_id=None, failure=None
        )
        return await self._store.reopen(
            record,
            token=token,
            owner=self._core.claims.owner,
            lease=self._core.claims.lease,
            next_attempt=record.state is not ClaimState.REFUSED,
            body=records.encode(body),
        )

    async def _make(self, mine: Record, order: Order) -> Record | None:
        """The owner's work: find it or create it, and settle the claim."""
        claim = records.claim_body(mine)
        if not (order.new_key and mine.epoch == 1):
            with contextlib.suppress(EngineError):
                found = await self._find(order.digest, claim)
                if found is not None:
                    return await self._done(mine, order, claim, found)
        try:
            await self._core.quotas.take_sandbox(order.tenant, order.digest)
        except errors.QuotaExceeded as error:
            return await self._failed(mine, claim, error)
        await pauses.reach(pauses.BEFORE_DISPATCH)
        sent, record = await self._core.claims.dispatch(mine, mine.body)
        if not sent:
            return record
        await pauses.reach(pauses.DISPATCHED)
        reserved = records.reserved_metadata(order.digest, claim, mine.attempt, self._settings.secret)
        spec = msgspec.structs.replace(order.spec, metadata={**order.spec.metadata, **reserved})
        made: SandboxInfo | None
        try:
            made = await self._engine.create_sandbox(spec)
        except EngineError as error:
            if not_executed(error):
                await self._core.quotas.free_sandbox(order.tenant, order.digest)
                return await self._failed(mine, claim, refusal(error))
            log.warning("create of %s not answered: %s", order.digest, error.message)
            made = await self._find_late(order.digest, claim)
        await pauses.reach(pauses.AFTER_DISPATCH)
        if made is None:
            return await self._unknown(mine)
        if mine.attempt > 1:
            with contextlib.suppress(EngineError):
                oldest = await self._find(order.digest, claim)
                if oldest is not None and oldest.id != made.id:
                    claim = msgspec.structs.replace(claim, given_up=[*claim.given_up, mine.attempt])
                    made = oldest
        return await self._done(mine, order, claim, made)

    async def _find(self, digest: str, claim: SandboxClaim) -> SandboxInfo | None:
        """The oldest live sandbox of this digest; each item is checked here, whatever the engine's filter did."""
        wanted = records.reserved_metadata(digest, claim, 0, self._settings.secret)
        keys = [f"{records.RESERVED}{name}" for name in ("idem", "idem-owner", "tenant", "signature")]
        matches = []
        page, more = 1, True
        while more and page <= 5:
            listing = await self._engine.list_sandboxes({keys[0]: digest}, page=page)
            more, page = listing.has_next, page + 1
            matches += [
                item
                for item in listing.items
                if item.state.live and all(item.metadata.get(key, "") == wanted[key] for key in keys)
            ]
        return records.oldest(matches)

    async def _find_late(self, digest: str, claim: SandboxClaim) -> SandboxInfo | None:
        for delay in self._core.lookup_tries:
            await asyncio.sleep(delay)
            with contextlib.suppress(EngineError):
                found = await self._find(digest, claim)
                if found is not None:
                    return found
        return None

    async def _done(self, mine: Record, order: Order, claim: SandboxClaim, info: SandboxInfo) -> Record | None:
        remembered = SandboxRecord(
            tenant=order.tenant,
            owner=order.owner,
            digest=order.digest,
            image=order.spec.image,
            resources=order.resources,
            metadata=dict(order.spec.metadata),
            created_at=info.created_at,
            expires_at=info.expires_at,
        )
        await self._core.claims.persist(lambda: self.remember(info.id, remembered))
        await pauses.reach(pauses.BEFORE_SETTLE)
        body = records.encode(msgspec.structs.replace(claim, sandbox_id=info.id, failure=None))
        return await self._write(mine, ClaimState.DONE, body, self._settings.retention)

    async def _failed(self, mine: Record, claim: SandboxClaim, error: errors.OnceboxError) -> Record | None:
        await pauses.reach(pauses.BEFORE_SETTLE)
        body = records.encode(msgspec.structs.replace(claim, failure=records.Failure.of(error)))
        return await self._write(mine, ClaimState.REFUSED, body, self._settings.retention)

    async def _unknown(self, mine: Record) -> Record | None:
        self._core.telemetry.unknown("sandbox")
        return await self._write(mine, ClaimState.UNKNOWN, mine.body, None)

    async def _write(self, mine: Record, state: ClaimState, body: bytes, ttl: float | None) -> Record | None:
        _, record = await self._core.claims.persist(lambda: self._store.settle(mine, state, body=body, ttl=ttl))
        return record

    # -- whose it is

    async def remember(self, sandbox_id: str, record: SandboxRecord) -> None:
        """Keep a sandbox's record until its expiry plus the retention."""
        now = await self._store.now() / 1000
        left = max(0.0, (record.expires_at or now + 86_400) - now)
        await self._store.put_sandbox(sandbox_id, records.encode(record), ttl=left + self._settings.retention)
        if record.digest is not None and not record.deleted:
            await self._core.quotas.hold_sandbox(record.tenant, record.digest, left)

    async def known(self, tenant: str, sandbox_id: str, *, deleted: bool = False) -> SandboxRecord:
        """The record of a sandbox of this tenant.

        Raises ``SandboxNotFound`` for all others, however they came about.
        """
        missing = errors.SandboxNotFound(sandbox_id=sandbox_id)
        if not identity.plausible_sandbox_id(sandbox_id):
            raise missing
        raw = await self._store.get_sandbox(sandbox_id)
        if raw is not None:
            record = records.sandbox_record(raw)
            if record.tenant != tenant or (record.deleted and not deleted):
                raise missing
            return record
        if await self._store.recall(f"miss:{sandbox_id}") is not None:
            raise missing
        try:
            info = await self._engine.get_sandbox(sandbox_id)
        except SandboxMissing:
            await self._store.remember(f"miss:{sandbox_id}", b"1", ttl=MISS)
            raise missing from None
        except EngineError as error:
            raise refusal(error, sandbox_id=sandbox_id) from error
        if not records.belongs(info, tenant, self._settings.secret):
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
        if len(self._alive) >= 10_000:
            self._alive.clear()
        self._alive[sandbox_id] = (loop.time() + LIVENESS, over)
        return over

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
    ) -> SandboxPage:
        """A tenant's sandboxes, newest first; see `core.listing`."""
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
            await self._engine.ping(sandbox_id)
            await self._core.fences.ready(sandbox_id)
        except EngineError:
            return False
        await self.remember(sandbox_id, msgspec.structs.replace(record, ready=True))
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
            if job is not None:
                wanted = max(wanted, self._core.looker.deadline(records.job_body(job)))
        await self.extend(sandbox_id, record, wanted)
        return await self.get(tenant, sandbox_id)

    async def extend(self, sandbox_id: str, record: SandboxRecord, expires_at: float) -> None:
        """Set the expiry (Unix seconds), and remember it."""
        try:
            agreed = await self._engine.renew_sandbox(sandbox_id, expires_at)
        except EngineError as error:
            raise refusal(error, sandbox_id=sandbox_id) from error
        await self.remember(sandbox_id, msgspec.structs.replace(record, expires_at=agreed))

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
        await self.remember(sandbox_id, msgspec.structs.replace(record, deleted=True))
        if record.digest is not None:
            await self._core.quotas.free_sandbox(tenant, record.digest)
        await self._core.follower.sandbox_ended(sandbox_id)
