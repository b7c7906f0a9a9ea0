"""What the core asks of a sandbox engine, and the four ways in which a call can end.

A call returns its **answer**, or raises: ``Refused`` (the engine said no, structured: not executed),
``NotReached`` (the request never got there: not executed), ``Unclear`` (it may have been executed). Which is
which is decided in one place, ``service.engine.outcomes``. Every call has connect, read and overall deadlines.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from service.messages import SandboxState


class EngineError(Exception):
    """A call to the engine brought no answer. ``message`` is untrusted text of at most a few hundred characters."""

    def __init__(
        self, message: str, *, code: str | None = None, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.retry_after = retry_after


class Refused(EngineError):
    """A structured refusal: not executed."""


class SandboxMissing(Refused):
    """The engine says with certainty that there is no such sandbox (a code that ends in ``SANDBOX_NOT_FOUND``)."""


class SandboxNotReady(Refused):
    """409: the sandbox is not in a state for this (not running, not paused)."""


class CommandMissing(Refused):
    """execd's own structured 404 for a command's id: not in its table (not yet, or not any more)."""


class CommandNotRunning(Refused):
    """execd's answer to an interrupt of a finished or unknown command."""


class FileMissing(Refused):
    """execd's own ``FILE_NOT_FOUND``."""


class Denied(Refused):
    """401 or 403 on our key: our trouble, not the caller's."""


class Busy(Refused):
    """429, or the engine's quota: not executed, may be tried later."""


class StartFailed(Refused):
    """execd took the command and said, structured, that it could not start it."""


class NotReached(EngineError):
    """Never got there: not executed."""


class TakenBack(EngineError):
    """The engine made a sandbox, could not start it in time, and says that it has removed it: one look proves it."""


Runtime = Literal["docker", "kubernetes"]
"""What the engine runs sandboxes with. Kubernetes alone expands ``$`` in a sandbox's environment and entrypoint."""

Hop = Literal["lifecycle", "direct", "proxy"]
"""Who was asked: the lifecycle server; execd at its own endpoint; execd through the lifecycle server's proxy."""
LossCause = Literal["silent", "dropped", "ended", "invalid"]
"""Nothing came for too long; the connection broke; it was closed in order, but too early; what came is no answer."""


