"""HTTP to the engine: connections, deadlines, bounded reads, and the account of what happened on each call.

Two rules stand behind the pools here. A call that does something gets **a connection of its own**: on a kept one
that the server is just closing, a request that was never read could not be told from one that was executed, and a
dead daemon would not be "connection refused". And **nothing is sent twice**: only a read is repeated, once, where its
connection drops before anything of the reply came.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from service.engine.http1 import Connection, Pool, Response, place_of, request_bytes
from service.engine.names import Names
from service.engine.observing import Observe, Trace
from service.engine.outcomes import CallKind, CallReport, Phase, Side, TransportFailure, clean, outcome
from service.ports.engine import EngineError, FileSystemError, NotReached, Refused, Unclear

CONNECT = 15.0
"""Seconds for a connection in all: a place in the pool, DNS, TCP, TLS."""
KEEP_ALIVE = 4.0
"""Seconds that an idle connection is kept. The lifecycle server (uvicorn) closes its own after 5."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One call. ``url`` is encoded already; ``repeatable``: a read, for which a pooled connection and a
    repeat do no harm. A ``body`` is JSON, if ``headers`` don't say otherwise; one in pieces needs its
    ``Content-Length`` there.
    """

    call: CallKind
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
    """A whole answer; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Progress:
    """How far a call got."""

    __slots__ = ("phase", "status")

    def __init__(self, phase: Phase = Phase.NOT_CONNECTED, status: int = 0) -> None:
        self.phase = phase
        self.status = status


TRANSPORT_ERRORS = (OSError, EOFError, ValueError)
"""What ``http1`` and the system raise."""


class Incoming:
    """A reply whose head is here. What is unread when the call's context is left is read and dropped."""

    def __init__(self, request: EngineRequest, response: Response) -> None:
        self._request = request
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        """Names in lower case."""

    async def check(self) -> None:
        """Raises what the status and an error's body come to; leaves the body of an answer unread."""
        if self.headers.get("content-encoding", "identity").lower() not in ("identity", ""):
            raise self._failed(TransportFailure.ENCODED)
        report = self._report(b"")
        if outcome(report) is None:
            return
        body = await self._bounded(MAX_ERROR)
        error = outcome(self._report(body or b""))
        if error is not None:
            raise error

    async def reply(self, limit: int = MAX_ANSWER) -> Reply:
        """The whole answer, of at most ``limit`` bytes."""
        await self.check()
        body = await self._bounded(limit)
        if body is None:
            raise self._failed(TransportFailure.TOO_LARGE)
        return Reply(self.status, self.headers, body)

    async def counted(self, length: int) -> AsyncIterator[bytes]:
        """The body as it comes, which must have ``length`` bytes; raises the port's errors."""
        left = length
        try:
            async for piece in self.pieces():
                left -= len(piece)
                if left < 0:
                    raise self._failed(TransportFailure.TOO_LARGE)
                yield piece
        except TRANSPORT_ERRORS as error:
            raise _transport_error(self._request, _Progress(Phase.HEAD, self.status), error) from error
        if left:
            raise self._failed(TransportFailure.DROPPED)

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
        return self._response

    async def _bounded(self, limit: int) -> bytes | None:
        length = self.headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > limit:
            return None
        taken = bytearray()
        async for piece in self.pieces():
            taken += piece
            if len(taken) > limit:
                return None
        return bytes(taken)

    def _report(self, body: bytes, failure: TransportFailure | None = None) -> CallReport:
        return CallReport(
            call=self._request.call,
            side=self._request.side,
            phase=Phase.HEAD,
            failure=failure,
            status=self.status,
            content_type=self.headers.get("content-type", ""),
            body=body,
            retry_after=self.headers.get("retry-after"),
        )

    def _failed(self, failure: TransportFailure) -> EngineError:
        return outcome(self._report(b"", failure)) or Unclear(failure.value)


