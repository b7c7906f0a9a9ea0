"""What the core asks of a sandbox engine, and the four ways in which a call can end.

A call returns its **answer**, or raises: ``Refused`` (the engine said no, structured: not executed),
``NotReached`` (the request never got there: not executed), ``Unclear`` (it may have been executed). Which is
which is decided in one place, ``service.engine.outcomes``. Every call has connect, read and overall deadlines.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
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


class NoAddress(SandboxNotReady):
    """The sandbox has no address (``POD_IP_NOT_AVAILABLE``): it gets one when its pod is made, or made anew."""


class CommandMissing(Refused):
    """execd's own structured 404 for a command's id: not in its table (not yet, or not any more)."""


class CommandNotRunning(Refused):
    """execd's answer to an interrupt of a finished or unknown command."""


class FileMissing(Refused):
    """execd's own ``FILE_NOT_FOUND``."""


class FileSystemError(EngineError):
    """The sandbox's file system said no to execd, in the middle of what was asked: see the call for what stays.

    Which one is read from the end of execd's text, which is that of ``strerror``; another end is ``Unclear``.
    """


class PathIsDirectory(FileSystemError):
    """A file was asked for, and there is a directory."""


class PathNotDirectory(FileSystemError):
    """A directory was asked for, or stands in the middle of the path, and there is something else."""


class PathIsLink(FileSystemError):
    """A list was asked of a symbolic link: execd follows none there."""


class PathDenied(FileSystemError):
    """The daemon's user may not do it (``EACCES``, ``EPERM``)."""


class PathExists(FileSystemError):
    """Something of that name is there already."""


class PathInvalid(FileSystemError):
    """No path can be this one: a name or a path that is too long, links that go in circles, a NUL, an undefined
    ``$X``.
    """


class FileBusy(FileSystemError):
    """It is a running program, or a mount point (``ETXTBSY``, ``EBUSY``), lies on another device (``EXDEV``),
    or a directory was filled while it was removed.
    """


class ReadOnly(FileSystemError):
    """The file system takes no writes."""


class DiskFull(FileSystemError):
    """No room is left, or the quota is used up; what was written until then stays."""


class OwnerUnknown(FileSystemError):
    """The owner or the group to set has no name in the sandbox."""


class AnswerTooLarge(EngineError):
    """An answer of more bytes than the caller takes (a list of very many names)."""


class Denied(Refused):
    """401 or 403 on our key: our trouble, not the caller's."""


class Busy(Refused):
    """429, or the engine's quota: not executed, may be tried later."""


class StartFailed(Refused):
    """execd took the command and said, structured, that it could not start it."""


class NotReached(EngineError):
    """Never got there: not executed."""

    refused: bool = False
    """Nothing listens where the sandbox's daemon should be: its port refuses, directly or to the proxy."""


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
    exited: bool = False
    """Of a failed one: its container has ended, and nobody starts it again. Docker says so; on Kubernetes a container
    may come back, or answer all the time."""

    @property
    def over(self) -> bool:
        """Will certainly never be used again."""
        return self.state.over and (self.exited or self.state is not SandboxState.FAILED)


class SandboxListing(msgspec.Struct, frozen=True, kw_only=True):
    """One page of the engine's list."""

    items: list[SandboxInfo]
    has_next: bool
    left_out: int = 0
    """Items that could not be read."""


class CommandSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A command for execd. ``timeout`` is seconds, enforced there.

    ``uid`` and ``gid`` are numbers, the only thing that execd takes; None: the daemon's own. A ``gid`` without a
    ``uid`` is refused (400). A ``uid`` without a ``gid`` gets the group of its line in the sandbox's
    ``/etc/passwd``, and group **0** where it has none; the other groups are those of that line too. The user is
    changed before the directory: a ``cwd`` that the user can't enter is ``StartFailed``, and so is a daemon that
    may not switch users (its text then ends in "operation not permitted"). The environment stays the daemon's
    (``HOME`` too), and its output files belong to the daemon.
    """

    command: str
    timeout: float
    cwd: str | None = None
    env: Mapping[str, str] = {}
    uid: int | None = None
    gid: int | None = None


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


FileType = Literal["file", "directory", "symlink", "other"]


class FileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What execd says of a path: of a link, of the link itself (it can't say a link's target).

    ``size`` is bytes; 0 for what is made when it is read (``/proc``). ``mode`` has the nine permission bits only:
    set-user-id, set-group-id and sticky are not told. ``owner`` and ``group`` are names, or numbers as text where
    there is no name. Times are nanoseconds since 1970 by the sandbox's clock: ``modified_ns`` of the content,
    ``changed_ns`` of the inode (a rename, a ``chmod`` and a ``touch`` show there too).
    """

    path: str
    """Absolute, expanded, ``.`` and ``..`` taken out as text; what is not UTF-8 in it is U+FFFD."""
    type: FileType | None
    """None: an execd before 1.0.19, which does not tell."""
    size: int
    mode: int
    owner: str
    group: str
    modified_ns: int
    changed_ns: int


