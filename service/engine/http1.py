"""HTTP/1.1 on asyncio's connections: one request at a time on each, the reply parsed by llhttp (``httptools``).

No more than calls of the engine need: no redirects, cookies, proxies or decompression, and nothing is ever sent a
second time. See docs/decisions/http-clients.md for why this is no client library.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Self
from urllib.parse import urlsplit

from aiohappyeyeballs import start_connection
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from service.engine.names import Names

SOCK_CONNECT = 5.0
"""Seconds for one TCP connection."""
EYEBALLS = 0.25
"""Seconds that one address of a name is tried before the next is tried beside it (RFC 8305)."""
MAX_HEAD = 64 * 1024
"""Bytes of a reply before its body."""
UNREAD = 128 * 1024
"""Bytes of a body that may wait to be read; then nothing more is taken from the connection."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a connection leads. ``name``: what its certificate must say; None: no TLS."""

    host: str
    port: int
    name: str | None


@lru_cache(4096)
def place_of(origin: str, server_name: str | None) -> Place:
    """``origin``: ``http(s)://host[:port]``. Raises ``ValueError``."""
    parts = urlsplit(origin)
    if not parts.hostname:
        raise ValueError("a URL without a host")
    if parts.scheme == "https":
        return Place(parts.hostname, parts.port or 443, server_name or parts.hostname)
    return Place(parts.hostname, parts.port or 80, None)


def request_bytes(
    method: str, authority: str, target: str, headers: Mapping[str, str], body: bytes | None = None
) -> bytes:
    """The request as it is sent. Raises ``ValueError`` where it would not be one request with these headers.

    A body that follows has its ``Content-Length`` in ``headers``.
    """
    lines = [f"{method} {target} HTTP/1.1"]
    if "Host" not in headers:
        lines.append(f"Host: {authority}")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if "Content-Length" not in headers and (body is not None or method != "GET"):
        lines.append(f"Content-Length: {len(body or b'')}")
    head = "\r\n".join(lines)
    breaks = len(lines) - 1
    if head.count("\n") != breaks or head.count("\r") != breaks or "\0" in head or " " in target:
        raise ValueError("a line break in a header, or a blank in a URL")
    return f"{head}\r\n\r\n".encode() + (body or b"")


