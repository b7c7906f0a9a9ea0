"""Hand out a job's output from where a caller is: from what is kept beside the record, else from the sandbox.

One reading serves all callers of a replica at the same place. A read that failed and a read with nothing new do not
look alike; nothing is doubled, nothing is missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import msgspec

from service import errors
from service.core import records
from service.core.claims.tasks import Tasks
from service.core.jobs import output
from service.core.limits.room import ESCAPED, PATIENCE, UNBOUNDED, Share, of_output
from service.core.model.answers import RawOutput
from service.core.model.cursors import PIECE
from service.core.model.states import ClaimState
from service.core.records import JobBody
from service.core.sandboxes.liveness import Liveness
from service.messages import Stream
from service.ports.engine import Engine, EngineError, FileMissing, SandboxMissing
from service.ports.store import Record, Store

RAW_CHUNK = 256 * 1024
"""Bytes of one read of a raw download."""

EXTENT = 5.0
"""Seconds in which a sandbox must say how long the output is; else what is recorded is handed out."""


class Chunk(msgspec.Struct, frozen=True):
    """Bytes of the log from ``start``. ``ok``: False when the place could not be read this time.

    ``skipped``: bytes before ``start`` that are no longer kept. ``last``: nothing comes after it, ever.
    """

    start: int
    data: bytes = b""
    ok: bool = True
    replace: bool = False
    skipped: int = 0
    last: bool = False

    @property
    def end(self) -> int:
        """The place after it."""
        return self.start + len(self.data)


class _Reading:
    """One reading, and how many wait for it."""

    def __init__(self, task: asyncio.Task[Chunk]) -> None:
        self.task = task
        self.users = 0


class Reader:
    """Reads output for callers, on one replica. ``most``: bytes for the two outputs of one exec, at the most."""

    def __init__(self, store: Store, engine: Engine, liveness: Liveness, tasks: Tasks, *, most: int) -> None:
        self._store = store
        self._engine = engine
        self._liveness = liveness
        self._tasks = tasks
        self._most = most
        self._under_way: dict[tuple[str, Stream, int, int, int], _Reading] = {}

    async def chunk(
        self,
        record: Record,
        body: JobBody,
        offset: int,
        limit: int,
        *,
        stream: Stream = "stdout",
        share: Share = UNBOUNDED,
        patience: float | None = PATIENCE,
    ) -> Chunk:
        """At most ``limit`` bytes from ``offset``, once ``share`` has room. Callers at one place share one reading.

        ``stream``: of a job that has them apart. Raises ``RateLimited`` after ``patience`` seconds without room.
        """
        body = output.of_stream(self._engine, body, stream)
        if not record.state.settled or record.state.failed:
            return Chunk(offset, last=record.state.failed)
        closed = record.state is ClaimState.CLOSED
        known = max(body.end, body.size) if not closed else body.end
        if offset >= known:
            return Chunk(offset, ok=body.logs_ok or closed, last=closed)
        await share.hold(of_output(min(limit, known - offset)), patience=patience)
        place = (record.id, stream, record.revision, offset, limit)
        reading = self._under_way.get(place)
        if reading is None:
            work = self._chunk(record, body, offset, limit, known, stream)
            reading = self._under_way[place] = _Reading(self._tasks.start(work, f"read {record.id}"))
        reading.users += 1
        try:
            chunk = await asyncio.shield(reading.task)
        finally:
            reading.users -= 1
            if not reading.users:  # nobody wants it any more
                del self._under_way[place]
                reading.task.cancel()
        share.shrink(of_output(len(chunk.data)))
        return chunk

    async def _chunk(self, record: Record, body: JobBody, offset: int, limit: int, known: int, stream: Stream) -> Chunk:
        closed = record.state is ClaimState.CLOSED
        end = min(offset + limit, known)
        kept = await self._store.output(record.id, offset, end, stream)
        if kept is not None and kept.offset == offset and kept.data:
            return self._found(offset, kept.data, closed, known)
        try:
            got = await self._liveness.while_awake(
                body.sandbox_id, output.read_range(self._engine, body, offset, end - offset)
            )
        except EngineError as error:
            certain = isinstance(error, FileMissing | SandboxMissing) or await self._liveness.gone(body.sandbox_id)
            if not (certain and closed):
                return Chunk(offset, ok=False)
        else:
            if got.size >= known and got.data:
                return self._found(offset, got.data, closed, known)
            if offset == 0 and got.data:
                return Chunk(0, got.data, replace=True, ok=False)
            if not closed:
                return Chunk(offset, ok=False)
        return await self._still_kept(record, offset, limit, known, stream)

    async def _still_kept(self, record: Record, offset: int, limit: int, known: int, stream: Stream) -> Chunk:
        """The sandbox has it no longer: go on where what was recorded begins, and say how much lies before."""
        span = await self._store.output_span(record.id, stream)
        start = max(offset, span[0]) if span is not None else known
        end = min(start + limit, known)
        kept = await self._store.output(record.id, start, end, stream) if start < known else None
        if kept is None or not kept.data:
            return Chunk(known, skipped=known - offset, last=record.state is ClaimState.CLOSED)
        found = self._found(kept.offset, kept.data, record.state is ClaimState.CLOSED, known)
        return msgspec.structs.replace(found, skipped=kept.offset - offset)

    @staticmethod
    def _found(start: int, data: bytes, closed: bool, known: int) -> Chunk:
        return Chunk(start, data, last=closed and start + len(data) >= known)

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
        await share.hold(self._most, patience=patience)
        kept = known if known is not None else await self._store.streams(record.id)
        share.shrink(ESCAPED * sum(len(data) for data in (kept or {}).values()))
        ran = record.state is ClaimState.CLOSED and (body.engine_id or body.log) is not None
        return kept or {}, kept is None and ran

    async def raw(
        self,
        record: Record,
        wanted: tuple[int | None, int | None] | None,
        *,
        stream: Stream = "stdout",
        share: Share = UNBOUNDED,
    ) -> RawOutput:
        """Bytes of the whole output, streamed. ``wanted``: first and last byte, or (None, n) for the last n.

        Raises ``RangeNotSatisfiable``, ``EngineUnavailable``, ``RateLimited``.
        """
        body = output.of_stream(self._engine, records.job_body(record), stream)
        closed = record.state is ClaimState.CLOSED
        size, floor = await self._extent(record, body, stream, closed=closed)
        if wanted is None:
            start, end = floor, size
        else:
            start, end = _resolved(wanted, size)
            if start >= end or start < floor:
                refusal = errors.RangeNotSatisfiable(
                    f"The output has bytes {floor} to {size}; what lies before is no longer kept.", command_id=record.id
                )
                refusal.size = size
                raise refusal
        await share.hold(min(RAW_CHUNK, end - start) + PIECE)
        return RawOutput(
            start=start,
            end=end,
            size=size,
            skipped=floor,
            partial=wanted is not None,
            chunks=self._pieces(record, body, start, end, stream),
        )

    async def _extent(self, record: Record, body: JobBody, stream: Stream, *, closed: bool) -> tuple[int, int]:
        """How long the output is, and where what can still be had begins."""
        known = max(body.end, body.size)
        if record.state.failed or record.state.pending or (closed and known == 0):
            return known, 0
        span = await self._store.output_span(record.id, stream)
        if closed and span == (0, known):
            return known, 0  # nothing that the sandbox could add
        certain = True
        try:
            async with asyncio.timeout(EXTENT):
                got = await self._liveness.while_awake(body.sandbox_id, output.read_range(self._engine, body, known, 1))
            if got.size >= known:
                return (known if closed else got.size), 0
        except (EngineError, TimeoutError) as error:
            certain = isinstance(error, FileMissing | SandboxMissing) or await self._liveness.gone(body.sandbox_id)
        if not certain and not closed and (span is None or span[0] > 0):
            raise errors.EngineUnavailable(command_id=record.id, retry_after=2)
        return (span[1], span[0]) if span is not None else (known, known)

    async def _pieces(
        self, record: Record, body: JobBody, start: int, end: int, stream: Stream
    ) -> AsyncIterator[bytes]:
        """A piece that can't be read breaks the answer off: its length was promised."""
        while start < end:
            length = min(RAW_CHUNK, end - start)
            kept = await self._store.output(record.id, start, start + length, stream)
            if kept is not None and kept.offset == start and kept.data:
                data = kept.data
            else:
                try:
                    data = (await output.read_range(self._engine, body, start, length)).data
                except EngineError as error:
                    raise errors.EngineUnavailable("The output could not be read any further.") from error
                if not data:
                    raise errors.EngineUnavailable("The output became shorter while it was read.")
            start += len(data)
            yield data


def _resolved(wanted: tuple[int | None, int | None], size: int) -> tuple[int, int]:
    first, last = wanted
    if first is None:
        return max(0, size - (last or 0)), size
    return first, size if last is None else min(last + 1, size)
