"""What comes of a job, as callers of the SDK see it."""

# ruff: noqa: TID252
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..errors import OnceboxError
from ..messages import Encoding, Job, JobOutput, JobState, Metadata, Reason


class CommandFailed(OnceboxError):
    """The command did not exit with 0, or its output is cut (``check=True``); ``result`` says how it ended."""

    code = "COMMAND_FAILED"
    status = 0
    title = "The command failed"

    def __init__(self, detail: str | None = None, *, result: JobResult | None = None, **more: Any) -> None:
        super().__init__(detail, **more)
        self.result = result


class OutputTooLarge(OnceboxError):
    """A command of ``run()`` printed more than ``max_output`` bytes. It was not ended: ``job`` is its handle, which
    reads its output piece by piece.
    """

    code = "OUTPUT_TOO_LARGE"
    status = 0
    title = "The command printed too much"

    def __init__(self, detail: str | None = None, *, job: Any = None, **more: Any) -> None:
        super().__init__(detail, **more)
        self.job = job


class JobRead(JobOutput, kw_only=True):
    """An answer of ``GET /v1/exec-jobs/{command_id}`` of either kind of job."""

    stdout: str | None = None
    stderr: str | None = None
    truncated: bool = False

    @property
    def job(self) -> Job:
        """The job without its output."""
        return Job(**{name: getattr(self, name) for name in Job.__struct_fields__})


class JobPart(msgspec.Struct, kw_only=True, frozen=True):
    """A part of a job's output, and the job as it stood then."""

    job: Job
    text: str
    """Bytes that are not UTF-8 are U+FFFD. Of an exec, once it is over: both outputs, one after the other."""
    cursor: str | None
    """Where to read on; None: this was the end."""
    replace: bool
    """It stands in place of all that came before."""
    skipped_bytes: int
    """Bytes before this part that are no longer kept."""


class JobResult(msgspec.Struct, kw_only=True, frozen=True):
    """How a job ended, and what it printed."""

    command_id: str
    sandbox_id: str | None
    state: JobState
    exit_code: int | None
    """The command's own; 128 + n after signal n; None where it never ran or nobody knows."""
    timed_out: bool
    """Killed at the job's timeout."""
    reason: Reason | None
    """Why the job is in this state, where that needs saying."""
    output: str
    """stdout and stderr merged, as printed (where they are apart: one after the other); bytes not UTF-8 are U+FFFD.
    Empty from ``output_to()``."""
    output_complete: bool
    """Every byte up to the output's end was read (``skipped_bytes`` says what is missing at its start)."""
    skipped_bytes: int = 0
    """Bytes of the command's output that are no longer kept and so not in ``output``, as far as that is known."""
    stdout: str | None = None
    """Of ``run()``, of an exec, and of a job with its streams apart; None where they are merged."""
    stderr: str | None = None
    """The same."""
    metadata: Metadata = {}
    submitted_at: str | None = None
    """RFC 3339, UTC; like the next two."""
    started_at: str | None = None
    finished_at: str | None = None

    @property
    def ok(self) -> bool:
        """The command ended by itself, with exit code 0, and nothing of its output is missing."""
        return self.state is JobState.EXITED and self.exit_code == 0 and not self.truncated

    @property
    def truncated(self) -> bool:
        """Something of the output is missing: before its end (``skipped_bytes``), or there."""
        return self.skipped_bytes > 0 or not self.output_complete

    def check(self) -> JobResult:
        """This result, if it is ``ok``.

        Raises:
            CommandFailed: in all other cases.
        """
        if self.ok:
            return self
        raise CommandFailed(
            f"the command {self._end()}",
            result=self,
            command_id=self.command_id,
            sandbox_id=self.sandbox_id,
        )

    def _end(self) -> str:
        if self.state is JobState.EXITED:
            return f"exited with {self.exit_code}{self._missing() if self.exit_code == 0 else ''}"
        because = f" ({self.reason})" if self.reason else ""
        said = {
            JobState.TIMED_OUT: "timed out",
            JobState.CANCELLED: "was cancelled",
            JobState.FAILED: "was never started",
            JobState.LOST: "was lost",
        }
        return f"{said.get(self.state, self.state)}{because}"

    def _missing(self) -> str:
        if self.skipped_bytes:
            return f", but {self.skipped_bytes:,} bytes of its output are no longer kept"
        return ", but not all of its output could be read"


class MapResult(msgspec.Struct, kw_only=True, frozen=True):
    """What came of one sandbox in ``map()``: a ``result``, or the ``error`` that prevented one."""

    sandbox_id: str
    idempotency_key: str
    """Derived from the prefix and the sandbox: the same in the next run of the same map."""
    command_id: str | None = None
    result: JobResult | None = None
    error: OnceboxError | None = None

    @property
    def ok(self) -> bool:
        """The command ran and exited with 0, and nothing of its output is missing."""
        return self.result is not None and self.result.ok

    @property
    def exit_code(self) -> int | None:
        """The command's exit code; None where there is none."""
        return self.result.exit_code if self.result else None

    @property
    def output(self) -> str:
        """The command's output; empty where there is no result."""
        return self.result.output if self.result else ""

    def unwrap(self) -> JobResult:
        """The result.

        Raises:
            OnceboxError: ``error``, where there is no result.
        """
        if self.result is None:
            raise self.error or OnceboxError("no result", sandbox_id=self.sandbox_id)
        return self.result


def part_of(read: JobRead) -> JobPart:
    """The part that was read."""
    return JobPart(
        job=read.job,
        text=read.output + (read.stdout or "") + (read.stderr or ""),
        cursor=read.cursor,
        replace=read.replace,
        skipped_bytes=read.skipped_bytes,
    )


def result_of_job(read: JobRead, output: str, skipped_bytes: int) -> JobResult:
    """The result of a job whose last read is ``read``."""
    exec_kind = read.stdout is not None or read.stderr is not None
    both = exec_kind and read.encoding is Encoding.UTF8
    return JobResult(
        command_id=read.command_id,
        sandbox_id=read.sandbox_id,
        state=read.state,
        exit_code=read.exit_code,
        timed_out=read.timed_out,
        reason=read.reason,
        output=output,
        output_complete=read.output_complete and not read.truncated,
        skipped_bytes=skipped_bytes,
        stdout=(read.stdout or "") if both else None,
        stderr=(read.stderr or "") if both else None,
        metadata=read.metadata,
        submitted_at=read.submitted_at,
        started_at=read.started_at,
        finished_at=read.finished_at,
    )


def result_of_streams(reads: Sequence[JobRead], texts: Sequence[str], skipped_bytes: int) -> JobResult:
    """The result of a job with its streams apart, by the last read of stdout and of stderr."""
    result = result_of_job(reads[-1], "".join(texts), skipped_bytes)
    return msgspec.structs.replace(
        result,
        stdout=texts[0],
        stderr=texts[1],
        output_complete=all(read.output_complete for read in reads),
    )
