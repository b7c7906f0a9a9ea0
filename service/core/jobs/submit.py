"""Run a command once: claim it, have it sent, and say what came of it. For jobs and for execs alike."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from service import context, errors
from service.core import records
from service.core.claims import failpoints
from service.core.claims.once import Claims
from service.core.claims.ownership import Ownership
from service.core.claims.tasks import Tasks
from service.core.jobs.foreground import Listener
from service.core.jobs.ledger import Ledger
from service.core.jobs.orders import Order
from service.core.jobs.polls import Polls
from service.core.jobs.prepare import Preparation, Prepared
from service.core.limits.admission import Admission
from service.core.limits.quotas import Quotas
from service.core.model.states import ClaimState
from service.core.telemetry import Telemetry
from service.ports.engine import EngineError
from service.ports.store import Record, Store

UNKNOWN_WAIT = 3.0
"""Seconds that a submission waits for its "unknown" to be found out."""
CONFIRMED_WAIT = 10.0
"""Seconds that a submission with a key of the caller's waits for the first poll of its command."""


class Submitter:
    """Submissions of one replica. ``claim_wait``: seconds that one waits for its claim to be settled."""

    def __init__(
        self,
        store: Store,
        ownership: Ownership,
        claims: Claims,
        ledger: Ledger,
        preparation: Preparation,
        polls: Polls,
        quotas: Quotas,
        admission: Admission,
        tasks: Tasks,
        telemetry: Telemetry,
        *,
        claim_wait: float,
    ) -> None:
        self._store = store
        self._ownership = ownership
        self._claims = claims
        self._ledger = ledger
        self._preparation = preparation
        self._polls = polls
        self._quotas = quotas
        self._admission = admission
        self._tasks = tasks
        self._telemetry = telemetry
        self._claim_wait = claim_wait

    async def submit(self, order: Order, listener: Listener) -> tuple[Record, bool]:
        """The record of the order as far as it got within ``claim_wait``, and whether it was answered by other work.

        It does not say yet whose run it is: see `answers`. ``listener``: who reads the text of an exec. Raises
        ``EngineUnavailable`` where too many are under way.
        """
        context.command_id.set(order.command_id)
        async with self._admission.of(order.body.tenant, known=order.seen is not None):
            return await self._claimed(order, listener)

    async def _claimed(self, order: Order, listener: Listener) -> tuple[Record, bool]:
        """What order matters in:

        1. What stood under the key was read with the sandbox (``order``): a replay asks the engine for nothing.
        2. What the attempt must know is read before the claim is made, and a slot is taken: over quota, nothing is
           written.
        3. Where there is a boot mark, the claim is made dispatched, with the mark in that very write: its way out is a
           void. Without a mark it is made claimed, and dispatched by a second write. What the command is to read is
           written before that.
        4. Nothing is sent before the write is answered.
        """
        sent: list[Record] = []
        reading: asyncio.Task[Prepared] | None = None

        async def make(token: str) -> tuple[bool, Record]:
            nonlocal reading
            user = order.submission.user
            prepare = self._preparation.prepare(order.command_id, 1, order.body, user, first=order.first)
            reading = self._tasks.start(prepare, f"prepare {order.command_id}", told=False)
            return await self._make(order, token, reading)

        async def work(mine: Record) -> Record | None:
            first = reading if mine.epoch == 1 else None
            return await self._polls.attempt(
                mine, order.submission, listener, stdin=order.stdin, reading=first, known=order.sandbox, sent=sent
            )

        record, replayed = await self._claims.once(
            order.command_id,
            make=make,
            take=lambda record, token: self._take(record, order, token),
            work=work,
            wait=self._claim_wait,
            seen=order.seen,
        )
        if record.state.failed and sent and sent[-1].token != record.token:
            # Redis was emptied meanwhile: this failure is another request's, and ours may have run.
            raise not_known(record, order)
        return record, replayed

    async def _make(self, order: Order, token: str, reading: asyncio.Task[Prepared]) -> tuple[bool, Record]:
        """Make the claim. Where ``reading`` failed it is made all the same: its owner tells why, and it is listed."""
        body = order.body
        await asyncio.wait({reading})
        prepared = None if reading.exception() else reading.result()
        await self._quotas.take_job(body.tenant, order.command_id)
        dispatched = prepared is not None and prepared.mark is not None and prepared.earlier is None
        if prepared is not None and dispatched:
            with contextlib.suppress(EngineError, errors.EngineUnavailable):  # else its owner tries, and tells why
                body = await self._preparation.feed(body, order.submission, order.stdin)
            dispatched = not order.submission.fed or body.stdin is not None
        if prepared is not None and dispatched:
            await failpoints.reach(failpoints.BEFORE_DISPATCH)
            body = msgspec.structs.replace(body, boot=prepared.mark, dispatched_at=await self._store.now() / 1000)
        request = msgspec.json.encode(order.submission)
        made = await self._ledger.claim(order.command_id, token, body, request, dispatched=dispatched)
        if made.done and order.first and (not order.keyed or _made_here(made.sandbox)):
            order.own.add(token)
        return made.done, made.record

    async def _take(self, record: Record, order: Order, token: str) -> tuple[bool, Record | None] | None:
        self.answers(record, order)
        match record.state:
            case ClaimState.CLAIMED if record.lease_expired and not record.cancel and _prints_match(record, order):
                return await self._ownership.take_over(record, token)
            case ClaimState.CLAIMED | ClaimState.DISPATCHED if record.lease_expired:
                return False, await self._polls.carry_on(record)
            case ClaimState.REFUSED | ClaimState.VOIDED:
                return await self._ledger.reopen(record, token, order.body, msgspec.json.encode(order.submission))
        return None

    def answers(self, record: Record, order: Order) -> bool:
        """Whether the record as it stands answers this very request.

        After Redis was emptied, a record may say one request and follow the run of another until the first poll has
        read the fence: until then an accepted command is no answer, unless it can be nobody else's (``Order.own``), and
        a differing fingerprint proves nothing. A damaged fence does not tell what its request was. Where nothing ran
        there is nothing to tell apart. Raises ``IdempotencyKeyReused`` where the run is known to be another's.
        """
        if record.state.failed:
            return True
        if _prints_match(record, order):
            return record.state is not ClaimState.ACCEPTED or _own(record, order)
        if not record.state.confirmed:
            return False
        self._telemetry.claim("job", "conflict")
        raise errors.IdempotencyKeyReused(
            "This key was used for another command in this sandbox; this request ran nothing.", command_id=record.id
        )

    async def found_out(self, record: Record, order: Order) -> Record:
        """The record as an answer to a submission; raises the problem where there is none.

        Of a request that no other can have the key of, an accepted command is an answer. Any other waits for the
        first poll, which compares the fence's fingerprint: the run may be another request's.
        """
        if not self.answers(record, order) and record.state is not ClaimState.UNKNOWN:
            record = await self._waited(record, _tells, CONFIRMED_WAIT)
        if record.state is ClaimState.UNKNOWN:
            record = await self._waited(record, lambda seen: seen.state.confirmed, UNKNOWN_WAIT)
        body = records.job_body(record)
        if record.state.failed:
            failure = body.failure or records.Failure("ENGINE_UNAVAILABLE", "Nothing was run.", 1)
            raise failure.exception(command_id=record.id, sandbox_id=body.sandbox_id)
        if record.state is ClaimState.UNKNOWN or not self.answers(record, order):
            raise not_known(record, order)
        return record

    async def _waited(self, record: Record, until: Callable[[Record], bool], timeout: float) -> Record:
        return await self._claims.wait(record.id, until, timeout) or record


def not_known(record: Record, order: Order) -> errors.OutcomeUnknown:
    """What a caller is told while nobody can say what became of a submission."""
    return errors.OutcomeUnknown(
        "The command may have been started; it is not started again. It is being found out.",
        command_id=record.id,
        sandbox_id=order.body.sandbox_id,
        retry_after=2,
        retryable=order.keyed,
    )


def _tells(record: Record) -> bool:
    return record.state.confirmed or record.state is ClaimState.UNKNOWN


def _own(record: Record, order: Order) -> bool:
    """The claim that the order made, and not one that it reopened since."""
    return record.epoch == 1 and record.token in order.own


def _prints_match(record: Record, order: Order) -> bool:
    return records.job_body(record).fingerprint in ("", order.body.fingerprint)


def _made_here(sandbox: bytes | None) -> bool:
    """Whether a sandbox's record says that this Redis has all that ever happened in it."""
    return sandbox is not None and not records.sandbox_record(sandbox).found
