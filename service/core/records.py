"""What stands in the store besides a claim's header: the bodies of job and sandbox records, and how callers see them.

Bodies are JSON without their defaults. A field that a later release adds must have a default: replicas of both
releases share one store during a rollout (a change that older ones can't read raises the record's version).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from service import errors
from service.core.model import identity
from service.core.model.labels import RESERVED, is_reserved
from service.core.model.states import ClaimState
from service.messages import MAX_JOB_TIMEOUT, Job, JobState, JobStep, Metadata, Reason, Resources, Sandbox, SandboxState
from service.ports.engine import SandboxInfo
from service.ports.store import Record

T = TypeVar("T")


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """The error of an attempt that was not executed, kept for those who waited."""

    code: str
    detail: str
    retry_after: float | None = None
    fields: tuple[errors.FieldError, ...] = ()

    def exception(self, *, command_id: str | None = None, sandbox_id: str | None = None) -> errors.OnceboxError:
        """The exception to raise for it."""
        cls = errors.BY_CODE.get(self.code, errors.Internal)
        return cls(
            self.detail,
            retry_after=self.retry_after,
            errors=self.fields,
            command_id=command_id,
            sandbox_id=sandbox_id,
        )

    @classmethod
    def of(cls, error: errors.OnceboxError) -> Failure:
        """What to keep of ``error``."""
        return cls(error.code, error.detail, error.retry_after, error.errors)


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One step of a job's life: when, to which state of the claim, in which attempt, written by which replica."""

    at: float
    state: str
    attempt: int = 1
    replica: str = ""
    """Empty: the one of the step before."""
    reason: Reason | None = None


FIRST_STEPS, LAST_STEPS = 4, 12
"""Steps of a job that are kept."""


