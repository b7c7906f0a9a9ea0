"""Sync exec: a job of kind ``exec`` whose caller waits. Same claims, same fence; a disconnect does not end it.

Its stream may be lost: the id came first, so the command is then followed by its id, and the result comes from its
two output files, exactly as printed (the stream has lost line ends and bytes that are not UTF-8).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Literal

import msgspec

from service import errors
from service.core import cursors, records
from service.core.answers import Answer, ExecEvent
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
STREAM_LOST = "an engine's stream was lost"
WAITING = 16 * 1024
"""Characters of live text that wait for a slow reader; then the reading of the stream waits for it."""
STALLED = 5.0
"""Seconds for which it waits: execd says that a command runs for as long as its stream has text to give."""


class Listener:
    """Whoever reads an exec's live text. What waits for them is bounded, and so is how long it holds up the rest."""

    def __init__(self) -> None:
        self.gone = False
        self.fed = False
        """A stream of this process feeds it."""
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
                await asyncio.wait_for(self._room.wait(), STALLED)
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
        record, replayed = await self._core.submitter.settle(order, self.send_alone)
        with errors.replaying(replayed):
            record = await self._over(order, record)
            result = await self._result(order, record, request.encoding or Encoding.UTF8, share)
        return Answer(result, replayed, order.key)

    async def stream(
        self, tenant: str, request: Exec, key: str | None, *, share: Share = UNBOUNDED
    ) -> AsyncIterator[ExecEvent]:
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
            with errors.replaying(replayed):
                record = await self._core.jobs.found_out(record, keyed=order.keyed)
            yield ExecEvent("start", ExecStart(command_id=record.id), replayed)
            over = self._core.tasks.start(self._over(order, record), f"result {record.id}")
            async for event in self._live(listener, over):
                yield event
            yield ExecEvent("result", await self._result(order, await over, request.encoding or Encoding.UTF8, share))
        finally:
            listener.leave()
            if over is not None:
                over.cancel()

    async def _live(self, listener: Listener, result: asyncio.Task[Record]) -> AsyncIterator[ExecEvent]:
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
        clock = asyncio.get_running_loop().time
        began = heard = clock()
        listener.feeds(True)
        try:
            async for event in self._core.engine.stream(body.sandbox_id, spec, silence=SILENCE):
                heard = clock()
                if event.type == "init":
                    record = await self._core.submitter.accepted(mine, body, event.text)
                elif event.type in ("stdout", "stderr") and not listener.gone:
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
        for delay in END_LOOKS:
            await asyncio.sleep(delay)
            record = await self._core.follower.look(mine.id) or record
            if record is None or not record.state.active:
                break
        return record

    def _lost(self, error: Unclear, age: float, silence: float) -> None:
        """Tell on which hop a stream was lost, how old it was, and how long it had been silent."""
        hop: Hop = "proxy" if error.hop == "proxy" else "direct"
        self._core.telemetry.stream_lost(hop, error.cause, age, silence)
        told = {"hop": hop, "cause": error.cause, "age": round(age, 3), "silence": round(silence, 3)}
        log.warning("an engine's stream was lost: %s", told, extra={"fields": {"message": STREAM_LOST, **told}})

    async def _over(self, order: Order, record: Record) -> Record:
        """The record once the command is over. Raises ``OutcomeUnknown`` where that is not known in time."""
        record = await self._core.jobs.found_out(record, keyed=order.keyed)
        if record.state is not ClaimState.CLOSED:
            waited = await self._core.claims.wait(
                record.id,
                lambda seen: seen.state is ClaimState.CLOSED or seen.state.failed,
                records.job_body(record).timeout + PATIENCE,
            )
            record = await self._core.jobs.found_out(waited or record, keyed=order.keyed)
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

    async def _result(self, order: Order, record: Record, encoding: Encoding, share: Share) -> ExecResult:
        body = records.job_body(record)
        try:
            streams, lost = await self._core.jobs.streams(record, body, share=share)
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
            duration=max(0.0, (body.finished_at or 0.0) - (body.started_at or body.finished_at or 0.0)),
        )
