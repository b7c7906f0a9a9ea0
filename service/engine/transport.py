"""HTTP to the engine: connections, deadlines, bounded reads, and the account of what happened on each call.

Two rules stand behind the sessions here. A call that does something gets **a connection of its own**: on a
pooled one that the server is just closing, a request that was never read could not be told from one that was
executed, and a dead daemon would not be "connection refused". And **nothing is sent twice**: the HTTP library
repeats idempotent requests once when a connection drops; that is allowed for reads only.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from service.engine.observing import Observe, Trace
from service.engine.outcomes import Call, Exchange, Failure, Phase, Side, clean, outcome
from service.ports.engine import EngineError, FileSystemError, NotReached, Refused, Unclear

SOCK_CONNECT = 5.0
"""Seconds for one TCP connection."""
CONNECT = 15.0
"""Seconds for a connection in all: a place in the pool, DNS, TCP, TLS."""
KEEP_ALIVE = 4.0
"""Seconds that an idle connection is kept. The lifecycle server (uvicorn) closes its own after 5."""
DNS_TTL = 10
"""Seconds that an address of a name is remembered."""
MAX_ANSWER = 8 * 1024 * 1024
"""Bytes of an answer."""
MAX_ERROR = 64 * 1024
"""Bytes read of an error."""

DRAIN_TIME = 3.0
"""Seconds that a reply which is not wanted any more is read on: execd ends a stream one second after its last
event.
"""
DRAIN_BYTES = 64 * 1024 * 1024
"""Bytes of it."""
MAX_DRAINS = 256
"""Replies that are read on at the same time; beyond them connections are simply closed."""
MAX_PROXY_DRAINS = 32
"""The same through the lifecycle server's proxy, which has 100 connections for all its callers."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """``total`` seconds for the whole call, ``silence`` seconds without a byte (``None``: the total is the
    bound).
    """

    total: float
    silence: float | None = None

    def timeout(self) -> aiohttp.ClientTimeout:
        """The same for aiohttp."""
        return aiohttp.ClientTimeout(
            total=self.total, connect=CONNECT, sock_connect=SOCK_CONNECT, sock_read=self.silence or self.total
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call. ``url`` is encoded already; ``repeatable``: a read, for which a pooled connection and a
    repeat do no harm. A ``body`` is JSON, if ``headers`` don't say otherwise; one in pieces needs its
    ``Content-Length`` there.
    """

    call: Call
    side: Side
    method: str
    url: str
    deadline: Deadline
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | AsyncIterator[bytes] | None = None
    repeatable: bool = False
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Progress:
    """How far a call got; kept by the connector."""

    __slots__ = ("phase", "repeatable")

    def __init__(self, repeatable: bool) -> None:
        self.phase = Phase.NOT_CONNECTED
        self.repeatable = repeatable


class _SecondSending(Exception):
    """The HTTP library was about to send a request again."""


TRANSPORT_ERRORS = (aiohttp.ClientError, _SecondSending, OSError, EOFError, ValueError)
"""What the HTTP library and the system raise."""

_progress: ContextVar[_Progress] = ContextVar("progress of the call to the engine")


class _Connector(aiohttp.TCPConnector):
    """Notes when a call gets its connection, and refuses a second one to what must not be repeated.

    The library's own hooks (``TraceConfig``) would tell the same, for a quarter of what a call costs.
    """

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.connector.Connection:
        """A connection for the call under way in this task."""
        progress = _progress.get()
        if progress.phase is not Phase.NOT_CONNECTED and not progress.repeatable:
            raise _SecondSending
        connection = await super().connect(req, traces, timeout)
        progress.phase = max(progress.phase, Phase.SENT)
        return connection


