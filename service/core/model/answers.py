"""What use cases answer with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import msgspec

from service.core.model import cursors
from service.messages import (
    ExecJobOutput,
    ExecResult,
    ExecStart,
    ExecText,
    Job,
    JobOutput,
    OutputEvent,
    Problem,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Answer(Generic[T]):
    """``value``; ``replayed`` when this request did not make it; ``key``: the Idempotency-Key in force."""

    value: T
    replayed: bool
    key: str


@dataclass(frozen=True)
class OutputPage:
    """A job, and the bytes that its ``output`` shows: whole characters, not text yet. An exec's is in ``job``."""

    job: JobOutput | ExecJobOutput
    data: bytes = b""

    def texts(self) -> Iterator[str]:
        """The output as it is shown, a piece at a time."""
        return cursors.texts_of(self.data, self.job.encoding)

    def with_output(self, output: str) -> JobOutput | ExecJobOutput:
        """The job with that output."""
        return msgspec.structs.replace(self.job, output=output) if isinstance(self.job, JobOutput) else self.job

    def whole(self) -> JobOutput | ExecJobOutput:
        """The job with all of its output."""
        return self.with_output("".join(self.texts()))


@dataclass(frozen=True)
class Event:
    """One event of a job: ``id`` is the cursor to resume from."""

    kind: Literal["output", "state", "end"]
    id: str
    data: OutputEvent | Job


@dataclass(frozen=True)
class ExecEvent:
    """One event of a streamed exec."""

    kind: Literal["start", "stdout", "stderr", "result", "error"]
    data: ExecStart | ExecText | ExecResult | Problem
    replayed: bool = False
    """Of ``start``: this request did not start the command."""


@dataclass(frozen=True)
class RawOutput:
    """Bytes ``[start, end)`` of a job's output; ``skipped``: how many from the log's start are no longer kept."""

    start: int
    end: int
    size: int | None
    """Bytes of the whole output; None while the job runs."""
    skipped: int
    partial: bool
    chunks: AsyncIterator[bytes]
