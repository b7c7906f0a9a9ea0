"""The messages of the HTTP contract, shared by the server, the SDK and the command line.

Every request field is optional at this layer and ``None`` when not sent: an explicit null equals an absent
field, and defaults belong to the server, not to the meaning of a request (see ``core.model.identity.fingerprint``).
Times are RFC 3339 in UTC with milliseconds; timeouts are whole seconds; sizes are bytes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from .errors import FieldError

MAX_BODY = 1024 * 1024
"""Bytes of a request's body."""
MAX_COMMAND = 96 * 1024
"""Bytes of a command in UTF-8: one shell argument holds 128 KiB with all that is around it."""
STDIN_KEPT = 32 * 1024
"""Bytes of a command's input that are kept beside its record; of a longer one its hash alone."""
MAX_JOB_TIMEOUT = 14_400
MAX_EXEC_TIMEOUT = 7_200
MAX_CHUNK = 8 * 1024 * 1024
DEFAULT_CHUNK = 1024 * 1024
MAX_WAIT = 30
MAX_PAGE = 200
DEFAULT_PAGE = 50
COMMAND_SHOWN = 256
"""Characters of a command that a job shows unless ``full=true``."""


class SandboxState(StrEnum):
    """What the engine says of a sandbox."""

    PENDING = "pending"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    RESUMING = "resuming"
    STOPPING = "stopping"
    TERMINATED = "terminated"
    FAILED = "failed"
    UNKNOWN = "unknown"

    @property
    def live(self) -> bool:
        """May still be used now or later."""
        return self in _LIVE

    @property
    def over(self) -> bool:
        """Not worth waiting for. Where the engine is Kubernetes, ``failed`` does not say that nothing runs in it."""
        return self in (SandboxState.STOPPING, SandboxState.TERMINATED, SandboxState.FAILED)


_LIVE = {
    SandboxState.PENDING,
    SandboxState.RUNNING,
    SandboxState.PAUSING,
    SandboxState.PAUSED,
    SandboxState.RESUMING,
}


class JobState(StrEnum):
    """What a caller sees of a job."""

    PENDING = "pending"
    """Accepted; its command has not been started yet."""
    RUNNING = "running"
    """The engine took the command."""
    EXITED = "exited"
    """The command ended by itself; ``exit_code`` says how."""
    TIMED_OUT = "timed_out"
    """Killed at its timeout."""
    CANCELLED = "cancelled"
    """Ended, or never started, because a caller cancelled it."""
    FAILED = "failed"
    """Never started."""
    UNKNOWN = "unknown"
    """May have started; being found out."""
    LOST = "lost"
    """Started, or may have, and the engine no longer knows how it ended."""

    @property
    def terminal(self) -> bool:
        """Will not change any more (but ``failed``, which a retry with the same key reopens)."""
        return self not in (JobState.PENDING, JobState.RUNNING, JobState.UNKNOWN)


class Reason(StrEnum):
    """Why a job is in its state, where that needs saying: a closed list."""

    ENGINE_UNAVAILABLE = "engine_unavailable"
    """failed: the engine could not be reached before anything was sent."""
    ENGINE_REJECTED = "engine_rejected"
    """failed: the engine refused the command."""
    START_FAILED = "start_failed"
    """failed: the engine took the command and could not start it."""
    QUOTA_EXCEEDED = "quota_exceeded"
    """failed: the tenant, or the engine, had no room for it."""
    SANDBOX_NOT_RUNNING = "sandbox_not_running"
    """failed: the sandbox was not running."""
    REPLICA_LOST = "replica_lost"
    """failed: the replica at work ended before it sent anything."""
    NEVER_STARTED = "never_started"
    """failed: the submission was lost on its way and can no longer start (voided)."""
    NO_FENCE = "no_fence"
    """failed: the sandbox could not hold the fence (a full disk), so nothing was run."""
    STDIN_MISSING = "stdin_missing"
    """failed: the file that the command was to read was not there, was no file, or not readable; nothing was run."""
    STDERR_NOT_APART = "stderr_not_apart"
    """failed: the sandbox could not keep stderr apart (it has no ``/proc``, or no room), so nothing was run."""
    CANCELLED_BEFORE_START = "cancelled_before_start"
    """cancelled: nothing was run."""
    OUTCOME_UNKNOWN = "outcome_unknown"
    """unknown: the engine's answer was lost, or nothing proves yet that the command ran."""
    SANDBOX_GONE = "sandbox_gone"
    """lost: the sandbox was deleted, ended or expired."""
    CONTAINER_RESTARTED = "container_restarted"
    """lost: the container came back, and the command was in the one before."""
    EXECD_RESTARTED = "execd_restarted"
    """lost: the sandbox's daemon restarted, and the command ended without leaving its exit code."""
    FENCE_WIPED = "fence_wiped"
    """lost: the fence was removed, so nothing proves that the command ran, and no process of it is left."""
    ENGINE_UNREACHABLE = "engine_unreachable"
    """lost: the sandbox's daemon did not answer until the deadline and a grace had passed, or refused for five minutes
    on end while the engine called the sandbox pending or failed."""
    START_NOT_CONFIRMED = "start_not_confirmed"
    """lost: the wrapper died before it started the command, or found that it must not start it without a fence."""