class Incoming:
    """A reply whose head is here. What is unread when the call's context is left is read and dropped."""

    def __init__(self, request: Request, response: aiohttp.ClientResponse) -> None:
        self._request = request
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    async def check(self) -> None:
        """Raises what the status and an error's body come to; leaves the body of an answer unread."""
        if self.headers.get("Content-Encoding", "identity").lower() not in ("identity", ""):
            raise self._failed(Failure.ENCODED)
        exchange = self._exchange(b"")
        if outcome(exchange) is None:
            return
        body = await self._bounded(MAX_ERROR)
        error = outcome(self._exchange(body or b""))
        if error is not None:
            raise error

    async def reply(self, limit: int = MAX_ANSWER) -> Reply:
        """The whole answer, of at most ``limit`` bytes."""
        await self.check()
        body = await self._bounded(limit)
        if body is None:
            raise self._failed(Failure.TOO_LARGE)
        return Reply(self.status, self.headers, body)

    async def counted(self, length: int) -> AsyncIterator[bytes]:
        """The body as it comes, which must have ``length`` bytes; raises the port's errors."""
        left = length
        try:
            async for piece in self.pieces():
                left -= len(piece)
                if left < 0:
                    raise self._failed(Failure.TOO_LARGE)
                yield piece
        except TRANSPORT_ERRORS as error:
            raise _transport_error(self._request, Phase.HEAD, self.status, error) from error
        if left:
            raise self._failed(Failure.DROPPED)

    async def at_most(self, limit: int) -> bytes:
        """The beginning of the body, up to ``limit`` bytes; the rest is not taken."""
        taken = bytearray()
        async for piece in self.pieces():
            taken += piece
            if len(taken) >= limit:
                break
        return bytes(taken[:limit])

    def pieces(self) -> AsyncIterator[bytes]:
        """The body, as it comes."""
        return self._response.content.iter_any()

    async def _bounded(self, limit: int) -> bytes | None:
        if (self._response.content_length or 0) > limit:
            return None
        taken = bytearray()
        async for piece in self.pieces():
            taken += piece
            if len(taken) > limit:
                return None
        return bytes(taken)

    def _exchange(self, body: bytes, failure: Failure | None = None) -> Exchange:
        return Exchange(
            call=self._request.call,
            side=self._request.side,
            phase=Phase.HEAD,
            failure=failure,
            status=self.status,
            content_type=self.headers.get("Content-Type", ""),
            body=body,
            retry_after=self.headers.get("Retry-After"),
        )

    def _failed(self, failure: Failure) -> EngineError:
        return outcome(self._exchange(b"", failure)) or Unclear(failure.value)


