"""Find out what is not certain: whether a command that was accepted is the run, and what became of an "unknown".

The fence decides (`core.fence.protocol`, rules 1 to 5). Nothing is written here: what was found is returned. All of it
may be done twice, by any replica, at any time.
"""

from __future__ import annotations

import contextlib

import msgspec

from service.core import records
from service.core.fence.client import Fences
from service.core.fence.protocol import Fence, Voided
from service.core.jobs import decisions, outcome, output, proofs, trouble
from service.core.jobs.decisions import Change, Decision, NextAttempt, gone
from service.core.jobs.pacing import Pace
from service.core.jobs.proofs import Doubt, Verdict
from service.core.model.states import ClaimState
from service.core.records import JobBody
from service.messages import JobState, Reason
from service.ports.engine import CommandMissing, CommandStatus, Engine, EngineError, SandboxMissing
from service.ports.store import Record

CONFIRM_POLLS = 4
"""Polls after which a command that runs without a fence to be seen is taken for a run whose job wiped the fence."""
MARKER_WITHIN = 64 * 1024
"""Bytes at the beginning and at the end of an output that are looked through for a marker: before one stands what a
shell prints when it starts, after it nothing but what a handler for its end prints.
"""


class Reconciler:
    """Finds out what happened to submissions."""

    def __init__(self, engine: Engine, fences: Fences, pace: Pace) -> None:
        self._engine = engine
        self._fences = fences
        self._pace = pace

    # -- a provisional "done"

    async def confirm(self, record: Record, body: JobBody) -> Decision | JobBody:
        """Whether the command that execd took is the run. A body: it is, or is taken for it.

        1. The fence is read first: where it names the command's output, the command is the run.
        2. What the command printed is looked through only where the fence does not name it, and it is over.
        3. What it printed opens a question, no more: the fence and the living answer it.
        """
        if not body.fenced:
            return body
        self._pace.charge()
        try:
            found = await self._fences.read(body.sandbox_id, records.token(record))
            proved = proofs.by_fence(found, body)
            if proved is not None and proved.kind == "ours" and proved.fence is not None:
                return _ours(body, proved.fence)
            if proved is not None:
                return await self._decided(record, body, proved)
            status = await self._status(body)
            over = status is not None and not status.running
            if status is not None and over:
                doubt = await self.doubt(record, body, outcome.exit_code(status))
                if doubt is not None and doubt != "doubtful":
                    return await self._not_begun(record, body, Reason(doubt))
                if doubt is not None:
                    return await self.doubtful(record, body)
        except SandboxMissing:
            return gone(record)
        except EngineError as error:
            return await trouble.of_run(self._engine, record, body, error)
        if over or body.quiet_polls >= CONFIRM_POLLS or (found is not None and found.kind in ("run", "damaged")):
            return msgspec.structs.replace(body, quiet_polls=0)
        return Change(
            state=record.state, body=msgspec.structs.replace(body, quiet_polls=body.quiet_polls + 1), notify=False
        )

    async def _decided(self, record: Record, body: JobBody, verdict: Verdict) -> Decision:
        """What a verdict asks for."""
        match verdict.kind:
            case "ours" if verdict.fence is not None:
                return Change(state=ClaimState.RUNNING, body=_ours(body, verdict.fence))
            case "adopt" if verdict.fence is not None:
                return await self._adopt(record, body, verdict.fence)
            case "void" if record.state is ClaimState.ACCEPTED:
                return NextAttempt(body)
            case "void" if record.state is ClaimState.UNKNOWN:
                return _never_started(record, body)
            case "lost" if verdict.reason is not None:
                return _lost(body, verdict.reason)
        return _still_unknown(record, body)

    async def _status(self, body: JobBody) -> CommandStatus | None:
        """execd's word on our command; None where it does not know it (yet)."""
        if body.engine_id is None:
            return None
        self._pace.charge()
        with contextlib.suppress(CommandMissing):
            return await self._engine.status(body.sandbox_id, body.engine_id)
        return None

    async def doubt(self, record: Record, body: JobBody, code: int | None) -> Doubt | None:
        """Whether a command that is over may have run nothing, by its exit code and what it printed.

        Raises ``EngineError``.
        """
        self._pace.charge()
        printed, whole = await output.read_ends(self._engine, body, MARKER_WITHIN)
        return proofs.doubt(code, printed, records.token(record), whole=whole)

    async def doubtful(self, record: Record, body: JobBody) -> Decision:
        """What became of a command that is over and may have run nothing: by its fence and the living, never by a void
        made now, since a job may have removed its own fence.
        """
        body = msgspec.structs.replace(body, doubtful=True)
        try:
            look = await self._fences.look(body.sandbox_id, records.token(record))
        except SandboxMissing:
            return gone(record)
        except EngineError as error:
            return await trouble.of_submission(self._engine, record, body, error)
        verdict = proofs.of_doubtful(look, body, overdue=trouble.overdue(record, body))
        return await self._decided(record, body, verdict)

    async def _not_begun(self, record: Record, body: JobBody, reason: Reason) -> Decision:
        """Our command ran nothing, for this reason. Another copy of it may have: what could not be opened by this one
        may have been there for that. So the fence is asked, by a void.
        """
        voided = await self._fences.void(body.sandbox_id, records.token(record), body.boot or "")
        if voided.outcome in ("run", "boot") or (voided.outcome == "error" and reason is not Reason.NO_FENCE):
            return await self._voided(record, body, voided)
        state = ClaimState.VOIDED if voided.outcome == "voided" else ClaimState.REFUSED
        return Change(state=state, body=decisions.not_begun(body, reason))

    # -- an "unknown"

    async def settle(self, record: Record, body: JobBody) -> Decision:
        """What became of a submission whose answer was lost; it stays unknown where nothing can be proved yet."""
        if body.doubtful:
            return await self.doubtful(record, body)
        if body.boot is None:
            return await trouble.of_submission(self._engine, record, body)
        try:
            voided = await self._fences.void(body.sandbox_id, records.token(record), body.boot)
            return await self._voided(record, body, voided)
        except SandboxMissing:
            return gone(record)
        except EngineError as error:
            return await trouble.of_submission(self._engine, record, body, error)

    async def _voided(self, record: Record, body: JobBody, voided: Voided) -> Decision:
        match voided.outcome:
            case "voided":
                return _never_started(record, body)
            case "run" if voided.fence is not None and voided.fence.kind == "empty":
                return await self._empty(record, body)
            case "run" if voided.fence is not None:
                return await self._adopt(record, body, voided.fence)
            case "boot":
                return await self._replaced(record, body, voided)
        return _still_unknown(record, body)

    async def _adopt(self, record: Record, body: JobBody, found: Fence) -> Change:
        """Follow the run that the fence names; execd's word on it counts only where its text holds the token."""
        engine_id = outcome.engine_id_of(found.log)
        known, started_at = False, None
        if engine_id is not None:
            with contextlib.suppress(CommandMissing):
                status = await self._engine.status(body.sandbox_id, engine_id)
                known = records.token(record) in status.content
                started_at = status.started_at if known else None
        adopted = msgspec.structs.replace(
            body,
            engine_id=engine_id,
            log=found.log,
            apart=found.apart if found.kind == "run" else body.apart,
            by_fence=not known,
            submitted_at=None if _of_before(body, started_at) else body.submitted_at,
            fingerprint=found.fingerprint or body.fingerprint,
            timeout=found.timeout or body.timeout,
            dispatched_at=body.dispatched_at or record.now / 1000,
            quiet_polls=0,
            doubtful=False,
        )
        return Change(state=ClaimState.RUNNING, body=adopted, settled="adopted")

    async def _empty(self, record: Record, body: JobBody) -> Change:
        """A fence without content: details to come, or the wrapper died in between."""
        look = await self._fences.look(body.sandbox_id, records.token(record))
        if look.fence is not None and look.fence.kind == "run":
            return await self._adopt(record, body, look.fence)
        if look.alive or look.alive is None:
            return trouble.later(record, body)
        return _lost(body, Reason.START_NOT_CONFIRMED)

    async def _replaced(self, record: Record, body: JobBody, voided: Voided) -> Decision:
        """Another boot mark than at dispatch: another container, or a job wiped the directory (rule 2)."""
        look = await self._fences.look(body.sandbox_id, records.token(record))
        start, overdue = look.start or voided.start, trouble.overdue(record, body)
        return await self._decided(record, body, proofs.of_replaced(look, body, start=start, overdue=overdue))


def _ours(body: JobBody, found: Fence) -> JobBody:
    return msgspec.structs.replace(body, log=found.log, quiet_polls=0, doubtful=False)


def _never_started(record: Record, body: JobBody) -> Change:
    if record.cancel:
        return Change(state=ClaimState.CLOSED, body=decisions.cancelled(body), settled="voided")
    told = "The submission was lost on its way and never started."
    body = decisions.unavailable(body, Reason.NEVER_STARTED, told)
    return Change(state=ClaimState.VOIDED, body=body, settled="voided")


def _lost(body: JobBody, reason: Reason) -> Change:
    body = msgspec.structs.replace(body, state=JobState.LOST, reason=reason, doubtful=False)
    return Change(state=ClaimState.CLOSED, body=body, settled="lost")


def _still_unknown(record: Record, body: JobBody) -> Change:
    return msgspec.structs.replace(trouble.later(record, body), settled="still_unknown")


def _of_before(body: JobBody, started_at: float | None) -> bool:
    """The run that is adopted is that of a submission which Redis has forgotten, not of this one.

    It began before this one came; or execd took this one, and knows that run no longer.
    """
    if started_at is None:
        return body.engine_id is not None
    return body.submitted_at is not None and started_at < body.submitted_at
