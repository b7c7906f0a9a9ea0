"""The way from a replica to a simulated Redis: redis-py and the product's own wire on streams in memory.

Bytes of one connection stay in order, as TCP keeps them; they are late, or cut off anywhere. What a host had written
before it was killed still arrives, what it had not written does not.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import hiredis
from redis.asyncio import Connection, ConnectionPool
from redis.asyncio import Redis as Client

from service.settings import Settings
from service.store import RedisStore, urls
from service.store.redis_client import RedisClient
from tests.simulation.loop import Host
from tests.simulation.redis import OK, Redis, Refusal, Reply, Snapshot, Status

CONNECTIONS = 64
EPOCH = 1_700_000_000.0
"""Unix seconds when the world begins."""


class Clock(Protocol):
    """Of an event loop what connections need: the world's time, seconds, and what is due at one."""

    @property
    def now(self) -> float:
        """Seconds from the beginning."""
        ...

    def at(self, when: float, callback: Callable[..., Any], *args: Any) -> Any:
        """Call something at a time."""
        ...

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any) -> Any:
        """Call something in its context."""
        ...


class Node:
    """A Redis server, and who is connected."""

    def __init__(self, loop: Clock, rng: random.Random) -> None:
        self.loop = loop
        self.rng = rng
        self.up = True
        self.lives = 1
        self.slow = 0.0
        """Seconds that each of its answers takes longer."""
        self.ahead = 0.0
        """Seconds by which its wall clock is ahead."""
        self.redis = Redis(self.wall, self._published)
        self.silent: set[str] = set()
        """Hosts that hear nothing from it, and it nothing from them: their packets are lost without a word."""
        self._streams: dict[Stream, None] = {}
        self.commands = 0

    def wall(self) -> float:
        """Its wall clock, Unix seconds."""
        return EPOCH + self.loop.now + self.ahead

    def latency(self) -> float:
        """Seconds for a message on its way, one way."""
        return self.rng.uniform(0.0001, 0.001)

    # -- what happens to it

    def crash(self) -> None:
        """It is gone: whoever is connected is cut off."""
        self.up = False
        self.cut()

    def start(self, data: Snapshot | None) -> None:
        """It is there again, with this data."""
        self.redis.restart(data)
        self.lives += 1
        self.up = True

    def cut(self, host: str | None = None) -> None:
        """Break the connections (of one host)."""
        for stream in list(self._streams):
            if host is None or stream.host.name == host:
                stream.break_off()

    # -- connections

    async def connect(self, host: Host) -> Stream:
        """A connection. Raises ``ConnectionRefusedError``; takes for ever where nothing comes through."""
        if host.name in self.silent:
            await asyncio.Event().wait()
        await asyncio.sleep(self.latency())
        if not self.up:
            raise ConnectionRefusedError(111, "Connection refused")
        stream = Stream(self, host)
        self._streams[stream] = None
        return stream

    def gone(self, stream: Stream) -> None:
        """A connection has ended."""
        self._streams.pop(stream, None)

    def serve(self, stream: Stream, args: list[bytes]) -> None:
        """Execute one command and answer it."""
        self.commands += 1
        if args[0].upper() == b"SUBSCRIBE":
            stream.channels.update(args[1:])
            stream.answer([b"subscribe", args[1], len(stream.channels)])
        elif args[0].upper() == b"PING" and stream.channels:
            stream.answer([b"pong", b""])
        else:
            stream.answer(self.redis.execute(args))

    def _published(self, channel: bytes, message: bytes) -> int:
        heard = [stream for stream in self._streams if channel in stream.channels]
        for stream in heard:
            stream.answer([b"message", channel, message])
        return len(heard)


