"""Sync exec: a job of kind ``exec`` whose caller waits. Same claims, same fence; a disconnect does not end it.

Its result comes from its two output files, exactly as printed: its stream has lost line ends and bytes that are not
UTF-8.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from service import errors
from service.core import records
from service.core.claims.once import Claims
from service.core.claims.tasks import Tasks
from service.core.jobs import foreground, output
from service.core.jobs.foreground import Listener
from service.core.jobs.orders import Order, Orders
from service.core.jobs.polls import Polls
from service.core.jobs.read import Reader
from service.core.jobs.submit import Submitter
from service.core.limits.room import UNBOUNDED, Share, of_output
from service.core.model import cursors
from service.core.model.answers import Answer, ExecEvent
from service.core.model.states import ClaimState
from service.messages import Encoding, Exec, ExecResult, ExecStart, JobState
from service.ports.store import Record

PATIENCE = 30.0
"""Seconds past the timeout for which the result is waited for."""


class Execs:
    """Execs of one replica."""

    def __init__(
        self, orders: Orders, submitter: Submitter, claims: Claims, polls: Polls, reader: Reader, tasks: Tasks
    ) -> None:
        self._orders = orders
        self._submitter = submitter
        self._claims = claims
        self._polls = polls
        self._reader = reader
        self._tasks = tasks

    async def run(self, tenant: str, request: Exec, key: str | None, *, share: Share = UNBOUNDED) -> Answer[ExecResult]:
        """Run a short command once, and wait for its result.

        Raises ``OutcomeUnknown`` where no id came, the deadline passed, or ``share`` finds no room for the result, and
        what a refusal means.
        """
        order, nobody = await self._orders.take(tenant, request, key), Listener.nobody()
        record, replayed = await self._submitter.submit(order, nobody)
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
        await share.hold(of_output(foreground.WAITING))
        order = await self._orders.take(tenant, request, key)
        listener = Listener()
        over: asyncio.Task[Record] | None = None
        try:
            record, replayed = await self._submitter.submit(order, listener)
            if not self._submitter.answers(record, order):
                self._polls.poll_soon(record.id)
            with errors.replaying(replayed):
                record = await self._submitter.found_out(record, order)
            yield ExecEvent("start", ExecStart(command_id=record.id), replayed)
            over = self._tasks.start(self._over(order, record, listener), f"result {record.id}")
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
                    await asyncio.wait({waiting}, timeout=foreground.STALLED)
                else:
                    await asyncio.wait({waiting, result}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
            events = listener.take()
            over = result.done() and (not listener.fed or listener.gone or (known and not events))
            for event in events:
                yield event

    async def _over(self, order: Order, record: Record, listener: Listener) -> Record:
        """The record once the command is over. Raises ``OutcomeUnknown`` where that is not known in time."""
        if listener.closed is not None:
            record = listener.closed.record
        if record.state is not ClaimState.ACCEPTED:  # what is accepted is compared when it is over
            record = await self._submitter.found_out(record, order)
        if record.state is not ClaimState.CLOSED:
            waited = await self._claims.wait(
                record.id,
                lambda seen: seen.state is ClaimState.CLOSED or seen.state.failed,
                records.job_body(record).timeout + PATIENCE,
                known=record,
            )
            record = await self._submitter.found_out(waited or record, order)
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
            streams, lost = await self._reader.streams(record, body, share=share, known=known)
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
