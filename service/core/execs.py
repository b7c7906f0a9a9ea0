"""Sync exec: a job of kind ``exec`` whose caller waits. Same claims, same fence; a disconnect does not end it.

Its stream may be lost: the id came first, so the command is then followed by its id, and the result comes from its
two output files, exactly as printed (the stream has lost line ends and bytes that are not UTF-8).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from service import errors
from service.core import cursors, endings, fence, output, proofs, records
from service.core.answers import Answer, ExecEvent
from service.core.looking import token_of
from service.core.problems import refusal
from service.core.records import JobBody
from service.core.room import UNBOUNDED, Share, of_output
from service.core.states import ClaimState
from service.core.submitting import Order
from service.core.telemetry import Hop
from service.messages import Encoding, Exec, ExecResult, ExecStart, ExecText, JobState, Reason
from service.ports.engine import CommandEvent, CommandSpec, EngineError, StartFailed, Unclear
from service.ports.store import Record

if TYPE_CHECKING:
    from service.core.app import Core

log = logging.getLogger("oncebox.execs")

DEFAULT_TIMEOUT = 60
SILENCE = 10.0
"""Seconds without a heartbeat (they come every 3 s) after which the connection is given up."""
PATIENCE = 30.0
"""Seconds past the timeout for which the result is waited for."""
END_LOOKS = (0.0, 0.02, 0.1, 0.3)
"""Seconds before each look at an exec whose stream has ended; after them the follower goes on."""
BY_A_SIGNAL = (128 + endings.SIGTERM, 128 + endings.SIGKILL)
"""Exit codes that a cancel or a timeout may have brought about."""
STREAM_LOST = "an engine's stream was lost"
WAITING = 16 * 1024
"""Characters of live text that wait for a slow reader; then the reading of the stream waits for it."""
STALLED = 5.0
"""Seconds for which it waits: execd says that a command runs for as long as its stream has text to give."""


class Closed(msgspec.Struct, frozen=True):
    """An exec that was closed at the end of its stream."""

    record: Record
    streams: Mapping[str, bytes]


class Told:
    """What a stream has told of its command: when it began and ended, by the sandbox's clock, and its exit code."""

    def __init__(self) -> None:
        self.started_at: float | None = None
        self.finished_at: float | None = None
        self.exit_code: int | None = None

    @property
    def took(self) -> float | None:
        """Seconds; None where it has not told all of it."""
        if self.started_at is None or self.finished_at is None or self.exit_code is None:
            return None
        return self.finished_at - self.started_at

    def note(self, event: CommandEvent) -> None:
        """Hear one event."""
        if event.type == "init":
            self.started_at = event.at
        elif event.type in ("complete", "exit"):
            self.finished_at, self.exit_code = event.at, event.exit_code


class Listener:
    """Whoever reads an exec's live text. What waits for them is bounded, and so is how long it holds up the rest."""

    def __init__(self) -> None:
        self.gone = False
        self.fed = False
        """A stream of this process feeds it."""
        self.closed: Closed | None = None
        """What came of it, where its stream told the end."""
        self.ready = asyncio.Event()
        self._room = asyncio.Event()
        self._texts: list[tuple[Literal["stdout", "stderr"], list[str]]] = []
        self._size = 0

    async def feed(self, event: CommandEvent) -> None:
        """Hand on one event. A reader who takes nothing for ``STALLED`` gets no more text, but the result."""
        kind: Literal["stdout", "stderr"] = "stdout" if event.type == "stdout" else "stderr"
        text = event.text if event.text == "\n" else event.text + "\n"
        if not self._texts or self._texts[-1][0] != kind:
            self._texts.append((kind, []))
        self._texts[-1][1].append(text)
        self._size += len(text)
        self.ready.set()
        if self._size >= WAITING:
            self._room.clear()
            try:
                async with asyncio.timeout(STALLED):
                    await self._room.wait()
            except TimeoutError:
                self.leave()

    def take(self) -> list[ExecEvent]:
        """All that waits."""
        taken = [ExecEvent(kind, ExecText(text="".join(texts))) for kind, texts in self._texts]
        self._texts, self._size = [], 0
        self.ready.clear()
        self._room.set()
        return taken

    def feeds(self, fed: bool) -> None:
        """A stream begins to feed it, or is over."""
        self.fed = fed
        self.ready.set()

    def leave(self) -> None:
        """Nothing more is wanted."""
        self.gone = True
        self._room.set()


