"""Run a command once: claim, dispatch behind a fence, settle. For jobs and for execs alike.

What `tests/unit/core/job_protocol.py` asks for: nothing is sent without an acknowledged claim, nothing is sent twice by
the service itself, the attempt goes up only past a void, and the boot mark is read before each dispatch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from service import context, errors
from service.core import identity, pauses, records, rules
from service.core.expiry import enough
from service.core.fence import reserved
from service.core.fences import Surroundings
from service.core.looking import token_of
from service.core.problems import not_executed, refusal
from service.core.records import JobBody, SandboxRecord
from service.core.states import ClaimState
from service.messages import COMMAND_SHOWN, Exec, JobState, Reason, SandboxState, SubmitJob
from service.ports.engine import CommandSpec, EngineError, SandboxMissing, StartFailed
from service.ports.store import Record

if TYPE_CHECKING:
    from service.core.app import Core

SLOW_SANDBOX = 2.0
"""Seconds after which a sandbox that does not answer is asked about at the lifecycle server."""
SLOT_MARGIN = 120.0
"""Seconds past its timeout after which a job no longer counts as running, whatever became of it."""
FIRST_LOOKS = (0.05, 0.1)
"""Seconds after the dispatch until the first look: the wrapper needs a few ms to make its fence; and from there to
another where it has not on a busy machine, since callers wait for it.
"""
LOOK_BY_OTHERS = 2.0
"""Seconds after which any replica looks at a command that was accepted: the one that sent it may have ended."""


class Submission(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is sent: kept beside the claim, so that any replica can send the next attempt past a void."""

    command: str
    cwd: str | None = None
    env: dict[str, str] = {}


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request to run a command."""

    command_id: str
    key: str
    keyed: bool
    """The caller sent the key: an earlier submission of it may have left a fence."""
    submission: Submission
    body: JobBody
    sandbox: SandboxRecord
    seen: Record | None
    """What stood under the key when the request came."""
    own: set[str] = msgspec.field(default_factory=set)
    """Tokens of this request's claims whose command can be no other request's."""

    @property
    def first(self) -> bool:
        """No other request can have had its key: it was made for this one, or this Redis has all that ever happened in
        the sandbox, and no claim of the key.
        """
        return not self.keyed or (self.seen is None and not self.sandbox.found)


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt must know before it is sent: read before the claim is made, or by its owner."""

    around: Surroundings
    earlier: JobBody | None = None
    """The run of another request with this key, where Redis forgot it and its fence stands."""

    @property
    def mark(self) -> str | None:
        """The boot mark's text."""
        return self.around.boot.text if self.around.boot is not None else None


_submissions = msgspec.json.Decoder(Submission)
Send = Callable[[Record, JobBody, CommandSpec], Awaitable[Record | None]]


