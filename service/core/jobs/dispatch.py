"""An attempt: send a command once behind its fence, and settle how that went.

What `tests/unit/core/jobs/job_protocol.py` asks for: nothing is sent without an acknowledged claim, nothing is sent
twice by the service itself, the attempt goes up only past a void, and the boot mark is read before each dispatch.
"""

from __future__ import annotations

from collections.abc import Awaitable

import msgspec

from service import errors
from service.core import records
from service.core.claims import failpoints
from service.core.claims.ownership import Ownership
from service.core.fence.client import Fences
from service.core.fence.protocol import Streams
from service.core.jobs import decisions
from service.core.jobs.foreground import Foreground, Listener
from service.core.jobs.ledger import Ledger
from service.core.jobs.orders import Submission, submission_of
from service.core.jobs.prepare import Preparation, Prepared
from service.core.limits.quotas import Quotas
from service.core.model import identity
from service.core.model.states import ClaimState
from service.core.problems import not_executed, not_started
from service.core.records import JobBody, SandboxRecord
from service.core.sandboxes.expiry import Expiry, enough
from service.core.telemetry import Telemetry
from service.messages import Reason
from service.ports.engine import CommandSpec, Engine, EngineError, StartFailed
from service.ports.store import Record, Store

SLOT_MARGIN = 120.0
"""Seconds past its timeout after which a job no longer counts as running, whatever became of it."""


