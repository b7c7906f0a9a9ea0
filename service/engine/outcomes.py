"""What a call to the engine came to: the one place that decides "not executed", "may have been executed",
"answer".

Pure functions, no I/O. The list of what counts as **not executed** is closed:

- the connection was refused or never made (connect timeout, DNS, a TLS failure before anything was sent);
- 502 ``BACKEND_CONNECTION_FAILED`` of the lifecycle server's proxy;
- execd's structured 400, and its structured 404 for what it does not know;
- a structured start failure after ``init`` in a stream (see ``error_event`` and ``appended_object``);
- the lifecycle server's structured 4xx;
- a code that ends in ``IMAGE_PULL_FAILED``, and ``KUBERNETES::POD_FAILED`` on a create (both are rolled back);
- ``KUBERNETES::API_ERROR`` on a create whose message proves it: the cluster's API refused the object, or could
  not be reached. The engine has no code for these.

``KUBERNETES::POD_READY_TIMEOUT`` on a create is ``TakenBack``: made, not started in time, and removed again.
A file call that execd began, and that its file system refused, is a ``FileSystemError``.

Everything else is ``Unclear``: ``BACKEND_RESPONSE_FAILED``, 504, a gateway's HTML 502 or 503 or 404, a reset
or a timeout after the request was sent, a stream that ended early, a redirect (never followed), an answer of
another shape.
"""

import re
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any

import msgspec

from service.engine.file_errors import file_error, list_error
from service.ports.engine import (
    AnswerTooLarge,
    Busy,
    CommandEvent,
    CommandMissing,
    CommandNotRunning,
    Denied,
    EngineError,
    FileMissing,
    LossCause,
    NoAddress,
    NotReached,
    Refused,
    SandboxMissing,
    SandboxNotReady,
    StartFailed,
    TakenBack,
    Unclear,
)

MAX_MESSAGE = 300
"""Characters of the engine's own words that an error carries."""
MAX_RETRY_AFTER = 3600.0
"""Seconds: a longer ``Retry-After`` is cut to this."""


class Side(Enum):
    """Who answers."""

    LIFECYCLE = "lifecycle"
    """The lifecycle server itself."""
    DIRECT = "direct"
    """execd, at the sandbox's own endpoint. Whoever runs code in the sandbox may have replaced it."""
    PROXY = "proxy"
    """execd through the lifecycle server's proxy: either of them may have written the answer."""


class CallKind(Enum):
    """What was asked; the value names the call in metrics."""

    CREATE = "create"
    GET = "get"
    LIST = "list"
    DELETE = "delete"
    RENEW = "renew"
    PAUSE = "pause"
    RESUME = "resume"
    ENDPOINT = "endpoint"
    CHECK = "check"
    PING = "ping"
    SUBMIT = "submit"
    STREAM = "stream"
    SHORT = "short"
    STATUS = "status"
    INTERRUPT = "interrupt"
    LOG = "log"
    READ = "read"
    REMOVE = "remove"
    UPLOAD = "upload"
    DOWNLOAD = "download"
    FILE_INFO = "file_info"
    LIST_FILES = "list_files"
    MAKE_DIRECTORY = "make_directory"
    MOVE = "move"
    PERMISSIONS = "permissions"


class Phase(IntEnum):
    """How far a call got. It only grows, over a silent repeat by the HTTP library too."""

    NOT_CONNECTED = 0
    """No connection was had: not a byte of the request can have left."""
    SENT = 1
    """There was a connection: the request may have left."""
    HEAD = 2
    """Status and headers of the reply are here."""


class TransportFailure(Enum):
    """How the transport failed; the value is part of the message."""

    CONNECT = "could not connect"
    REFUSED = "the connection was refused"
    TIMEOUT = "timed out"
    DROPPED = "the connection was lost"
    INVALID = "the reply is not valid HTTP"
    TOO_LARGE = "the reply is too large"
    ENCODED = "the reply is compressed, which was not asked for"


