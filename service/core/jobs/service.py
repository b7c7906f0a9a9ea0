"""Jobs: submit, show with output by cursor, cancel, follow as events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec

from service import errors
from service.core import records
from service.core.claims.watches import Watches
from service.core.jobs import output
from service.core.jobs.decisions import Change
from service.core.jobs.foreground import Listener
from service.core.jobs.ledger import Ledger
from service.core.jobs.orders import Orders, submission_of
from service.core.jobs.poller import Poller
from service.core.jobs.polls import Polls
from service.core.jobs.read import Chunk, Reader
from service.core.jobs.restore import Restorer
from service.core.jobs.submit import Submitter
from service.core.limits.room import UNBOUNDED, Share
from service.core.model import cursors
from service.core.model.answers import Answer, Event, OutputPage, RawOutput
from service.core.model.cursors import END, Cursor
from service.core.model.states import ClaimState
from service.core.records import JobBody
from service.messages import (
    DEFAULT_CHUNK,
    MAX_BODY,
    Encoding,
    ExecJobOutput,
    Job,
    JobOutput,
    OutputEvent,
    Stream,
    SubmitJob,
)
from service.ports.store import Record, Store

STORE_PATIENCE, STORE_RETRY = 5.0, 0.25
"""Seconds for which a long poll waits for a store that is away, and between two tries."""
EVENT_CHUNK = 64 * 1024
AGAIN = 10.0
"""Seconds after which an event stream looks at a job of which it heard nothing."""


class Jobs:
    """The use cases around jobs, for one replica. ``stopping``: set once long polls are to end."""

    def __init__(
        self,
        store: Store,
        orders: Orders,
        submitter: Submitter,
        ledger: Ledger,
        restorer: Restorer,
        polls: Polls,
        poller: Poller,
        watches: Watches,
        reader: Reader,
        stopping: asyncio.Event,
    ) -> None:
        self._store = store
        self._orders = orders
        self._submitter = submitter
        self._ledger = ledger
        self._restorer = restorer
        self._polls = polls
        self._poller = poller
        self._watches = watches
        self._reader = reader
        self._stopping = stopping

    async def submit(self, tenant: str, request: SubmitJob, key: str | None) -> Answer[Job]:
        """Run a command once, in the background: started now, waited for, or replayed.

        Raises ``IdempotencyKeyReused``, ``OutcomeUnknown`` and, when nothing was run, what the refusal means.
        """
        order = await self._orders.take(tenant, request, key)
        record, replayed = await self._submitter.submit(order, Listener.nobody())
        with errors.replaying(replayed):
            record = await self._submitter.found_out(record, order)
        return Answer(records.job_view(record), replayed, order.key)

    async def cancel(self, tenant: str, command_id: str) -> Job:
        """Note the wish and answer; it is carried out behind, by any replica. Cancelling the finished is fine."""
        record = await self._restorer.find(tenant, command_id)
        if record.state.active:
            record = await self._ledger.request_cancel(command_id) or record
            if not record.state.pending or record.lease_expired:
                self._polls.cancel_soon(command_id)
        return records.job_view(record)

    # -- show

    async def get(
        self,
        tenant: str,
        command_id: str,
        *,
        cursor: str | None = None,
        limit: int = DEFAULT_CHUNK,
        wait: float = 0,
        timeout: int | None = None,
        encoding: Encoding = Encoding.UTF8,
        full: bool = False,
        stream: Stream | None = None,
        share: Share = UNBOUNDED,
    ) -> OutputPage:
        """The job and its output from ``cursor``; with ``wait``, as soon as there is something new.

        ``stream``: which, of a job that has them apart. Raises ``RateLimited`` where ``share`` finds no room for it.
        """
        place = cursors.parse(cursor)
        record = await self._timed(await self._find_patiently(tenant, command_id, wait), timeout)
        record = await self._poller.refreshed(record)
        wanted = _Wanted(place, limit, encoding, _checked(record, stream, place))
        page = await self._page(record, wanted, share)
        if wait > 0 and place is not None and not _news(page, place):
            page = await self._news_within(record, wanted, place, wait, share)
        # A job that was found by its fence shows no command: what is kept may be another request's.
        if full and page.job.command:
            await share.add(MAX_BODY)
            page.job.command = await self._whole_command(command_id) or page.job.command
        return page

    async def _find_patiently(self, tenant: str, command_id: str, wait: float) -> Record:
        """The job's record; who has time to wait anyway does not hear of a store that is restarted meanwhile."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(wait, STORE_PATIENCE)
        while True:
            try:
                return await self._restorer.find(tenant, command_id)
            except errors.StoreUnavailable:
                if loop.time() >= deadline or self._stopping.is_set():
                    raise
                await asyncio.sleep(STORE_RETRY)

    async def _timed(self, record: Record, timeout: int | None) -> Record:
        """Where neither record nor fence knew the job's timeout, the caller's word counts."""
        body = records.job_body(record)
        if timeout is None or body.timeout or record.state is not ClaimState.RUNNING:
            return record
        timed = msgspec.structs.replace(body, timeout=timeout)
        return await self._ledger.apply(record, Change(state=record.state, body=timed, notify=False))

    async def _whole_command(self, command_id: str) -> str | None:
        kept = await self._store.request(command_id)
        return submission_of(kept).command if kept is not None else None

    async def _news_within(
        self, record: Record, wanted: _Wanted, place: Cursor, wait: float, share: Share
    ) -> OutputPage:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        async with self._watches.of(record.id) as watch:
            while True:
                record = watch.record or record
                page = await self._page(record, wanted, share)
                left = deadline - loop.time()
                if _news(page, place) or left <= 0 or self._stopping.is_set():
                    return page
                if watch.record is None or watch.record.revision == record.revision:
                    await watch.change(left)

    async def _page(self, record: Record, wanted: _Wanted, share: Share) -> OutputPage:
        body, encoding = records.job_body(record), wanted.encoding
        if body.kind == "exec":
            return OutputPage(await self._exec_page(record, body, encoding, share))
        stream = wanted.stream or "stdout"
        offset = wanted.place.offset if wanted.place else 0
        chunk = await self._reader.chunk(record, body, offset, wanted.limit, stream=stream, share=share)
        used = cursors.whole_characters(chunk.data, encoding, final=chunk.last)
        if not used and len(chunk.data) == wanted.limit:
            chunk = await self._reader.chunk(record, body, chunk.start, wanted.limit + 3, stream=stream, share=share)
            used = cursors.whole_characters(chunk.data, encoding, final=chunk.last)
        state = records.job_state(record, body)
        after = chunk.start + used
        over = chunk.last and after >= chunk.end
        job = JobOutput(
            **records.job_fields(record, body),  # type: ignore[arg-type]
            history=records.history(body),
            encoding=encoding,
            cursor=None if over else Cursor(after, state.value, wanted.stream).encode(),
            replace=chunk.replace,
            logs_ok=chunk.ok,
            output_complete=over and (body.output_complete or record.state.failed),
            more=not over and chunk.ok and _known(record, body, stream) > chunk.end,
            skipped_bytes=chunk.skipped,
            stream=wanted.stream,
        )
        return OutputPage(job, chunk.data[:used])

    async def _exec_page(self, record: Record, body: JobBody, encoding: Encoding, share: Share) -> ExecJobOutput:
        over = record.state is ClaimState.CLOSED or record.state.failed
        streams, lost = await self._reader.streams(record, body, share=share) if over else ({}, False)
        state = records.job_state(record, body)
        return ExecJobOutput(
            **records.job_fields(record, body),  # type: ignore[arg-type]
            history=records.history(body),
            stdout=cursors.text_of(streams.get("stdout", b""), encoding, final=True)[0],
            stderr=cursors.text_of(streams.get("stderr", b""), encoding, final=True)[0],
            encoding=encoding,
            truncated=body.truncated or lost,
            skipped_bytes=output.skipped_bytes(body, streams) if over else 0,
            cursor=None if over else Cursor(0, state.value).encode(),
            logs_ok=body.logs_ok,
            output_complete=over and (body.output_complete or record.state.failed) and not lost,
        )

    async def raw(
        self,
        tenant: str,
        command_id: str,
        *,
        range: tuple[int | None, int | None] | None,
        stream: Stream | None = None,
        share: Share = UNBOUNDED,
    ) -> RawOutput:
        """The raw bytes of a job's output, streamed. Raises ``RangeNotSatisfiable``, ``RateLimited``."""
        record = await self._poller.refreshed(await self._restorer.find(tenant, command_id))
        stream = _checked(record, stream, None)
        return await self._reader.raw(record, range, stream=stream or "stdout", share=share)

    # -- events

    def is_end(self, cursor: str | None) -> bool:
        """The holder of this cursor has seen everything. Raises ``InvalidRequest``."""
        place = cursors.parse(cursor)
        return place is not None and place.seen == END

    async def events(
        self,
        tenant: str,
        command_id: str,
        *,
        cursor: str | None = None,
        encoding: Encoding = Encoding.UTF8,
        stream: Stream | None = None,
        share: Share = UNBOUNDED,
    ) -> AsyncIterator[Event]:
        """Output, states and the end, as they come; ends without ``end`` when the replica stops.

        Of a job that has its streams apart both, under one cursor, or the one that is asked for. Output waits for as
        long as ``share`` finds no room for it.
        """
        place = cursors.parse(cursor) or Cursor()
        record = await self._poller.refreshed(await self._restorer.find(tenant, command_id))
        if place.stream is not None:
            raise errors.InvalidRequest.of("cursor", "is not one of events")
        if stream is not None:
            _checked(record, stream, None)
        async with self._watches.of(command_id) as watch:
            while not self._stopping.is_set():
                record = watch.record or record
                body = records.job_body(record)
                state = records.job_state(record, body)
                if body.apart and place.stderr is None:
                    place = place.moved("stderr", 0)
                if not place.saw(state):
                    place = msgspec.structs.replace(place, seen=state.value)
                    yield Event("state", place.encode(), records.job_view(record))
                came, over = False, True
                for each in output.streams_of(body) if stream is None else (stream,):
                    chunk = await self._events_chunk(record, body, place, each, share)
                    text, used = cursors.text_of(chunk.data, encoding, final=chunk.last)
                    if text or chunk.skipped or chunk.replace:
                        place = place.moved(each, chunk.start + used)
                        yield Event("output", place.encode(), _output_event(body, each, text, chunk, encoding))
                        share.close()  # the caller has taken it
                    came, over = came or bool(text), over and chunk.last and chunk.start + used >= chunk.end
                if over:
                    yield Event("end", msgspec.structs.replace(place, seen=END).encode(), records.job_view(record))
                    return
                seen = watch.record is None or watch.record.revision == record.revision
                if not came and seen and not self._stopping.is_set():  # it may have been set during the read
                    await watch.change(AGAIN)

    async def _events_chunk(self, record: Record, body: JobBody, place: Cursor, stream: Stream, share: Share) -> Chunk:
        if body.kind == "exec":
            return Chunk(0, last=record.state is ClaimState.CLOSED or record.state.failed)
        offset = place.place(stream)
        return await self._reader.chunk(record, body, offset, EVENT_CHUNK, stream=stream, share=share, patience=None)


