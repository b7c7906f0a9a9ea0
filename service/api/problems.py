"""Errors as RFC 9457 problems."""

from __future__ import annotations

import math

import msgspec
from starlette.responses import Response

from service.errors import FieldError, OnceboxError, OutcomeUnknown, RangeNotSatisfiable, Unauthenticated
from service.messages import Problem

PROBLEM_JSON = "application/problem+json"
_DETAIL_SHOWN = 2_000
"""Characters of a detail, which may hold an engine's own message."""


def problem_type(code: str) -> str:
    """The ``type`` of a problem: a reference to its section of the documentation page."""
    return f"/docs#{code}"


def problem(error: OnceboxError, *, key_sent: bool = True) -> Problem:
    """``error`` as callers see it. Without a key of the caller's, an unknown outcome is not safe to retry."""
    return Problem(
        type=problem_type(error.code),
        title=error.title,
        status=error.status,
        detail=_clean(error.detail[:_DETAIL_SHOWN]),
        code=error.code,
        retryable=error.retryable and (key_sent or not isinstance(error, OutcomeUnknown)),
        command_id=error.command_id,
        sandbox_id=error.sandbox_id,
        errors=[FieldError(_clean(item.field), _clean(item.message)) for item in error.errors],
    )


def problem_response(error: OnceboxError, *, key_sent: bool = True) -> Response:
    """``error`` as an answer. ``Retry-After`` wherever waiting helps, whole seconds, at least 1."""
    shown = problem(error, key_sent=key_sent)
    response = Response(msgspec.json.encode(shown), status_code=error.status, media_type=PROBLEM_JSON)
    if error.retry_after is not None or shown.retryable:
        response.headers["Retry-After"] = str(max(1, math.ceil(error.retry_after or 0)))
    if error.replayed:
        response.headers["Idempotent-Replayed"] = "true"
    if isinstance(error, Unauthenticated):
        response.headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, RangeNotSatisfiable) and error.size is not None:
        response.headers["Content-Range"] = f"bytes */{error.size}"
    return response


def _clean(text: str) -> str:
    """Without lone surrogates, which no JSON can hold."""
    return text.encode("utf-8", "replace").decode()
