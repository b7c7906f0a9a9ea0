"""Answers that are no problems."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from service.core.model.cursors import PIECE
from service.core.model.identity import random_token

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from service.core.model.answers import OutputPage

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


def output_reply(page: OutputPage) -> ASGIApp:
    """A job with its output as JSON. Long output becomes text as the reader takes it."""
    return reply(page.whole()) if len(page.data) <= PIECE else LongOutput(page)


class LongOutput:
    """A job with long output: of its text, only one piece is in memory."""

    def __init__(self, page: OutputPage) -> None:
        self._page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", JSON.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in pieces(self._page):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def pieces(page: OutputPage) -> Iterator[bytes]:
    """A job with its output as JSON, a piece at a time."""
    place = random_token()
    head, found, tail = msgspec.json.encode(page.with_output(place)).partition(place.encode())
    yield head
    if found:
        for text in page.texts():
            yield msgspec.json.encode(text)[1:-1]
        yield tail
