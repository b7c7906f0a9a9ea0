"""Connections with applications of a few lines: those that never end, and those that see who is there."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from service.server import connections
from service.server.connections import Connections
from tests.support.waiting import PATIENCE, eventually

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
App = Callable[[Any, Any, Any], Awaitable[None]]


@contextlib.asynccontextmanager
async def served(app: App, **options: Any) -> AsyncIterator[tuple[Connections, tuple[str, int]]]:
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    serving = Connections(app, listener, **options)
    serving.open()
    try:
        async with asyncio.timeout(PATIENCE):
            yield serving, address
    finally:
        await serving.abort()


def pouring(ended: asyncio.Future[OSError]) -> App:
    """An answer without an end; ``ended``: what told it that nobody reads it."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
        except OSError as error:
            ended.set_result(error)

    return answer


async def test_what_can_not_be_cancelled_does_not_hold_the_end_up(monkeypatch: Any) -> None:
    monkeypatch.setattr(connections, "ABORT_SECONDS", 0.1)
    asked, free = asyncio.Event(), asyncio.Event()

    async def stubborn(scope: Any, receive: Any, send: Any) -> None:
        asked.set()
        while not free.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await free.wait()

    async with served(stubborn) as (serving, address):
        _, writer = await asyncio.open_connection(*address)
        writer.write(REQUEST)
        await asked.wait()
        await serving.close(0)
        free.set()
        writer.close()


