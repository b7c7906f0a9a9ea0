"""Answers that are no problems."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

JSON = "application/json"


def reply(value: Any, status: int = 200, *, location: str | None = None, replayed: bool = False) -> Response:
    """``value`` as JSON. ``replayed``: it was not made by this very request."""
    response = Response(msgspec.json.encode(value), status_code=status, media_type=JSON)
    if location is not None:
        response.headers["Location"] = location
    if replayed:
        response.headers["Idempotent-Replayed"] = "true"
    return response


def empty() -> Response:
    """204."""
    return Response(status_code=204)