class Encoding(StrEnum):
    """How output is shown."""

    UTF8 = "utf8"
    """Text; bytes that are not UTF-8 are U+FFFD."""
    BASE64 = "base64"
    """RFC 4648 base64 of the bytes as they are."""


Stream = Literal["stdout", "stderr"]
Metadata = dict[str, str]
Env = dict[str, str]


CPU = r"^([1-9][0-9]{0,5}(\.[0-9]{1,3})?|0\.([1-9][0-9]{0,2}|0[1-9][0-9]?|00[1-9])|[1-9][0-9]{0,8}m)$"
MEMORY = (
    r"^([1-9][0-9]{0,17}|[1-9][0-9]{0,14}(k|Ki)|[1-9][0-9]{0,11}(M|Mi)|[1-9][0-9]{0,8}(G|Gi)|[1-9][0-9]{0,5}(T|Ti))$"
)
"""Quantities that every runtime of the engine reads alike. Kubernetes stops at one that it can't parse, for every
sandbox; Docker's runtime drops it and sets no limit. ``m`` is a thousandth of a byte to one, a million bytes to the
other; zero is no limit to Docker."""


_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
IMAGE = (
    rf"(?:(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?/)?{_PART}(?:/{_PART})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?"
)
"""An image's reference, as registries and every runtime read it (the grammar of ``distribution/reference``)."""
MAX_IMAGE = 512
"""Characters of an image's reference."""
IMAGE_REFERENCE = "image reference ([registry[:port]/]name[:tag][@digest], name in lower case)"
"""What `IMAGE` is, for people."""


