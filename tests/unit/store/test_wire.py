"""A connection to Redis: its replies belong to what was asked, or it is given up."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import ClassVar

import hiredis
import pytest
from redis.asyncio import ConnectionPool
from redis.exceptions import ConnectionError, NoScriptError, ReadOnlyError, ResponseError

from service.errors import StoreUnavailable
from service.store import urls
from service.store.redis_client import RedisClient
from service.store.urls import server
from service.store.wire import Wire
from tests.support.waiting import PATIENCE

Answer = Callable[[list[bytes]], bytes]


class Stub(asyncio.Protocol):
    """One connection of a server that takes redis-py's greetings and answers everything else with what it is told."""

    open: ClassVar[list["Stub"]] = []

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._commands = hiredis.Reader()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.open.append(self)

    def data_received(self, data: bytes) -> None:
        self._commands.feed(data)
        while (command := self._commands.gets()) is not False:
            self.transport.write(b"+OK\r\n" if command[0] == b"CLIENT" else self._answer(command))

    def connection_lost(self, exc: Exception | None) -> None:
        self.open.remove(self)


@asynccontextmanager
async def redis(answer: Answer) -> AsyncIterator[str]:
    """The URL of such a server; its connections end by themselves."""
    listening = await asyncio.get_running_loop().create_server(lambda: Stub(answer), "127.0.0.1", 0)
    async with listening:
        yield f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}/0"
        async with asyncio.timeout(PATIENCE):
            while Stub.open:
                await asyncio.sleep(0)


@asynccontextmanager
async def wire_to(answer: Answer) -> AsyncIterator[Wire]:
    async with redis(answer) as url:
        client = server(url, 1).open()
        pool = client.connection_pool  # type: ignore[union-attr]
        assert isinstance(pool, ConnectionPool)
        wire = await Wire.open(pool)
        yield wire
        wire.close()
        await client.aclose()


async def test_replies_come_in_the_order_of_the_commands() -> None:
    async with wire_to(lambda command: b"$1\r\n%b\r\n" % command[1]) as wire:
        assert await wire.ask([("GET", str(n)) for n in range(9)]) == [b"%d" % n for n in range(9)]
        assert await wire.ask([("GET", 7)]) == [b"7"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("NOSCRIPT No matching script.", NoScriptError),
        ("READONLY You can't write", ReadOnlyError),
        ("OOM command not allowed", ResponseError),
        ("ERR wrong", ResponseError),
    ],
)
async def test_an_error_is_a_reply_that_says_its_word(text: str, kind: type[Exception]) -> None:
    async with wire_to(lambda _: f"-{text}\r\n".encode()) as wire:
        (answer,) = await wire.ask([("GET", "x")])
        assert type(answer) is kind
        assert str(answer) == text
        assert not wire.lost


@pytest.mark.parametrize("data", [b"HTTP/1.1 200 OK\r\n\r\n", b"+OK\r\n+OK\r\n+OK\r\n"], ids=["no RESP", "too many"])
async def test_what_is_no_reply_to_what_was_asked_ends_the_connection(data: bytes) -> None:
    async with wire_to(lambda _: data) as wire:
        with pytest.raises(ConnectionError):
            await wire.ask([("GET", "x"), ("GET", "y")])
        assert wire.lost
        with pytest.raises(ConnectionError):
            await wire.ask([("GET", "x")])


@pytest.mark.parametrize("stray", [b"$5\r\nstray\r\n", b"$5\r\nst"], ids=["whole", "begun"])
async def test_bytes_that_come_unasked_are_never_the_next_reply(stray: bytes) -> None:
    bugs: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: bugs.append(told))
    async with redis(lambda command: b"$1\r\n%b\r\n" % command[1]) as url:
        link = RedisClient(server(url, 1), max_connections=1)
        assert await link.command("GET", "x") == b"x"
        (kept,) = link._idle
        Stub.open[0].transport.write(stray)
        async with asyncio.timeout(PATIENCE):
            while not kept.lost:
                await asyncio.sleep(0)
        assert await link.command("GET", "y") == b"y"
        await link.close()
    assert not bugs, "it is closed on purpose"


async def test_a_connection_that_owes_nothing_is_not_given_up_for_its_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)
    async with wire_to(lambda _: b"+OK\r\n") as wire:
        await wire.ask([("GET", "x")])
        now += 2 * urls.REPLY_TIMEOUT
        for _ in range(3):  # what is due is done
            await asyncio.sleep(0)
        assert await wire.ask([("GET", "x")]) == [b"OK"]


async def test_another_servers_connections_are_left_once_a_new_master_is_known() -> None:
    async with redis(lambda _: b"+one\r\n") as one, redis(lambda _: b"+two\r\n") as two:
        link = RedisClient(server(one, 2), max_connections=2)
        old = await link._wire()
        former, link.client = link.client, server(two, 2).open()
        made = await link._wire()
        link._idle += [made, old]
        assert await link.command("GET", "x") == b"two"
        assert old.lost
        await link.close()
        await former.aclose()


async def test_what_can_not_be_reached_is_unavailable() -> None:
    async with redis(lambda _: b"+OK\r\n") as url:
        gone = url
    link = RedisClient(server(gone, 1), max_connections=1)
    with pytest.raises(StoreUnavailable, match="reached"):
        await link.command("GET", "x")
    await link.close()
