"""HTTP/1.1 and nothing else, on Hypercorn's ``H11Protocol``.

Why there is no HTTP/2 and no WebSocket: docs/decisions/http1-only.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import h11
import msgspec
from hypercorn.events import RawData
from hypercorn.protocol.events import Body, EndBody, Request, Response, StreamClosed
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream

from service.api.problems import PROBLEM_JSON, problem_type
from service.errors import InvalidRequest
from service.messages import Problem
from service.server.requests import Requests
from service.server.seldom import Seldom

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypercorn.events import Event
    from hypercorn.protocol.events import Event as StreamEvent

_refusals = Seldom(logging.getLogger("oncebox"), logging.INFO)


class Http1(H11Protocol):
    """One connection's requests. The overrides follow the names of ``H11Protocol``."""

    no_more = False
    """The caller has closed its side: it sends nothing any more. It may still read, or be gone altogether."""
    connection: Requests  # type: ignore[assignment]  # in place of an h11.Connection
    stream: HTTPStream | None
    _told: HTTPStream | None = None
    _head = b""
    """Of the answer: it is sent with what follows at once, or by itself where nothing does."""

    def __init__(self, *known: Any, write: Callable[[bytes], None]) -> None:
        """``known``: as there. ``write`` takes bytes at once; raises ``OSError`` where nobody reads them."""
        super().__init__(*known)
        self.connection = Requests(self.config.h11_max_incomplete_size)
        self._write = write

    async def handle(self, event: Event) -> None:
        """As there; and a request that came whole with the end of its connection learns of that after its body."""
        await super().handle(event)
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
            await self.stream.app_put({"type": "http.disconnect"})

    async def stream_send(self, event: StreamEvent) -> None:
        """As there; but head and body are one write, where they come together."""
        answer = self.connection.answer
        try:
            match event:
                case Response():
                    self._head = answer.head(event.status_code, [*event.headers, _date(int(time.time()))])
                    asyncio.get_running_loop().call_soon(self._send_head_alone)
                case Body():
                    piece = answer.data(event.data)
                    await self.send(RawData(self._take_head() + piece))
                case EndBody():
                    end = answer.end()
                    await self.send(RawData(self._take_head() + end))
                case StreamClosed():
                    self._send_head_alone()
                    await self._maybe_recycle()
        except h11.LocalProtocolError:
            if self.connection.their_state is not h11.ERROR:  # else it was answered already
                raise

    def _take_head(self) -> bytes:
        head, self._head = self._head, b""
        return head

    def _send_head_alone(self) -> None:
        if self._head:
            with contextlib.suppress(OSError):  # whoever sends more is told
                self._write(self._take_head())

    async def _check_protocol(self, event: h11.Request) -> None:
        """No other protocol is changed to."""

    async def _create_stream(self, request: h11.Request) -> None:
        """``Upgrade`` is not followed (RFC 9110, 7.8), so that nothing goes past what a balancer looks at."""
        self.stream = HTTPStream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=[
                    (low, value) for name, value in request.headers.raw_items() if (low := name.lower()) != b"upgrade"
                ],
                http_version=request.http_version.decode(),
                method=request.method.decode(),
                raw_path=request.target,
                state=self.connection_state,
            )
        )
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
        answer = self.connection.answer
        head = answer.head(status_code, [*own, _date(int(time.time()))])
        await self.send(RawData(head + answer.data(b"" if answer.bodyless else body) + answer.end()))


@functools.lru_cache(1)
def _date(second: int) -> tuple[bytes, bytes]:
    return b"date", formatdate(second, usegmt=True).encode()


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