class Resources(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The engine's own strings, such as ``"500m"`` and ``"4Gi"``; ``service.core.model.validation`` checks them."""

    cpu: Annotated[str, Meta(extra_json_schema={"pattern": CPU})] | None = None
    """CPUs, above 0: ``"2"``, ``"0.5"``, or thousandths: ``"500m"``."""
    memory: Annotated[str, Meta(extra_json_schema={"pattern": MEMORY})] | None = None
    """Bytes, a whole number above 0 with ``k``, ``M``, ``G``, ``T`` or ``Ki``, ``Mi``, ``Gi``, ``Ti``: ``"1536Mi"``."""


class CreateSandbox(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """``POST /v1/sandboxes``."""

    image: Annotated[str, Meta(min_length=1, max_length=MAX_IMAGE)] | None = None
    entrypoint: Annotated[list[str], Meta(min_length=1, max_length=256)] | None = None
    env: Env | None = None
    metadata: Metadata | None = None
    resources: Resources | None = None
    timeout: Annotated[int, Meta(ge=60, le=86_400)] | None = None
    """Seconds that it lives. A job whose own timeout ends later keeps it until then; when that job is over, this
    counts again."""
    workspace_owner: str | None = None
    wait_ready: Annotated[int, Meta(ge=0, le=120)] | None = None


class RenewSandbox(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """``POST /v1/sandboxes/{id}/renew``: live for ``timeout`` seconds from now."""

    timeout: Annotated[int, Meta(ge=60, le=86_400)]


class SubmitJob(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """``POST /v1/exec-jobs``."""

    sandbox_id: Annotated[str, Meta(min_length=1, max_length=128)]
    command: Annotated[str, Meta(min_length=1)] | None = None
    """Run by the sandbox's shell. This or ``argv``."""
    argv: Annotated[list[str], Meta(min_length=1)] | None = None
    """A program and its arguments, run without a shell: found along ``PATH``, else exit code 127; 126 where it can't
    be executed."""
    stdin: str | None = None
    """What the command reads, to its end; without it and ``stdin_path`` there is nothing to read."""
    stdin_encoding: Encoding | None = None
    """Of ``stdin``; text if not given."""
    stdin_path: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    """A file in the sandbox that the command reads: absolute, or relative to ``cwd``."""
    user: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """Whose rights it has: a name of the sandbox, ``uid`` or ``uid:gid``; without it the daemon's."""
    stderr: Literal["merged", "apart"] | None = None
    """Whether its two outputs are one log, in order (the default), or two."""
    timeout: Annotated[int, Meta(ge=1, le=MAX_JOB_TIMEOUT)] | None = None
    cwd: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    env: Env | None = None
    metadata: Metadata | None = None


class Exec(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """``POST /v1/exec``."""

    sandbox_id: Annotated[str, Meta(min_length=1, max_length=128)]
    command: Annotated[str, Meta(min_length=1)] | None = None
    """Run by the sandbox's shell. This or ``argv``."""
    argv: Annotated[list[str], Meta(min_length=1)] | None = None
    """A program and its arguments, run without a shell: found along ``PATH``, else exit code 127; 126 where it can't
    be executed."""
    stdin: str | None = None
    """What the command reads, to its end; without it and ``stdin_path`` there is nothing to read."""
    stdin_encoding: Encoding | None = None
    """Of ``stdin``; text if not given."""
    stdin_path: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    """A file in the sandbox that the command reads: absolute, or relative to ``cwd``."""
    user: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """Whose rights it has: a name of the sandbox, ``uid`` or ``uid:gid``; without it the daemon's."""
    timeout: Annotated[int, Meta(ge=1, le=MAX_EXEC_TIMEOUT)] | None = None
    cwd: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    env: Env | None = None
    metadata: Metadata | None = None
    encoding: Encoding | None = None


class Sandbox(msgspec.Struct, kw_only=True):
    """A sandbox as callers see it."""

    sandbox_id: str
    state: SandboxState
    reason: str | None = None
    ready: bool = False
    workspace_owner: str | None = None
    image: str | None = None
    resources: Resources | None = None
    metadata: Metadata = {}
    created_at: str | None = None
    expires_at: str | None = None


class SandboxPage(msgspec.Struct, kw_only=True):
    """One page of sandboxes; ``next_page_token`` is null at the end. A page may be short, or empty with a token."""

    items: list[Sandbox]
    next_page_token: str | None = None


class Job(msgspec.Struct, kw_only=True):
    """A job as callers see it, without its output."""

    command_id: str
    sandbox_id: str
    state: JobState
    exit_code: int | None = None
    timed_out: bool = False
    reason: Reason | None = None
    kind: Literal["job", "exec"] = "job"
    command: str = ""
    metadata: Metadata = {}
    timeout: int | None = None
    streams: Literal["merged", "apart"] = "merged"
    """Whether its two outputs are one log or two. Two logs of a job are read one at a time, with ``stream``."""
    submitted_at: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    fenced: bool = True


class JobStep(msgspec.Struct, kw_only=True):
    """One step of a job's life."""

    at: str
    """By the store's clock; some milliseconds off where that was not asked."""
    state: str
    """``claimed``, ``dispatched``, ``accepted``, ``running``, ``unknown``, ``ended`` (by the sandbox's word),
    ``closed`` (recorded), ``refused`` or ``voided`` (nothing was run)."""
    attempt: int = 1
    replica: str = ""
    """Which of them wrote it."""
    reason: Reason | None = None


class JobOutput(Job, kw_only=True):
    """A job with a chunk of its output (``GET /v1/exec-jobs/{command_id}``)."""

    history: list[JobStep] = []
    """What happened to it, oldest first: its first four steps and its last twelve."""
    output: str = ""
    encoding: Encoding = Encoding.UTF8
    cursor: str | None = None
    """Opaque: the place in the output and the state seen. Null: the end."""
    replace: bool = False
    """Put this chunk in place of all that came before."""
    logs_ok: bool = True
    """False: the output could not be read this time; the state is right all the same."""
    output_complete: bool = False
    """True: the output is whole and ended. False with a null cursor: the rest can't be had any more."""
    more: bool = False
    """More output is there right now."""
    skipped_bytes: int = 0
    """Bytes before this chunk that are no longer kept."""
    stream: Stream | None = None
    """Whose output this is, where the streams are apart."""


class ExecJobOutput(Job, kw_only=True):
    """A job of kind ``exec``: its two outputs apart, once it is over."""

    history: list[JobStep] = []
    """What happened to it, oldest first: its first four steps and its last twelve."""
    stdout: str = ""
    stderr: str = ""
    encoding: Encoding = Encoding.UTF8
    truncated: bool = False
    """Not all of the two outputs is here."""
    skipped_bytes: int = 0
    """Bytes of the two outputs that are no longer kept, as far as that is known."""
    cursor: str | None = None
    logs_ok: bool = True
    output_complete: bool = False
    more: bool = False


class StatsMinute(msgspec.Struct, kw_only=True):
    """What happened to a tenant's jobs in one minute."""

    at: str
    """When it began."""
    started: int = 0
    """Jobs and execs that were submitted; each try again of one that was not run counts anew."""
    ended: int = 0
    states: dict[str, int] = {}
    """How they ended."""


class TenantStats(msgspec.Struct, kw_only=True):
    """``GET /v1/stats``: at most five seconds old."""

    jobs: dict[str, int]
    """By state, of the newest ``counted``; states that none is in are left out."""
    sandboxes: dict[str, int]
    """The same of sandboxes."""
    counted: int
    """So many at the most are counted, newest first."""
    minutes: list[StatsMinute]
    """The last 60, the oldest first; the last one is not over yet."""


class JobPage(msgspec.Struct, kw_only=True):
    """One page of jobs, newest first; ``next_page_token`` is null at the end."""

    items: list[Job]
    next_page_token: str | None = None


class ExecResult(msgspec.Struct, kw_only=True):
    """The result of ``POST /v1/exec``; ``duration`` is seconds."""

    command_id: str
    exit_code: int | None
    timed_out: bool
    stdout: str
    stderr: str
    truncated: bool
    """Not all of the two outputs is here."""
    duration: float
    skipped_bytes: int = 0
    """Bytes of the two outputs that are no longer kept, as far as that is known."""


class OutputEvent(msgspec.Struct, kw_only=True):
    """The data of an SSE ``output`` event."""

    output: str
    encoding: Encoding = Encoding.UTF8
    replace: bool = False
    skipped_bytes: int = 0
    stream: Stream | None = None
    """Of a job whose streams are apart."""


class ExecStart(msgspec.Struct, kw_only=True):
    """The data of the first event of a streamed exec."""

    command_id: str


class ExecText(msgspec.Struct, kw_only=True):
    """The data of a ``stdout`` or ``stderr`` event of a streamed exec."""

    text: str


class FileType(StrEnum):
    """What stands under a path. ``other``: a device, a pipe or a socket."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


class File(msgspec.Struct, kw_only=True):
    """What stands under a path in a sandbox."""

    path: str
    """Absolute. Bytes that are not UTF-8 are U+FFFD."""
    type: FileType
    size: int
    """Bytes."""
    mode: str
    """Octal, with the bits of set-user-id, set-group-id and the sticky one: ``"0644"``."""
    modified_at: str
    target: str | None = None
    """Where a link leads, as it says itself."""
    path_base64: str | None = None
    """The path's bytes, where they are not UTF-8."""


class FilePage(msgspec.Struct, kw_only=True):
    """One page of a directory, by name; ``next_page_token`` is null at the end."""

    items: list[File]
    next_page_token: str | None = None


class MakeDirectory(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The body of ``POST /v1/sandboxes/{id}/directories``."""

    path: str
    mode: str | None = None
    """Octal, such as ``"0755"``, which is the default."""


class Unpacked(msgspec.Struct, kw_only=True):
    """What an archive put into a directory: its members, and the bytes of its files."""

    files: int
    bytes: int


class Problem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """RFC 9457 ``application/problem+json``."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    command_id: str | None = None
    sandbox_id: str | None = None
    errors: list[FieldError] = []


class Health(msgspec.Struct, kw_only=True):
    """``GET /healthz`` and ``/readyz``: ``reasons`` says why not, in sentences."""

    status: Literal["ok", "not_ready"]
    reasons: list[str] = []


def canonical(value: Any) -> Any:
    """``value`` as plain JSON types with nulls left out and object keys sorted, for fingerprints."""
    plain = msgspec.to_builtins(value)
    return _without_nulls(plain)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(value[key]) for key in sorted(value) if value[key] is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
