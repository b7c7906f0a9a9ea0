"""HTTP/1.1 to the engine: what is sent, what is a reply, and which connections are used again."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from service.engine import http1, names
from service.engine.http1 import Connection, Pool, Response, place_of, request_bytes
from service.engine.names import Names
from tests.support.waiting import PATIENCE, eventually
from tests.unit.engine.raw_server import Arrived, Behaviour, RawServer, chunk, reply, stream_head

GET = request_bytes("GET", "engine", "/", {}, None)
SECONDS = PATIENCE


@asynccontextmanager
async def pool_at(behave: Behaviour, *, limit: int = 8, keep: float = 9.0) -> AsyncIterator[tuple[RawServer, Pool]]:
    async with RawServer(behave) as server:
        pool = Pool(Names(), limit=limit, keep=keep)
        yield server, pool
        pool.close()


def sending(data: bytes, *, close: bool = False) -> Behaviour:
    async def behave(_: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        if close:
            await writer.drain()
            writer.close()

    return behave


async def asked(
    pool: Pool, server: RawServer, *, silence: float | None = None, lasts: float = SECONDS
) -> tuple[Connection, Response]:
    connection = await pool.take(place_of(server.url, None), SECONDS)
    return connection, connection.send(GET, asyncio.get_running_loop().time() + lasts, silence)


async def whole(pool: Pool, server: RawServer) -> tuple[int, bytes]:
    """Status and body of one request."""
    connection, response = await asked(pool, server)
    try:
        await response.head()
        return response.status, b"".join([piece async for piece in response])
    finally:
        pool.give(connection)


# -- what is sent


def test_a_request_is_one_with_these_headers() -> None:
    sent = request_bytes("POST", "host:80", "/a%20b?c", {"X-A": "b"}, b"{}")
    assert sent == b"POST /a%20b?c HTTP/1.1\r\nHost: host:80\r\nX-A: b\r\nContent-Length: 2\r\n\r\n{}"
    assert b"Content-Length: 0" in request_bytes("DELETE", "host", "/", {}, None)
    assert b"Content-Length" not in request_bytes("GET", "host", "/", {}, None)
    assert request_bytes("GET", "host", "/", {"Host": "named"}, None).count(b"ost: ") == 1


@pytest.mark.parametrize("headers", [{"X": "a\r\nY: b"}, {"X": "a\nb"}, {"X\r": "a"}, {"X": "\0"}])
def test_a_header_that_would_be_two_is_not_sent(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="line break"):
        request_bytes("GET", "host", "/", headers, None)


@pytest.mark.parametrize("target", ["/a b", "/a HTTP/1.1\r\nX: y"])
def test_a_target_that_would_be_more_is_not_sent(target: str) -> None:
    with pytest.raises(ValueError, match="blank"):
        request_bytes("GET", "host", target, {}, None)


def test_a_place_is_host_port_and_the_name_in_the_certificate() -> None:
    assert place_of("http://[::1]:8", "ignored") == http1.Place("::1", 8, None)
    assert place_of("https://engine", None) == http1.Place("engine", 443, "engine")
    assert place_of("https://10.0.0.1:1", "engine") == http1.Place("10.0.0.1", 1, "engine")
    for origin in ("http://", "http://host:x", "http://host:99999"):
        with pytest.raises(ValueError):  # noqa: PT011 - three sentences of the library's
            place_of(origin, None)


# -- what is a reply


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + reply(200, "hello"),
        stream_head() + chunk(b"hel") + chunk(b"lo") + b"0\r\nTrailer: x\r\n\r\n",
        reply(200, "hello") + b"\r\n",
    ],
    ids=["after interim ones", "chunked with a trailer", "followed by a line end"],
)
async def test_a_reply_is_whole_at_its_end_and_its_connection_used_again(data: bytes) -> None:
    async with pool_at(sending(data)) as (server, pool):
        for _ in range(3):
            assert await whole(pool, server) == (200, b"hello")
        assert server.connections == 1


async def test_a_body_without_a_length_ends_with_its_connection() -> None:
    async with pool_at(sending(b"HTTP/1.1 200 OK\r\n\r\nhello", close=True)) as (server, pool):
        assert await whole(pool, server) == (200, b"hello")


@pytest.mark.parametrize("more", [b"HTTP/1.1 500 X\r\nContent-Length: 3\r\n\r\nbad", b"junk"])
async def test_what_follows_a_reply_is_neither_read_nor_left_to_the_next_request(more: bytes) -> None:
    async with pool_at(sending(reply(200, "hello") + more)) as (server, pool):
        for _ in range(2):
            assert await whole(pool, server) == (200, b"hello")
        assert server.connections == 2


async def test_a_kept_connection_that_speaks_unasked_is_closed() -> None:
    late = asyncio.Event()

    async def behave(request: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(reply(200, "hello"))
        await late.wait()
        writer.write(reply(200, "wrong"))

    async with pool_at(behave, keep=600) as (server, pool):
        connection, response = await asked(pool, server)
        await response.head()
        pool.give(connection)
        late.set()
        async with asyncio.timeout(SECONDS):
            while not connection.lost:
                await asyncio.sleep(0)
        assert await whole(pool, server) == (200, b"hello")
        assert server.connections == 2


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * (2 * http1.MAX_HEAD),
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * http1.MAX_HEAD,
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"SSH-2.0-x\r\n",
    ],
    ids=["switched", "long", "interim ones for ever", "two lengths", "something else"],
)
async def test_what_is_no_reply_is_refused(data: bytes) -> None:
    async with pool_at(sending(data)) as (server, pool):
        with pytest.raises(ValueError):  # noqa: PT011 - the parser's own sentences
            await whole(pool, server)


async def test_what_came_before_the_connection_was_lost_is_read_first() -> None:
    async with pool_at(sending(stream_head() + chunk(b"hello"), close=True)) as (server, pool):
        connection, response = await asked(pool, server)
        await response.head()
        assert await response.piece() == b"hello"
        with pytest.raises(ConnectionError):
            await response.piece()
        pool.give(connection)


async def test_a_body_that_nobody_reads_is_not_taken() -> None:
    taken = 0

    async def behave(_: Arrived, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        writer.write(stream_head())
        while taken < 1 << 30:
            writer.write(chunk(b"x" * 65_536))
            await writer.drain()
            taken += 65_536

    async with pool_at(behave) as (server, pool):
        connection, response = await asked(pool, server)
        await response.head()
        await eventually(lambda: len(response._body) > http1.UNREAD)
        before = -1
        while before < taken:
            before = taken
            await asyncio.sleep(0.2)
        assert len(response._body) <= http1.UNREAD + (1 << 18), "one read of the event loop more"
        assert len(await response.piece()) > http1.UNREAD
        assert await response.piece(), "it goes on"
        pool.give(connection)


async def test_silence_counts_from_the_last_byte_and_not_while_nothing_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http1, "UNREAD", 4)

    async def behave(_: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head() + chunk(b"hello"))
        await writer.drain()
        await asyncio.sleep(SECONDS)

    async with pool_at(behave) as (server, pool):
        connection, response = await asked(pool, server, silence=3600, lasts=7200)
        await response.head()
        await eventually(lambda: len(response._body) > http1.UNREAD)
        response._silence = 0.01
        response._look_at_the_clock()
        await asyncio.sleep(0.05)
        assert response.error is None
        assert await response.piece() == b"hello"
        with pytest.raises(TimeoutError):
            await response.piece()
        pool.give(connection)


# -- connections


async def test_an_idle_connection_is_closed_after_its_time() -> None:
    async with pool_at(sending(reply(200, "hello")), keep=0.1) as (server, pool):
        await whole(pool, server)
        async with asyncio.timeout(SECONDS):
            while server.open_now:
                await asyncio.sleep(0.01)
        assert not pool._idle


async def test_no_more_are_in_use_than_may_be_and_none_is_lost() -> None:
    async with pool_at(sending(reply(200, "hello")), limit=2) as (server, pool):
        await asyncio.gather(*(whole(pool, server) for _ in range(20)))
        assert server.open_most <= 2
        assert not pool.in_use
        connection, _ = await asked(pool, server)
        other, _ = await asked(pool, server)
        with pytest.raises(TimeoutError):
            await pool.take(place_of(server.url, None), 0.05)
        pool.give(connection)
        pool.give(other)
        assert await whole(pool, server) == (200, b"hello")


async def test_whoever_reads_is_told_that_the_pool_closes() -> None:
    async def behave(_: Arrived, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(SECONDS)

    async with pool_at(behave) as (server, pool):
        reading = asyncio.create_task(whole(pool, server))
        while not server.requests:
            await asyncio.sleep(0.01)
        pool.close()
        with pytest.raises(ConnectionError):
            await reading
        with pytest.raises(ConnectionError):
            await whole(pool, server)


# -- names


async def test_a_name_is_looked_up_once_for_all_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    loop = asyncio.get_running_loop()
    real = loop.getaddrinfo

    async def counted(*args: object, **options: object) -> object:
        nonlocal asked
        asked += 1
        return await real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "getaddrinfo", counted)
    known = Names()
    found = await asyncio.gather(*(known.addresses("localhost", 80) for _ in range(9)))
    assert asked == 1
    assert all(each == found[0] for each in found)
    await known.addresses("localhost", 80)
    assert asked == 1
    monkeypatch.setattr(names, "TTL", -1.0)
    await known.addresses("localhost", 80)
    assert asked == 2


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 300, "a..b"])
async def test_a_name_that_is_none_is_an_error_of_the_network(host: str) -> None:
    with pytest.raises(OSError):
        await Names().addresses(host, 80)


async def test_an_address_is_not_looked_up() -> None:
    assert await Names().addresses("127.0.0.1", 80) == [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80))]
    (six,) = await Names().addresses("::1", 80)
    assert six[4] == ("::1", 80, 0, 0)


# -- a body that is sent in pieces


async def test_a_long_body_is_made_as_fast_as_it_is_taken_and_an_early_reply_ends_it() -> None:
    made = 0
    ended = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal made
        try:
            while made < 1 << 30:
                made += 65_536
                yield b"x" * 65_536
        finally:
            ended.set()

    refuse, gone = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await refuse.wait()
        writer.write(reply(413))
        with suppress(OSError):
            await reader.read()
        writer.close()
        gone.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        pool = Pool(Names(), limit=1, keep=0)
        port = server.sockets[0].getsockname()[1]
        connection = await pool.take(place_of(f"http://127.0.0.1:{port}", None), SECONDS)
        head = request_bytes("POST", "engine", "/", {"Content-Length": str(1 << 30)})
        response = connection.send(head, asyncio.get_running_loop().time() + SECONDS, None)
        response.send(pieces())
        before = -1
        while before < made:
            before = made
            await asyncio.sleep(0.2)
        assert made < 1 << 28
        refuse.set()
        await response.head()
        assert response.status == 413
        await response.sent()
        assert made < 1 << 28
        pool.give(connection)
        async with asyncio.timeout(SECONDS):
            await ended.wait()
            await gone.wait()


async def test_a_body_that_ends_early_is_no_request() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"x"
        raise ValueError("no more")

    async with pool_at(sending(reply(200))) as (server, pool):
        connection = await pool.take(place_of(server.url, None), SECONDS)
        head = request_bytes("POST", "engine", "/", {"Content-Length": "9"})
        response = connection.send(head, asyncio.get_running_loop().time() + SECONDS, None)
        response.send(pieces())
        with pytest.raises(ConnectionError, match="ended early"):
            await response.head()
        await response.sent()
        pool.give(connection)
        assert server.requests == []
