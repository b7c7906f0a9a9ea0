"""Jobs: submit, show with output by cursor, list, cancel, follow as events."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from service import errors
from service.core import cursors, identity, opaque, output, records, rules
from service.core.answers import Answer, Event, OutputPage, RawOutput
from service.core.cursors import END, Cursor
from service.core.reading import Chunk
from service.core.records import JobBody, matches
from service.core.room import ESCAPED, PATIENCE, ROW, UNBOUNDED, Share
from service.core.states import ClaimState
from service.messages import (
    DEFAULT_CHUNK,
    MAX_BODY,
    Encoding,
    ExecJobOutput,
    Job,
    JobOutput,
    JobPage,
    JobState,
    OutputEvent,
    SubmitJob,
)
from service.ports.store import JobRow, Record, Unreadable

if TYPE_CHECKING:
    from service.core.app import Core
    from service.core.submitting import Order

log = logging.getLogger("oncebox.jobs")

DEFAULT_TIMEOUT = 3600
UNKNOWN_WAIT = 3.0
"""Seconds that a submission waits for its "unknown" to be found out."""
CONFIRMED_WAIT = 10.0
"""Seconds that a submission with a key of the caller's waits for the first look at its command."""
LIST_READ = 200
"""Records read in one go for a list."""
LOOKED_AT = 1000
"""Records that one list request looks at."""
STORE_PATIENCE, STORE_RETRY = 5.0, 0.25
"""Seconds for which a long poll waits for a store that is away, and between two tries."""
EVENT_CHUNK = 64 * 1024

_TOKEN = re.compile(r"([0-9]{1,16}) (cmd_[A-Za-z0-9_-]+)")