class Dispatcher:
    """Sends attempts, for one replica."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        fences: Fences,
        ownership: Ownership,
        ledger: Ledger,
        preparation: Preparation,
        foreground: Foreground,
        quotas: Quotas,
        expiry: Expiry,
        telemetry: Telemetry,
    ) -> None:
        self._store = store
        self._engine = engine
        self._fences = fences
        self._ownership = ownership
        self._ledger = ledger
        self._preparation = preparation
        self._foreground = foreground
        self._quotas = quotas
        self._expiry = expiry
        self._telemetry = telemetry

    async def attempt(
        self,
        mine: Record,
        submission: Submission,
        listener: Listener,
        *,
        stdin: bytes | None = None,
        reading: Awaitable[Prepared] | None = None,
        known: SandboxRecord | None = None,
        sent: list[Record] | None = None,
    ) -> Record | None:
        """Send the command once, and settle how that went; ``mine`` is claimed, or dispatched by that very write.

        ``reading`` was done before the claim was made, and a slot was taken. ``known``: the sandbox, as it was then.
        ``stdin``: all that the command is to read, where the request is at hand.
        ``sent`` gets ``mine`` as soon as the command may have left. What order matters in:

        1. The boot mark is read, and a slot taken, before the claim says "dispatched".
        2. The run of another request that Redis forgot is followed, and nothing is sent. What the command is to read
           is written before the claim says "dispatched".
        3. The claim says "dispatched", with the mark, before anything is sent; a cancel that came first stops it.
        4. What the engine said is settled; where it said nothing that counts, the claim is unknown.
        """
        body = records.job_body(mine)
        try:
            if reading is not None:
                prepared = await reading
            else:
                prepared = await self._preparation.prepare(mine.id, mine.attempt, body, submission.user)
                await self._quotas.take_job(body.tenant, mine.id)
            if mine.state is ClaimState.CLAIMED and prepared.earlier is None:
                body = await self._preparation.feed(body, submission, stdin)
        except EngineError as error:
            return await self._refuse(mine, body, await self._preparation.why(error, body.sandbox_id))
        except errors.OnceboxError as error:
            return await self._refuse(mine, body, error)
        if prepared.mark is not None and prepared.earlier is not None:
            return await self._ledger.settle(mine, ClaimState.RUNNING, prepared.earlier)
        if mine.state is ClaimState.CLAIMED:
            sending, record = await self._dispatched(mine, body, prepared)
            if sending is None:
                return record
            body = sending
        await failpoints.reach(failpoints.DISPATCHED)
        await self._quotas.sending_job(body.tenant, mine.id, body.timeout + SLOT_MARGIN)
        spec = self._spec(mine, body, submission, prepared)
        if sent is not None:
            sent.append(mine)
        if known is None or not enough(known, body):
            self._expiry.keep_soon(body)
        return await self._send(mine, body, spec, listener)

    async def _dispatched(
        self, mine: Record, body: JobBody, prepared: Prepared
    ) -> tuple[JobBody | None, Record | None]:
        """The claim says "dispatched" now, and its body; None: the command is not to be sent, and what stands there."""
        await failpoints.reach(failpoints.BEFORE_DISPATCH)
        body = msgspec.structs.replace(
            body,
            boot=prepared.mark,
            fenced=prepared.mark is not None,
            dispatched_at=mine.now / 1000,
            failure=None,
            reason=None,
        )
        sending = self._ledger.dispatching(mine, body)
        may_send, record = await self._ownership.dispatch(mine, records.encode(sending))
        if may_send and record is not None:
            return msgspec.structs.replace(sending, dispatched_at=record.now / 1000), record
        if record is not None and record.cancel and record.state is ClaimState.CLAIMED:
            record = await self._ledger.settle(mine, ClaimState.CLOSED, decisions.cancelled(body))
        return None, record

    def _spec(self, mine: Record, body: JobBody, submission: Submission, prepared: Prepared) -> CommandSpec:
        text, env = self._fences.wrapped(
            submission.command,
            submission.env,
            token=records.token(mine),
            fingerprint=body.fingerprint,
            boot=prepared.mark,
            timeout=body.timeout,
            inherited=prepared.around.startup,
            words=submission.words,
            streams=Streams(stdin=body.stdin or submission.stdin_path, apart=body.apart),
        )
        spec = CommandSpec(command=text, timeout=body.timeout, cwd=submission.cwd, env=env)
        if prepared.user is None:
            return spec
        return msgspec.structs.replace(
            spec, uid=prepared.user.uid, gid=prepared.user.gid, env={"HOME": prepared.home or "/", **env}
        )

    async def _send(self, mine: Record, body: JobBody, spec: CommandSpec, listener: Listener) -> Record | None:
        try:
            if body.kind == "exec":
                return await self._foreground.run(mine, body, spec, listener)
            engine_id = await self._engine.submit(body.sandbox_id, spec)
            return await self._ledger.accept(mine, body, engine_id)
        except EngineError as error:
            await failpoints.reach(failpoints.AFTER_DISPATCH)
            if isinstance(error, StartFailed):
                why = not_started(error, spec, sandbox_id=body.sandbox_id)
                return await self._refuse(mine, body, why, started=True)
            if not_executed(error):
                return await self._refuse(mine, body, await self._preparation.why(error, body.sandbox_id))
            self._telemetry.unknown("exec" if body.kind == "exec" else "job")
            return await self._ledger.settle(mine, ClaimState.UNKNOWN, body)

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
        failed = decisions.failed(body, reason, records.Failure.of(error))
        return await self._ledger.settle(mine, ClaimState.REFUSED, failed)

    # -- past a void

    async def reopen(self, seen: Record, body: JobBody) -> tuple[Record, Submission | None]:
        """Claim the next attempt of a submission that met a void: the record, and what to send, if it is ours to send.

        What was kept to be sent may be gone: the job has failed then.
        """
        kept = await self._store.request(seen.id)
        if kept is None:
            told = "The submission met a void and never started."
            voided = decisions.unavailable(body, Reason.NEVER_STARTED, told)
            change = decisions.Change(state=ClaimState.VOIDED, body=voided)
            return await self._ledger.apply(seen, change), None
        fresh = msgspec.structs.replace(body, engine_id=None, log=None, dispatched_at=None, quiet_polls=0)
        ours, now = await self._ledger.reopen(seen, identity.random_token(), fresh, kept)
        return now or seen, submission_of(kept) if ours and now is not None else None
