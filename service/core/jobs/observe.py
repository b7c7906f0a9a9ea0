"""One poll of one active job: ask the engine how it stands, and return what is to be written of it.

Whoever polls (a poller, a long poll, a GET) does the same.
"""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from service.core import records
from service.core.fence import protocol
from service.core.fence.client import Fences
from service.core.fence.protocol import Fence, Look
from service.core.jobs import outcome, output, proofs, trouble
from service.core.jobs.decisions import Change, Decision, gone
from service.core.jobs.outcome import Ending
from service.core.jobs.output import Reading
from service.core.jobs.pacing import Pace
from service.core.jobs.reconcile import Reconciler
from service.core.model.states import ClaimState
from service.core.records import JobBody
from service.core.sandboxes.expiry import Expiry
from service.messages import JobState, Reason
from service.ports.engine import (
    CommandMissing,
    CommandNotRunning,
    CommandStatus,
    Engine,
    EngineError,
    FileMissing,
    SandboxMissing,
)
from service.ports.store import Record

UNKNOWN_YET = 5.0
"""Seconds after the dispatch in which execd may not know an id that it has announced."""
EXPIRY_EVERY = 60.0
"""Seconds after which the sandbox's expiry is checked again."""
DRAIN_LIMIT = 60.0
"""Seconds after the end for which the rest of the output is tried to be read."""


