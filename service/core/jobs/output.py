"""What a look reads of a job's output. Reads are ranged downloads of the log file, bounded in size and number."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from service.core.fence import protocol
from service.core.jobs import outcome
from service.core.records import JobBody
from service.messages import Stream
from service.ports.engine import Engine, EngineError, FileMissing, FileRange
from service.ports.store import Appended

CHUNK = 256 * 1024
"""Bytes of one read."""
DRAIN_READS = 16
"""Reads of one look at a job that is over."""


class Reading(msgspec.Struct, frozen=True):
    """What one look read. ``drained``: a read succeeded and brought nothing new. ``lost``: the rest can't be had."""

    end: int
    size: int
    reads: int
    append: Appended | None = None
    ok: bool = True
    drained: bool = False
    lost: bool = False


def log_path(engine: Engine, body: JobBody) -> str | None:
    """Where the merged output is: what the fence noted, else where execd puts it by default."""
    if body.log is not None:
        return body.log
    return engine.output_path(body.engine_id) if body.engine_id else None


def streams_of(body: JobBody) -> tuple[Stream, ...]:
    """The logs of a job. A merged one counts as stdout."""
    return ("stdout", "stderr") if body.apart else ("stdout",)


def of_stream(engine: Engine, body: JobBody, stream: Stream) -> JobBody:
    """The job as if this stream were its one log."""
    if stream == "stdout":
        return body
    beside = log_path(engine, body)
    log = None if beside is None else protocol.stderr_beside(beside)
    return msgspec.structs.replace(body, log=log, end=body.stderr_end, size=body.stderr_size)


async def read_range(engine: Engine, body: JobBody, offset: int, length: int) -> FileRange:
    """Bytes of a job's output. Raises ``EngineError``; ``FileMissing`` where there is no output to be had."""
    path = log_path(engine, body)
    if path is None:
        raise FileMissing("where the output is has not been learnt")
    try:
        return await engine.read_file(body.sandbox_id, path, offset, length)
    except FileMissing:
        if body.log is not None or body.engine_id is None or body.by_fence:
            raise
        got = await engine.log(body.sandbox_id, body.engine_id, offset)
        return msgspec.structs.replace(got, data=got.data[:length])


async def read_ends(engine: Engine, body: JobBody, length: int) -> tuple[bytes, bool]:
    """The first and the last ``length`` bytes of what a command printed (an exec: to stdout), and whether that is all.

    Nothing where there is no output to be had. Raises ``EngineError``.
    """

    async def read(offset: int) -> FileRange:
        if body.kind == "exec":
            return await engine.read_file(body.sandbox_id, stream_paths(engine, body)["stdout"], offset, length)
        return await read_range(engine, body, offset, length)

    try:
        first = await read(0)
        if first.size <= len(first.data):
            return first.data, True
        last = await read(max(len(first.data), first.size - length))
    except FileMissing:
        return b"", False
    return first.data + last.data, first.size <= len(first.data) + len(last.data)


async def read_news(engine: Engine, body: JobBody, *, keep: int, over: bool) -> Reading:
    """Read on from where the kept output ends: once while the job runs, until nothing is new when it is over.

    Where more than ``keep`` bytes have come, what lies before the last ``keep`` is skipped: only the end is kept.
    """
    end, size = body.end, body.size
    first, pieces = end, bytearray()
    reads = 0
    for reads in range(1, (DRAIN_READS if over else 1) + 1):
        if size - end > keep:
            end = size - keep
            first, pieces = end, bytearray()
        try:
            got = await read_range(engine, body, end, CHUNK)
        except FileMissing:
            return _reading(end, size, reads, first, pieces, ok=False, lost=True)
        except EngineError:
            return _reading(end, size, reads, first, pieces, ok=False)
        if got.size < end:
            return _reading(end, size, reads, first, pieces, ok=False, lost=over)
        size = got.size
        if not got.data:
            return _reading(end, size, reads, first, pieces, drained=True)
        pieces += got.data
        end += len(got.data)
        if over and end >= size:  # what began after the end has come to the end of the file
            return _reading(end, size, reads, first, pieces, drained=True)
    return _reading(end, size, reads, first, pieces)


def _reading(
    end: int,
    size: int,
    reads: int,
    first: int,
    pieces: bytearray,
    *,
    ok: bool = True,
    drained: bool = False,
    lost: bool = False,
) -> Reading:
    append = Appended(first, bytes(pieces)) if pieces else None
    return Reading(end, max(size, end), reads, append, ok, drained, lost)


class Streams(msgspec.Struct, frozen=True):
    """An exec's two outputs. ``truncated``: not all of them. ``whole``: neither file was gone.

    ``printed``: bytes of both together, without those of a file that was gone.
    """

    streams: dict[str, bytes]
    truncated: bool
    whole: bool
    printed: int


async def read_streams(engine: Engine, body: JobBody, *, keep: int) -> Streams:
    """The last ``keep`` bytes of an exec's two outputs; nothing of a file that the command removed.

    Raises ``EngineError``.
    """
    streams: dict[str, bytes] = {}
    truncated, whole, printed = False, True, 0
    for name, path in stream_paths(engine, body).items():
        try:
            got = await engine.read_file(body.sandbox_id, path, 0, keep)
            printed += got.size
            if got.size > keep:
                truncated = True
                got = await engine.read_file(body.sandbox_id, path, got.size - keep, keep)
        except FileMissing:
            streams[name], truncated, whole = b"", True, False
        else:
            streams[name] = got.data
    return Streams(streams, truncated, whole, printed)


def with_streams(body: JobBody, read: Streams) -> JobBody:
    """The record of an exec with what was read of its outputs."""
    return msgspec.structs.replace(
        body,
        truncated=read.truncated,
        printed=read.printed,
        output_complete=body.state is not None and read.whole,
        logs_ok=True,
    )


def skipped_bytes(body: JobBody, streams: Mapping[str, bytes]) -> int:
    """How much of what an exec has printed is not in ``streams``."""
    return max(0, body.printed - sum(map(len, streams.values())))


def stream_paths(engine: Engine, body: JobBody) -> dict[str, str]:
    """The files of a foreground command."""
    if body.log is not None and body.log.endswith(".stdout"):
        return {"stdout": body.log, "stderr": body.log.removesuffix(".stdout") + ".stderr"}
    engine_id = body.engine_id or outcome.engine_id_of(body.log)
    if engine_id is None:
        raise FileMissing("where the output is has not been learnt")
    return {"stdout": engine.output_path(engine_id, "stdout"), "stderr": engine.output_path(engine_id, "stderr")}
