"""Settle what is not certain: confirm a provisional "done", settle an "unknown", find a job that Redis forgot.

The fence decides (`core.fence`, rules 1 to 5). Everything here may be done twice, by any replica, at any time.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Literal

import msgspec

from service import errors
from service.core import endings, identity, output, proofs, records
from service.core.fence import Fence, Voided
from service.core.looking import DEADLINE_GRACE, token_of
from service.core.problems import refusal
from service.core.proofs import Verdict
from service.core.records import JobBody
from service.core.states import ClaimState
from service.messages import JobState, Reason
from service.ports.engine import CommandMissing, CommandStatus, EngineError, SandboxMissing
from service.ports.store import Record

if TYPE_CHECKING:
    from service.core.app import Core

CONFIRM_LOOKS = 4
"""Looks after which a command that runs without a fence to be seen is taken for a run whose job wiped the fence."""
MAX_ATTEMPTS = 64
"""Attempts that a walk through voided fences goes at the most."""
MARKER_WITHIN = 64 * 1024
"""Bytes at the beginning and at the end of an output that are looked through for a marker: before one stands what a
shell prints when it starts, after it nothing but what a handler for its end prints.
"""


class Reconciler:
    """Finds out what happened, for one replica."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._engine = core.engine
        self._store = core.store
        self._fences = core.fences

    # -- a provisional "done"

    async def confirm(self, record: Record, body: JobBody) -> Record | JobBody:
        """The first look: is the command that execd took the run? The fence is read first, then what it printed.

        A body: it is, or is taken for it; nothing has been written yet.
        """
        write = self._core.looker.write
        if not body.fenced:
            return body
        self._core.pace.besides()
        try:
            found = await self._fences.read(body.sandbox_id, token_of(record.id, record.attempt))
            proved = proofs.by_fence(found, body)
            if proved is not None and proved.kind == "ours" and proved.fence is not None:
                return msgspec.structs.replace(body, log=proved.fence.log, looks=0, doubtful=False)
            if proved is not None:
                return await self._carry_out(record, body, proved)
            status = await self._status(body)
            over = status is not None and not status.running
            if status is not None and over:
                doubt = await self.doubt(record, body, endings.exit_code(status))
                if doubt == "no_fence":
                    return await self._no_fence(record, body)
                if doubt is not None:
                    return await self.doubtful(record, body)
        except SandboxMissing:
            return await self._core.looker.gone(record)
        except EngineError:
            return await self._core.looker.troubled(record, body)
        if over or body.looks >= CONFIRM_LOOKS or (found is not None and found.kind in ("run", "damaged")):
            return msgspec.structs.replace(body, looks=0)
        return await write(record, record.state, msgspec.structs.replace(body, looks=body.looks + 1), quiet=True)

    async def _carry_out(self, record: Record, body: JobBody, verdict: Verdict) -> Record:
        """Write what was found to be so."""
        match verdict.kind:
            case "ours" if verdict.fence is not None:
                ours = msgspec.structs.replace(body, log=verdict.fence.log, looks=0, doubtful=False)
                return await self._core.looker.write(record, ClaimState.RUNNING, ours)
            case "adopt" if verdict.fence is not None:
                return await self._adopt(record, body, verdict.fence)
            case "void" if record.state is ClaimState.ACCEPTED:
                return await self._core.jobs.next_attempt(record, body)
            case "void" if record.state is ClaimState.UNKNOWN:
                return await self._never_started(record, body)
            case "lost" if verdict.reason is not None:
                return await self._lost(record, body, verdict.reason)
        self._core.telemetry.reconciled("still_unknown")
        return await self._later(record, body)

    async def _status(self, body: JobBody) -> CommandStatus | None:
        """execd's word on our command; None where it does not know it (yet)."""
        if body.engine_id is None:
            return None
        self._core.pace.besides()
        with contextlib.suppress(CommandMissing):
            return await self._engine.status(body.sandbox_id, body.engine_id)
        return None

    async def doubt(self, record: Record, body: JobBody, code: int | None) -> Literal["no_fence", "doubtful"] | None:
        """Whether a command that is over may have run nothing, by its exit code and what it printed.

        Raises ``EngineError``.
        """
        self._core.pace.besides()
        printed, whole = await output.read_ends(self._engine, body, MARKER_WITHIN)
        return proofs.doubt(code, printed, token_of(record.id, record.attempt), whole=whole)

    async def doubtful(self, record: Record, body: JobBody) -> Record:
        """Settle a command that is over and may have run nothing: by its fence and the living, never by a void made
        now, since a job may have removed its own fence.
        """
        body = msgspec.structs.replace(body, doubtful=True)
        try:
            look = await self._fences.look(body.sandbox_id, token_of(record.id, record.attempt))
        except SandboxMissing:
            return await self._core.looker.gone(record)
        except EngineError:
            return await self._unreached(record, body)
        verdict = proofs.of_doubtful(look, body, overdue=self._overdue(record, body))
        return await self._carry_out(record, body, verdict)

    async def _no_fence(self, record: Record, body: JobBody) -> Record:
        """Our command ran nothing, since no fence could be made."""
        voided = await self._fences.void(body.sandbox_id, token_of(record.id, record.attempt), body.boot or "")
        if voided.outcome in ("run", "boot"):
            return await self._voided(record, body, voided)
        failure = records.Failure(
            "ENGINE_UNAVAILABLE", "The sandbox could not hold the fence (is its disk full?); nothing was run.", 5
        )
        refused = msgspec.structs.replace(body, failure=failure, reason=Reason.NO_FENCE)
        state = ClaimState.VOIDED if voided.outcome == "voided" else ClaimState.REFUSED
        return await self._core.looker.write(record, state, refused)

    def _overdue(self, record: Record, body: JobBody) -> bool:
        return record.now / 1000 > records.deadline(body) + DEADLINE_GRACE

    # -- an "unknown"

    async def settle(self, record: Record, body: JobBody) -> Record:
        """Settle a submission whose answer was lost; it stays unknown where nothing can be proved yet."""
        if body.doubtful:
            return await self.doubtful(record, body)
        if body.boot is None:
            return await self._unreached(record, body)
        token = token_of(record.id, record.attempt)
        try:
            voided = await self._fences.void(body.sandbox_id, token, body.boot)
            return await self._voided(record, body, voided)
        except SandboxMissing:
            return await self._core.looker.gone(record)
        except EngineError:
            return await self._unreached(record, body)

    async def _voided(self, record: Record, body: JobBody, voided: Voided) -> Record:
        match voided.outcome:
            case "voided":
                return await self._never_started(record, body)
            case "run" if voided.fence is not None and voided.fence.kind == "empty":
                return await self._empty(record, body)
            case "run" if voided.fence is not None:
                return await self._adopt(record, body, voided.fence)
            case "boot":
                return await self._replaced(record, body, voided)
        self._core.telemetry.reconciled("still_unknown")
        return await self._later(record, body)

    async def _never_started(self, record: Record, body: JobBody) -> Record:
        self._core.telemetry.reconciled("voided")
        write = self._core.looker.write
        if record.cancel:
            cancelled = msgspec.structs.replace(
                body, state=JobState.CANCELLED, reason=Reason.CANCELLED_BEFORE_START, output_complete=True
            )
            return await write(record, ClaimState.CLOSED, cancelled)
        failure = records.Failure("ENGINE_UNAVAILABLE", "The submission was lost on its way and never started.", 1)
        return await write(
            record, ClaimState.VOIDED, msgspec.structs.replace(body, failure=failure, reason=Reason.NEVER_STARTED)
        )

    async def _adopt(self, record: Record, body: JobBody, found: Fence) -> Record:
        """Follow the run that the fence names; execd's word on it counts only where its text holds the token."""
        self._core.telemetry.reconciled("adopted")
        engine_id = endings.engine_id_of(found.log)
        known, started_at = False, None
        if engine_id is not None:
            with contextlib.suppress(CommandMissing):
                status = await self._engine.status(body.sandbox_id, engine_id)
                known = token_of(record.id, record.attempt) in status.content
                started_at = status.started_at if known else None
        adopted = msgspec.structs.replace(
            body,
            engine_id=engine_id,
            log=found.log,
            by_fence=not known,
            submitted_at=None if _of_before(body, started_at) else body.submitted_at,
            fingerprint=found.fingerprint or body.fingerprint,
            timeout=found.timeout or body.timeout,
            dispatched_at=body.dispatched_at or record.now / 1000,
            looks=0,
            doubtful=False,
        )
        return await self._core.looker.write(record, ClaimState.RUNNING, adopted)

    async def _empty(self, record: Record, body: JobBody) -> Record:
        """A fence without content: details to come, or the wrapper died in between."""
        look = await self._fences.look(body.sandbox_id, token_of(record.id, record.attempt))
        if look.fence is not None and look.fence.kind == "run":
            return await self._adopt(record, body, look.fence)
        if look.alive or look.alive is None:
            return await self._later(record, body)
        return await self._lost(record, body, Reason.START_NOT_CONFIRMED)

    async def _replaced(self, record: Record, body: JobBody, voided: Voided) -> Record:
        """Another boot mark than at dispatch: another container, or a job wiped the directory (rule 2)."""
        look = await self._fences.look(body.sandbox_id, token_of(record.id, record.attempt))
        verdict = proofs.of_replaced(look, body, start=look.start or voided.start, overdue=self._overdue(record, body))
        return await self._carry_out(record, body, verdict)

    async def _unreached(self, record: Record, body: JobBody) -> Record:
        """The sandbox does not answer (or holds no fences): gone, or tried again later."""
        with contextlib.suppress(EngineError):
            try:
                if (await self._engine.get_sandbox(body.sandbox_id)).state.over:
                    return await self._core.looker.gone(record)
            except SandboxMissing:
                return await self._core.looker.gone(record)
        return await self._later(record, body)

    async def _later(self, record: Record, body: JobBody) -> Record:
        again = msgspec.structs.replace(body, looks=body.looks + 1)
        state = ClaimState.UNKNOWN if body.doubtful else record.state
        return await self._core.looker.write(record, state, again, quiet=state is record.state)

    async def _lost(self, record: Record, body: JobBody, reason: Reason) -> Record:
        self._core.telemetry.reconciled("lost")
        lost = msgspec.structs.replace(body, state=JobState.LOST, reason=reason, doubtful=False)
        return await self._core.looker.write(record, ClaimState.CLOSED, lost)

    # -- a job that Redis forgot

    async def restore(self, tenant: str, command_id: str) -> Record:
        """Find a job by the fence in its sandbox. Raises ``JobNotFound``, ``EngineUnavailable``.

        One that is made up costs the engine one look an interval: misses are remembered.
        """
        missing = errors.JobNotFound(command_id=command_id)
        parsed = identity.parse_command_id(command_id)
        if parsed is None:
            raise missing
        sandbox_id, ref = parsed
        try:
            await self._core.sandboxes.known(tenant, sandbox_id)
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
            await self._store.remember(f"miss:{command_id}", b"1", ttl=self._core.settings.engine_interval)
            raise missing
        return await self._restored(tenant, command_id, sandbox_id, attempt, found)

    async def _walk(self, sandbox_id: str, ref: str) -> tuple[int, Fence | None]:
        for attempt in range(1, MAX_ATTEMPTS):
            found = await self._fences.read(sandbox_id, identity.fence_token(ref, attempt))
            if found is None or found.kind != "void":
                return attempt, found
        return MAX_ATTEMPTS, None

    async def _restored(self, tenant: str, command_id: str, sandbox_id: str, attempt: int, found: Fence) -> Record:
        body = await self.body_of(tenant, sandbox_id, found)
        _, record = await self._store.restore(
            command_id,
            ClaimState.RUNNING,
            attempt=attempt,
            token=identity.random_token(),
            body=records.encode(body),
            tenant=tenant,
        )
        return record

    async def body_of(self, tenant: str, sandbox_id: str, found: Fence) -> JobBody:
        """What a run's fence tells of its job."""
        now = await self._store.now() / 1000
        engine_id = endings.engine_id_of(found.log)
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
            by_fence=engine_id is None,
        )

    async def _boot(self, sandbox_id: str) -> str | None:
        with contextlib.suppress(EngineError):
            mark = await self._fences.boot(sandbox_id)
            return mark.text if mark is not None else None
        return None


def _of_before(body: JobBody, started_at: float | None) -> bool:
    """The run that is adopted is that of a submission which Redis has forgotten, not of this one.

    It began before this one came; or execd took this one, and knows that run no longer.
    """
    if started_at is None:
        return body.engine_id is not None
    return body.submitted_at is not None and started_at < body.submitted_at