class Execs:
    """Execs of one replica."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def run(self, tenant: str, request: Exec, key: str | None, *, share: Share = UNBOUNDED) -> Answer[ExecResult]:
        """Run a short command once, and wait for its result.

        Raises ``OutcomeUnknown`` where no id came, the deadline passed, or ``share`` finds no room for the result, and
        what a refusal means.
        """
        order = await self._order(tenant, request, key)
        nobody = Listener()
        nobody.leave()
        record, replayed = await self._core.submitter.settle(
            order, lambda mine, body, spec: self._send(mine, body, spec, nobody)
        )
        with errors.replaying(replayed):
            record = await self._over(order, record, nobody)
            result = await self._result(order, record, request.encoding or Encoding.UTF8, share, nobody)
        return Answer(result, replayed, order.key)

    async def stream(
        self, tenant: str, request: Exec, key: str | None, *, share: Share = UNBOUNDED
    ) -> AsyncGenerator[ExecEvent]:
        """The same, with the text as it comes; ``result`` has the outputs exactly as printed.

        Raises ``RateLimited``, before anything is run, where ``share`` finds no room for the text.
        """
        await share.hold(of_output(WAITING))
        order = await self._order(tenant, request, key)
        listener = Listener()
        over: asyncio.Task[Record] | None = None
        try:
            record, replayed = await self._core.submitter.settle(
                order, lambda mine, body, spec: self._send(mine, body, spec, listener)
            )
            if not self._core.submitter.answers(record, order):
                self._core.submitter.look_soon(record.id)
            with errors.replaying(replayed):
                record = await self._core.jobs.found_out(record, order)
            yield ExecEvent("start", ExecStart(command_id=record.id), replayed)
            over = self._core.tasks.start(self._over(order, record, listener), f"result {record.id}")
            async with contextlib.aclosing(self._live(listener, over)) as events:
                async for event in events:
                    yield event
            encoding = request.encoding or Encoding.UTF8
            yield ExecEvent("result", await self._result(order, await over, encoding, share, listener))
        finally:
            listener.leave()
            if over is not None:
                over.cancel()

    async def _live(self, listener: Listener, result: asyncio.Task[Record]) -> AsyncGenerator[ExecEvent]:
        over = False
        while not over:
            known = result.done()
            waiting = asyncio.ensure_future(listener.ready.wait())
            try:
                if known:  # the stream may bring its last text a little later
                    await asyncio.wait({waiting}, timeout=STALLED)
                else:
                    await asyncio.wait({waiting, result}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
            events = listener.take()
            over = result.done() and (not listener.fed or listener.gone or (known and not events))
            for event in events:
                yield event

    async def _order(self, tenant: str, request: Exec, key: str | None) -> Order:
        return await self._core.submitter.order(tenant, request, key, timeout=request.timeout or DEFAULT_TIMEOUT)

    async def send_alone(self, mine: Record, body: JobBody, spec: CommandSpec) -> Record | None:
        """Run an exec's command in the foreground; its result is recorded."""
        nobody = Listener()
        nobody.leave()
        return await self._send(mine, body, spec, nobody)

    async def _send(self, mine: Record, body: JobBody, spec: CommandSpec, listener: Listener) -> Record | None:
        record: Record | None = None
        told = Told()
        clock = asyncio.get_running_loop().time
        began = heard = clock()
        listener.feeds(True)
        token = token_of(mine.id, mine.attempt)
        try:
            async with contextlib.aclosing(self._core.engine.stream(body.sandbox_id, spec, silence=SILENCE)) as events:
                async for event in events:
                    heard = clock()
                    told.note(event)
                    if event.type == "init":
                        record = await self._core.submitter.accepted(mine, body, event.text)
                    elif event.type in ("stdout", "stderr") and not (
                        listener.gone or fence.names_marker(event.text.encode(), token)
                    ):  # who ran is not proved yet: a wrapper's own word is never shown as a command's
                        await listener.feed(event)
        except StartFailed as error:
            if record is None:
                raise
            failed = msgspec.structs.replace(
                records.job_body(record),
                failure=records.Failure.of(refusal(error, sandbox_id=body.sandbox_id)),
                reason=Reason.START_FAILED,
            )
            return await self._core.looker.write(record, ClaimState.REFUSED, failed)
        except EngineError as error:
            if isinstance(error, Unclear):
                self._lost(error, clock() - began, clock() - heard)
            if record is None:
                raise
        finally:
            listener.feeds(False)
        if record is not None and (closed := await self._closed(record, told)) is not None:
            listener.closed = closed
            return closed.record
        for delay in END_LOOKS:
            await asyncio.sleep(delay)
            record = await self._core.follower.look(mine.id) or record
            if record is None or not record.state.active:
                break
        return record

    async def _closed(self, record: Record, told: Told) -> Closed | None:
        """Close an exec by what its stream has told, where its fence names the command and notes the same exit code.

        None: they do not agree, or the exit code may be that of a timeout or a cancel, or one of them is not to be had:
        a look finds out. One that was cancelled or looked at meanwhile has another revision.
        """
        body = records.job_body(record)
        if record.state is not ClaimState.ACCEPTED or not body.fenced or told.took is None:
            return None
        if told.exit_code in BY_A_SIGNAL or told.took >= body.timeout - endings.SLACK:
            return None
        with contextlib.suppress(EngineError, errors.StoreUnavailable):
            return await self._closed_as(record, body, told)
        return None

    async def _closed_as(self, record: Record, body: JobBody, told: Told) -> Closed | None:
        self._core.pace.besides(2)
        found = await self._core.fences.read(body.sandbox_id, token_of(record.id, record.attempt))
        proved = proofs.by_fence(found, body)
        if found is None or proved is None or proved.kind != "ours" or found.exit_code != told.exit_code:
            return None
        body = msgspec.structs.replace(
            body,
            log=found.log,
            state=JobState.EXITED,
            exit_code=found.exit_code,
            started_at=told.started_at,
            finished_at=told.finished_at,
            ended_at=await self._core.clock(),
        )
        read = await output.read_streams(self._core.engine, body, keep=self._core.settings.record_output)
        body = output.with_streams(body, read)
        now = await self._core.looker.write(record, ClaimState.CLOSED, body, streams=read.streams)
        return Closed(now, read.streams) if now.state is ClaimState.CLOSED else None

    def _lost(self, error: Unclear, age: float, silence: float) -> None:
        """Tell on which hop a stream was lost, how old it was, and how long it had been silent."""
        hop: Hop = "proxy" if error.hop == "proxy" else "direct"
        self._core.telemetry.stream_lost(hop, error.cause, age, silence)
        told = {"hop": hop, "cause": error.cause, "age": round(age, 3), "silence": round(silence, 3)}
        log.warning("an engine's stream was lost: %s", told, extra={"fields": {"message": STREAM_LOST, **told}})

    async def _over(self, order: Order, record: Record, listener: Listener) -> Record:
        """The record once the command is over. Raises ``OutcomeUnknown`` where that is not known in time."""
        if listener.closed is not None:
            record = listener.closed.record
        if record.state is not ClaimState.ACCEPTED:  # what is accepted is compared when it is over
            record = await self._core.jobs.found_out(record, order)
        if record.state is not ClaimState.CLOSED:
            waited = await self._core.claims.wait(
                record.id,
                lambda seen: seen.state is ClaimState.CLOSED or seen.state.failed,
                records.job_body(record).timeout + PATIENCE,
                known=record,
            )
            record = await self._core.jobs.found_out(waited or record, order)
        body = records.job_body(record)
        unknown = record.state is not ClaimState.CLOSED or body.state is JobState.LOST
        if unknown:
            raise errors.OutcomeUnknown(
                "How the command ended is not known" + (f" ({body.reason.value})." if body.reason else " yet."),
                command_id=record.id,
                sandbox_id=body.sandbox_id,
                retryable=order.keyed and body.state is not JobState.LOST,
            )
        return record

    async def _result(
        self, order: Order, record: Record, encoding: Encoding, share: Share, listener: Listener
    ) -> ExecResult:
        body = records.job_body(record)
        known = None if listener.closed is None else listener.closed.streams
        try:
            streams, lost = await self._core.jobs.streams(record, body, share=share, known=known)
        except errors.RateLimited as error:  # "nothing was done" would be wrong here: the command ran
            raise errors.OutcomeUnknown(
                "The command is over; there is no room for its result now, which is kept.",
                command_id=record.id,
                sandbox_id=body.sandbox_id,
                retry_after=error.retry_after,
                retryable=order.keyed,
            ) from error
        return ExecResult(
            command_id=record.id,
            exit_code=body.exit_code,
            timed_out=body.state is JobState.TIMED_OUT,
            stdout=cursors.text_of(streams.get("stdout", b""), encoding, final=True)[0],
            stderr=cursors.text_of(streams.get("stderr", b""), encoding, final=True)[0],
            truncated=body.truncated or lost,
            skipped_bytes=output.skipped_bytes(body, streams),
            duration=max(0.0, (body.finished_at or 0.0) - (body.started_at or body.finished_at or 0.0)),
        )