class Transport:
    """The connections to one engine: its lifecycle server and the daemons of its sandboxes.

    ``limit`` bounds the connections of each of two pools: one for reads, kept alive, and one for all that
    does something, a new connection a call. Belongs to the event loop of its first call.
    """

    def __init__(self, *, limit: int, observe: Observe | None = None, trace: Trace | None = None) -> None:
        self._limit = limit
        self._observe = observe
        self._trace = trace
        self._pooled: aiohttp.ClientSession | None = None
        self._single: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._drains = {
            Side.DIRECT: min(MAX_DRAINS, limit // 2),
            Side.PROXY: min(MAX_PROXY_DRAINS, limit // 4),
        }
        self._draining: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[Incoming]:
        """Send ``request``; raises one of the port's errors, for what goes wrong inside the context too."""
        began = time.monotonic()
        result = "cancelled"
        trace = self._trace(request.call.value, request.side.value, request.method) if self._trace else None
        if trace is not None:
            request = replace(request, headers={**request.headers, **trace.headers})
        try:
            async with self._send(request) as incoming:
                yield incoming
            result = "answer"
        except EngineError as error:
            result = _label(error)
            if isinstance(error, Unclear):
                error.hop = request.side.value
            raise
        except GeneratorExit:
            result = "left"
            raise
        finally:
            if trace is not None:
                trace.end(result)
            if self._observe is not None:
                self._observe(request.call.value, result, time.monotonic() - began)

    async def call(self, request: Request, limit: int = MAX_ANSWER) -> Reply:
        """Send ``request`` and read its whole answer."""
        async with self.open(request) as incoming:
            return await incoming.reply(limit)

    async def close(self) -> None:
        """Close every connection; later calls are ``NotReached``."""
        self._closed = True
        for task in self._draining:
            task.cancel()
        await asyncio.gather(*self._draining, return_exceptions=True)
        for session in (self._pooled, self._single):
            if session is not None:
                await session.close()

    @asynccontextmanager
    async def _send(self, request: Request) -> AsyncIterator[Incoming]:
        progress = _Progress(request.repeatable)
        status = 0
        _progress.set(progress)
        try:
            response = await self._session(request.repeatable).request(
                request.method,
                URL(request.url, encoded=True),
                data=request.body,
                headers=_headers(request),
                timeout=request.deadline.timeout(),
                allow_redirects=False,
                server_hostname=request.server_name,
            )
            progress.phase = Phase.HEAD
            status = response.status
            try:
                yield Incoming(request, response)
            finally:
                self._leave(request, response)
        except TRANSPORT_ERRORS as error:
            raise _transport_error(request, progress.phase, status, error) from error

    def _leave(self, request: Request, response: aiohttp.ClientResponse) -> None:
        """Give the connection back; what execd still has to say is read first, in the background.

        execd passes every signal that it gets to its running foreground commands, and Go hands it a SIGPIPE
        for each write to a connection that was reset. So a connection that is closed with bytes unread kills
        whatever runs in the foreground of that sandbox (seen with execd 1.0.19).
        """
        room = self._drains.get(request.side, 0)
        if self._closed or response.content.at_eof() or response.content.exception() or not room:
            response.release()
            return
        self._drains[request.side] = room - 1
        task = asyncio.ensure_future(_drain(response))
        self._draining.add(task)

        def drained(done: asyncio.Task[None]) -> None:
            self._draining.discard(done)
            response.release()
            self._drains[request.side] += 1

        task.add_done_callback(drained)

    def _session(self, pooled: bool) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._closed:
            raise NotReached("the engine client is closed")
        if self._loop is not loop and self._loop is not None:
            raise RuntimeError("an engine client belongs to the event loop of its first call")
        self._loop = loop
        if pooled:
            self._pooled = self._pooled or self._new_session(keepalive_timeout=KEEP_ALIVE)
            return self._pooled
        self._single = self._single or self._new_session(force_close=True)
        return self._single

    def _new_session(self, **options: Any) -> aiohttp.ClientSession:
        connector = _Connector(limit=self._limit, ttl_dns_cache=DNS_TTL, **options)
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
        )


async def _drain(response: aiohttp.ClientResponse) -> None:
    taken = 0
    try:
        async with asyncio.timeout(DRAIN_TIME):
            async for piece in response.content.iter_any():
                taken += len(piece)
                if taken > DRAIN_BYTES:
                    break
    except (aiohttp.ClientError, OSError):
        return


def _headers(request: Request) -> dict[str, str]:
    headers = {"User-Agent": "oncebox", "Accept": "*/*", "Accept-Encoding": "identity"}
    if request.body is not None:
        headers["Content-Type"] = "application/json"
    return {**headers, **request.headers}


def _transport_error(request: Request, phase: Phase, status: int, error: Exception) -> EngineError:
    if phase is Phase.NOT_CONNECTED:
        failure = Failure.CONNECT
    elif isinstance(error, TimeoutError):
        failure = Failure.TIMEOUT
    elif isinstance(
        error, (OSError, EOFError, aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, _SecondSending)
    ):
        failure = Failure.DROPPED
    else:
        failure = Failure.INVALID
    exchange = Exchange(
        call=request.call,
        side=request.side,
        phase=phase,
        failure=failure,
        status=status,
        detail=clean(f"{type(error).__name__}: {error}", 150),
    )
    return outcome(exchange) or Unclear(failure.value)


def _label(error: EngineError) -> str:
    if isinstance(error, Refused | FileSystemError):
        return "refused"
    return "not_reached" if isinstance(error, NotReached) else "unclear"


def encode(body: Any) -> bytes:
    """A request's body as JSON; text that is no Unicode (half a surrogate pair) is refused: not sent."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        raise Refused("the request holds text that is not valid Unicode") from None
