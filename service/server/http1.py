"""HTTP/1.1 and nothing else, on Hypercorn's ``H11Protocol``.

Why there is no HTTP/2 and no WebSocket: docs/decisions/http1-only.md.
"""

from __future__ import annotations

import contextlib
import logging
from itertools import chain
from typing import TYPE_CHECKING

import h11
import msgspec
from hypercorn.events import Closed
from hypercorn.protocol.h11 import H11Protocol

from service.api.problems import PROBLEM_JSON, problem_type
from service.errors import InvalidRequest
from service.messages import Problem
from service.server.seldom import Seldom

if TYPE_CHECKING:
    from hypercorn.events import Event
    from hypercorn.protocol.http_stream import HTTPStream
    from hypercorn.protocol.ws_stream import WSStream

VERSIONS = (b"1.0", b"1.1")

_refusals = Seldom(logging.getLogger("oncebox"), logging.INFO)


class _OtherVersion(Exception):
    """The request is of a version that is not spoken here."""


class Http1(H11Protocol):
    """One connection's requests. The overrides follow the names of ``H11Protocol``."""

    no_more = False
    """The caller has closed its side: it sends nothing any more. It may still read, or be gone altogether."""
    _told: HTTPStream | WSStream | None = None

    async def handle(self, event: Event) -> None:
        """As there; and a request that came whole with the end of its connection learns of that after its body."""
        try:
            await super().handle(event)
        except _OtherVersion:
            await self._send_error_response(505)
            await self.send(Closed())
        else:
            await self.tell()

    @property
    def is_whole(self) -> bool:
        """No body is under way."""
        return self.connection.their_state is not h11.SEND_BODY

    async def tell(self) -> None:
        """Tell the application about ``no_more`` (``http.disconnect``), once its request is whole.

        The answer can still be sent.
        """
        if self.no_more and self.is_whole and self.stream is not None and self.stream is not self._told:
            self._told = self.stream
            await self.stream.app_put({"type": "http.disconnect"})  # type: ignore[misc]

    async def _check_protocol(self, event: h11.Request) -> None:
        """In place of ``101`` for ``Upgrade: h2c``, and of HTTP/2 from its preface (``PRI * HTTP/2.0``) on."""
        if event.http_version not in VERSIONS:
            raise _OtherVersion

    async def _create_stream(self, request: h11.Request) -> None:
        """``Upgrade`` is not followed (RFC 9110, 7.8), so that nothing goes past what a balancer looks at."""
        if any(name == b"upgrade" for name, _ in request.headers):
            kept = [(name, value) for name, value in request.headers.raw_items() if name.lower() != b"upgrade"]
            request = h11.Request(
                method=request.method, target=request.target, headers=kept, http_version=request.http_version
            )
        await super()._create_stream(request)
        if self.no_more:  # one of several that were sent at once: as soon as its body, if it has one, was handed on
            self.task_group.spawn(self.tell)

    async def _send_error_response(self, status_code: int) -> None:
        """With a problem, and a line in the log; there, both are missing."""
        host = self.client[0] if self.client else "?"
        _refusals.say("no HTTP/1 request: answered %d, to %s", status_code, host)
        body = _problem(status_code)
        own = [
            (b"content-type", PROBLEM_JSON.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
            (b"connection", b"close"),
        ]
        headers = list(chain(own, self.config.response_headers("h11")))
        await self._send_h11_event(h11.Response(status_code=status_code, headers=headers))
        # The answer to HEAD has none, and h11 knows.
        with contextlib.suppress(h11.LocalProtocolError):
            await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())


_DETAILS = {
    431: "The request's line and headers are too long.",
    501: "Only the transfer coding `chunked` is understood.",
    505: "Only HTTP/1 is spoken here.",
}


def _problem(status: int) -> bytes:
    return msgspec.json.encode(
        Problem(
            type=problem_type(InvalidRequest.code),
            title=InvalidRequest.title,
            status=status,
            detail=_DETAILS.get(status, "This can't be read as HTTP/1."),
            code=InvalidRequest.code,
            retryable=False,
        )
    )