class Response:
    """One reply as it arrives: first ``head``, then the pieces of its body. Failures raise ``OSError`` (the connection
    was lost; ``TimeoutError``) or ``ValueError`` (this is not HTTP).

    ``until``: by the loop's clock, the end of the call. ``silence``: seconds without a byte that are too many.
    """

    def __init__(self, connection: "Connection", until: float, silence: float | None) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        """Names in lower case; of several values the first."""
        self.begun = False
        """Some byte of it has arrived."""
        self.whole = False
        """Every byte of it has arrived."""
        self.error: Exception | None = None
        """What ended it before it was whole."""
        self._connection = connection
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._head_bytes: int | None = 0
        """So far; None: the head is whole."""
        self._sending: asyncio.Task[None] | None = None
        self._body = bytearray()
        self._another = False
        """The connection may take a further request: it is not to be closed, and had nothing on it but this reply."""
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._until = until
        self._silence = silence
        self._heard = self._loop.time()
        self._timer = self._loop.call_at(self._due(), self._look_at_the_clock)

    def send(self, pieces: AsyncIterator[bytes]) -> None:
        """The rest of the request, which is sent while its reply may come already."""
        self._sending = asyncio.ensure_future(self._send(pieces))

    async def sent(self) -> None:
        """The request ends here, sent in full or not."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait({self._sending})

    async def head(self) -> None:
        """Return as soon as status and headers are here."""
        while self._head_bytes is not None:
            if self.error is not None:
                raise self.error
            await self._news()

    async def piece(self) -> bytes:
        """What has arrived of the body, or the next of it; nothing: its end."""
        while not self._body:
            if self.error is not None:
                raise self.error
            if self.whole:
                return b""
            await self._news()
        piece = bytes(self._body)
        self._body.clear()
        if len(piece) > UNREAD:
            self._heard = self._loop.time()
            self._timer.cancel()  # it may be set to the end of the call
            self._timer = self._loop.call_at(self._due(), self._look_at_the_clock)
            self._connection.go_on()
        return piece

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The body, piece by piece."""
        piece = await self.piece()
        if not piece:
            raise StopAsyncIteration
        return piece

    def end(self) -> bool:
        """Nobody waits any more; whether another request may follow on the connection."""
        self._timer.cancel()
        self._parser = None  # which knows its reply: nothing is left for the collector
        return self._another

    # -- called by the connection

    def feed(self, data: bytes) -> None:
        """The next bytes."""
        self.begun = True
        self._heard = self._loop.time()
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        try:
            if self._parser is not None:
                self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self.fail(ValueError(f"{type(error).__name__}: {error}"))
        if self._head_bytes is not None and self._head_bytes > MAX_HEAD:
            self.fail(ValueError("the head is too long"))
        if len(self._body) > UNREAD:
            self._connection.stop()
        self._tell()

    def closed(self, error: Exception | None) -> None:
        """There will be no more bytes. Of a body without a length this is the end."""
        framed = "content-length" in self.headers or "transfer-encoding" in self.headers
        if error is None and self._head_bytes is None and not framed:
            self.whole = True
            self._tell()
        else:
            self.fail(error or ConnectionResetError("the connection was closed before the end of the reply"))

    def fail(self, error: Exception) -> None:
        """What comes first counts, and a reply that is whole stays so."""
        if self.whole:
            self._another = False
        elif self.error is None:
            self.error = error
        self._tell()

    # -- called by the parser

    def on_message_begin(self) -> None:
        """Of what follows a reply nothing is read."""
        if self.whole:
            raise ValueError("bytes after the end of a reply")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Of the head; lines after a body are dropped."""
        if self._head_bytes is not None:
            self.headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        """An interim reply (1xx) is no answer."""
        assert self._parser is not None
        self.status = self._parser.get_status_code()
        if self.status < 200:
            self.headers.clear()
        else:
            self._head_bytes = None

    def on_body(self, body: bytes) -> None:
        """A piece."""
        self._body += body

    def on_message_complete(self) -> None:
        """The end, but of an interim reply."""
        if self._head_bytes is None and self._parser is not None:
            self.whole = True
            self._another = self._parser.should_keep_alive()

    # -- waiting

    async def _send(self, pieces: AsyncIterator[bytes]) -> None:
        try:
            async for piece in pieces:
                await self._connection.write(piece)
        except Exception as error:  # noqa: BLE001 - whoever waits for the reply is told, and nothing more is sent
            self.fail(ConnectionAbortedError(f"the body ended early: {type(error).__name__}"))
        finally:
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()

    async def _news(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _tell(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _due(self) -> float:
        if self._silence is None or len(self._body) > UNREAD:
            return self._until
        return min(self._until, self._heard + self._silence)

    def _look_at_the_clock(self) -> None:
        due = self._due()
        if self._loop.time() >= due:
            self.fail(TimeoutError())
        else:
            self._timer = self._loop.call_at(due, self._look_at_the_clock)


class Connection(asyncio.Protocol):
    """One connection, with one request on it at the most."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.lost = False
        self.idle_since = 0.0
        self._response: Response | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport | None = None

    def send(self, request: bytes, until: float, silence: float | None) -> Response:
        """Send it; the reply to it."""
        assert self._transport is not None
        self._response = Response(self, until, silence)
        self._transport.write(request)
        return self._response

    async def write(self, piece: bytes) -> None:
        """More of the request, as soon as what came before is taken."""
        await self._writable.wait()
        if self._transport is not None and not self.lost:
            self._transport.write(piece)

    def free(self) -> bool:
        """The request is over; whether another one may follow."""
        response, self._response = self._response, None
        return response is not None and response.end() and not self.lost

    def close(self) -> None:
        """Close it; what is unread makes the kernel reset it."""
        self.lost = True
        if self._transport is not None:
            self._transport.abort()

    def stop(self) -> None:
        """Take no more bytes."""
        if self._transport is not None:
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Take bytes again."""
        if self._transport is not None:
            self._transport.resume_reading()

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Without a request there is nothing to say: such a connection is not used again."""
        if self._response is None:
            self.close()
        else:
            self._response.feed(data)

    def pause_writing(self) -> None:
        """What was sent is not taken yet."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It was."""
        self._writable.set()

    def eof_received(self) -> None:
        """The other side says no more: the loop closes the connection."""
        self.lost = True
        if self._response is not None:
            self._response.closed(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self.lost = True
        self._writable.set()
        if self._response is not None:
            self._response.closed(exc or ConnectionResetError("the connection was closed"))


class Pool:
    """At most ``limit`` connections in use at once; more callers wait. ``keep``: seconds that an idle one is kept, 0:
    each serves one request.
    """

    def __init__(self, names: Names, *, limit: int, keep: float) -> None:
        self.in_use: set[Connection] = set()
        self._names = names
        self._limit = limit
        self._keep = keep
        self._room = asyncio.Semaphore(limit)
        self._idle: dict[Place, deque[Connection]] = {}
        """The longest idle ones stand first."""
        self._idle_count = 0
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    async def take(self, place: Place, seconds: float) -> Connection:
        """A connection to ``place``. Raises ``OSError``: ``TimeoutError`` after ``seconds``."""
        connection = None if self._room.locked() else self._kept(place)
        if connection is not None:
            await self._room.acquire()  # there is room: this does not wait
        else:
            async with asyncio.timeout(seconds):
                connection = await self._have(place)
        self.in_use.add(connection)
        return connection

    def give(self, connection: Connection) -> None:
        """Its request is over."""
        self.in_use.discard(connection)
        self._room.release()
        if not connection.free() or not self._keep or self._closed or self._idle_count >= self._limit:
            connection.close()
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.setdefault(connection.place, deque()).append(connection)
        self._idle_count += 1
        if self._sweep is None:
            self._sweep = loop.call_later(self._keep, self._close_old)

    def close(self) -> None:
        """Close all of them. Whoever still reads is told so."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in (*self.in_use, *(each for idle in self._idle.values() for each in idle)):
            connection.close()

    async def _have(self, place: Place) -> Connection:
        await self._room.acquire()
        try:
            return self._kept(place) or await self._open(place)
        except BaseException:
            self._room.release()
            raise

    def _kept(self, place: Place) -> Connection | None:
        """The one that was used last: the others may go."""
        idle = self._idle.get(place)
        while idle:
            connection = idle.pop()
            self._idle_count -= 1
            if not connection.lost and asyncio.get_running_loop().time() - connection.idle_since <= self._keep:
                return connection
            connection.close()
        return None

    def _close_old(self) -> None:
        oldest = asyncio.get_running_loop().time() - self._keep
        for place, idle in list(self._idle.items()):
            while idle and (idle[0].lost or idle[0].idle_since <= oldest):
                idle.popleft().close()
                self._idle_count -= 1
            if not idle:
                del self._idle[place]
        self._sweep = asyncio.get_running_loop().call_later(self._keep, self._close_old) if self._idle else None

    async def _open(self, place: Place) -> Connection:
        if self._closed:
            raise ConnectionAbortedError("the client is closed")
        addresses = await self._names.addresses(place.host, place.port)
        async with asyncio.timeout(SOCK_CONNECT):
            made = await start_connection(addresses, happy_eyeballs_delay=EYEBALLS, interleave=1)
        connection = Connection(place)
        try:
            tls = None if place.name is None else _tls()
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: connection, sock=made, ssl=tls, server_hostname=place.name)
        except BaseException:
            connection.close()
            made.close()
            raise
        return connection


@cache
def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