_CAUSES: dict[TransportFailure, LossCause] = {TransportFailure.TIMEOUT: "silent", TransportFailure.DROPPED: "dropped"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReport:
    """What happened on one call. ``body`` is whole, or ``failure`` says why not."""

    call: CallKind
    side: Side
    phase: Phase
    failure: TransportFailure | None = None
    status: int = 0
    content_type: str = ""
    body: bytes = b""
    retry_after: str | None = None
    detail: str = ""


def clean(text: str, limit: int = MAX_MESSAGE) -> str:
    """Untrusted text for a message: no control characters, at most ``limit`` characters."""
    shown = text[: limit + 1]
    if not shown.isprintable():
        shown = "".join(each if each.isprintable() else " " for each in shown)
    shown = shown.strip()
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."


def outcome(report: CallReport) -> EngineError | None:
    """The error that ``report`` came to, or ``None``: an answer, whose body is still to be parsed."""
    if report.phase is Phase.NOT_CONNECTED:
        return _not_reached(NotReached(_describe(report)), report)
    if report.failure is TransportFailure.TOO_LARGE and report.call is CallKind.LIST_FILES:
        return AnswerTooLarge(_describe(report))
    if report.failure is not None:
        lost = Unclear(_describe(report), status=report.status or None)
        lost.cause = _CAUSES.get(report.failure, "invalid")
        return lost
    if 200 <= report.status < 300:
        return None
    if report.status == 416 and report.call in (CallKind.READ, CallKind.DOWNLOAD):
        return None
    problem = _problem(report)
    if problem is None:
        return Unclear(_describe(report), status=report.status)
    kind = _kind(report, problem)
    error = kind(
        clean(problem.message) or f"{report.call.value}: HTTP {report.status}",
        code=problem.code,
        status=report.status,
        retry_after=retry_after(report.retry_after),
    )
    return _not_reached(error, report) if isinstance(error, NotReached) else error


def _not_reached(error: NotReached, report: CallReport) -> NotReached:
    """The proxy tells a closed port and a dead host by one code; directly only a closed port counts."""
    by_proxy = report.side is Side.PROXY and report.phase is Phase.HEAD
    error.refused = by_proxy or (report.side is Side.DIRECT and report.failure is TransportFailure.REFUSED)
    return error


@dataclass(frozen=True, slots=True)
class _Problem:
    code: str | None
    message: str


def _problem(report: CallReport) -> _Problem | None:
    """The engine's own account of an error; ``None`` for anything that is not one of its shapes."""
    if "json" not in report.content_type.lower():
        return None
    try:
        found = msgspec.json.decode(report.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    code, message, detail = found.get("code"), found.get("message", ""), found.get("detail")
    if isinstance(code, str) and code and isinstance(message, str):
        return _Problem(clean(code, 100), message)
    if report.side is not Side.DIRECT and isinstance(detail, str) and detail:
        return _Problem(None, detail)
    if report.side is not Side.DIRECT and isinstance(detail, list) and detail:
        return _Problem(None, "; ".join(_validation(each) for each in detail[:5]))
    if report.status == 401 and isinstance(found.get("error"), str):
        return _Problem(None, found["error"])
    return None


def _validation(item: Any) -> str:
    """One complaint of the lifecycle server's 422. Its ``input`` repeats what was sent (``env`` too): left
    out.
    """
    if not isinstance(item, dict):
        return "invalid"
    where = item.get("loc")
    place = ".".join(str(each) for each in where) if isinstance(where, list) else ""
    return clean(f"{place}: {item.get('msg', 'invalid')}", 100)


def _kind(report: CallReport, problem: _Problem) -> type[EngineError]:
    code = problem.code or ""
    if 400 <= report.status < 500:
        return _client_error(report, code, problem.message)
    if report.call is CallKind.CREATE and (kind := _create_error(code, problem.message)):
        return kind
    if report.status == 502 and report.side is Side.PROXY and code == "BACKEND_CONNECTION_FAILED":
        return NotReached
    if report.status == 500 and report.call is CallKind.INTERRUPT and code == "RUNTIME_ERROR":
        return CommandNotRunning
    if report.side is not Side.LIFECYCLE and report.call in _FILE_CALLS and code == "RUNTIME_ERROR":
        return file_error(problem.message)
    return Unclear


POD_FAILED = "KUBERNETES::POD_FAILED"
"""The pod of a create can't start, most often since its image can't be pulled; it was removed again."""
_API_REFUSED = re.compile(r"Failed to create sandbox: \(4(?!08|09|29)[0-9]{2}\)|Cannot verify ownership of PVC ")
"""How the message begins where the cluster's API answered 4xx to what was to be made.

Not 409: the engine's HTTP library may have sent the object before. Nor 429 and 408, which say nothing of it.
"""
_API_NOT_REACHED = re.compile(r"Caused by (NewConnectionError|ConnectTimeoutError|NameResolutionError)\(")
"""How it ends where the engine's HTTP library (urllib3) never got a connection for it."""


def _create_error(code: str, message: str) -> type[EngineError] | None:
    if code.endswith("IMAGE_PULL_FAILED") or code == POD_FAILED:
        return Refused
    if code == "KUBERNETES::POD_READY_TIMEOUT":
        return TakenBack
    if code == "KUBERNETES::API_ERROR" and _API_REFUSED.match(message):
        return Refused
    if code == "KUBERNETES::API_ERROR" and _API_NOT_REACHED.search(message):
        return NotReached
    return None


def _client_error(report: CallReport, code: str, message: str) -> type[EngineError]:
    if report.status in (408, 425, 499):
        return Unclear
    if report.status == 429 or code.endswith(("QUOTA_EXCEEDED", "POOL_CAPACITY_EXHAUSTED")):
        return Busy
    if report.status in (401, 403):
        return Denied
    if report.side is not Side.LIFECYCLE and (kind := _execd_error(report, code, message)):
        return kind
    if report.side is Side.DIRECT:
        return Refused if report.status == 400 else Unclear
    if report.status == 404 and code.endswith("SANDBOX_NOT_FOUND"):
        return SandboxMissing
    if code.endswith("POD_IP_NOT_AVAILABLE"):
        return NoAddress
    if report.status == 409:
        return SandboxNotReady
    return Refused


_COMMAND_CALLS = (CallKind.STATUS, CallKind.LOG, CallKind.INTERRUPT)
_FILE_CALLS = (
    CallKind.READ,
    CallKind.REMOVE,
    CallKind.UPLOAD,
    CallKind.DOWNLOAD,
    CallKind.FILE_INFO,
    CallKind.LIST_FILES,
    CallKind.MAKE_DIRECTORY,
    CallKind.MOVE,
    CallKind.PERMISSIONS,
)
_UNKNOWN_COMMAND = ("INVALID_REQUEST_BODY", "COMMAND_NOT_FOUND")
"""execd 1.0 says the first of an unknown id."""


def _execd_error(report: CallReport, code: str, message: str) -> type[EngineError] | None:
    if report.status == 400 and report.call is CallKind.LIST_FILES:
        return list_error(message)
    if report.status != 404:
        return None
    if report.call in _COMMAND_CALLS and code in _UNKNOWN_COMMAND:
        return CommandMissing
    if report.call in _FILE_CALLS and code == "FILE_NOT_FOUND":
        return FileMissing
    return None


def _describe(report: CallReport) -> str:
    what = report.failure.value if report.failure else f"HTTP {report.status}"
    detail = f" ({clean(report.detail, 150)})" if report.detail else ""
    return f"{report.call.value} ({report.side.value}): {what}{detail}"


def retry_after(text: str | None) -> float | None:
    """Seconds of a ``Retry-After`` header; ``None`` where there is none, or where it is a date."""
    if text is None or not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text.strip()):
        return None
    return min(float(text), MAX_RETRY_AFTER)


# -- streams

_START_FAILURES = ("fork/exec ", 'exec: "', "chdir ")
"""How the errors of Go's ``Cmd.Start`` begin (``os.PathError``, ``exec.Error``).

execd puts the error of ``Cmd.Wait`` in the same place when it is no exit code: "context deadline exceeded"
comes from a command that ran and ended by itself in the moment of its timeout. So not every text that is no
number says "never started".
"""
_EXIT_CODE = re.compile(r"-?[0-9]{1,10}")


def error_event(evalue: str, trace: str, *, init: bool, output: bool) -> CommandEvent | EngineError:
    """An ``error`` event: the exit of a command, or the news that it never started.

    ``init``: the id came before. ``output``: output came before. ``trace`` is the event's first line of
    explanation ("signal: killed"), which the exit event carries as its text.
    """
    if not init:
        return Unclear(f"an error before the command's id: {clean(evalue, 200)}")
    if _EXIT_CODE.fullmatch(evalue):
        return CommandEvent(type="exit", exit_code=int(evalue), text=clean(trace))
    if not output and evalue.startswith(_START_FAILURES):
        return StartFailed(clean(evalue))
    return Unclear(f"the command ended with an error that is no exit code: {clean(evalue, 200)}")


def appended_object(code: str, message: str, *, init: bool, output: bool) -> EngineError:
    """An error object in place of an event, in a stream whose status was 200 already: a background start that
    failed.

    Only execd's own code counts: what a proxy might append says nothing of the command.
    """
    if init and not output and code == "RUNTIME_ERROR":
        return StartFailed(clean(message), code=code)
    return Unclear(f"an error object in the stream: {clean(message, 200)}", code=clean(code, 100))