class Transport:
    """The connections to one engine: its lifecycle server and the daemons of its sandboxes.

    ``limit`` bounds the connections of each of two pools: one for reads, kept alive, and one for all that
    does something, a new connection a call. Belongs to the event loop of its first call.
    """

    def __init__(self, *, limit: int, observe: Observe | None = None, trace: Trace | None = None) -> None:
        self._observe = observe
        self._trace = trace
        names = Names()
        self._kept = Pool(names, limit=limit, keep=KEEP_ALIVE)
        self._single = Pool(names, limit=limit, keep=0)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._drains = {
            Side.DIRECT: min(MAX_DRAINS, limit // 2),
            Side.PROXY: min(MAX_PROXY_DRAINS, limit // 4),
        }
        self._draining: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self, request: EngineRequest) -> AsyncIterator[Incoming]:
        """Send ``request``; raises one of the port's errors, for what goes wrong inside the context too."""
        began = time.monotonic()
        result = "cancelled"
        trace = self._trace(request.call.value, request.side.value, request.method) if self._trace else None
        if trace is not None:
            request = replace(request, headers={**request.headers, **trace.headers})
        progress = _Progress()
        try:
            pool = self._pool(request.repeatable)
            try:
                connection, response = await self._begin(request, pool, progress)
                progress.phase, progress.status = Phase.HEAD, response.status
                try:
                    yield Incoming(request, response)
                finally:
                    await response.sent()
                    self._leave(request, pool, connection, response)
            except TRANSPORT_ERRORS as error:
                raise _transport_error(request, progress, error) from error
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

    async def call(self, request: EngineRequest, limit: int = MAX_ANSWER) -> Reply:
        """Send ``request`` and read its whole answer."""
        async with self.open(request) as incoming:
            return await incoming.reply(limit)

    async def close(self) -> None:
        """Close every connection; later calls are ``NotReached``."""
        self._closed = True
        for task in self._draining:
            task.cancel()
        await asyncio.gather(*self._draining, return_exceptions=True)
        for pool in (self._kept, self._single):
            pool.close()

    async def _begin(self, request: EngineRequest, pool: Pool, progress: _Progress) -> tuple[Connection, Response]:
        """Send it, and wait for the head of the reply."""
        origin, authority, target = _parts(request.url)
        place = place_of(origin, request.server_name)
        body, pieces = (request.body, None) if isinstance(request.body, bytes | None) else (None, request.body)
        sent = request_bytes(request.method, authority, target, _headers(request), body)
        until = asyncio.get_running_loop().time() + request.deadline.total
        again = request.repeatable
        while True:
            connection = await pool.take(place, min(CONNECT, request.deadline.total))
            progress.phase = Phase.SENT
            response = connection.send(sent, until, request.deadline.silence)
            if pieces is not None:
                response.send(pieces)
            try:
                await response.head()
                return connection, response
            except BaseException as error:
                await response.sent()
                pool.give(connection)
                if not again or response.begun or not isinstance(error, ConnectionError):
                    raise
            again = False

    def _leave(self, request: EngineRequest, pool: Pool, connection: Connection, response: Response) -> None:
        """Give the connection back; what execd still has to say is read first, in the background.

        execd passes every signal that it gets to its running foreground commands, and Go hands it a SIGPIPE
        for each write to a connection that was reset. So a connection that is closed with bytes unread kills
        whatever runs in the foreground of that sandbox (seen with execd 1.0.19).
        """
        room = self._drains.get(request.side, 0)
        if self._closed or response.whole or response.error or not room:
            pool.give(connection)
            return
        self._drains[request.side] = room - 1
        task = asyncio.ensure_future(_drain(response))
        self._draining.add(task)

        def drained(done: asyncio.Task[None]) -> None:
            self._draining.discard(done)
            pool.give(connection)
            self._drains[request.side] += 1

        task.add_done_callback(drained)

    def _pool(self, kept: bool) -> Pool:
        loop = asyncio.get_running_loop()
        if self._closed:
            raise NotReached("the engine client is closed")
        if self._loop is not loop and self._loop is not None:
            raise RuntimeError("an engine client belongs to the event loop of its first call")
        self._loop = loop
        return self._kept if kept else self._single


async def _drain(response: Response) -> None:
    taken = 0
    try:
        async with asyncio.timeout(DRAIN_TIME):
            async for piece in response:
                taken += len(piece)
                if taken > DRAIN_BYTES:
                    break
    except (OSError, ValueError):
        return


def _parts(url: str) -> tuple[str, str, str]:
    """Scheme and authority; the authority; path and query."""
    scheme, _, rest = url.partition("://")
    authority, slash, target = rest.partition("/")
    return f"{scheme}://{authority}", authority, slash + target


def _headers(request: EngineRequest) -> dict[str, str]:
    headers = {"User-Agent": "oncebox", "Accept": "*/*", "Accept-Encoding": "identity"}
    if request.body is not None:
        headers["Content-Type"] = "application/json"
    if not request.repeatable:
        headers["Connection"] = "close"
    return {**headers, **request.headers}


def _transport_error(request: EngineRequest, progress: _Progress, error: Exception) -> EngineError:
    if progress.phase is Phase.NOT_CONNECTED:
        failure = TransportFailure.REFUSED if isinstance(error, ConnectionRefusedError) else TransportFailure.CONNECT
    elif isinstance(error, TimeoutError):
        failure = TransportFailure.TIMEOUT
    elif isinstance(error, (OSError, EOFError)):
        failure = TransportFailure.DROPPED
    else:
        failure = TransportFailure.INVALID
    report = CallReport(
        call=request.call,
        side=request.side,
        phase=progress.phase,
        failure=failure,
        status=progress.status,
        detail=clean(f"{type(error).__name__}: {error}", 150),
    )
    return outcome(report) or Unclear(failure.value)


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