class Observer:
    """Sees how jobs stand. ``keep``: bytes of an output that are recorded."""

    def __init__(
        self, engine: Engine, fences: Fences, reconciler: Reconciler, expiry: Expiry, pace: Pace, *, keep: int
    ) -> None:
        self._engine = engine
        self._fences = fences
        self._reconciler = reconciler
        self._expiry = expiry
        self._pace = pace
        self._keep = keep

    async def observe(self, record: Record, *, thorough: bool = False) -> Decision | None:
        """What is to be done about the job as it stands; None: nothing, a replica is at it or it is over.

        ``thorough``: read all that a running job has written so far, since its sandbox is about to go.
        """
        body = records.job_body(record)
        match record.state:
            case ClaimState.UNKNOWN:
                return await self._reconciler.settle(record, body)
            case ClaimState.ACCEPTED:
                confirmed = await self._reconciler.confirm(record, body)
                if not isinstance(confirmed, JobBody):
                    return confirmed
                return await self._run(record, confirmed, thorough=thorough)
            case ClaimState.RUNNING:
                return await self._run(record, body, thorough=thorough)
            case ClaimState.ENDED:
                ending = Ending(body.state or JobState.LOST, body.exit_code, body.reason)
                return await self._drain(record, body, ending)
        return None

    # -- a confirmed run

    async def _run(self, record: Record, body: JobBody, *, thorough: bool) -> Decision:
        """What order matters in:

        1. A cancel is carried out before the state is read, so that its end is seen as its doing.
        2. The state is read before the output: what a command wrote before its end is then there to be read.
        3. Whether a command whose fence never named it ran at all is asked before its end is believed.
        4. The sandbox is kept for a job that runs before its output is read.
        """
        try:
            if record.cancel and not body.interrupted and not body.by_fence:
                body = await self._interrupt(body)
            ending, body = await self._state(record, body)
            doubtful = ending is not None and await self._may_have_run_nothing(record, body, ending)
        except SandboxMissing:
            return gone(record)
        except EngineError as error:
            return await trouble.of_run(self._engine, record, body, error)
        if doubtful:
            return await self._reconciler.doubtful(record, body)
        body = msgspec.structs.replace(body, troubled_since=None, refused_since=None)
        if ending is not None:
            return await self._drain(record, msgspec.structs.replace(body, ended_at=record.now / 1000), ending)
        if record.now / 1000 // EXPIRY_EVERY != body.polled_at // EXPIRY_EVERY:
            await self._expiry.keep(body)
        if body.kind == "exec":
            return await self._running_exec(record, body, thorough=thorough)
        return await self._running_job(record, body, thorough=thorough)

    async def _running_job(self, record: Record, body: JobBody, *, thorough: bool) -> Change:
        read = await self._news(body, over=thorough)
        news = any(each.append is not None for each in read) or _sizes(_with(body, read)) > _sizes(body)
        body = msgspec.structs.replace(_with(body, read), quiet_polls=0 if news else body.quiet_polls + 1)
        return _running(record, body, read, notify=news)

    async def _news(self, body: JobBody, *, over: bool) -> list[Reading]:
        """What is new in the job's log; where its streams are apart, of its stdout and of its stderr."""
        logs = [output.of_stream(self._engine, body, stream) for stream in output.streams_of(body)]
        self._pace.charge(len(logs) - 1)
        return await asyncio.gather(
            *(output.read_news(self._engine, each, keep=self._keep, over=over) for each in logs)
        )

    async def _running_exec(self, record: Record, body: JobBody, *, thorough: bool) -> Change:
        change = _running(record, msgspec.structs.replace(body, quiet_polls=body.quiet_polls + 1), [], notify=False)
        if thorough:
            with contextlib.suppress(EngineError):
                read = await self._streams(body)
                body = output.with_streams(change.body, read)
                return msgspec.structs.replace(change, body=body, streams=read.streams)
        return change

    async def _may_have_run_nothing(self, record: Record, body: JobBody, ending: Ending) -> bool:
        """Whether that is open at the end of a command whose fence was never seen to name it."""
        if ending.state is JobState.LOST or not proofs.unproven(body):
            return False
        return await self._reconciler.doubt(record, body, ending.exit_code) is not None

    async def _interrupt(self, body: JobBody) -> JobBody:
        """Carry out the wish to cancel: SIGTERM, 3 s, SIGKILL. Finished already: its end stands."""
        if body.engine_id is None:
            return body
        try:
            await self._engine.interrupt(body.sandbox_id, body.engine_id)
        except CommandNotRunning:
            return body
        return msgspec.structs.replace(body, interrupted=True)

    async def _state(self, record: Record, body: JobBody) -> tuple[Ending | None, JobBody]:
        """How the command stands: its end, or None while it runs. Raises ``EngineError``."""
        if not body.by_fence and body.engine_id is not None:
            try:
                status = await self._engine.status(body.sandbox_id, body.engine_id)
            except CommandMissing:
                if record.now / 1000 - (body.dispatched_at or body.submitted_at or 0.0) < UNKNOWN_YET:
                    return None, body
            else:
                return await self._by_status(record, body, status)
        if not body.fenced:
            return outcome.lost(Reason.EXECD_RESTARTED), body
        look = await self._fences.look(body.sandbox_id, records.token(record))
        return await self._by_fence(record, msgspec.structs.replace(body, by_fence=True), look)

    async def _by_status(self, record: Record, body: JobBody, status: CommandStatus) -> tuple[Ending | None, JobBody]:
        body = msgspec.structs.replace(body, started_at=status.started_at or body.started_at)
        if status.running:
            return None, body
        noted: Fence | None = None
        if body.fenced and outcome.may_have_timed_out(status, body.timeout):
            self._pace.charge()
            noted = await self._fences.read(body.sandbox_id, records.token(record))
        body = msgspec.structs.replace(body, finished_at=status.finished_at)
        ending = outcome.by_status(
            status, timeout=body.timeout, cancel=record.cancel, interrupted=body.interrupted, fence=noted
        )
        return ending, body

    async def _by_fence(self, record: Record, body: JobBody, look: Look) -> tuple[Ending | None, JobBody]:
        """execd forgot the command: its fence and its processes tell. Its deadline and a cancel still hold."""
        now = record.now / 1000
        body = learnt(body, look.fence)
        code = look.fence.exit_code if look.fence is not None else None
        if code is not None:
            # A run that was found again may have ended long ago, and the fence does not tell when.
            body = msgspec.structs.replace(body, finished_at=now if body.submitted_at is not None else None)
            return outcome.by_fence(code, cancel=record.cancel, interrupted=body.interrupted), body
        if look.alive:
            if not record.cancel and not (body.timeout > 0 and now > records.deadline(body)):
                return None, body
            if await self._fences.end(body.sandbox_id, records.token(record)) not in ("ended", "gone"):
                return None, body
            body = msgspec.structs.replace(body, finished_at=now)
            state = JobState.CANCELLED if record.cancel else JobState.TIMED_OUT
            return Ending(state, 128 + outcome.SIGKILL), body
        if look.alive is None and not trouble.overdue(record, body):
            return None, body
        mark = protocol.parse_boot((body.boot or "").encode())
        if mark is not None and mark.replaced_by(look.start):
            return outcome.lost(Reason.CONTAINER_RESTARTED), body
        return outcome.lost(Reason.EXECD_RESTARTED), body

    # -- the end

    async def _drain(self, record: Record, body: JobBody, ending: Ending) -> Change:
        """The terminal state stands; the record is closed after a read that succeeded and brought nothing new."""
        ended = msgspec.structs.replace(body, state=ending.state, exit_code=ending.exit_code, reason=ending.reason)
        if body.kind == "exec":
            return await self._drain_exec(record, ended)
        read = await self._news(ended, over=True)
        self._pace.charge(sum(each.reads - 1 for each in read))
        ended = _with(ended, read)
        if all(each.drained or each.lost for each in read) or _drained_long_enough(record, ended):
            ended = msgspec.structs.replace(ended, output_complete=all(each.drained for each in read))
            return _change(ClaimState.CLOSED, ended, read)
        return _change(ClaimState.ENDED, ended, read)

    async def _drain_exec(self, record: Record, body: JobBody) -> Change:
        try:
            read = await self._streams(body)
        except EngineError as error:
            if not isinstance(error, FileMissing | SandboxMissing) and not _drained_long_enough(record, body):
                return Change(state=ClaimState.ENDED, body=msgspec.structs.replace(body, logs_ok=False))
            return Change(state=ClaimState.CLOSED, body=msgspec.structs.replace(body, truncated=True))
        return Change(state=ClaimState.CLOSED, body=output.with_streams(body, read), streams=read.streams)

    async def _streams(self, body: JobBody) -> output.Streams:
        self._pace.charge()
        return await output.read_streams(self._engine, body, keep=self._keep)


