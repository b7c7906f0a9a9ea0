"""A TCP proxy that misbehaves on request: the network of the fault tests.

Example:
    async with TcpProxy("127.0.0.1", engine_port) as network:
        network.plan.reply = Fault(Action.RESET, when=b"POST /command")
        ...  # talk to network.url: the reply to the first such request never arrives
        assert network.plan.reply.hits == 1

Requests flow from the client to the upstream, replies back. All connections go by `proxy.plan`, which may be
changed or replaced at any time, but for those that were given a plan of `proxy.next_plans` when they came.
"""

import asyncio
import contextlib
import socket
import struct
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tests.support.http_requests import RequestSplitter
from tests.support.network_plan import Action, Duplicate, Fault, PlaceSearch, Plan, Side
from tests.support.ports import LOOPBACK, free_port

__all__ = ["Action", "Connection", "Duplicate", "Fault", "Plan", "Side", "TcpProxy"]

READ_SIZE = 65_536

CHUNKS_KEPT = 64
"""Chunks of `READ_SIZE` at most that a connection takes from a sender while nothing is forwarded."""

POLL_INTERVAL = 0.005
"""Seconds between two looks at whether a direction is still held."""


class TcpProxy:
    """Listens on loopback, and forwards to the upstream as the plan says."""

    def __init__(self, upstream_host: str, upstream_port: int) -> None:
        self.plan = Plan()
        self.next_plans: deque[Plan] = deque()
        """Plans for the next connections, one each."""

        self.connections: list[Connection] = []
        """All that were accepted, in their order."""

        self.upstream = (upstream_host, upstream_port)
        """May be changed: connections that come later go there."""

        self.host = LOOPBACK
        self.port = free_port()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._errors: list[BaseException] = []

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop_listening()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._errors and error is None:
            raise self._errors[0]

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def live(self) -> "list[Connection]":
        """The connections that have not ended."""
        return [connection for connection in self.connections if not connection.ended]

    async def listen(self) -> None:
        """Accepts connections (again)."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, self.host, self.port)

    async def stop_listening(self) -> None:
        """Refuses new connections, as a port does on which nobody listens. Those that are open stay."""
        if self._server is not None:
            self._server.close()
            self._server = None
            await asyncio.sleep(0)

    def cut(self, action: Action = Action.RESET) -> int:
        """Ends all live connections; says how many there were."""
        live = self.live
        for connection in live:
            connection.end(action)
        return len(live)

    def release(self) -> None:
        """Lets everything flow again that a fault or the plan held."""
        self.plan.hold_request = self.plan.hold_reply = False
        for connection in self.connections:
            connection.request.held = connection.reply.held = False

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        plan = self.next_plans.popleft() if self.next_plans else None
        connection = Connection(self, plan, reader, writer)
        self.connections.append(connection)
        self.start(connection)

    def start(self, work: "Connection | RequestCopy") -> None:
        """Runs something until it ends, or until the proxy does."""
        task = asyncio.create_task(work.run())
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._errors.append(error)


@dataclass(eq=False)
class Way:
    """One direction of a connection."""

    held: bool = False
    """A `HOLD` sets it; whoever sets it to False lets the bytes flow again."""

    forwarded: int = 0
    """Bytes that went through."""

    search: PlaceSearch | None = None
    met: Fault | None = None
    """The fault that has hit; none hits a connection twice."""


class Connection:
    """A client's connection, and its counterpart to the upstream."""

    def __init__(
        self, proxy: TcpProxy, plan: Plan | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.ended = False
        self.request = Way()
        self.reply = Way()
        self._proxy = proxy
        self._plan = plan
        self._client_reader = reader
        self._client = writer
        self._upstream: asyncio.StreamWriter | None = None
        self._gone: set[asyncio.StreamWriter] = set()
        self._splitter = RequestSplitter()
        self._copy: RequestCopy | None = None

    @property
    def plan(self) -> Plan:
        """The plan that it goes by at this moment."""
        return self._plan or self._proxy.plan

    def end(self, action: Action, side: Side = Side.BOTH) -> None:
        """Ends it with `RESET` or `CLOSE`. What has not been forwarded by now never is."""
        self.ended = True
        for writer in (self._client, self._upstream if side is Side.BOTH else None):
            if writer is None or writer in self._gone:
                continue
            self._gone.add(writer)
            if action is Action.RESET:
                _reset(writer)
            else:
                _send_end(writer)

    async def run(self) -> None:
        """Forwards in both directions until both have ended."""
        try:
            if self.plan.refuse:
                self.end(Action.RESET)
                return
            try:
                reader, upstream = await asyncio.open_connection(*self._proxy.upstream)
            except OSError:
                self.end(Action.RESET)
                return
            self._upstream = upstream
            requests: asyncio.Queue[bytes | None] = asyncio.Queue(CHUNKS_KEPT)
            replies: asyncio.Queue[bytes | None] = asyncio.Queue(CHUNKS_KEPT)
            async with asyncio.TaskGroup() as group:
                group.create_task(_receive(self._client_reader, requests))
                group.create_task(_receive(reader, replies))
                group.create_task(self._forward(self.request, requests, self._client, upstream))
                group.create_task(self._forward(self.reply, replies, upstream, self._client))
        finally:
            self.ended = True
            for writer in (self._client, self._upstream):
                if writer is not None:
                    writer.close()

    async def _forward(
        self,
        way: Way,
        received: asyncio.Queue[bytes | None],
        source: asyncio.StreamWriter,
        target: asyncio.StreamWriter,
    ) -> None:
        """Forwards what was received to the target, and throws it away where the target is gone."""
        while True:
            content = await received.get()
            if delay := self.plan.delay_request if way is self.request else self.plan.delay_reply:
                await asyncio.sleep(delay)
            await self._while_held(way, target)
            if content:
                if target not in self._gone:
                    await self._deliver(way, content, target)
                continue
            if source not in self._gone and target not in self._gone:
                if content is None:
                    self.end(Action.RESET)
                else:
                    _send_end(target)
            return

    async def _while_held(self, way: Way, target: asyncio.StreamWriter) -> None:
        while target not in self._gone:
            if not (way.held or (self.plan.hold_request if way is self.request else self.plan.hold_reply)):
                return
            await asyncio.sleep(POLL_INTERVAL)

    async def _deliver(self, way: Way, content: bytes, target: asyncio.StreamWriter) -> None:
        """Forwards the bytes up to the place of a fault, and lets the fault happen there."""
        place = None
        if search := self._search(way):
            start = search.arm(content) if way is self.request else 0
            found = search.find(content[start:])
            place = None if found is None else start + found
        if search is None or place is None:
            await self._write(way, content, target)
            return
        if content[:place]:
            await self._write(way, content[:place], target)
        fault = way.met = search.fault
        fault.hits += 1
        fault.happened.set()
        if fault.action is not Action.HOLD:
            self.end(fault.action, fault.side)
            return
        way.held = True
        await self._while_held(way, target)
        if content[place:] and target not in self._gone:
            await self._write(way, content[place:], target)

    def _search(self, way: Way) -> PlaceSearch | None:
        """The search for the fault that the plan has for this direction, if it can still hit."""
        fault = self.plan.request if way is self.request else self.plan.reply
        if fault is None or fault.spent or fault is way.met:
            return None
        if way.search is None or way.search.fault is not fault:
            way.search = PlaceSearch(fault)
        return way.search

    async def _write(self, way: Way, content: bytes, target: asyncio.StreamWriter) -> None:
        if way is self.request:
            if search := self._search(self.reply):
                search.arm(content)
            self._duplicate(content)
        way.forwarded += len(content)
        target.write(content)
        try:
            await target.drain()
        except ConnectionError:
            self.end(Action.RESET)

    def _duplicate(self, content: bytes) -> None:
        """Gives the parts of requests that are sent twice to their copies."""
        for part in self._splitter.feed(content):
            wanted = self.plan.duplicate
            if part.head and wanted and not wanted.spent and wanted.match in part.content:
                wanted.hits += 1
                self._copy = RequestCopy(self._proxy.upstream, wanted)
                self._proxy.start(self._copy)
            if self._copy:
                self._copy.send(part.content)
                if part.last:
                    self._copy = None


class RequestCopy:
    """One request on its second way to the upstream. It does not depend on the client's connection."""

    def __init__(self, upstream: tuple[str, int], wanted: Duplicate) -> None:
        self._upstream = upstream
        self._wanted = wanted
        self._parts: asyncio.Queue[bytes] = asyncio.Queue()

    def send(self, content: bytes) -> None:
        self._parts.put_nowait(content)

    async def run(self) -> None:
        """Sends the parts as they come, until the upstream closes the connection or the proxy ends."""
        await asyncio.sleep(self._wanted.delay)
        try:
            reader, writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            return
        sending = asyncio.create_task(self._send(writer))
        try:
            while await reader.read(READ_SIZE):
                self._wanted.answered.set()
        except ConnectionError:
            pass
        finally:
            sending.cancel()
            writer.close()

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(await self._parts.get())


async def _receive(reader: asyncio.StreamReader, received: asyncio.Queue[bytes | None]) -> None:
    """Takes what a side sends; at its end b"", or None where it was reset.

    This goes on while nothing is forwarded: bytes that were sent are had, even when the sender has gone.
    """
    try:
        while content := await reader.read(READ_SIZE):
            await received.put(content)
    except ConnectionError:
        await received.put(None)
    else:
        await received.put(b"")


def _reset(writer: asyncio.StreamWriter) -> None:
    """Closes with RST: a linger time of zero throws away what was not sent."""
    connection: socket.socket = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _send_end(writer: asyncio.StreamWriter) -> None:
    """Sends FIN behind what was written. The other direction stays open."""
    if not writer.is_closing():
        with contextlib.suppress(OSError):
            writer.write_eof()