class _Wanted(msgspec.Struct, frozen=True):
    """What a reader asks for."""

    place: Cursor | None
    limit: int
    encoding: Encoding
    stream: Stream | None


def _checked(record: Record, stream: Stream | None, place: Cursor | None) -> Stream | None:
    """The stream that is asked for: one, where they are apart. Raises ``InvalidRequest``."""
    if not records.job_body(record).apart:
        if stream is not None:
            raise errors.InvalidRequest.of("stream", "can't be chosen: this job's streams are not two logs")
        return None
    if stream is None:
        raise errors.InvalidRequest.of("stream", "is needed, stdout or stderr: this job's streams are apart")
    if place is not None and place.stream != stream:
        raise errors.InvalidRequest.of("cursor", "is not of this stream")
    return stream


def _output_event(body: JobBody, stream: Stream, text: str, chunk: Chunk, encoding: Encoding) -> OutputEvent:
    return OutputEvent(
        output=text,
        encoding=encoding,
        replace=chunk.replace,
        skipped_bytes=chunk.skipped,
        stream=stream if body.apart else None,
    )


def _news(page: OutputPage, place: Cursor) -> bool:
    job = page.job
    if job.cursor is None or not place.saw(job.state):
        return True
    return isinstance(job, JobOutput) and bool(page.data or job.skipped_bytes or job.replace)


def _known(record: Record, body: JobBody, stream: Stream) -> int:
    """Bytes of output that can be had by now."""
    end, size = (body.stderr_end, body.stderr_size) if stream == "stderr" else (body.end, body.size)
    return end if record.state is ClaimState.CLOSED else max(end, size)