def _running(record: Record, body: JobBody, read: list[Reading], *, notify: bool) -> Change:
    """It runs: a command that was accepted is confirmed by this very write."""
    return _change(ClaimState.RUNNING, body, read, notify=notify or record.state is not ClaimState.RUNNING)


def _change(state: ClaimState, body: JobBody, read: list[Reading], *, notify: bool = True) -> Change:
    """With what was read of the log, or of stdout and stderr."""
    append, append_stderr, *_ = [*(each.append for each in read), None, None]
    return Change(state=state, body=body, append=append, append_stderr=append_stderr, notify=notify)


def _drained_long_enough(record: Record, body: JobBody) -> bool:
    return record.now / 1000 - (body.ended_at or 0.0) > DRAIN_LIMIT


def learnt(body: JobBody, found: Fence | None) -> JobBody:
    """What the fence tells by now: a shell writes it line by line, so a first poll may have seen but half of it."""
    if found is None or found.kind != "run":
        return body
    log = body.log or found.log
    return msgspec.structs.replace(
        body,
        log=log,
        engine_id=body.engine_id or outcome.engine_id_of(log),
        timeout=body.timeout or found.timeout or 0,
        fingerprint=body.fingerprint or found.fingerprint or "",
        apart=body.apart or found.apart,
    )


def _with(body: JobBody, read: list[Reading]) -> JobBody:
    """With the places that were read up to."""
    first = read[0]
    body = msgspec.structs.replace(body, end=first.end, size=first.size, logs_ok=all(each.ok for each in read))
    if len(read) == 1:
        return body
    return msgspec.structs.replace(body, stderr_end=read[1].end, stderr_size=read[1].size)


def _sizes(body: JobBody) -> int:
    return body.size + body.stderr_size