class Download(msgspec.Struct, frozen=True):
    """Bytes of a file under way: ``length`` of them from ``offset``, and the file's ``size`` as they began."""

    offset: int
    length: int
    size: int
    pieces: AsyncIterator[bytes]
    """Exactly ``length`` bytes as they come, at most 256 KiB waiting here; raises ``Unclear`` on a cut."""


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
        self,
        sandbox_id: str,
        command: str,
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        uid: int | None = None,
        gid: int | None = None,
    ) -> ShortResult:
        """Run one of our own small commands (sh) and wait for it. ``cwd``, ``uid``, ``gid``: see
        ``CommandSpec``."""
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

    # -- files. execd does all of this as its own user. It expands ``$X``, ``${X}`` (with its own environment; one
    # that is not set is ``PathInvalid``) and a leading ``~`` in every path, and takes a relative path from its own
    # working directory: a name that holds such a thing can't be reached here. Paths are text: a name that is not
    # UTF-8 can't be said.

    async def upload(
        self,
        sandbox_id: str,
        path: str,
        data: bytes | AsyncIterable[bytes],
        *,
        length: int,
        mode: int | None = None,
        owner: str | None = None,
        group: str | None = None,
        timeout: float = 300,
    ) -> None:
        """Write a file of exactly ``length`` bytes, by one multipart upload; ``data`` passes through, uncopied.

        execd takes the whole form first (up to 32 MiB in its memory, from there on all of it in its ``TMPDIR``),
        and only then makes the parents (0777 less its umask), empties the target and copies: so an upload that
        breaks off changes nothing, and one that fails while it copies (``DiskFull``) leaves the beginning. A
        reader sees the file grow. It writes through a link, into an existing inode (mode and owner stay), and
        blocks for ever on a FIFO without a reader. Repeating is harmless, if nobody else writes.

        ``mode`` (0o001 to 0o777: it knows no other bits, and takes 0 for none) is set after the copy; without it a
        new file gets 0777 less the umask. ``owner`` and ``group`` are names. ``timeout``: seconds in all.

        Raises ``PathIsDirectory``, ``PathNotDirectory``, ``PathDenied``, ``PathInvalid``, ``FileBusy``,
        ``ReadOnly``, ``DiskFull``, ``OwnerUnknown`` (the content is there then), and ``FileMissing`` where no file
        can be made (a link to nowhere, ``/proc``). What ``data`` raises comes out as
        it is, with nothing written; ``ValueError`` where it has another length.
        """
        ...

    def download(
        self, sandbox_id: str, path: str, offset: int = 0, length: int | None = None, *, timeout: float = 300
    ) -> AbstractAsyncContextManager[Download]:
        """Bytes ``offset`` to ``offset + length`` (None: to the end) of a file, as they come.

        One answer of execd, of one opened file: a file that is replaced meanwhile (renamed over) is read whole. A
        file that shrinks is a cut. An offset at or behind the end is an empty answer. A file of
        size 0 in ``/proc`` is empty or ``Unclear`` (``read_lines`` reads it). A FIFO **blocks for ever**, here and
        in execd, and a directory is a cut: look first. Links are followed.

        Leaving early closes nothing: what is left is read on for 3 s or 64 MiB, since a connection that is
        reset kills the foreground commands of that sandbox. So ask for at most 64 MiB at a time where a reader
        may leave. ``timeout``: seconds in all, also while nobody reads.

        Raises ``FileMissing``, ``PathDenied``, ``PathNotDirectory``, ``PathInvalid``.
        """
        ...

    async def file_info(self, sandbox_id: str, path: str) -> FileInfo:
        """What is at a path, a link itself. Raises ``FileMissing``, ``PathDenied``, ``PathNotDirectory``,
        ``PathInvalid``.
        """
        ...

    async def list_directory(self, sandbox_id: str, path: str, *, limit: int) -> list[FileInfo]:
        """What is in a directory, by the bytes of the names, without ``.`` and ``..``; an answer of at most
        ``limit`` bytes (about 220 and the path, a name).

        execd holds the whole list in memory, and fails where an entry goes while it looks (``FileMissing``, though
        the directory is there). Two names that differ in what is not UTF-8 look the same.

        Raises ``FileMissing``, ``PathNotDirectory``, ``PathIsLink``, ``PathDenied``, ``PathInvalid``,
        ``AnswerTooLarge``; ``Unclear`` from an execd before 1.0.19, which has no such route.
        """
        ...

    async def make_directory(
        self,
        sandbox_id: str,
        path: str,
        *,
        mode: int | None = None,
        owner: str | None = None,
        group: str | None = None,
    ) -> None:
        """Make a directory, and its parents (0777 less execd's umask); there already: nothing changes.

        ``mode`` as in ``upload``. Raises ``PathNotDirectory`` (a file stands there), ``PathDenied``,
        ``PathInvalid``, ``ReadOnly``, ``DiskFull``, ``OwnerUnknown``.
        """
        ...

    async def move(self, sandbox_id: str, source: str, target: str) -> None:
        """Rename, with the target's parents made (0755). An existing target is ``PathExists``, but a dangling link
        and what appears in that moment are replaced.

        A source that is a dangling link is ``FileMissing``. Raises ``PathDenied``, ``PathNotDirectory``,
        ``PathInvalid``, ``FileBusy`` (another device too), ``ReadOnly``, ``DiskFull``.
        """
        ...

    async def set_permissions(
        self,
        sandbox_id: str,
        path: str,
        *,
        mode: int | None = None,
        owner: str | None = None,
        group: str | None = None,
    ) -> None:
        """Set the mode (0o001 to 0o777, which clears the three other bits), then owner and group, by name; through
        a link.

        Raises ``FileMissing``, ``PathDenied``, ``OwnerUnknown``, ``PathInvalid``, ``ReadOnly``.
        """
        ...

    async def remove_files(self, sandbox_id: str, paths: Sequence[str]) -> None:
        """Remove files; a link itself, unless it dangles: that one is left. Missing ones are no error.

        In order, up to the first that fails: ``PathIsDirectory``, ``PathDenied``, ``PathNotDirectory``,
        ``PathInvalid``, ``FileBusy``, ``ReadOnly``.
        """
        ...

    async def remove_directory(self, sandbox_id: str, path: str) -> None:
        """Remove whatever is there, with all that is in it; a link itself, dangling or not. Missing: no error.

        What could be removed before a failure is gone. Takes as long as it takes, at most 300 s. Raises
        ``PathDenied``, ``PathNotDirectory``, ``PathInvalid``, ``FileBusy``, ``ReadOnly``.
        """
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
