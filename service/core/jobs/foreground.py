"""An exec's command, whose stream is read to its end. The stream may be lost: the command is then followed by its id.

An exec is closed by what its stream has told only where its fence says the same; all else is left to a poll.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Literal

import msgspec

from service import errors
from service.core import records
from service.core.fence import protocol
from service.core.fence.client import Fences
from service.core.jobs import decisions, outcome, output, proofs
from service.core.jobs.decisions import Change
from service.core.jobs.ledger import Ledger
from service.core.jobs.pacing import Pace
from service.core.model.answers import ExecEvent
from service.core.model.states import ClaimState
from service.core.problems import not_started
from service.core.records import JobBody
from service.core.telemetry import Hop, Telemetry
from service.messages import ExecText, JobState, Reason
from service.ports.engine import CommandEvent, CommandSpec, Engine, EngineError, StartFailed, Unclear
from service.ports.store import Record, Store

log = logging.getLogger("oncebox.execs")

SILENCE = 10.0
"""Seconds without a heartbeat (they come every 3 s) after which the connection is given up."""
BY_A_SIGNAL = (128 + outcome.SIGTERM, 128 + outcome.SIGKILL)
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

    @classmethod
    def nobody(cls) -> Listener:
        """Nobody wants the text."""
        listener = cls()
        listener.leave()
        return listener

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


class Foreground:
    """Runs the commands of execs. ``keep``: bytes of an output that are recorded."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        fences: Fences,
        ledger: Ledger,
        pace: Pace,
        telemetry: Telemetry,
        *,
        keep: int,
    ) -> None:
        self._store = store
        self._engine = engine
        self._fences = fences
        self._ledger = ledger
        self._pace = pace
        self._telemetry = telemetry
        self._keep = keep

    async def run(self, mine: Record, body: JobBody, spec: CommandSpec, listener: Listener) -> Record | None:
        """Run a command; the record as its stream left it. Raises ``EngineError`` where no id came."""
        record: Record | None = None
        told = Told()
        clock = asyncio.get_running_loop().time
        began = heard = clock()
        listener.feeds(True)
        token = records.token(mine)
        try:
            async with contextlib.aclosing(self._engine.stream(body.sandbox_id, spec, silence=SILENCE)) as events:
                async for event in events:
                    heard = clock()
                    told.note(event)
                    if event.type == "init":
                        record = await self._ledger.accept(mine, body, event.text)
                    elif event.type in ("stdout", "stderr") and not (
                        listener.gone or protocol.names_marker(event.text.encode(), token)
                    ):  # who ran is not proved yet: a wrapper's own word is never shown as a command's
                        await listener.feed(event)
        except StartFailed as error:
            if record is None:
                raise
            failure = records.Failure.of(not_started(error, spec, sandbox_id=body.sandbox_id))
            failed = decisions.failed(records.job_body(record), Reason.START_FAILED, failure)
            return await self._ledger.apply(record, Change(state=ClaimState.REFUSED, body=failed))
        except EngineError as error:
            if isinstance(error, Unclear):
                self._lost(error, clock() - began, clock() - heard)
            if record is None:
                raise
        finally:
            listener.feeds(False)
        if record is not None:
            listener.closed = await self._closed(record, told)
        return record if listener.closed is None else listener.closed.record

    async def _closed(self, record: Record, told: Told) -> Closed | None:
        """Close an exec by what its stream has told, where its fence names the command and notes the same exit code.

        None: they do not agree, or the exit code may be that of a timeout or a cancel, or one of them is not to be had:
        a poll finds out. One that was cancelled or polled meanwhile has another revision.
        """
        body = records.job_body(record)
        if record.state is not ClaimState.ACCEPTED or not body.fenced or told.took is None:
            return None
        if told.exit_code in BY_A_SIGNAL or told.took >= body.timeout - outcome.SLACK:
            return None
        with contextlib.suppress(EngineError, errors.StoreUnavailable):
            return await self._closed_as(record, body, told)
        return None

    async def _closed_as(self, record: Record, body: JobBody, told: Told) -> Closed | None:
        self._pace.charge(2)
        found = await self._fences.read(body.sandbox_id, records.token(record))
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
            ended_at=await self._store.now() / 1000,
        )
        read = await output.read_streams(self._engine, body, keep=self._keep)
        change = Change(state=ClaimState.CLOSED, body=output.with_streams(body, read), streams=read.streams)
        now = await self._ledger.apply(record, change)
        return Closed(now, read.streams) if now.state is ClaimState.CLOSED else None

    def _lost(self, error: Unclear, age: float, silence: float) -> None:
        """Tell on which hop a stream was lost, how old it was, and how long it had been silent."""
        hop: Hop = "proxy" if error.hop == "proxy" else "direct"
        self._telemetry.stream_lost(hop, error.cause, age, silence)
        told = {"hop": hop, "cause": error.cause, "age": round(age, 3), "silence": round(silence, 3)}
        log.warning("an engine's stream was lost: %s", told, extra={"fields": {"message": STREAM_LOST, **told}})