class JobBody(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A job's record.

    Times with ``_at`` are Unix seconds; ``started_at`` and ``finished_at`` are the sandbox's clock.
    """

    tenant: str
    sandbox_id: str
    fingerprint: str
    command: str
    """Its first characters; the whole is kept beside the record."""
    timeout: int
    submitted_at: float | None = None
    """None: not known; the run was found by its fence after Redis had forgotten when it was submitted."""
    kind: str = "job"
    metadata: Metadata = {}
    boot: str | None = None
    """The sandbox's boot mark at dispatch; None: no fence could be made."""
    fenced: bool = True
    dispatched_at: float | None = None
    engine_id: str | None = None
    log: str | None = None
    """The output file's path inside the sandbox."""
    stdin: str | None = None
    """Where the command's input was written, by the attempt that was sent or is to be sent."""
    apart: bool = False
    """A job's stderr is a log of its own; ``log``, ``end`` and ``size`` are those of its stdout."""
    state: JobState | None = None
    """The terminal state, once it stands."""
    exit_code: int | None = None
    reason: Reason | None = None
    failure: Failure | None = None
    started_at: float | None = None
    finished_at: float | None = None
    interrupted: bool = False
    """The engine took our interrupt while the command ran."""
    by_fence: bool = False
    """execd does not know the command (any more); the fence tells how it goes."""
    doubtful: bool = False
    """execd took the command and it is over, but it may have run nothing: its fence does not tell."""
    polled_at: float = 0.0
    """When the engine was last asked for news."""
    troubled_since: float | None = None
    """Since when, Unix seconds, the engine has not answered about this job."""
    refused_since: float | None = None
    """Since when, Unix seconds, nobody is there while the engine calls the sandbox pending or failed."""
    quiet_polls: int = 0
    """In a row without news; or tries to settle what is unknown."""
    end: int = 0
    """Bytes of output read and kept so far: the end of the kept output."""
    size: int = 0
    """Bytes of output known to exist."""
    stderr_end: int = 0
    stderr_size: int = 0
    """The same of its stderr, where that is apart."""
    logs_ok: bool = True
    """The last read of the output succeeded."""
    ended_at: float | None = None
    """When the terminal state was seen."""
    output_complete: bool = False
    truncated: bool = False
    """exec: stdout or stderr was longer than what is kept."""
    history: tuple[Step, ...] = ()
    """Its first and its last steps."""
    printed: int = 0
    """exec: bytes of stdout and stderr together, kept or not."""


class SandboxClaim(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The claim of a sandbox, under the digest of its key."""

    tenant: str
    fingerprint: str
    generation: str
    """Random: its sandboxes carry it, so that the sweeper knows its own."""
    owner: str | None = None
    given_up: list[int] = []
    """Attempts that were looked for and given up, and never handed out."""
    sandbox_id: str | None = None
    failure: Failure | None = None


class SandboxRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A sandbox, under its id."""

    tenant: str
    owner: str | None = None
    digest: str | None = None
    image: str | None = None
    resources: Resources | None = None
    metadata: Metadata = {}
    created_at: float | None = None
    expires_at: float | None = None
    """As the engine was told: what the caller asked for, or later for the sake of jobs. Unix seconds."""
    asked_until: float | None = None
    """The caller's own expiry, by create or renewal; None in records of older releases."""
    ready: bool = False
    deleted: bool = False
    found: bool = False
    """Found at the engine: what happened in it before is not known to this Redis. Else all of it is."""


_job_decoder = msgspec.json.Decoder(JobBody)
_claim_decoder = msgspec.json.Decoder(SandboxClaim)
_sandbox_decoder = msgspec.json.Decoder(SandboxRecord)
_encoder = msgspec.json.Encoder()


def encode(body: JobBody | SandboxClaim | SandboxRecord) -> bytes:
    """A body as it stands in the store."""
    return _encoder.encode(body)


def job_body(record: Record) -> JobBody:
    """The body of a job's record."""
    return _decoded(_job_decoder, record.body)


def claim_body(record: Record) -> SandboxClaim:
    """The body of a sandbox's claim."""
    return _decoded(_claim_decoder, record.body)


def sandbox_record(raw: bytes) -> SandboxRecord:
    """A sandbox's record."""
    return _decoded(_sandbox_decoder, raw)


def _decoded(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    try:
        return decoder.decode(raw)
    except msgspec.MsgspecError as error:
        raise errors.StoreUnavailable(
            "A record was written by a newer release; this replica leaves it alone."
        ) from error


CLOCKS = 60.0
"""Seconds by which the engine's clock and the store's may differ."""


def all_is_known(sandbox: SandboxRecord, now: float, *, retention: float) -> bool:
    """Whether the store has all that ever happened in a sandbox: it knows it from its start, and that is not so long
    ago that a job's record may have ended. ``now`` in Unix seconds.
    """
    return not sandbox.found and now < (sandbox.created_at or 0.0) + retention - CLOCKS


@functools.lru_cache(maxsize=4096)  # those of a job, in each answer about it
def rfc3339(seconds: float | None) -> str | None:
    """Unix seconds as RFC 3339 in UTC with milliseconds."""
    if seconds is None:
        return None
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def deadline(body: JobBody) -> float:
    """When the command is over by its timeout, Unix seconds by the store's clock."""
    return (body.dispatched_at or body.submitted_at or 0.0) + (body.timeout or MAX_JOB_TIMEOUT)


def job_state(record: Record, body: JobBody) -> JobState:
    """What a caller sees, told by our own record."""
    match record.state:
        case ClaimState.CLAIMED | ClaimState.DISPATCHED:
            return JobState.PENDING
        case ClaimState.UNKNOWN:
            return JobState.UNKNOWN
        case ClaimState.REFUSED | ClaimState.VOIDED:
            return JobState.FAILED
        case ClaimState.ENDED | ClaimState.CLOSED:
            return body.state or JobState.LOST
        case _:
            return JobState.RUNNING


def token(record: Record) -> str:
    """The token of a job's fence."""
    return identity.token_of(record.id, record.attempt)


def job_fields(record: Record, body: JobBody, command: str | None = None) -> dict[str, object]:
    """The fields of ``messages.Job``; ``command`` is the whole text where it was asked for."""
    state = job_state(record, body)
    reason = body.reason
    if state is JobState.UNKNOWN:
        reason = Reason.OUTCOME_UNKNOWN
    return {
        "command_id": record.id,
        "sandbox_id": body.sandbox_id,
        "state": state,
        "exit_code": body.exit_code if state.terminal else None,
        "timed_out": state is JobState.TIMED_OUT,
        "reason": reason,
        "kind": body.kind,
        "command": body.command if command is None else command,
        "metadata": body.metadata,
        "timeout": body.timeout or None,
        "streams": "apart" if body.apart or body.kind == "exec" else "merged",
        "submitted_at": rfc3339(body.submitted_at),
        "started_at": rfc3339(body.started_at),
        "finished_at": rfc3339(body.finished_at),
        "fenced": body.fenced,
    }


def stepped(body: JobBody, at: float, state: ClaimState, attempt: int, replica: str) -> JobBody:
    """``body`` with one more step."""
    known = next((step.replica for step in reversed(body.history) if step.replica), "")
    step = Step(round(at, 3), state.value, attempt, "" if replica == known else replica, body.reason)
    steps = (*body.history, step)
    if len(steps) > FIRST_STEPS + LAST_STEPS:
        steps = steps[:FIRST_STEPS] + steps[-LAST_STEPS:]
    return msgspec.structs.replace(body, history=steps)


def history(body: JobBody) -> list[JobStep]:
    """The steps as callers see them."""
    shown, replica = [], ""
    for step in body.history:
        replica = step.replica or replica
        at = rfc3339(step.at) or ""
        shown.append(JobStep(at=at, state=step.state, attempt=step.attempt, replica=replica, reason=step.reason))
    return shown


def job_view(record: Record, command: str | None = None) -> Job:
    """A job as callers see it."""
    return Job(**job_fields(record, job_body(record), command))  # type: ignore[arg-type]


def sandbox_view(sandbox_id: str, known: SandboxRecord | None, info: SandboxInfo | None, *, ready: bool) -> Sandbox:
    """A sandbox as callers see it, from what we remember and what the engine says."""
    shown = known or SandboxRecord(tenant="")
    labels = {k: v for k, v in info.metadata.items() if not is_reserved(k)} if info else dict(shown.metadata)
    return Sandbox(
        sandbox_id=sandbox_id,
        state=info.state if info else SandboxState.UNKNOWN,
        reason=info.reason if info and info.state is SandboxState.FAILED else None,
        ready=ready,
        workspace_owner=shown.owner,
        image=shown.image or (info.image if info else None),
        resources=shown.resources,
        metadata=labels,
        created_at=rfc3339(info.created_at if info and info.created_at else shown.created_at),
        expires_at=rfc3339(info.expires_at if info and info.expires_at else shown.expires_at),
    )


def reserved_metadata(digest: str, claim: SandboxClaim, attempt: int, secret: str | None) -> dict[str, str]:
    """What every create writes, all of it.

    Empty where there is nothing to say, so that labels of an image never show.
    """
    owner = "" if claim.owner is None else identity.owner_digest(claim.owner)
    return {
        f"{RESERVED}idem": digest,
        f"{RESERVED}idem-owner": owner,
        f"{RESERVED}tenant": claim.tenant,
        f"{RESERVED}fingerprint": claim.fingerprint,
        f"{RESERVED}generation": claim.generation,
        f"{RESERVED}attempt": str(attempt),
        f"{RESERVED}signature": identity.signature(secret, claim.tenant, owner, digest) if secret else "",
    }


def oldest(matches: Iterable[SandboxInfo]) -> SandboxInfo | None:
    """Among several sandboxes of one digest everybody takes the same.

    The oldest by the engine, then the smallest id.
    """
    return min(matches, key=lambda item: (item.created_at or 0.0, item.id), default=None)


def never_handed_out(claim: SandboxClaim, *, sandbox_id: str, generation: str, attempt: int) -> bool:
    """Whether a sandbox may be swept, by the present claim (``DONE``) of its digest.

    Only where the claim is of the same generation, names another sandbox, and gave this attempt up. Anything else
    may be in use.
    """
    return (
        generation == claim.generation != ""
        and claim.sandbox_id not in (None, sandbox_id)
        and attempt in claim.given_up
    )


def belongs(info: SandboxInfo, tenant: str, secret: str | None) -> bool:
    """Whether a sandbox's metadata says, and where there is a secret proves, that it is this tenant's."""
    labels = info.metadata
    if labels.get(f"{RESERVED}tenant") != tenant or not tenant:
        return False
    if not secret:
        return True
    signed = identity.signature(
        secret, tenant, labels.get(f"{RESERVED}idem-owner", ""), labels.get(f"{RESERVED}idem", "")
    )
    return identity.same(signed, labels.get(f"{RESERVED}signature", ""))
