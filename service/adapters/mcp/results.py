"""What the tools answer with: bounded for a model's context."""

from __future__ import annotations

from dataclasses import dataclass, field

from service.client import FileInfo, JobInfo, SandboxInfo

MOST = 20_000
"""Characters of text in one answer."""
HEAD = 4_000
"""Of them, from the beginning of a text that is longer; the rest is its end."""


@dataclass
class Job:
    """A command that was started. It goes on whether or not anybody waits."""

    command_id: str
    sandbox_id: str
    state: str
    """pending, running, exited, timed_out, cancelled, failed (never ran), lost (nobody knows its end) or unknown."""
    exit_code: int | None = None
    reason: str | None = None
    command: str = ""
    output: str = ""
    """stdout and stderr merged, or one after the other where they are apart; of a long one its beginning and its end.
    """
    output_left_out: int = 0
    """Characters in the middle that are not here: `job_output` reads them."""
    advice: str = ""


@dataclass
class Output:
    """A part of a job's output."""

    command_id: str
    state: str
    exit_code: int | None
    output: str
    cursor: str | None
    """Where to read on; null at the end."""
    skipped_bytes: int = 0


@dataclass
class Sandbox:
    """A sandbox."""

    sandbox_id: str
    state: str
    ready: bool
    image: str | None
    expires_at: str | None


@dataclass
class File:
    """A file or a directory in a sandbox."""

    path: str
    type: str
    size: int
    mode: str


@dataclass
class Text:
    """A part of a text file."""

    path: str
    text: str
    """Bytes that are not UTF-8 are U+FFFD."""
    offset: int
    """Bytes before it."""
    size: int
    """Bytes of the whole file."""


@dataclass
class Jobs:
    """Jobs, newest first."""

    jobs: list[Job] = field(default_factory=list)
    more: bool = False


@dataclass
class Sandboxes:
    """Sandboxes."""

    sandboxes: list[Sandbox] = field(default_factory=list)
    more: bool = False


@dataclass
class Files:
    """What lies in a directory, by name."""

    files: list[File] = field(default_factory=list)
    more: bool = False


@dataclass
class Done:
    """It was done."""

    done: str


class Excerpt:
    """A text's beginning and end: of a long one no more is kept."""

    def __init__(self) -> None:
        self._first = self._last = ""
        self._length = 0

    def add(self, text: str) -> None:
        """What comes next."""
        self._length += len(text)
        self._first += text[: MOST - len(self._first)]
        self._last = (self._last + text)[-(MOST - HEAD) :]

    @property
    def left_out(self) -> int:
        """Characters between the two."""
        return max(0, self._length - MOST)

    def __str__(self) -> str:
        if not self.left_out:
            return self._first
        return f"{self._first[:HEAD]}\n[... {self.left_out} characters are left out here ...]\n{self._last}"


def job_of(info: JobInfo, output: Excerpt | None = None, advice: str = "") -> Job:
    """A job as the tools show it."""
    return Job(
        command_id=info.command_id,
        sandbox_id=info.sandbox_id,
        state=info.state.value,
        exit_code=info.exit_code,
        reason=info.reason.value if info.reason else None,
        command=info.command,
        output=str(output or ""),
        output_left_out=output.left_out if output else 0,
        advice=advice,
    )


def sandbox_of(info: SandboxInfo) -> Sandbox:
    """A sandbox as the tools show it."""
    return Sandbox(info.sandbox_id, info.state.value, info.ready, info.image, info.expires_at)


def file_of(info: FileInfo) -> File:
    """A file as the tools show it."""
    return File(info.path, info.type.value, info.size, info.mode)