class Submitter:
    """Submissions of one replica."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = core.store
        self._engine = core.engine

    async def order(self, tenant: str, request: SubmitJob | Exec, key: str | None, *, timeout: int) -> Order:
        """Check a request, and that its sandbox is this tenant's. Raises ``InvalidRequest``, ``SandboxNotFound``."""
        kind = "exec" if isinstance(request, Exec) else "job"
        labels = rules.metadata(request.metadata) if isinstance(request, SubmitJob) else {}
        submission = Submission(
            command=rules.command(request.command),
            cwd=rules.path("cwd", request.cwd),
            env=rules.env(request.env, reserved=reserved),
        )
        meaning = {**msgspec.to_builtins(request), "kind": kind}
        if meaning.get("metadata") is not None:
            meaning["metadata"] = labels
        print_ = identity.fingerprint(meaning, leave_out=frozenset({"encoding"}))
        known_key = key or identity.MadeKey(identity.random_token())
        digest = identity.job_digest(tenant, request.sandbox_id, known_key)
        body = JobBody(
            tenant=tenant,
            sandbox_id=request.sandbox_id,
            kind=kind,
            fingerprint=print_,
            command=submission.command[:COMMAND_SHOWN],
            timeout=timeout,
            metadata=labels,
            submitted_at=await self._core.clock(),
        )
        command_id = identity.command_id(request.sandbox_id, identity.job_ref(digest))
        keyed = not isinstance(known_key, identity.MadeKey)
        sandbox, seen = await asyncio.gather(
            self._core.sandboxes.known(tenant, request.sandbox_id, deleted=True),
            self._store.get(command_id) if keyed else _nothing(),
        )
        if sandbox.deleted and seen is None:
            raise errors.SandboxNotFound(sandbox_id=request.sandbox_id)
        return Order(
            command_id=command_id,
            key=known_key,
            keyed=keyed,
            submission=submission,
            body=body,
            sandbox=sandbox,
            seen=seen,
        )

    async def settle(self, order: Order, send: Send) -> tuple[Record, bool]:
        """The record of the order as far as it got within ``claim_wait``, and whether it was answered by other work.

        It does not say yet whose run it is: see `answers`. Raises ``EngineUnavailable`` where too many are under way.
        """
        context.command_id.set(order.command_id)
        async with self._core.admission.of(order.body.tenant, known=order.seen is not None):
            return await self._claimed(order, send)

    async def _claimed(self, order: Order, send: Send) -> tuple[Record, bool]:
        """What order matters in:

        1. What stood under the key was read with the sandbox (``order``): a replay asks the engine for nothing.
        2. What the attempt must know is read before the claim is made, and a slot is taken: over quota, nothing is
           written.
        3. Where there is a boot mark, the claim is made dispatched, with the mark in that very write: its way out is a
           void. Without a mark it is made claimed, and dispatched by a second write.
        4. Nothing is sent before the write is answered.
        """
        sent: list[Record] = []
        reading: asyncio.Task[Prepared] | None = None

        async def make(token: str) -> tuple[bool, Record]:
            nonlocal reading
            prepare = self._prepare(order.command_id, 1, order.body, first=order.first)
            reading = self._core.tasks.start(prepare, f"prepare {order.command_id}", told=False)
            return await self._make(order, token, reading)

        async def work(mine: Record) -> Record | None:
            first = reading if mine.epoch == 1 else None
            return await self.attempt(mine, order.submission, send, reading=first, known=order.sandbox, sent=sent)

        record, replayed = await self._core.claims.once(
            order.command_id,
            make=make,
            take=lambda record, token: self._take(record, order, token),
            work=work,
            wait=self._core.settings.claim_wait,
            seen=order.seen,
        )
        if record.state.failed and sent and sent[-1].token != record.token:
            # Redis was emptied meanwhile: this failure is another request's, and ours may have run.
            raise self.not_known(record, order)
        return record, replayed

    async def _make(self, order: Order, token: str, reading: asyncio.Task[Prepared]) -> tuple[bool, Record]:
        """Make the claim. Where ``reading`` failed it is made all the same: its owner tells why, and it is listed."""
        body, claims = order.body, self._core.claims
        await asyncio.wait({reading})
        prepared = None if reading.exception() else reading.result()
        await self._core.quotas.take_job(body.tenant, order.command_id)
        dispatched = prepared is not None and prepared.mark is not None and prepared.earlier is None
        if prepared is not None and dispatched:
            await pauses.reach(pauses.BEFORE_DISPATCH)
            body = msgspec.structs.replace(body, boot=prepared.mark, dispatched_at=await self._store.now() / 1000)
        made = await self._store.claim(
            order.command_id,
            token=token,
            owner=claims.owner,
            lease=claims.lease,
            body=records.encode(body),
            request=msgspec.json.encode(order.submission),
            tenant=body.tenant,
            dispatched=dispatched,
        )
        if made.done and order.first and (not order.keyed or _made_here(made.sandbox)):
            order.own.add(token)
        return made.done, made.record

    def answers(self, record: Record, order: Order) -> bool:
        """Whether the record as it stands answers this very request.

        After Redis was emptied, a record may say one request and follow the run of another until the first look has
        read the fence: until then an accepted command is no answer, unless it can be nobody else's (``Order.own``), and
        a differing fingerprint proves nothing. A damaged fence does not tell what its request was. Where nothing ran
        there is nothing to tell apart. Raises ``IdempotencyKeyReused`` where the run is known to be another's.
        """
        if record.state.failed:
            return True
        if self._prints_match(record, order):
            return record.state is not ClaimState.ACCEPTED or self._own(record, order)
        if not record.state.confirmed:
            return False
        self._core.telemetry.claim("job", "conflict")
        raise errors.IdempotencyKeyReused(
            "This key was used for another command in this sandbox; this request ran nothing.", command_id=record.id
        )

    @staticmethod
    def _own(record: Record, order: Order) -> bool:
        """The claim that the order made, and not one that it reopened since."""
        return record.epoch == 1 and record.token in order.own

    @staticmethod
    def _prints_match(record: Record, order: Order) -> bool:
        return records.job_body(record).fingerprint in ("", order.body.fingerprint)

    @staticmethod
    def not_known(record: Record, order: Order) -> errors.OutcomeUnknown:
        """What a caller is told while nobody can say what became of a submission."""
        return errors.OutcomeUnknown(
            "The command may have been started; it is not started again. It is being found out.",
            command_id=record.id,
            sandbox_id=order.body.sandbox_id,
            retry_after=2,
            retryable=order.keyed,
        )

    async def _take(self, record: Record, order: Order, token: str) -> tuple[bool, Record | None] | None:
        claims = self._core.claims
        self.answers(record, order)
        match record.state:
            case ClaimState.CLAIMED if record.lease_expired and not record.cancel and self._prints_match(record, order):
                return await self._store.take_over(record, token=token, owner=claims.owner, lease=claims.lease)
            case ClaimState.CLAIMED | ClaimState.DISPATCHED if record.lease_expired:
                return False, await self._core.looker.look(record)
            case ClaimState.REFUSED | ClaimState.VOIDED:
                return await self._store.reopen(
                    record,
                    token=token,
                    owner=claims.owner,
                    lease=claims.lease,
                    next_attempt=record.state is ClaimState.VOIDED,
                    body=records.encode(order.body),
                    request=msgspec.json.encode(order.submission),
                    tenant=order.body.tenant,
                )
        return None

    async def next_attempt(self, record: Record, body: JobBody, send: Send) -> Record:
        """The submission met a void, so it never ran and never will: send the next attempt.

        Not from a replica that is stopping: another one's look finds the same void.
        """
        claims = self._core.claims
        if claims.drained:
            return record
        kept = await self._store.request(record.id)
        if kept is None:
            failure = records.Failure("ENGINE_UNAVAILABLE", "The submission met a void and never started.", 1)
            voided = msgspec.structs.replace(body, failure=failure, reason=Reason.NEVER_STARTED)
            return await self._core.looker.write(record, ClaimState.VOIDED, voided)
        submission = _submissions.decode(kept)
        fresh = msgspec.structs.replace(body, engine_id=None, log=None, dispatched_at=None, looks=0)
        ours, now = await self._store.reopen(
            record,
            token=identity.random_token(),
            owner=claims.owner,
            lease=claims.lease,
            next_attempt=True,
            body=records.encode(fresh),
            request=kept,
            tenant=body.tenant,
        )
        if ours and now is not None:
            await claims.take_up(now, lambda mine: self.attempt(mine, submission, send))
        return now or record

    @staticmethod
    def command_of(kept: bytes) -> str:
        """The whole command, from what is kept beside a claim."""
        return _submissions.decode(kept).command

    # -- the owner's work

    async def attempt(
        self,
        mine: Record,
        submission: Submission,
        send: Send,
        *,
        reading: Awaitable[Prepared] | None = None,
        known: SandboxRecord | None = None,
        sent: list[Record] | None = None,
    ) -> Record | None:
        """Send the command once, and settle how that went; ``mine`` is claimed, or dispatched by that very write.

        ``reading`` was done before the claim was made, and a slot was taken. ``known``: the sandbox, as it was then.
        ``sent`` gets ``mine`` as soon as the command may have left.
        """
        body = records.job_body(mine)
        try:
            if reading is not None:
                prepared = await reading
            else:
                prepared = await self._prepare(mine.id, mine.attempt, body)
                await self._core.quotas.take_job(body.tenant, mine.id)
        except EngineError as error:
            return await self._refuse(mine, body, await self._why(error, body.sandbox_id))
        except errors.OnceboxError as error:
            return await self._refuse(mine, body, error)
        if prepared.mark is not None and prepared.earlier is not None:
            return await self.write(mine, ClaimState.RUNNING, prepared.earlier)
        record: Record | None = mine
        if mine.state is ClaimState.CLAIMED:
            await pauses.reach(pauses.BEFORE_DISPATCH)
            body = msgspec.structs.replace(
                body,
                boot=prepared.mark,
                fenced=prepared.mark is not None,
                dispatched_at=mine.now / 1000,
                failure=None,
                reason=None,
            )
            may_send, record = await self._core.claims.dispatch(mine, records.encode(body))
            if not may_send or record is None:
                if record is not None and record.cancel and record.state is ClaimState.CLAIMED:
                    return await self.cancelled(record, body)
                return record
            body = msgspec.structs.replace(body, dispatched_at=record.now / 1000)
        await pauses.reach(pauses.DISPATCHED)
        await self._core.quotas.sending_job(body.tenant, mine.id, body.timeout + SLOT_MARGIN)
        text, env = self._core.fences.wrapped(
            submission.command,
            submission.env,
            token=token_of(mine.id, mine.attempt),
            fingerprint=body.fingerprint,
            boot=prepared.mark,
            timeout=body.timeout,
            inherited=prepared.around.startup,
        )
        spec = CommandSpec(command=text, timeout=body.timeout, cwd=submission.cwd, env=env)
        if sent is not None:
            sent.append(mine)
        if known is None or not enough(known, body):
            self._core.tasks.start(self._core.expiry.keep(body), f"keep alive {body.sandbox_id}")
        try:
            return await send(mine, body, spec)
        except EngineError as error:
            await pauses.reach(pauses.AFTER_DISPATCH)
            if not_executed(error):
                return await self._refuse(
                    mine, body, await self._why(error, body.sandbox_id), started=isinstance(error, StartFailed)
                )
            return await self.unclear(mine, body)

    async def _prepare(self, id: str, attempt: int, body: JobBody, *, first: bool = False) -> Prepared:
        """Read what the attempt must know: its surroundings; meanwhile, unless it is the first of its key, the fence of
        an earlier request.

        Raises ``EngineError``, ``SandboxNotRunning``.
        """
        if first:
            return Prepared(around=await self._surroundings(body.sandbox_id))
        around, earlier = await asyncio.gather(
            self._surroundings(body.sandbox_id), self._earlier(token_of(id, attempt), body)
        )
        return Prepared(around=around, earlier=earlier)

    async def _earlier(self, token: str, body: JobBody) -> JobBody | None:
        found = await self._core.fences.read(body.sandbox_id, token)
        if found is None or found.fingerprint in (None, body.fingerprint):
            return None
        return await self._core.reconciler.body_of(body.tenant, body.sandbox_id, found)

    async def _surroundings(self, sandbox_id: str) -> Surroundings:
        """What to know before a dispatch; a paused sandbox, silent for minutes, is noticed meanwhile."""
        reading = asyncio.ensure_future(self._core.fences.surroundings(sandbox_id))
        try:
            await asyncio.wait({reading}, timeout=SLOW_SANDBOX)
            if not reading.done() and (await self._engine.get_sandbox(sandbox_id)).state is not SandboxState.RUNNING:
                raise errors.SandboxNotRunning(sandbox_id=sandbox_id, retry_after=5)
            return await reading
        finally:
            if not reading.done():
                reading.cancel()

    async def _why(self, error: EngineError, sandbox_id: str) -> errors.OnceboxError:
        """What a call that was not executed means: the sandbox's own state tells more than a closed port."""
        problem = refusal(error, sandbox_id=sandbox_id)
        if not isinstance(problem, errors.EngineUnavailable):
            return problem
        try:
            state = (await self._engine.get_sandbox(sandbox_id)).state
        except SandboxMissing:
            return errors.SandboxNotFound(sandbox_id=sandbox_id)
        except EngineError:
            return problem
        if state in (SandboxState.RUNNING, SandboxState.PENDING, SandboxState.UNKNOWN):
            return problem
        return errors.SandboxNotRunning(f"The sandbox is {state.value}.", sandbox_id=sandbox_id, retry_after=5)

    async def _refuse(
        self, mine: Record, body: JobBody, error: errors.OnceboxError, *, started: bool = False
    ) -> Record | None:
        match error:
            case _ if started:
                reason = Reason.START_FAILED
            case errors.SandboxNotFound() | errors.SandboxNotRunning():
                reason = Reason.SANDBOX_NOT_RUNNING
            case errors.QuotaExceeded():
                reason = Reason.QUOTA_EXCEEDED
            case errors.EngineUnavailable():
                reason = Reason.ENGINE_UNAVAILABLE
            case _:
                reason = Reason.ENGINE_REJECTED
        failed = msgspec.structs.replace(body, failure=records.Failure.of(error), reason=reason)
        return await self.write(mine, ClaimState.REFUSED, failed)

    async def unclear(self, mine: Record, body: JobBody) -> Record | None:
        """Nobody can say: unknown, and found out at once if that can be."""
        self._core.telemetry.unknown("exec" if body.kind == "exec" else "job")
        record = await self.write(mine, ClaimState.UNKNOWN, body)
        await self._core.follower.look(mine.id)
        return record

    async def cancelled(self, mine: Record, body: JobBody) -> Record | None:
        """Cancelled before anything was sent: never dispatched."""
        body = msgspec.structs.replace(
            body, state=JobState.CANCELLED, reason=Reason.CANCELLED_BEFORE_START, output_complete=True
        )
        return await self.write(mine, ClaimState.CLOSED, body)

    async def accepted(self, mine: Record, body: JobBody, engine_id: str) -> Record | None:
        """The engine took the command."""
        await pauses.reach(pauses.AFTER_DISPATCH)
        return await self.write(mine, ClaimState.ACCEPTED, msgspec.structs.replace(body, engine_id=engine_id))

    async def write(self, mine: Record, state: ClaimState, body: JobBody) -> Record | None:
        """The owner settles; tried for as long as the store is away."""
        await pauses.reach(pauses.BEFORE_SETTLE)
        over = not state.active
        ttl = self._core.settings.retention if over else None
        after = LOOK_BY_OTHERS if state is ClaimState.ACCEPTED else 0.0
        _, record = await self._core.claims.persist(
            lambda: self._store.settle(mine, state, body=records.encode(body), ttl=ttl, look_in=after)
        )
        if record is not None:
            self._core.claims.tell(record)
            if not record.state.active:
                await self._core.looker.ended(record, body)
        return record

    async def send_job(self, mine: Record, body: JobBody, spec: CommandSpec) -> Record | None:
        """Start a job in the background of its sandbox."""
        engine_id = await self._engine.submit(body.sandbox_id, spec)
        record = await self.accepted(mine, body, engine_id)
        self.look_soon(mine.id, record)
        return record

    def look_soon(self, id: str, record: Record | None = None) -> None:
        """Take the first look at a command as soon as its wrapper can have made the fence; ``record``: just written."""
        self._core.tasks.start(self._first_look(id, record), f"first look {id}")

    async def _first_look(self, id: str, record: Record | None) -> None:
        for delay in FIRST_LOOKS:
            await asyncio.sleep(delay)
            record = await self._core.follower.look(id, record)
            if record is None or record.state is not ClaimState.ACCEPTED:
                return


def _made_here(sandbox: bytes | None) -> bool:
    """Whether a sandbox's record says that this Redis has all that ever happened in it."""
    return sandbox is not None and not records.sandbox_record(sandbox).found


async def _nothing() -> None:
    return None