async def test_whoever_writes_to_a_caller_that_is_gone_is_told() -> None:
    ended: asyncio.Future[OSError] = asyncio.get_running_loop().create_future()
    async with served(pouring(ended)) as (_, address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(REQUEST)
        assert await reader.read(100)
        writer.transport.abort()
        assert isinstance(await ended, OSError)


async def test_the_longest_idle_makes_room_and_a_young_one_does_not(monkeypatch: Any) -> None:
    async def hello(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    monkeypatch.setattr(connections, "IDLE_SECONDS", 3600)
    async with served(hello, limit=2) as (_, address):
        first, second, third = [await asyncio.open_connection(*address) for _ in range(3)]
        third[1].write(REQUEST)
        for reader, writer in (first, second):
            writer.write(REQUEST)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
        waiting = asyncio.create_task(third[0].readuntil(b"\r\n\r\n"))
        done, _ = await asyncio.wait({waiting}, timeout=3 * connections.PAUSE_SECONDS)
        assert not done, "both may have a request on its way"
        monkeypatch.setattr(connections, "IDLE_SECONDS", 0)
        assert (await waiting).startswith(b"HTTP/1.1 204")
        assert await first[0].read() == b"", "it was idle for longer"
        second[1].write(REQUEST)
        assert (await second[0].readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
        for _, writer in (first, second, third):
            writer.close()


async def test_connections_that_come_at_once_are_not_begun_at_once() -> None:
    """Else each turn of the loop takes as long as a step of all of them, for those too who were there before."""
    begun: list[int] = []

    async def hello(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(5):  # an answer takes a few turns
            await asyncio.sleep(0)
        begun.append(len(serving._tasks))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    with contextlib.ExitStack() as sockets:
        async with served(hello) as (serving, address):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(REQUEST)
            await reader.readuntil(b"\r\n\r\n")
            begun.clear()
            for _ in range(100):
                late = sockets.enter_context(socket.create_connection(address))
                late.sendall(REQUEST)
            writer.write(REQUEST)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
            assert begun[0] < 75, "answered while most of them had not even been accepted"
            writer.close()


async def test_head_and_body_are_one_write_and_a_head_alone_does_not_wait(monkeypatch: Any) -> None:
    writes: list[bytes] = []
    write = asyncio.StreamWriter.write

    def noting(self: asyncio.StreamWriter, data: bytes) -> None:
        writes.append(bytes(data))
        write(self, data)

    monkeypatch.setattr(asyncio.StreamWriter, "write", noting)
    go_on = asyncio.Event()

    async def answering(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope["path"] == "/slow":
            await go_on.wait()
        await send({"type": "http.response.body", "body": b"ok"})

    async with served(answering) as (_, address):
        ours, theirs = socket.create_connection(address), asyncio.get_running_loop()
        with ours:
            ours.setblocking(False)
            await theirs.sock_sendall(ours, REQUEST)
            answer = await read_until(ours, b"ok")
            assert writes == [answer]
            writes.clear()
            await theirs.sock_sendall(ours, REQUEST.replace(b"/ ", b"/slow "))
            head = await read_until(ours, b"\r\n\r\n")
            go_on.set()
            assert await read_until(ours, b"ok") == b"ok"
            assert writes == [head, b"ok"]


async def read_until(connection: socket.socket, end: bytes) -> bytes:
    received = b""
    while not received.endswith(end):
        received += await asyncio.get_running_loop().sock_recv(connection, 65_536)
    return received


async def test_an_answer_of_which_nothing_is_taken_is_broken_off(monkeypatch: Any) -> None:
    monkeypatch.setattr(connections, "TAKEN_SECONDS", 0.1)
    ended: asyncio.Future[OSError] = asyncio.get_running_loop().create_future()
    async with served(pouring(ended)) as (serving, address):
        with socket.create_connection(address) as connection:
            connection.sendall(REQUEST)
            assert isinstance(await ended, TimeoutError)
            await eventually(lambda: not serving._tasks)


async def test_an_answer_that_is_whole_and_never_taken_keeps_no_connection(monkeypatch: Any) -> None:
    monkeypatch.setattr(connections, "TAKEN_SECONDS", 0.1)

    async def last(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": b"x" * 50_000})

    async with served(last) as (serving, address):
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(address)
            monkeypatch.setattr(asyncio.StreamWriter, "write", _as_if_the_network_were_full)
            connection.sendall(REQUEST)
            await eventually(lambda: serving._tasks)
            await eventually(lambda: not serving._tasks)


def _as_if_the_network_were_full(self: asyncio.StreamWriter, data: bytes) -> None:
    transport: Any = self.transport
    transport._buffer += data
    transport._loop._add_writer(transport._sock_fd, lambda: None)


@pytest.mark.parametrize("body", [None, b"more than was said"], ids=["nothing", "too much"])
async def test_the_head_of_an_answer_that_is_cut_off_is_seen(body: bytes | None) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        if body is None:
            raise RuntimeError("a bug")
        await send({"type": "http.response.body", "body": body})

    async with served(broken) as (_, address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(REQUEST)
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n")
        writer.close()


async def test_a_body_that_can_not_be_read_is_answered_to_head_without_one() -> None:
    async def reading(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] == "http.request":
            pass

    async with served(reading) as (_, address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"HEAD / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.endswith(b"\r\n\r\n")
        writer.close()


async def test_a_method_is_its_letters_as_they_were_sent() -> None:
    async def telling(scope: Any, receive: Any, send: Any) -> None:
        method = scope["method"].encode()
        await send(
            {"type": "http.response.start", "status": 405, "headers": [(b"content-length", b"%d" % len(method))]}
        )
        await send({"type": "http.response.body", "body": method})

    async with served(telling) as (_, address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(REQUEST.replace(b"GET", b"head"))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 405 ")
        assert await reader.readexactly(4) == b"head"
        writer.close()


async def test_an_idle_connection_is_closed_when_it_is_time_and_not_before(monkeypatch: Any) -> None:
    """One timer serves all of its requests: each puts off what is due."""

    async def hello(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)
    monkeypatch.setattr(connections, "KEEP_ALIVE_SECONDS", 4)
    async with served(hello) as (_, address):
        reader, writer = await asyncio.open_connection(*address)
        for _ in range(2):
            writer.write(REQUEST)
            assert await reader.readuntil(b"\r\n\r\n")
            now += 3
            for _ in range(3):  # whatever is due by now is done
                await asyncio.sleep(0)
        now += 2
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
