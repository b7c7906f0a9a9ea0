"""A job's output, from the service to stdout: as its bytes, or as one JSON event a line."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from service.cli.output.terminal import say

if TYPE_CHECKING:
    from service.cli.output.progress import Progress
    from service.client import AsyncJob
    from service.messages import Job


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
    job: AsyncJob, printer: Printer, progress: Progress, *, cursor: str | None = None, until_over: bool = True
) -> Job:
    """Show the job's output, from ``cursor`` or its start, to its end or to where it is now; then the job."""
    progress.state = lambda: job.state.value if job.state else "following"
    async for chunk in job.stream_bytes(cursor=cursor, follow=until_over):
        await printer.output(chunk)
    assert job.info is not None, "followed to its end"
    if until_over:
        await printer.ended(job.info)
    if job.skipped_bytes:
        say(f"{job.skipped_bytes} bytes of the output are no longer kept.")
    if until_over and not job.output_complete:
        say("the end of the output can't be had any more.")
    return job.info
