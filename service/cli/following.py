"""A job's output, from the service to stdout: as its bytes, or as one JSON event a line."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from service.cli.output.terminal import say

if TYPE_CHECKING:
    from service.cli.output.progress import Progress
    from service.client import AsyncJob
    from service.messages import Job, Stream

MOST_LINES = 1_000_000
"""Last lines that can be asked for."""
MOST_KEPT = 16 * 1024 * 1024
"""Bytes of last lines that are held at the most."""


class Printer(Protocol):
    """Shows a job as it goes on."""

    async def began(self, job: Job) -> None:
        """The job is known."""

    async def output(self, chunk: bytes) -> None:
        """More of its output."""

    async def ended(self, job: Job) -> None:
        """It is over, and all of its output was shown."""


class BytesPrinter:
    """The command's output and nothing else."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    async def began(self, job: Job) -> None:
        """Nothing to show."""

    async def output(self, chunk: bytes) -> None:
        """The bytes as they are."""
        await self._progress.write(chunk)

    async def ended(self, job: Job) -> None:
        """Nothing to show."""


class EventPrinter:
    """A JSON object a line: ``start`` and ``end`` are the job, ``output`` a chunk (base64 if not UTF-8)."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    async def began(self, job: Job) -> None:
        """The job as it was accepted."""
        await self._print("start", msgspec.to_builtins(job))

    async def output(self, chunk: bytes) -> None:
        """A chunk."""
        await self._print("output", _encoded(chunk))

    async def ended(self, job: Job) -> None:
        """The job as it ended."""
        await self._print("end", msgspec.to_builtins(job))

    async def _print(self, event: str, fields: dict[str, Any]) -> None:
        await self._progress.write(msgspec.json.encode({"event": event, **fields}) + b"\n")


def _encoded(chunk: bytes) -> dict[str, str]:
    try:
        return {"output": chunk.decode(), "encoding": "utf8"}
    except UnicodeDecodeError:
        return {"output": base64.b64encode(chunk).decode(), "encoding": "base64"}


async def follow(
    job: AsyncJob,
    printer: Printer,
    progress: Progress,
    *,
    stream: Stream | None = None,
    cursor: str | None = None,
    until_over: bool = True,
) -> Job:
    """Show the job's output, from ``cursor`` or its start, to its end or to where it is now; then the job.

    ``stream``: which, where they are apart.
    """
    progress.state = lambda: job.state.value if job.state else "following"
    async for chunk in job.stream_bytes(stream, cursor=cursor, follow=until_over):
        await printer.output(chunk)
    assert job.info is not None, "followed to its end"
    if until_over:
        await printer.ended(job.info)
    if job.skipped_bytes:
        say(f"{job.skipped_bytes} bytes of the output are no longer kept.")
    if until_over and not job.output_complete:
        say("the end of the output can't be had any more.")
    return job.info


async def show_tail(
    job: AsyncJob, lines: int, printer: Printer, progress: Progress, *, stream: Stream | None = None
) -> str | None:
    """Show the last lines of what is there now; the cursor after them."""
    progress.state = lambda: "reading"
    last = LastLines(lines)
    async for chunk in job.stream_bytes(stream, follow=False):
        last.add(chunk)
    await printer.output(last.text())
    if last.cut:
        say(f"of these lines only the last {MOST_KEPT} bytes are shown.")
    return job.cursor


class LastLines:
    """The last ``count`` lines of what is added, of which it holds ``MOST_KEPT`` bytes at the most."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._held = bytearray()
        self._whole = True
        """What is held begins where a line does."""
        self.cut = False
        """Of the lines that ``text`` gave, the beginning is missing."""

    def add(self, chunk: bytes) -> None:
        """More of the text."""
        self._held += chunk
        if len(self._held) > 2 * MOST_KEPT:
            self._held = bytearray(self.text())
            self._whole = not self.cut

    def text(self) -> bytes:
        """The lines; the last one may have no end."""
        start = self._start()
        least = max(start, len(self._held) - MOST_KEPT)
        self.cut = least > start or (start == 0 and not self._whole)
        return bytes(self._held[least:])

    def _start(self) -> int:
        if not self._count:
            return len(self._held)
        start = len(self._held) - self._held.endswith(b"\n")
        for _ in range(self._count):
            start = self._held.rfind(b"\n", 0, start)
            if start < 0:
                break
        return start + 1
