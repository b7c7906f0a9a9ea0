"""One look at one active job: ask the engine, and write what was seen by compare-and-set.

Whoever looks (a follower, a long poll, a GET) does the same; a look that lost its race wrote nothing. The state is
read before the output, so that no tail is lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from service.core import endings, fence, identity, output, proofs, records
from service.core.endings import Ending
from service.core.fence import Fence, Look
from service.core.output import Reading, Streams
from service.core.records import JobBody
from service.core.states import ClaimState
from service.core.telemetry import Kind
from service.messages import JobState, Reason, SandboxState
from service.ports.engine import (
    CommandMissing,
    CommandNotRunning,
    CommandStatus,
    EngineError,
    FileMissing,
    SandboxMissing,
)
from service.ports.store import Appended, Record

if TYPE_CHECKING:
    from service.core.app import Core

UNKNOWN_YET = 5.0
"""Seconds after the dispatch in which execd may not know an id that it has announced."""
DEADLINE_GRACE = 60.0
"""Seconds past a job's deadline after which what can't be found out any more is settled as lost."""
CLEAN_MARGIN = 3600.0
"""Seconds after the end of a job's record for which its fence still stands."""
EXPIRY_EVERY = 60.0
"""Seconds after which the sandbox's expiry is checked again."""
DRAIN_LIMIT = 60.0
"""Seconds after the end for which the rest of the output is tried to be read."""


