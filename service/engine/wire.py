"""The engine's replies as the port's types. Pure and sceptical: another shape is ``Unclear``, no crash."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec

from service.engine.outcomes import clean
from service.messages import SandboxState
from service.ports.engine import CommandStatus, FileInfo, FileType, SandboxInfo, SandboxListing, Unclear

MAX_CONTENT = 64 * 1024
"""Characters kept of the command that ``status`` repeats; a fence's token stands near its beginning."""
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Ids of sandboxes and commands: they become parts of URLs and of paths."""

T = TypeVar("T")


def decode(body: bytes, shape: type[T], what: str) -> T:
    """``body`` as ``shape``; raises ``Unclear`` for anything else."""
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unclear(f"{what}: not an answer of the expected shape ({clean(str(error), 120)})") from None


# -- times

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339 = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]{1,18})?"
    r"(?:[Zz]|([+-])([0-9]{2}):?([0-9]{2}))?"
)


def unix_time(text: str | None, what: str = "time") -> float | None:
    """Unix seconds of an RFC 3339 time, to the microsecond; without a zone it is UTC, as the engine takes it.

    ``None`` for ``None``, for an empty text and for times before 1970 (Go's zero time). Raises ``Unclear``.
    """
    if not text:
        return None
    whole, rest = divmod(unix_ns(text, what), 10**9)
    seconds = whole + rest / 1e9
    return seconds if seconds >= 0 else None


def unix_ns(text: str, what: str = "time") -> int:
    """Nanoseconds since 1970 of an RFC 3339 time, negative ones too. Raises ``Unclear``."""
    found = _RFC3339.fullmatch(text.strip())
    if found is None:
        raise Unclear(f"{what}: not a time")
    day, clock, fraction, sign, hours, minutes = found.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}+00:00")
        if sign:
            offset = timedelta(hours=int(hours), minutes=int(minutes))
            moment = moment - offset if sign == "+" else moment + offset
    except (ValueError, OverflowError):
        raise Unclear(f"{what}: not a time") from None
    seconds = (moment - _EPOCH) // timedelta(seconds=1)
    return seconds * 10**9 + int((fraction or ".0")[1:10].ljust(9, "0"))


def rfc3339(seconds: float) -> str:
    """Unix seconds as RFC 3339 in UTC with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -- sandboxes


class _Status(msgspec.Struct):
    state: str
    reason: str | None = None
    message: str | None = None


class _Image(msgspec.Struct):
    uri: str | None = None


class _Sandbox(msgspec.Struct, rename="camel"):
    id: str
    status: _Status
    metadata: dict[str, str] | None = None
    image: _Image | None = None
    created_at: str | None = None
    expires_at: str | None = None


class _Pagination(msgspec.Struct, rename="camel"):
    has_next_page: bool


class _Listing(msgspec.Struct):
    items: list[msgspec.Raw]
    pagination: _Pagination


class _Renewed(msgspec.Struct, rename="camel"):
    expires_at: str


class WireEndpoint(msgspec.Struct):
    """The lifecycle server's answer to "where is this port of the sandbox"."""

    endpoint: str
    headers: dict[str, str] | None = None


_WHY = (SandboxState.FAILED, SandboxState.TERMINATED, SandboxState.STOPPING, SandboxState.UNKNOWN)


def sandbox(body: bytes) -> SandboxInfo:
    """A sandbox, as create and get answer it."""
    return _info(decode(body, _Sandbox, "sandbox"))


def listing(body: bytes) -> SandboxListing:
    """A page of the list, without what can't be read."""
    found = decode(body, _Listing, "list of sandboxes")
    items = [info for each in found.items if (info := _listed(each)) is not None]
    return SandboxListing(items=items, has_next=found.pagination.has_next_page, left_out=len(found.items) - len(items))


def _listed(item: msgspec.Raw) -> SandboxInfo | None:
    """None: it is no sandbox as we know them; the others are not to suffer from it."""
    try:
        return sandbox(bytes(item))
    except Unclear:
        return None


def renewed(body: bytes) -> float:
    """The expiry now in force, Unix seconds."""
    seconds = unix_time(decode(body, _Renewed, "renewal").expires_at, "expiresAt")
    if seconds is None:
        raise Unclear("renewal: no time")
    return seconds


def _info(found: _Sandbox) -> SandboxInfo:
    if not ID.fullmatch(found.id):
        raise Unclear("sandbox: its id is not one")
    state = sandbox_state(found.status.state)
    why = ": ".join(each for each in (found.status.reason, found.status.message) if each)
    return SandboxInfo(
        id=found.id,
        state=state,
        exited=state is SandboxState.FAILED and (found.status.reason or "").startswith("CONTAINER_"),
        reason=clean(why) or None if state in _WHY else None,
        metadata=found.metadata or {},
        image=found.image.uri if found.image else None,
        created_at=unix_time(found.created_at, "createdAt"),
        expires_at=unix_time(found.expires_at, "expiresAt"),
    )


def sandbox_state(text: str) -> SandboxState:
    """The engine's name of a state; a new one is ``UNKNOWN``."""
    try:
        return SandboxState(text.lower())
    except ValueError:
        return SandboxState.UNKNOWN


# -- commands

_SIGNALS: Mapping[str, int] = {
    "hangup": 1,
    "interrupt": 2,
    "quit": 3,
    "illegal instruction": 4,
    "trace/breakpoint trap": 5,
    "aborted": 6,
    "bus error": 7,
    "floating point exception": 8,
    "killed": 9,
    "user defined signal 1": 10,
    "segmentation fault": 11,
    "user defined signal 2": 12,
    "broken pipe": 13,
    "alarm clock": 14,
    "terminated": 15,
    "stack fault": 16,
    "child exited": 17,
    "continued": 18,
    "stopped (signal)": 19,
    "stopped": 20,
    "stopped (tty input)": 21,
    "stopped (tty output)": 22,
    "urgent I/O condition": 23,
    "CPU time limit exceeded": 24,
    "file size limit exceeded": 25,
    "virtual timer expired": 26,
    "profiling timer expired": 27,
    "window changed": 28,
    "I/O possible": 29,
    "power failure": 30,
    "bad system call": 31,
}
"""Go's names of Linux signals; the others are "signal 34" and so on."""
_NUMBERED = re.compile(r"signal ([0-9]{1,2})")


def signal_number(error: str | None) -> int | None:
    """The signal in a text such as "signal: killed" or "signal: segmentation fault (core dumped)"."""
    if not error or not error.startswith("signal: "):
        return None
    name = error.removeprefix("signal: ").removesuffix(" (core dumped)")
    if (known := _SIGNALS.get(name)) is not None:
        return known
    numbered = _NUMBERED.fullmatch(name)
    return int(numbered[1]) if numbered and 1 <= int(numbered[1]) <= 64 else None


class _CommandStatus(msgspec.Struct):
    id: str
    running: bool
    content: str = ""
    exit_code: int | None = None
    error: str | None = None
    started_at: str | None = None
    finished_at: str | None = None


_EXIT_CODES = range(-(2**31), 2**32)


def command_status(body: bytes, command: str) -> CommandStatus:
    """execd's word on ``command``; an answer about another command is ``Unclear``."""
    found = decode(body, _CommandStatus, "status")
    if found.id != command:
        raise Unclear("status: the answer is about another command")
    if found.exit_code is not None and found.exit_code not in _EXIT_CODES:
        raise Unclear("status: the exit code is not one")
    return CommandStatus(
        id=found.id,
        content=found.content[:MAX_CONTENT],
        running=found.running,
        exit_code=found.exit_code,
        signal=signal_number(found.error) if found.exit_code == -1 else None,
        error=clean(found.error) if found.error else None,
        started_at=unix_time(found.started_at, "started_at"),
        finished_at=unix_time(found.finished_at, "finished_at"),
    )


# -- files

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_UNSATISFIED = re.compile(r"bytes \*/([0-9]{1,18})")


def content_range(text: str | None, offset: int, length: int) -> tuple[int, int]:
    """How many bytes a 206 carries and the size of the file; raises ``Unclear`` where that is not the range
    asked for.
    """
    found = _CONTENT_RANGE.fullmatch((text or "").strip())
    if found is None:
        raise Unclear("read: no Content-Range")
    first, last, size = (int(each) for each in found.groups())
    if first != offset or not first <= last < min(size, offset + length):
        raise Unclear("read: another range than the one asked for")
    return last - first + 1, size


def unsatisfied_range(text: str | None, offset: int) -> int:
    """The size of the file that ends at or before ``offset``, by a 416's ``Content-Range: bytes */size``."""
    found = _UNSATISFIED.fullmatch((text or "").strip())
    if found is None or int(found[1]) > offset:
        raise Unclear("read: a 416 without the file's size")
    return int(found[1])


class _FileInfo(msgspec.Struct):
    path: str
    size: int
    modified_at: str
    created_at: str
    owner: str
    group: str
    mode: int
    type: str | None = None


_TYPES: dict[str | None, FileType | None] = {"file": "file", "directory": "directory", "symlink": "symlink", None: None}


def file_info(body: bytes) -> FileInfo:
    """The one file of a mapping by path."""
    found = decode(body, dict[str, _FileInfo], "file info")
    if len(found) != 1:
        raise Unclear("file info: not of one file")
    return _file(*found.values())


def file_list(body: bytes) -> list[FileInfo]:
    """A list of files."""
    return [_file(each) for each in decode(body, list[_FileInfo], "list of files")]


def _file(found: _FileInfo) -> FileInfo:
    if not re.fullmatch(r"[0-7]{1,3}", str(found.mode)) or found.size < 0:
        raise Unclear("file info: the mode or the size is not one")
    return FileInfo(
        path=found.path,
        type=_TYPES.get(found.type, "other"),
        size=found.size,
        mode=int(str(found.mode), 8),
        owner=found.owner,
        group=found.group,
        modified_ns=unix_ns(found.modified_at, "modified_at"),
        changed_ns=unix_ns(found.created_at, "created_at"),
    )


def log_cursor(headers: Mapping[str, Any]) -> int:
    """The next cursor, a byte offset, of execd's own log call."""
    text = str(headers.get("execd-commands-tail-cursor", ""))
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise Unclear("log: no cursor")
    return int(text)
