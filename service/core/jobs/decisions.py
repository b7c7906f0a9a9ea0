"""What is to be done about a job, by what was found of it: said as data, and carried out elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from service.core import records
from service.core.model.states import ClaimState
from service.core.records import Failure, JobBody
from service.core.telemetry import Settled
from service.messages import JobState, Reason
from service.ports.store import Appended, Record


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A record is to be written, in one compare-and-set with the record that was looked at."""

    state: ClaimState
    body: JobBody
    append: Appended | None = None
    """Output to keep."""
    append_stderr: Appended | None = None
    """The same of a stderr that is apart."""
    streams: Mapping[str, bytes] | None = None
    """Those of an exec."""
    notify: bool = True
    """There is something in it that callers wait for."""
    settled: Settled | None = None
    """What an unknown or provisional submission turned out to be."""


class NextAttempt(msgspec.Struct, frozen=True):
    """The submission met a void, so it never ran and never will: the next attempt is to be sent."""

    body: JobBody


Decision = Change | NextAttempt


def gone(record: Record) -> Change:
    """The sandbox is certainly gone: what is known of the job is all there will ever be."""
    body = records.job_body(record)
    if record.state is not ClaimState.ENDED:
        body = msgspec.structs.replace(body, state=JobState.LOST, reason=Reason.SANDBOX_GONE)
    return Change(state=ClaimState.CLOSED, body=body)


def cancelled(body: JobBody) -> JobBody:
    """Cancelled before anything was sent: never dispatched."""
    return msgspec.structs.replace(
        body, state=JobState.CANCELLED, reason=Reason.CANCELLED_BEFORE_START, output_complete=True
    )


def failed(body: JobBody, reason: Reason, failure: Failure) -> JobBody:
    """Not executed; ``failure`` is kept for those who waited."""
    return msgspec.structs.replace(body, failure=failure, reason=reason)


_NOT_BEGUN = {
    Reason.NO_FENCE: "The sandbox could not hold the fence (is its disk full, or its directory closed to this user?)",
    Reason.STDIN_MISSING: "What the command was to read was not there, was no file, or is not for this user to read",
    Reason.STDERR_NOT_APART: "The sandbox could not keep stderr apart (it has no /proc, or no room for the file)",
}


def not_begun(body: JobBody, reason: Reason) -> JobBody:
    """Not executed, since the wrapper could not open what it has to open first."""
    detail = f"{_NOT_BEGUN[reason]}; nothing was run."
    if reason is Reason.NO_FENCE:
        return unavailable(body, reason, detail, retry_after=5)
    return failed(body, reason, Failure("ENGINE_REJECTED", detail))


def unavailable(body: JobBody, reason: Reason, detail: str, *, retry_after: float = 1) -> JobBody:
    """Not executed, since something was not there at the time."""
    return failed(body, reason, Failure("ENGINE_UNAVAILABLE", detail, retry_after))