class Looker:
    """Looks at jobs, for one replica."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = core.store
        self._engine = core.engine
        self._fences = core.fences
        self._settings = core.settings

    async def look(self, record: Record, *, thorough: bool = False) -> Record:
        """The record as it is after one look. Raises ``StoreUnavailable``.

        ``thorough``: read all that a running job has written so far, since its sandbox is about to go.
        """
        body = records.job_body(record)
        match record.state:
            case ClaimState.CLAIMED | ClaimState.DISPATCHED if record.lease_expired:
                return await self._abandoned(record, body)
            case ClaimState.UNKNOWN:
                return await self._core.reconciler.settle(record, body)
            case ClaimState.ACCEPTED:
                confirmed = await self._core.reconciler.confirm(record, body)
                if isinstance(confirmed, Record):
                    return confirmed
                return await self._observe(record, confirmed, thorough=thorough)
            case ClaimState.RUNNING:
                return await self._observe(record, body, thorough=thorough)
            case ClaimState.ENDED:
                ending = Ending(body.state or JobState.LOST, body.exit_code, body.reason)
                return await self._drain(record, body, ending)
        return record

    async def write(
        self,
        record: Record,
        state: ClaimState,
        body: JobBody,
        *,
        append: Appended | None = None,
        streams: Mapping[str, bytes] | None = None,
        quiet: bool = False,
    ) -> Record:
        """Write what was seen; the record as it is now, whoever wrote it. ``streams``: those of an exec, at its end."""
        fresh = records.encode(msgspec.structs.replace(body, looked_at=record.now / 1000))
        if state.active:
            after = self._core.follower.delay(record, state, body)
            done, now = await self._store.advance(record, state, body=fresh, append=append, quiet=quiet, look_in=after)
        else:
            retention = self._settings.retention
            fences = state is ClaimState.CLOSED and body.fenced
            done, now = await self._store.finish(
                record,
                state,
                body=fresh,
                ttl=retention,
                append=append,
                kept=records.job_body(record).end > 0,
                streams=streams,
                clean_in=retention + CLEAN_MARGIN if fences else None,
            )
        if now is not None:
            self._core.claims.tell(now, quiet=quiet and done)
            if not now.state.active:
                await self.ended(now, body, count=done)
        return now or record

    async def ended(self, record: Record, body: JobBody, *, count: bool = True) -> None:
        """Nothing of the job holds anything any more."""
        if count:
            kind: Kind = "exec" if body.kind == "exec" else "job"
            self._core.telemetry.ended(kind, records.job_state(record, body).value)
        self._core.expiry.job_ended(body.sandbox_id)
        await self._core.quotas.free_job(body.tenant, record.id)

    async def _abandoned(self, record: Record, body: JobBody) -> Record:
        """The lease of a replica ran out: nothing was sent, or nobody knows."""
        if record.state is ClaimState.CLAIMED and record.cancel:
            return await self._core.jobs.cancel_abandoned(record, body)
        changed = body
        if record.state is ClaimState.CLAIMED:
            failure = records.Failure("ENGINE_UNAVAILABLE", "The replica at work ended before it sent anything.", 1)
            changed = msgspec.structs.replace(body, failure=failure, reason=Reason.REPLICA_LOST)
        done, now = await self._store.abandon(record, body=records.encode(changed), ttl=self._settings.retention)
        if now is None:
            return record
        if not now.state.active:
            await self.ended(now, body)
        elif done and now.state is ClaimState.UNKNOWN:
            return await self._core.reconciler.settle(now, records.job_body(now))
        return now

    # -- a confirmed run

    async def _observe(self, record: Record, body: JobBody, *, thorough: bool) -> Record:
        try:
            if record.cancel and not body.interrupted and not body.by_fence:
                body = await self._interrupt(body)
            ending, body = await self._state(record, body)
            doubtful = ending is not None and await self._may_have_run_nothing(record, body, ending)
        except SandboxMissing:
            return await self.gone(record)
        except EngineError:
            return await self.troubled(record, body)
        if doubtful:
            return await self._core.reconciler.doubtful(record, body)
        body = msgspec.structs.replace(body, troubled_since=None)
        if ending is None and record.now / 1000 // EXPIRY_EVERY != body.looked_at // EXPIRY_EVERY:
            await self._core.expiry.keep(body)
        if ending is not None:
            return await self._drain(record, msgspec.structs.replace(body, ended_at=record.now / 1000), ending)
        if body.kind == "exec":
            if thorough:
                with contextlib.suppress(EngineError):
                    body = await self._keep_streams(record, body)
            return await self._running(record, self._looked(body, news=False), news=False)
        reading = await output.read_news(self._engine, body, keep=self._settings.record_output, over=thorough)
        news = reading.append is not None or reading.size > body.size
        body = self._looked(_with(body, reading), news=news)
        return await self._running(record, body, news=news, append=reading.append)

    async def _running(self, record: Record, body: JobBody, *, news: bool, append: Appended | None = None) -> Record:
        """It runs: a command that was accepted is confirmed by this very write."""
        quiet = not news and record.state is ClaimState.RUNNING
        return await self.write(record, ClaimState.RUNNING, body, append=append, quiet=quiet)

    async def _may_have_run_nothing(self, record: Record, body: JobBody, ending: Ending) -> bool:
        """Whether that is open at the end of a command whose fence was never seen to name it."""
        if ending.state is JobState.LOST or not proofs.unproven(body):
            return False
        return await self._core.reconciler.doubt(record, body, ending.exit_code) is not None

    def _looked(self, body: JobBody, *, news: bool) -> JobBody:
        return msgspec.structs.replace(body, looks=0 if news else body.looks + 1)

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
            return endings.lost(Reason.EXECD_RESTARTED), body
        look = await self._fences.look(body.sandbox_id, self.token(record))
        return await self._by_fence(record, msgspec.structs.replace(body, by_fence=True), look)

    async def _by_status(self, record: Record, body: JobBody, status: CommandStatus) -> tuple[Ending | None, JobBody]:
        body = msgspec.structs.replace(body, started_at=status.started_at or body.started_at)
        if status.running:
            return None, body
        noted: Fence | None = None
        if body.fenced and endings.may_have_timed_out(status, body.timeout):
            self._core.pace.besides()
            noted = await self._fences.read(body.sandbox_id, self.token(record))
        body = msgspec.structs.replace(body, finished_at=status.finished_at)
        ending = endings.by_status(
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
            return endings.by_fence(code, cancel=record.cancel, interrupted=body.interrupted), body
        overdue = body.timeout > 0 and now > records.deadline(body)
        if look.alive:
            if not (overdue or record.cancel):
                return None, body
            if await self._fences.end(body.sandbox_id, self.token(record)) not in ("ended", "gone"):
                return None, body
            body = msgspec.structs.replace(body, finished_at=now)
            state = JobState.CANCELLED if record.cancel else JobState.TIMED_OUT
            return Ending(state, 128 + endings.SIGKILL), body
        if look.alive is None and now < records.deadline(body) + DEADLINE_GRACE:
            return None, body
        mark = fence.parse_boot((body.boot or "").encode())
        if mark is not None and mark.replaced_by(look.start):
            return endings.lost(Reason.CONTAINER_RESTARTED), body
        return endings.lost(Reason.EXECD_RESTARTED), body

    # -- the end

    async def _drain(self, record: Record, body: JobBody, ending: Ending) -> Record:
        """The terminal state stands; the record is closed after a read that succeeded and brought nothing new."""
        ended = msgspec.structs.replace(body, state=ending.state, exit_code=ending.exit_code, reason=ending.reason)
        if body.kind == "exec":
            return await self._drain_exec(record, ended)
        reading = await output.read_news(self._engine, ended, keep=self._settings.record_output, over=True)
        self._core.pace.besides(reading.reads - 1)
        ended = _with(ended, reading)
        if reading.drained or reading.lost or self._drained_long_enough(record, ended):
            ended = msgspec.structs.replace(ended, output_complete=reading.drained)
            return await self.write(record, ClaimState.CLOSED, ended, append=reading.append)
        return await self.write(record, ClaimState.ENDED, ended, append=reading.append)

    async def _drain_exec(self, record: Record, body: JobBody) -> Record:
        try:
            read = await self._streams(body)
        except EngineError as error:
            certain = isinstance(error, FileMissing | SandboxMissing)
            if not certain and not self._drained_long_enough(record, body):
                return await self.write(record, ClaimState.ENDED, msgspec.structs.replace(body, logs_ok=False))
            return await self.write(record, ClaimState.CLOSED, msgspec.structs.replace(body, truncated=True))
        return await self.write(record, ClaimState.CLOSED, output.with_streams(body, read), streams=read.streams)

    async def _keep_streams(self, record: Record, body: JobBody) -> JobBody:
        """Record what an exec that still runs has printed by now. Raises ``EngineError``."""
        read = await self._streams(body)
        await self._store.put_streams(record.id, read.streams, ttl=self._settings.retention)
        return output.with_streams(body, read)

    async def _streams(self, body: JobBody) -> Streams:
        self._core.pace.besides()
        return await output.read_streams(self._engine, body, keep=self._settings.record_output)

    def _drained_long_enough(self, record: Record, body: JobBody) -> bool:
        return record.now / 1000 - (body.ended_at or 0.0) > DRAIN_LIMIT

    async def gone(self, record: Record) -> Record:
        """The sandbox is certainly gone: what is known of the job is all there will ever be."""
        body = records.job_body(record)
        if record.state is not ClaimState.ENDED:
            body = msgspec.structs.replace(body, state=JobState.LOST, reason=Reason.SANDBOX_GONE)
        return await self.write(record, ClaimState.CLOSED, body)

    async def troubled(self, record: Record, body: JobBody) -> Record:
        """The daemon does not answer: the last known state, until the deadline and a grace have passed.

        That of a paused sandbox can't: the grace begins when it runs again.
        """
        paused = False
        with contextlib.suppress(EngineError):
            try:
                state = (await self._engine.get_sandbox(body.sandbox_id)).state
            except SandboxMissing:
                return await self.gone(record)
            if state.over:
                return await self.gone(record)
            paused = state in (SandboxState.PAUSING, SandboxState.PAUSED, SandboxState.RESUMING)
        now = record.now / 1000
        since = now if paused else body.troubled_since or now
        body = msgspec.structs.replace(self._looked(body, news=False), logs_ok=False, troubled_since=since)
        if now > records.deadline(body) + DEADLINE_GRACE and now - since > DEADLINE_GRACE:
            lost = msgspec.structs.replace(body, state=JobState.LOST, reason=Reason.ENGINE_UNREACHABLE)
            return await self.write(record, ClaimState.CLOSED, lost)
        return await self.write(record, record.state, body, quiet=True)

    def token(self, record: Record) -> str:
        """The token of the record's fence."""
        return token_of(record.id, record.attempt)


def learnt(body: JobBody, found: Fence | None) -> JobBody:
    """What the fence tells by now: a shell writes it line by line, so a first look may have seen but half of it."""
    if found is None or found.kind != "run":
        return body
    log = body.log or found.log
    return msgspec.structs.replace(
        body,
        log=log,
        engine_id=body.engine_id or endings.engine_id_of(log),
        timeout=body.timeout or found.timeout or 0,
        fingerprint=body.fingerprint or found.fingerprint or "",
    )


def token_of(command_id: str, attempt: int) -> str:
    """The fence token of an attempt of a job."""
    parsed = identity.parse_command_id(command_id)
    if parsed is None:
        raise ValueError(f"no command id: {command_id!r}")
    return identity.fence_token(parsed[1], attempt)


def _with(body: JobBody, reading: Reading) -> JobBody:
    changes: dict[str, Any] = {"end": reading.end, "size": reading.size, "logs_ok": reading.ok}
    return msgspec.structs.replace(body, **changes)