class Stream(asyncio.Transport):
    """One connection, as the client's end of it."""

    def __init__(self, node: Node, host: Host) -> None:
        super().__init__()
        self.node = node
        self.host = host
        self.channels: set[bytes] = set()
        self._protocol: asyncio.BaseProtocol | None = None
        self._reader = hiredis.Reader(replyError=Refusal)
        self._open = True
        self._out = self._back = 0.0
        """When the last bytes arrive there, and here."""
        self._coming: deque[bytes] = deque()
        self._going: deque[bytes] = deque()
        """What is on its way: two arrivals may be due at one moment, and whichever is first brings the older bytes."""
        self._context = host.run(contextvars.copy_context)

    # -- what asyncio and redis-py ask of a transport

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def is_closing(self) -> bool:
        return not self._open

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: Any) -> None:
        if not self._open or self.host.name in self.node.silent:
            return
        self._out = max(self._out, self.node.loop.now + self.node.latency())
        self._going.append(bytes(data))
        self.node.loop.at(self._out, self._arrived)

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        """Closed by the client: what it wrote is still read."""
        if self._open:
            self._open = False
            self.node.gone(self)
            self._tell(self._lost, None)

    # -- the other end

    def _arrived(self) -> None:
        data = self._going.popleft()
        if not self.node.up:
            return
        self._reader.feed(data)
        while (args := self._reader.gets()) is not False:
            self.node.serve(self, args)

    def answer(self, reply: Reply) -> None:
        """Send a reply, or a message."""
        if not self._open or self.host.name in self.node.silent:
            return
        now = self.node.loop.now + self.node.slow
        self._back = max(self._back, now + self.node.latency())
        self._coming.append(encode(reply))
        self.node.loop.at(self._back, self._tell, self._received)

    def break_off(self) -> None:
        """Cut: what is on its way back is lost."""
        if self._open:
            self._open = False
            self.node.gone(self)
            self._tell(self._lost, ConnectionResetError(104, "Connection reset by peer"))

    def _tell(self, what: Callable[..., None], *args: Any) -> None:
        """Something that the client's host notices, when it takes its next step."""
        self.node.loop.call_soon(what, *args, context=self._context)

    def _received(self) -> None:
        data = self._coming.popleft()
        if self._open and isinstance(self._protocol, asyncio.Protocol):
            self._protocol.data_received(data)

    def _lost(self, error: Exception | None) -> None:
        if self._protocol is not None:
            self._protocol.connection_lost(error)


def encode(reply: Reply) -> bytes:
    """A reply on the wire."""
    match reply:
        case None:
            return b"$-1\r\n"
        case Status():
            return b"+%b\r\n" % reply
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(reply), reply)
        case int():
            return b":%d\r\n" % reply
        case Refusal():
            return b"-%b\r\n" % str(reply).encode()
    return b"*%d\r\n%b" % (len(reply), b"".join(map(encode, reply)))


class SimConnection(Connection):
    """redis-py's connection, on a stream in memory."""

    def __init__(self, *, node: Node, owner: Host, **options: Any) -> None:
        super().__init__(host="redis", port=6379, driver_info=None, **options)
        self._node = node
        self._owner = owner

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self.socket_connect_timeout):
            stream = await self._node.connect(self._owner)
        reader = asyncio.StreamReader(limit=2**16, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        protocol.connection_made(stream)
        stream.set_protocol(protocol)
        self._reader, self._writer = reader, Writer(stream, protocol, reader, loop)

    def __del__(self, *args: Any) -> None:
        """A killed process closes nothing, and nobody is warned."""


class Writer(asyncio.StreamWriter):
    """A stream that may be left open."""

    def __del__(self, *args: Any) -> None:
        """See `SimConnection`."""


def store_of(node: Node, host: Host, settings: Settings) -> RedisStore:
    """The product's store for a replica: all of it but the socket."""

    def client(connections: int) -> Client:
        options = urls._settings(connections)
        return Client.from_pool(ConnectionPool(connection_class=SimConnection, node=node, owner=host, **options))

    server = urls.Server(cluster=False, open=lambda: client(CONNECTIONS), subscriber=lambda _: client(1))
    redis = RedisClient(server, max_connections=CONNECTIONS, replicas=settings.claim_replicas)
    return RedisStore(redis, retention=settings.retention, record_output=settings.record_output)


__all__ = ["EPOCH", "OK", "Node", "store_of"]