class Jobs:
    """The use cases around jobs, for one replica."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = core.store

    # -- submit

    async def submit(self, tenant: str, request: SubmitJob, key: str | None) -> Answer[Job]:
        """Run a command once, in the background: started now, waited for, or replayed.

        Raises ``IdempotencyKeyReused``, ``OutcomeUnknown`` and, when nothing was run, what the refusal means.
        """
        submitter = self._core.submitter
        order = await submitter.order(tenant, request, key, timeout=request.timeout or DEFAULT_TIMEOUT)
        record, replayed = await submitter.settle(order, submitter.send_job)
        with errors.replaying(replayed):
            record = await self.found_out(record, order)
        return Answer(records.job_view(record), replayed, order.key)

    async def found_out(self, record: Record, order: Order) -> Record:
        """The record as an answer to a submission; raises the problem where there is none.

        Of a request that no other can have the key of, an accepted command is an answer. Any other waits for the
        first look, which compares the fence's fingerprint: the run may be another request's.
        """
        submitter = self._core.submitter
        if not submitter.answers(record, order) and record.state is not ClaimState.UNKNOWN:
            record = await self._waited(record, _tells, CONFIRMED_WAIT)
        if record.state is ClaimState.UNKNOWN:
            record = await self._waited(record, lambda seen: seen.state.confirmed, UNKNOWN_WAIT)
        body = records.job_body(record)
        if record.state.failed:
            failure = body.failure or records.Failure("ENGINE_UNAVAILABLE", "Nothing was run.", 1)
            raise failure.exception(command_id=record.id, sandbox_id=body.sandbox_id)
        if record.state is ClaimState.UNKNOWN or not submitter.answers(record, order):
            raise submitter.not_known(record, order)
        return record

    async def _waited(self, record: Record, until: Callable[[Record], bool], timeout: float) -> Record:
        return await self._core.claims.wait(record.id, until, timeout) or record

    async def next_attempt(self, record: Record, body: JobBody) -> Record:
        """Send the next attempt of a submission that met a void."""
        self._core.telemetry.reconciled("next_attempt")
        send = self._core.execs.send_alone if body.kind == "exec" else self._core.submitter.send_job
        return await self._core.submitter.next_attempt(record, body, send)

    async def cancel_abandoned(self, record: Record, body: JobBody) -> Record:
        """A job that is to be cancelled, and whose replica ended before it sent anything: never dispatched."""
        claims = self._core.claims
        ours, now = await self._store.take_over(
            record, token=identity.random_token(), owner=claims.owner, lease=claims.lease
        )
        if ours and now is not None:
            now = await self._core.submitter.cancelled(now, body)
        return now or record

    # -- show

    async def find(self, tenant: str, command_id: str) -> Record:
        """The record of a job of this tenant, found by its fence where Redis forgot it. Raises ``JobNotFound``."""
        missing = errors.JobNotFound(command_id=command_id)
        if identity.parse_command_id(command_id) is None:
            raise missing
        record = await self._store.get(command_id)
        if record is None or records.job_body(record).tenant != tenant:
            # One of another tenant goes the way of one that does not exist: its sandbox is not this tenant's.
            record = await self._core.reconciler.restore(tenant, command_id)
        if records.job_body(record).tenant != tenant:
            raise missing
        return record

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
        share: Share = UNBOUNDED,
    ) -> OutputPage:
        """The job and its output from ``cursor``; with ``wait``, as soon as there is something new.

        Raises ``RateLimited`` where ``share`` finds no room for it.
        """
        place = cursors.parse(cursor)
        record = await self._timed(await self._find_patiently(tenant, command_id, wait), timeout)
        record = await self._core.follower.refreshed(record)
        page = await self._page(record, place, limit, encoding, share)
        if wait > 0 and place is not None and not _news(page, place):
            page = await self._news_within(record, place, limit, encoding, wait, share)
        # A job that was found by its fence shows no command: what is kept may be another request's.
        if full and page.job.command:
            await share.add(MAX_BODY)
            page.job.command = await self._whole_command(command_id) or page.job.command
        return page

    async def _find_patiently(self, tenant: str, command_id: str, wait: float) -> Record:
        """``find``; who has time to wait anyway does not hear of a store that is restarted meanwhile."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(wait, STORE_PATIENCE)
        while True:
            try:
                return await self.find(tenant, command_id)
            except errors.StoreUnavailable:
                if loop.time() >= deadline or self._core.stopping.is_set():
                    raise
                await asyncio.sleep(STORE_RETRY)

    async def _timed(self, record: Record, timeout: int | None) -> Record:
        """Where neither record nor fence knew the job's timeout, the caller's word counts."""
        body = records.job_body(record)
        if timeout is None or body.timeout or record.state is not ClaimState.RUNNING:
            return record
        return await self._core.looker.write(
            record, record.state, msgspec.structs.replace(body, timeout=timeout), quiet=True
        )

    async def _whole_command(self, command_id: str) -> str | None:
        kept = await self._store.request(command_id)
        return self._core.submitter.command_of(kept) if kept is not None else None

    async def _news_within(
        self, record: Record, place: Cursor, limit: int, encoding: Encoding, wait: float, share: Share
    ) -> OutputPage:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        async with self._core.watches.of(record.id) as watch:
            while True:
                record = watch.record or record
                page = await self._page(record, place, limit, encoding, share)
                left = deadline - loop.time()
                if _news(page, place) or left <= 0 or self._core.stopping.is_set():
                    return page
                if watch.record is None or watch.record.revision == record.revision:
                    await watch.change(left)

    async def _page(
        self, record: Record, place: Cursor | None, limit: int, encoding: Encoding, share: Share
    ) -> OutputPage:
        body = records.job_body(record)
        if body.kind == "exec":
            return OutputPage(await self._exec_page(record, body, encoding, share))
        chunk = await self._core.reader.chunk(record, body, place.offset if place else 0, limit, share=share)
        used = cursors.whole_characters(chunk.data, encoding, final=chunk.last)
        if not used and len(chunk.data) == limit:
            chunk = await self._core.reader.chunk(record, body, chunk.start, limit + 3, share=share)
            used = cursors.whole_characters(chunk.data, encoding, final=chunk.last)
        state = records.job_state(record, body)
        after = chunk.start + used
        over = chunk.last and after >= chunk.end
        job = JobOutput(
            **records.job_fields(record, body),  # type: ignore[arg-type]
            encoding=encoding,
            cursor=None if over else Cursor(after, state.value).encode(),
            replace=chunk.replace,
            logs_ok=chunk.ok,
            output_complete=over and (body.output_complete or record.state.failed),
            more=not over and chunk.ok and _known(record, body) > chunk.end,
            skipped_bytes=chunk.skipped,
        )
        return OutputPage(job, chunk.data[:used])

    async def _exec_page(self, record: Record, body: JobBody, encoding: Encoding, share: Share) -> ExecJobOutput:
        over = record.state is ClaimState.CLOSED or record.state.failed
        streams, lost = await self.streams(record, body, share=share) if over else ({}, False)
        state = records.job_state(record, body)
        return ExecJobOutput(
            **records.job_fields(record, body),  # type: ignore[arg-type]
            stdout=cursors.text_of(streams.get("stdout", b""), encoding, final=True)[0],
            stderr=cursors.text_of(streams.get("stderr", b""), encoding, final=True)[0],
            encoding=encoding,
            truncated=body.truncated or lost,
            skipped_bytes=output.skipped_bytes(body, streams) if over else 0,
            cursor=None if over else Cursor(0, state.value).encode(),
            logs_ok=body.logs_ok,
            output_complete=over and (body.output_complete or record.state.failed) and not lost,
        )

    async def streams(
        self,
        record: Record,
        body: JobBody,
        *,
        share: Share = UNBOUNDED,
        patience: float | None = PATIENCE,
        known: Mapping[str, bytes] | None = None,
    ) -> tuple[Mapping[str, bytes], bool]:
        """The recorded outputs of an exec that is over, and whether they had to go for the budget. ``known``: they
        were recorded this moment.

        Raises ``RateLimited`` after ``patience`` seconds without room.
        """
        most = 2 * ESCAPED * self._core.settings.record_output
        await share.hold(min(most, self._core.room.capacity // 4), patience=patience)
        kept = known if known is not None else await self._store.streams(record.id)
        share.shrink(ESCAPED * sum(len(data) for data in (kept or {}).values()))
        ran = record.state is ClaimState.CLOSED and (body.engine_id or body.log) is not None
        return kept or {}, kept is None and ran

    async def raw(
        self,
        tenant: str,
        command_id: str,
        *,
        range: tuple[int | None, int | None] | None,
        share: Share = UNBOUNDED,
    ) -> RawOutput:
        """The raw bytes of a job's output, streamed. Raises ``RangeNotSatisfiable``, ``RateLimited``."""
        record = await self._core.follower.refreshed(await self.find(tenant, command_id))
        return await self._core.reader.raw(record, range, share=share)

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
        share: Share = UNBOUNDED,
    ) -> AsyncIterator[Event]:
        """Output, states and the end, as they come; ends without ``end`` when the replica stops.

        Output waits for as long as ``share`` finds no room for it.
        """
        place = cursors.parse(cursor) or Cursor()
        record = await self._core.follower.refreshed(await self.find(tenant, command_id))
        async with self._core.watches.of(command_id) as watch:
            while not self._core.stopping.is_set():
                record = watch.record or record
                body = records.job_body(record)
                state = records.job_state(record, body)
                if not place.saw(state):
                    place = Cursor(place.offset, state.value)
                    yield Event("state", place.encode(), records.job_view(record))
                chunk = await self._events_chunk(record, body, place, share)
                text, used = cursors.text_of(chunk.data, encoding, final=chunk.last)
                if text or chunk.skipped or chunk.replace:
                    place = Cursor(chunk.start + used, state.value)
                    yield Event(
                        "output",
                        place.encode(),
                        OutputEvent(output=text, encoding=encoding, replace=chunk.replace, skipped_bytes=chunk.skipped),
                    )
                    share.close()  # the caller has taken it
                if chunk.last and chunk.start + used >= chunk.end:
                    yield Event("end", Cursor(place.offset, END).encode(), records.job_view(record))
                    return
                seen = watch.record is None or watch.record.revision == record.revision
                if not text and seen and not self._core.stopping.is_set():  # it may have been set during the read
                    await watch.change(10.0)

    async def _events_chunk(self, record: Record, body: JobBody, place: Cursor, share: Share) -> Chunk:
        if body.kind == "exec":
            return Chunk(0, last=record.state is ClaimState.CLOSED or record.state.failed)
        return await self._core.reader.chunk(record, body, place.offset, EVENT_CHUNK, share=share, patience=None)

    # -- list

    async def list(
        self,
        tenant: str,
        *,
        sandbox_id: str | None,
        states: set[JobState],
        metadata: Mapping[str, str],
        page_size: int,
        page_token: str | None,
        share: Share = UNBOUNDED,
    ) -> JobPage:
        """Newest first. Pages neither repeat nor skip while jobs come; one request looks at ``LOOKED_AT`` records.

        Raises ``RateLimited`` where ``share`` finds no room.
        """
        metadata = rules.metadata_filter(metadata)
        before = _parse_token(page_token)
        items: list[Job] = []
        looked = 0
        at_once = LIST_READ if states or metadata else min(page_size, LIST_READ)
        await share.hold((at_once + page_size) * ROW)
        while True:
            rows = await self._store.jobs(
                tenant=tenant, sandbox_id=sandbox_id, before=before, limit=min(at_once, LOOKED_AT - looked)
            )
            for row, record in zip(rows, await self._store.get_readable([row.command_id for row in rows]), strict=True):
                before = row
                looked += 1
                if (job := self._listed(record, tenant, states, metadata)) is not None:
                    items.append(job)
                    if len(items) == page_size:
                        return JobPage(items=items, next_page_token=_token(row))
                elif record is None and await self._store.now() - row.at > 60_000:
                    await self._store.unlist_job(row.command_id, tenant=tenant)
            if not rows:
                return JobPage(items=items)
            if looked >= LOOKED_AT and before is not None:
                return JobPage(items=items, next_page_token=_token(before))

    def _listed(
        self, record: Record | Unreadable | None, tenant: str, states: set[JobState], metadata: Mapping[str, str]
    ) -> Job | None:
        """The job as a list shows it; None: it is not to be shown. One that can't be read is left out, and counted."""
        if record is None:
            return None
        try:
            if not isinstance(record, Unreadable):
                return records.job_view(record) if _wanted(record, tenant, states, metadata) else None
        except errors.StoreUnavailable:
            pass
        log.warning("job %s is left out of a list: its record can't be read", record.id)
        self._core.telemetry.unreadable()
        return None

    # -- cancel

    async def cancel(self, tenant: str, command_id: str) -> Job:
        """Note the wish and answer; it is carried out behind, by any replica. Cancelling the finished is fine."""
        record = await self.find(tenant, command_id)
        if record.state.active:
            _, now = await self._store.wish_cancel(command_id)
            record = now or record
            if not record.state.pending or record.lease_expired:
                self._core.tasks.start(self._carry_out(command_id), f"cancel {command_id}")
        return records.job_view(record)

    async def _carry_out(self, command_id: str) -> None:
        """Look until the job is over, quicker than the follower would; which goes on if this replica ends."""
        for delay in (0.0, 0.1, 0.3, 0.5, 1.0, 1.0, 2.0):
            await asyncio.sleep(delay)
            record = await self._core.follower.look(command_id)
            if record is None or not record.state.active:
                return


def _tells(record: Record) -> bool:
    return record.state.confirmed or record.state is ClaimState.UNKNOWN


def _news(page: OutputPage, place: Cursor) -> bool:
    job = page.job
    if job.cursor is None or not place.saw(job.state):
        return True
    return isinstance(job, JobOutput) and bool(page.data or job.skipped_bytes or job.replace)


def _known(record: Record, body: JobBody) -> int:
    """Bytes of output that can be had by now."""
    return body.end if record.state is ClaimState.CLOSED else max(body.end, body.size)


def _wanted(record: Record, tenant: str, states: set[JobState], metadata: Mapping[str, str]) -> bool:
    body = records.job_body(record)
    if body.tenant != tenant or (states and records.job_state(record, body) not in states):
        return False
    return matches(body.metadata, metadata)


def _token(row: JobRow) -> str:
    return opaque.pack(f"{row.at} {row.command_id}")


def _parse_token(text: str | None) -> JobRow | None:
    if text is None:
        return None
    match = opaque.unpack(text, _TOKEN)
    if match is not None:
        return JobRow(int(match[1]), match[2])
    raise errors.InvalidRequest.of("page_token", "is no token that this service made")