class Unclear(EngineError):
    """Everything else: it may have been executed."""

    hop: Hop | None = None
    """Where the answer was lost, once the request was on its way."""
    cause: LossCause = "invalid"
    """How."""

    command: str | None = None
    """execd's id of the command, where it came before the call failed."""


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox to create. ``timeout`` is seconds; resources are the engine's strings."""

    image: str
    entrypoint: Sequence[str]
    cpu: str
    memory: str
    timeout: int
    env: Mapping[str, str] = {}
    metadata: Mapping[str, str] = {}
    volumes: Sequence[Mount] = ()


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A directory of a backing volume in a sandbox. Exactly one of ``host`` (a path) and ``claim`` (a PVC's name)."""

    name: str
    host: str | None = None
    claim: str | None = None
    sub_path: str
    mount_path: str


class SandboxInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox as the engine shows it. Times are Unix seconds."""

    id: str
    state: SandboxState
    reason: str | None = None
    metadata: Mapping[str, str] = {}
    image: str | None = None
    created_at: float | None = None
    expires_at: float | None = None


class SandboxListing(msgspec.Struct, frozen=True, kw_only=True):
    """One page of the engine's list."""

    items: list[SandboxInfo]
    has_next: bool
    left_out: int = 0
    """Items that could not be read."""


class CommandSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A command for execd. ``timeout`` is seconds, enforced there."""

    command: str
    timeout: float
    cwd: str | None = None
    env: Mapping[str, str] = {}


class CommandStatus(msgspec.Struct, frozen=True, kw_only=True):
    """execd's word on a command. Times are Unix seconds by the sandbox's clock.

    ``signal`` is the number where ``error`` says that a signal ended it (``exit_code`` is -1 then).
    """

    id: str
    content: str
    running: bool
    exit_code: int | None = None
    signal: int | None = None
    error: str | None = None
    started_at: float | None = None
    finished_at: float | None = None


class CommandEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a foreground command's stream. ``init``: ``text`` is execd's id of the command.

    ``at``: Unix seconds by the sandbox's clock; of ``init``, ``complete`` and ``exit``, where execd tells.
    """

    type: Literal["init", "stdout", "stderr", "complete", "exit", "ping"]
    text: str = ""
    exit_code: int | None = None
    at: float | None = None


class FileRange(msgspec.Struct, frozen=True):
    """Bytes of a file from ``offset``, and the whole file's ``size`` at that moment."""

    offset: int
    data: bytes
    size: int


class ShortResult(msgspec.Struct, frozen=True):
    """The result of one of our own small commands: what it printed (at most 64 KiB), and its exit code."""

    exit_code: int
    stdout: str


class Engine(Protocol):
    """An OpenSandbox-compatible engine."""

    # -- lifecycle

    async def runtime(self) -> Runtime | None:
        """What the engine runs sandboxes with; None where it can't be learnt. Asks once at the most."""
        ...

    async def create_sandbox(self, spec: SandboxSpec) -> SandboxInfo:
        """Not idempotent. May take minutes. ``env`` and ``entrypoint`` arrive as they are, where ``runtime`` is known.

        Raises ``TakenBack``.
        """
        ...

    async def get_sandbox(self, sandbox_id: str) -> SandboxInfo:
        """Raises ``SandboxMissing`` when it is certain that there is none."""
        ...

    async def list_sandboxes(
        self, metadata: Mapping[str, str], *, states: Sequence[SandboxState] = (), page: int = 1, page_size: int = 200
    ) -> SandboxListing:
        """A page, newest first. The filter is the engine's word: check each item."""
        ...

    async def delete_sandbox(self, sandbox_id: str) -> None:
        """A sandbox that is gone already is no error."""
        ...

    async def renew_sandbox(self, sandbox_id: str, expires_at: float) -> float:
        """Set the expiry (Unix seconds); the one now in force."""
        ...

    async def pause_sandbox(self, sandbox_id: str) -> None:
        """Raises ``SandboxNotReady`` when it is not running."""
        ...

    async def resume_sandbox(self, sandbox_id: str) -> None:
        """Raises ``SandboxNotReady`` when it is not paused."""
        ...

    # -- execd

    async def ping(self, sandbox_id: str) -> None:
        """Raises unless the sandbox's daemon answers."""
        ...

    async def submit(self, sandbox_id: str, spec: CommandSpec) -> str:
        """Start a command in the background.

        Execd's id of it. Returns at the terminal event, not at the stream's end.
        """
        ...

    def stream(self, sandbox_id: str, spec: CommandSpec, *, silence: float) -> AsyncGenerator[CommandEvent, None]:
        """Run a command in the foreground. Ends after ``complete`` (exit code 0) or ``exit``.

        Raises ``StartFailed`` where execd says that it never started, ``Unclear`` when the stream ends without a
        terminal event or brings nothing (not even a ping) for ``silence`` seconds; before ``init`` also
        ``Refused`` and ``NotReached``.
        """
        ...

    async def run_short(
        self, sandbox_id: str, command: str, *, timeout: float, env: Mapping[str, str] | None = None
    ) -> ShortResult:
        """Run one of our own small commands (sh) and wait for it."""
        ...

    async def status(self, sandbox_id: str, command: str) -> CommandStatus:
        """Raises ``CommandMissing``."""
        ...

    async def interrupt(self, sandbox_id: str, command: str) -> None:
        """SIGTERM, 3 s, SIGKILL. Raises ``CommandNotRunning``."""
        ...

    async def log(self, sandbox_id: str, command: str, offset: int) -> FileRange:
        """execd's own log call, which holds the rest of the log in memory three times: only where no path is known."""
        ...

    async def read_file(self, sandbox_id: str, path: str, offset: int, length: int) -> FileRange:
        """At most ``length`` bytes from ``offset``, by one ranged download; ``data`` is empty at the end.

        Raises ``FileMissing``, and ``Unclear`` where the answer is not the range asked for (a 200 that is not empty,
        another ``Content-Range``). A file shorter than ``offset`` is an answer: its ``size`` says so.
        """
        ...

    async def read_lines(self, sandbox_id: str, path: str, limit: int) -> bytes | None:
        """A whole file by execd's reading of lines, which knows no size beforehand: also one of ``/proc``.

        Carriage returns at the ends of lines are lost, and the file's last line end. None: it has more than
        ``limit`` bytes. Raises ``FileMissing``.
        """
        ...

    async def remove_files(self, sandbox_id: str, paths: Sequence[str]) -> None:
        """Missing ones are no error."""
        ...

    def output_path(self, command: str, stream: Literal["output", "stdout", "stderr"] = "output") -> str:
        """Where execd writes a command's output by default (``/tmp`` is its ``TMPDIR``)."""
        ...

    async def check(self) -> None:
        """Raises unless the lifecycle server answers to our key."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...
