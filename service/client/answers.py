"""What an answer means: a message, an error for good, or a transient fault. Pure functions."""

# ruff: noqa: TID252
from __future__ import annotations

import re
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import msgspec

from ..errors import (
    BY_CODE,
    FieldError,
    Forbidden,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    OnceboxError,
    PayloadTooLarge,
    RangeNotSatisfiable,
    RateLimited,
    Unauthenticated,
    UnsupportedMediaType,
)
from ..messages import JobState, Reason, SandboxState
from .errors import UnexpectedAnswer
from .steps import Answer

M = TypeVar("M", bound=msgspec.Struct)

RETRIED = frozenset(
    {
        "IDEMPOTENCY_IN_PROGRESS",
        "RATE_LIMITED",
        "QUOTA_EXCEEDED",
        "OUTCOME_UNKNOWN",
        "ENGINE_UNAVAILABLE",
        "STORE_UNAVAILABLE",
    }
)
"""Problem codes after which the same request, with the same key, is sent again."""

_BY_STATUS: dict[int, type[OnceboxError]] = {
    400: InvalidRequest,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    405: MethodNotAllowed,
    413: PayloadTooLarge,
    415: UnsupportedMediaType,
    416: RangeNotSatisfiable,
    422: InvalidRequest,
    429: RateLimited,
}
_JOB_STATES = frozenset(state.value for state in JobState)
_SANDBOX_STATES = frozenset(state.value for state in SandboxState)
_REASONS = frozenset(reason.value for reason in Reason)
_CODE = re.compile(r"[A-Z][A-Z0-9_]*")


class _WireProblem(msgspec.Struct):
    """A problem as any version of the service sends it: only ``code`` makes it one."""

    code: str
    status: int | None = None
    title: str | None = None
    detail: str | None = None
    retryable: bool | None = None
    command_id: str | None = None
    sandbox_id: str | None = None
    errors: list[FieldError] = []


class Fault(Exception):
    """A try that failed: ``error`` says how, ``transient`` whether another try may help."""

    def __init__(self, error: OnceboxError, *, transient: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.transient = transient


def fault_of(answer: Answer, *, of_job: bool, now: float) -> Fault | None:
    """What is wrong with ``answer``; None if it is a success.

    Args:
        of_job: the request named a job. Nothing but Oncebox's own word says that a job is gone, so a 404 page
            of someone in between is then a transient fault.
        now: seconds since the epoch, for a ``Retry-After`` that is a date.
    """
    if 200 <= answer.status < 300:
        return None
    wait = retry_after(answer, now)
    problem = _problem(answer)
    if problem is not None:
        error, transient = _known(problem, answer, wait)
        return Fault(error, transient=transient)
    transient = answer.status >= 500 or answer.status == 429 or (of_job and answer.status in (404, 408, 425))
    return Fault(_unexpected(answer, transient=transient, wait=wait), transient=transient)


def _problem(answer: Answer) -> _WireProblem | None:
    if answer.media_type != "application/problem+json":
        return None
    try:
        problem = msgspec.json.decode(answer.body, type=_WireProblem)
    except msgspec.MsgspecError:
        return None
    if not _CODE.fullmatch(problem.code) or problem.status not in (None, answer.status):
        return None
    return problem


def _known(problem: _WireProblem, answer: Answer, wait: float | None) -> tuple[OnceboxError, bool]:
    cls = BY_CODE.get(problem.code)
    if cls is not None:
        transient = problem.code in RETRIED
    else:
        cls = _BY_STATUS.get(answer.status, OnceboxError)
        transient = bool(problem.retryable) or answer.status in (429, 502, 503, 504)
    error = cls(
        problem.detail or problem.title,
        command_id=problem.command_id,
        sandbox_id=problem.sandbox_id,
        errors=problem.errors,
        retry_after=wait,
        request_id=answer.headers.get("x-request-id"),
        retryable=transient if problem.retryable is None else problem.retryable,
    )
    _say(error, answer.status, problem.code)
    return error, transient


def _say(error: OnceboxError, status: int, code: str) -> None:
    # On the instance, where the class says otherwise: a newer version's code, or one class for two statuses.
    if error.code != code:
        vars(error)["code"] = code
    if error.status != status:
        vars(error)["status"] = status


def _unexpected(answer: Answer, *, transient: bool, wait: float | None = None) -> UnexpectedAnswer:
    target = answer.headers.get("location")
    if 300 <= answer.status < 400 and target:
        detail = f"HTTP {answer.status}: redirected to {target}; is the URL right?"
    else:
        detail = f"HTTP {answer.status} ({answer.media_type or 'no content type'}) that is not Oncebox's"
    return unreadable(answer, detail, transient=transient, wait=wait)


def unreadable(answer: Answer, detail: str, *, transient: bool = True, wait: float | None = None) -> UnexpectedAnswer:
    """The error for an answer that Oncebox does not give."""
    error = UnexpectedAnswer(
        detail, retry_after=wait, request_id=answer.headers.get("x-request-id"), retryable=transient
    )
    vars(error)["status"] = answer.status
    return error


def retry_after(answer: Answer, now: float) -> float | None:
    """The seconds of ``Retry-After``, given as a number or as an HTTP date; None where there is none.

    A date is compared with the answer's own ``Date`` where it has one: the clocks may differ.
    """
    value = answer.headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value):
        return float(value)
    then = _http_date(value)
    if then is None:
        return None
    said = _http_date(answer.headers.get("date", ""))
    return max(0.0, then - (now if said is None else said))


def _http_date(value: str) -> float | None:
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def decoded(answer: Answer, kind: type[M]) -> M:
    """The message in a successful answer.

    Raises:
        Fault: a transient one, for a body that is not this message.
    """
    if answer.media_type == "application/json":
        try:
            return msgspec.json.decode(answer.body, type=kind)
        except msgspec.ValidationError:
            known = _without_unknown_words(answer.body)
            try:
                return msgspec.convert(known, type=kind)
            except msgspec.ValidationError as error:
                detail = f"an answer that can't be read: {error}"
        except msgspec.MsgspecError as error:
            detail = f"an answer that can't be read: {error}"
    else:
        detail = f"HTTP {answer.status} ({answer.media_type or 'no content type'}) that is not Oncebox's"
    raise Fault(unreadable(answer, detail), transient=True)


def _without_unknown_words(body: bytes) -> Any:
    """The body without a newer version's words: an unknown state is ``unknown``, an unknown reason none."""
    plain = msgspec.json.decode(body)
    if isinstance(plain, dict):
        items = plain.get("items")
        for item in [plain, *(items if isinstance(items, list) else [])]:
            if isinstance(item, dict):
                _replace_unknown_words(item)
    return plain


def _replace_unknown_words(item: dict[str, Any]) -> None:
    states = _JOB_STATES if "command_id" in item else _SANDBOX_STATES
    if isinstance(item.get("state"), str) and item["state"] not in states:
        item["state"] = "unknown"
    # A sandbox's reason is free text; a job's is one of a list.
    if "command_id" in item and isinstance(item.get("reason"), str) and item["reason"] not in _REASONS:
        item["reason"] = None
