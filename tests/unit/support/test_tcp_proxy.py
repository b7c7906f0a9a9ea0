import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.network_plan import Finder
from tests.support.ports import LOOPBACK, free_port
from tests.support.tcp_proxy import Action, Duplicate, Fault, Plan, Side, TcpProxy
from tests.support.waiting import PATIENCE, eventually

A_WHILE = 0.1
"""Seconds in which bytes that nothing holds would have come through."""


class Upstream:
    """Answers each line with `re: ` and the line, `count N` with N bytes, and remembers what it saw."""

    def __init__(self) -> None:
        self.port = free_port()
        self.received: list[bytes] = []
        self.ends: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                self.received.append(line)
                words = line.split()
                writer.write(b"x" * int(words[1]) if words[:1] == [b"count"] else b"re: " + line)
                await writer.drain()
            self.ends.append("closed")
        except ConnectionError:
            self.ends.append("reset")
        finally:
            writer.close()


class Caller:
    """A client's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, content: bytes) -> None:
        self.writer.write(content)

    async def read(self, count: int = 65_536) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self.reader.read(count)

    async def read_exactly(self, count: int) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self.reader.readexactly(count)

    async def hears_nothing(self) -> bool:
        try:
            async with asyncio.timeout(A_WHILE):
                await self.reader.read(1)
        except TimeoutError:
            return True
        return False


class Callers:
    def __init__(self, proxy: TcpProxy) -> None:
        self.proxy = proxy
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> Caller:
        reader, writer = await asyncio.open_connection(self.proxy.host, self.proxy.port)
        self.writers.append(writer)
        return Caller(reader, writer)


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    server = await asyncio.start_server(upstream.serve, LOOPBACK, upstream.port)
    yield upstream
    server.close()
    await server.wait_closed()


@pytest.fixture
async def proxy(upstream: Upstream) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(LOOPBACK, upstream.port) as proxy:
        yield proxy
    await eventually(lambda: not proxy.live)


@pytest.fixture
async def callers(proxy: TcpProxy) -> AsyncIterator[Callers]:
    callers = Callers(proxy)
    yield callers
    for writer in callers.writers:
        writer.transport.abort()


async def test_without_faults_everything_goes_through(proxy: TcpProxy, callers: Callers, upstream: Upstream) -> None:
    caller = await callers.connect()

    caller.send(b"hello\n")
    assert await caller.read() == b"re: hello\n"
    caller.send(b"count 3000000\n")
    assert await caller.read_exactly(3_000_000) == b"x" * 3_000_000
    caller.writer.write_eof()

    assert await caller.read() == b""
    assert upstream.ends == ["closed"]
    await eventually(lambda: not proxy.live)
    assert proxy.connections[0].request.forwarded == 20
    assert proxy.connections[0].reply.forwarded == 3_000_010


async def test_a_reset_of_the_client_reaches_the_upstream(callers: Callers, upstream: Upstream) -> None:
    caller = await callers.connect()
    caller.send(b"count 30000000\n")
    await caller.read(1)

    caller.writer.transport.abort()

    await eventually(lambda: upstream.ends == ["reset"])


async def test_a_refusing_proxy_resets(proxy: TcpProxy, callers: Callers, upstream: Upstream) -> None:
    proxy.next_plans.append(Plan(refuse=True))

    refused = await callers.connect()
    with pytest.raises(ConnectionResetError):
        await refused.read()

    accepted = await callers.connect()
    accepted.send(b"a\n")
    assert await accepted.read() == b"re: a\n"
    assert upstream.received == [b"a\n"]


async def test_a_proxy_that_does_not_listen_is_like_a_dead_server(proxy: TcpProxy, callers: Callers) -> None:
    caller = await callers.connect()
    caller.send(b"a\n")
    await caller.read()

    await proxy.stop_listening()
    with pytest.raises(ConnectionRefusedError):
        await callers.connect()
    caller.send(b"b\n")
    assert await caller.read() == b"re: b\n"

    await proxy.listen()
    await callers.connect()


async def test_a_dead_upstream_resets(proxy: TcpProxy, callers: Callers) -> None:
    proxy.upstream = (LOOPBACK, free_port())

    caller = await callers.connect()

    with pytest.raises(ConnectionResetError):
        await caller.read()


async def test_a_reply_can_be_reset_after_some_bytes(proxy: TcpProxy, callers: Callers) -> None:
    fault = proxy.plan.reply = Fault(Action.CLOSE, after=6)
    caller = await callers.connect()

    caller.send(b"hello\n")

    assert await caller.read_exactly(6) == b"re: he"
    assert await caller.read() == b""
    assert fault.hits == 1


async def test_a_reply_can_be_cut_behind_a_marker(proxy: TcpProxy, callers: Callers) -> None:
    proxy.plan.reply = Fault(Action.CLOSE, marker=b"two", after=1)
    caller = await callers.connect()

    caller.send(b"one\n")
    assert await caller.read() == b"re: one\n"
    caller.send(b"two, three\n")

    assert await caller.read() == b"re: two,"
    assert await caller.read() == b""


async def test_one_request_of_a_kept_connection_can_lose_its_reply(
    proxy: TcpProxy, callers: Callers, upstream: Upstream
) -> None:
    fault = proxy.plan.reply = Fault(Action.RESET, when=b"pay")
    caller = await callers.connect()
    caller.send(b"look\n")
    assert await caller.read() == b"re: look\n"

    caller.send(b"pa")
    await eventually(lambda: proxy.connections[0].request.forwarded == 7)
    caller.send(b"y\n")

    with pytest.raises(ConnectionResetError):
        await caller.read()
    assert upstream.received == [b"look\n", b"pay\n"]
    assert fault.happened.is_set()

    # It was for one connection.
    again = await callers.connect()
    again.send(b"pay\n")
    assert await again.read() == b"re: pay\n"


async def test_a_fault_can_meet_every_connection(proxy: TcpProxy, callers: Callers) -> None:
    fault = proxy.plan.reply = Fault(Action.RESET, times=None)

    for _ in range(3):
        caller = await callers.connect()
        caller.send(b"a\n")
        with pytest.raises(ConnectionResetError):
            await caller.read()

    assert fault.hits == 3


async def test_a_request_can_be_cut_before_the_upstream_has_it(
    proxy: TcpProxy, callers: Callers, upstream: Upstream
) -> None:
    proxy.plan.request = Fault(Action.RESET)
    caller = await callers.connect()

    caller.send(b"hello\n")

    with pytest.raises(ConnectionResetError):
        await caller.read()
    await eventually(lambda: upstream.ends == ["reset"])
    assert upstream.received == []


async def test_a_request_can_be_cut_right_behind_its_head(
    proxy: TcpProxy, callers: Callers, upstream: Upstream
) -> None:
    proxy.plan.request = Fault(Action.CLOSE, when=b"head\n")
    caller = await callers.connect()

    caller.send(b"head\nbody\n")

    await eventually(lambda: upstream.ends == ["closed"])
    assert upstream.received == [b"head\n"]


@pytest.mark.parametrize("action", [Action.RESET, Action.CLOSE])
async def test_a_client_can_be_cut_off_while_the_upstream_works_on(
    proxy: TcpProxy, callers: Callers, upstream: Upstream, action: Action
) -> None:
    proxy.plan.reply = Fault(action, side=Side.CLIENT)
    caller = await callers.connect()

    caller.send(b"count 9000000\nlast\n")

    if action is Action.RESET:
        with pytest.raises(ConnectionResetError):
            await caller.read()
    else:
        assert await caller.read() == b""
    await eventually(lambda: upstream.received == [b"count 9000000\n", b"last\n"])
    assert upstream.ends == []


async def test_a_held_reply_closes_nothing_and_can_be_released(
    proxy: TcpProxy, callers: Callers, upstream: Upstream
) -> None:
    proxy.plan.reply = Fault(Action.HOLD, after=4)
    caller = await callers.connect()

    caller.send(b"hello\n")
    assert await caller.read_exactly(4) == b"re: "
    assert await caller.hears_nothing()
    assert upstream.received == [b"hello\n"]
    assert upstream.ends == []

    proxy.release()
    assert await caller.read_exactly(6) == b"hello\n"


async def test_a_held_request_arrives_late_although_its_sender_has_gone(
    proxy: TcpProxy, callers: Callers, upstream: Upstream
) -> None:
    proxy.plan.hold_request = True
    caller = await callers.connect()
    caller.send(b"hello\n")
    assert await caller.hears_nothing()
    caller.writer.close()
    await asyncio.sleep(A_WHILE)
    assert upstream.received == []
    assert upstream.ends == []

    proxy.plan.hold_request = False

    await eventually(lambda: upstream.received == [b"hello\n"] and len(upstream.ends) == 1)


async def test_the_plan_can_change_under_an_open_connection(proxy: TcpProxy, callers: Callers) -> None:
    caller = await callers.connect()
    caller.send(b"a\n")
    assert await caller.read() == b"re: a\n"

    proxy.plan = Plan(hold_reply=True)
    caller.send(b"b\n")
    assert await caller.hears_nothing()

    proxy.plan = Plan()
    assert await caller.read() == b"re: b\n"


async def test_bytes_can_be_delayed_in_each_direction(proxy: TcpProxy, callers: Callers) -> None:
    proxy.plan = Plan(delay_request=0.06, delay_reply=0.05)
    caller = await callers.connect()
    start = time.monotonic()

    caller.send(b"a\n")

    assert await caller.read() == b"re: a\n"
    assert time.monotonic() - start > 0.1


async def test_all_connections_can_be_cut_at_once(proxy: TcpProxy, callers: Callers, upstream: Upstream) -> None:
    both = [await callers.connect() for _ in range(2)]
    for caller in both:
        caller.send(b"a\n")
        await caller.read()

    assert proxy.cut() == 2

    for caller in both:
        with pytest.raises(ConnectionResetError):
            await caller.read()
    await eventually(lambda: upstream.ends == ["reset", "reset"])
    assert proxy.live == []


async def test_a_request_can_reach_the_upstream_twice(proxy: TcpProxy, callers: Callers, upstream: Upstream) -> None:
    duplicate = proxy.plan.duplicate = Duplicate(match=b"POST")
    caller = await callers.connect()
    first = b"GET / HTTP/1.1\r\n\r\nPOST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n"
    second = b"body\nGET / HTTP/1.1\r\n\r\nPOST / HTTP/1.1\r\n\r\n"

    caller.send(first)
    await eventually(lambda: proxy.connections[0].request.forwarded == len(first))
    caller.send(second)

    lines = (first + second).splitlines(keepends=True)
    replies = b"".join(b"re: " + line for line in lines)
    assert await caller.read_exactly(len(replies)) == replies
    assert await caller.hears_nothing()
    async with asyncio.timeout(PATIENCE):
        await duplicate.answered.wait()
    # The first POST, body included, and nothing else.
    await eventually(lambda: len(upstream.received) == len(lines) + 4)
    assert upstream.received.count(b"body\n") == 2
    assert duplicate.hits == 1


async def test_a_second_request_can_come_when_the_connection_of_the_first_is_gone(
    proxy: TcpProxy, callers: Callers, upstream: Upstream
) -> None:
    proxy.plan = Plan(duplicate=Duplicate(delay=A_WHILE), reply=Fault(Action.RESET))
    caller = await callers.connect()

    caller.send(b"POST / HTTP/1.1\r\n\r\n")

    with pytest.raises(ConnectionResetError):
        await caller.read()
    assert upstream.received == [b"POST / HTTP/1.1\r\n", b"\r\n"]
    await eventually(lambda: len(upstream.received) == 4)


@given(st.lists(st.binary(max_size=6), max_size=6), st.binary(min_size=1, max_size=3))
def test_a_marker_is_found_however_the_stream_is_cut(chunks: list[bytes], marker: bytes) -> None:
    finder = Finder(marker)
    place = None
    seen = 0
    for chunk in chunks:
        found = finder.feed(chunk)
        if found is not None:
            place = seen + found
            break
        seen += len(chunk)

    expected = b"".join(chunks).find(marker)

    assert place == (None if expected < 0 else expected + len(marker))
