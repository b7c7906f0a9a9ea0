"""Connections of callers: bounded in number, and freed as soon as nothing can come of them.

HTTP/1.1 and ASGI are Hypercorn's (``H11Protocol``, ``HTTPStream``). This stands in place of its ``worker_serve`` and
``TCPServer``, of which these would be all overrides:

- A connection that its caller closed is freed at once; there it keeps its descriptor until the idle timeout.
- A caller that closed only its own side still gets its answer: the application is told, and may go on writing.
- Who writes to a caller that is gone gets an ``OSError``; there nothing is said, and work goes on for nobody.
- There are at most ``limit`` connections. Above that the longest idle one makes room, or callers wait to be accepted.
- Being out of descriptors is said once in a while and not at each try.
- At the end no connection is accepted that nobody will look after: asyncio's servers lose those that come just then.
- An answer of which nothing is taken for long is broken off.
- What goes wrong in a connection is one short line, and not a traceback: strangers could write any number of them.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import traceback
from typing import TYPE_CHECKING, Any, cast

from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.task_group import TaskGroup
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.typing import ConnectionState

from service.server.http1 import Http1
from service.server.seldom import Seldom

if TYPE_CHECKING:
    import socket
    from collections.abc import Coroutine

    from starlette.types import ASGIApp

KEEP_ALIVE_SECONDS = 75
"""For the head of a request to come, on new and on kept connections: longer than balancers keep theirs
(60 s), so that it is they who close."""
LINGER_SECONDS = 2.0
"""For the caller to read the last answer and close, before a connection on which it still sends is closed: what is not
read when that happens makes the kernel take the answer back."""
TAKEN_SECONDS = 30.0
"""For a piece of an answer to be taken: who takes nothing must not keep what others need."""
ABORT_SECONDS = 2.0
"""For work that was cancelled to end."""
HEAD_BYTES = 32 * 1024
"""Of a request's line and headers."""
MAX_CONNECTIONS = 10_000
DESCRIPTORS = 65_536
"""The soft limit of open files that ``raise_descriptors`` asks for."""
ACCEPTED_AT_ONCE = 4
"""Connections in one turn of the event loop: each new one makes the next turns longer for all others."""
PAUSE_SECONDS = 0.2
"""Between two tries to accept where there is no room."""
IDLE_SECONDS = 1.0
"""After which a connection without a request may be closed to make room: on a younger one it may be on its way."""
MESSAGES = 3
"""Of a request that wait for the application: as many as there are without a body. Its end, ``tell``, and the
connection's end."""
_READ = 64 * 1024
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = logging.getLogger("oncebox")


def raise_descriptors() -> None:
    """Raise the soft limit of open files, as far as the hard one lets it and any use was found for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connection_limit() -> int:
    """How many connections leave half of the descriptors to the engine, to Redis and to files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(1, min(MAX_CONNECTIONS, soft // 2))


def hypercorn_config() -> Config:
    """What Hypercorn's protocol is told."""
    config = Config()
    config.accesslog = None  # costs more than a third of the throughput; ``Edge`` writes the line
    config.errorlog = logging.getLogger("hypercorn.error")
    config.include_server_header = False
    config.keep_alive_max_requests = 1_000_000_000  # the default closes busy clients' connections
    config.h11_max_incomplete_size = HEAD_BYTES
    # Bytes that the application has not asked for stay with their sender: ``Body`` bounds only what it has read. Where
    # it reads a body no further, ``Edge`` does until the end, for which there would be no place in the queue.
    config.max_app_queue_size = MESSAGES
    return config


class Connections:
    """Accepts on ``listener``, which listens already and is closed here at the end. ``limit``: see above."""

    def __init__(self, app: ASGIApp, listener: socket.socket, *, limit: int | None = None) -> None:
        self.app = ASGIWrapper(cast(Any, app))  # Hypercorn's types of ASGI messages are its own
        self.config = hypercorn_config()
        self.context = WorkerContext(None)
        self.limit = connection_limit() if limit is None else limit
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._idle: dict[Connection, float] = {}
        """Since when; the longest idle first."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting = False
        self._full = Seldom(log, logging.WARNING)
        self._exhausted = Seldom(log, logging.ERROR)
        self._trouble = Seldom(log, logging.ERROR)

    def open(self) -> None:
        """Begin to accept."""
        self._listener.setblocking(False)
        self._resume()

    async def close(self, grace: float) -> None:
        """Accept no more; let those finish that are at work, for ``grace`` seconds at most, and end them all.

        What waits in the kernel's queue is reset, which callers take for what it is: nobody read their request.
        """
        self._pause()
        self._listener.close()
        await self.context.terminated.set()
        # Those too that were accepted in this very turn, and are not served yet.
        await asyncio.sleep(0)
        for connection in list(self._idle):
            connection.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        await self.abort()

    async def abort(self) -> None:
        """End everything at once; again is fine. What does not end when it is cancelled holds nobody up."""
        self._pause()
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=ABORT_SECONDS)

    # -- called by connections

    def became_idle(self, connection: Connection) -> None:
        """No request is under way on it."""
        self._idle[connection] = self._loop.time()
        if self.context.terminated.is_set():
            connection.close()

    def tell_trouble(self, error: BaseException) -> None:
        """What nobody expected of a connection."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        where = traceback.extract_tb(error.__traceback__)[-1]
        self._trouble.say("a connection failed: %s in %s, line %s", type(error).__name__, where.name, where.lineno)

    def became_busy(self, connection: Connection) -> None:
        """It has a request, or has ended."""
        self._idle.pop(connection, None)

    # -- accepting

    def _resume(self) -> None:
        if not self._accepting and self._listener.fileno() >= 0 and not self.context.terminated.is_set():
            self._accepting = True
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _pause(self) -> None:
        if self._accepting:
            self._accepting = False
            self._loop.remove_reader(self._listener.fileno())

    def _accept(self) -> None:
        if len(self._tasks) >= self.limit:
            self._full.say("%d connections, the most that there may be: others wait", self.limit)
            self._make_room()
        for _ in range(min(ACCEPTED_AT_ONCE, self.limit - len(self._tasks))):
            try:
                accepted, address = self._listener.accept()
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._exhausted.say("can't accept connections: %s", error.strerror)
                    self._make_room()
                return
            task = self._loop.create_task(self._serve(accepted, address))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _make_room(self) -> None:
        """The longest idle connection ends; accepting goes on when one has, and is tried again soon."""
        self._pause()
        self._loop.call_later(PAUSE_SECONDS, self._resume)
        longest, since = next(iter(self._idle.items()), (None, 0.0))
        if longest is not None and self._loop.time() - since >= IDLE_SECONDS:
            longest.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if len(self._tasks) < self.limit:
            self._resume()

    async def _serve(self, accepted: socket.socket, address: Any) -> None:
        try:
            connection = await Connection.on(self, accepted, _host_and_port(address))
        except OSError:  # it has ended already
            accepted.close()
            return
        try:
            await connection.serve()
        except Exception as error:  # noqa: BLE001 - told
            self.tell_trouble(error)
        finally:
            self.became_busy(connection)


class Connection:
    """One connection, from its acceptance until its descriptor is free."""

    def __init__(self, server: Connections, reader: asyncio.StreamReader, client: tuple[str, int] | None) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._reader = reader
        self._client = client
        self._wire: _Wire
        self._writer: asyncio.StreamWriter
        self._http: Http1 | None = None
        self._reading: asyncio.Task[None] | None = None
        self._telling: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None
        """By the loop's clock: when it is closed, if nothing comes until then."""
        self._closing: asyncio.TimerHandle | None = None
        """Cuts it off, if what was sent last is never taken."""
        self._no_more = False
        self._ending = False
        self._lost = asyncio.Event()

    @classmethod
    async def on(cls, server: Connections, accepted: socket.socket, client: tuple[str, int] | None) -> Connection:
        """Raises ``OSError`` where it has ended already."""
        accepted.setblocking(False)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_READ // 4, loop=loop)
        connection = cls(server, reader, client)
        wire = connection._wire = _Wire(reader, connection)
        transport, _ = await loop.connect_accepted_socket(lambda: wire, accepted)
        transport.max_size = _READ  # type: ignore[attr-defined]  # of one read; asyncio takes four times as much
        connection._writer = asyncio.StreamWriter(transport, wire, reader, loop)
        return connection

    async def serve(self) -> None:
        """Its requests, one after the other, until it is closed. Cancelled, it is cut off."""
        try:
            await self._requests()
            self.close()
            await self._lost.wait()
        finally:
            for timer in (self._timer, self._closing):
                if timer is not None:
                    timer.cancel()
            self._writer.transport.abort()

    async def _requests(self) -> None:
        address = _host_and_port(self._writer.get_extra_info("sockname"))
        try:
            async with TaskGroup(self._loop) as group:
                self._http = Http1(
                    self._server.app,
                    self._server.config,
                    self._server.context,
                    group,
                    ConnectionState({}),
                    False,
                    self._client,
                    address,
                    self._send,
                    write=self._write,
                )
                self._http.no_more = self._no_more
                self._wait_for_head()
                self._reading = asyncio.create_task(self._read(self._http))
                try:
                    await asyncio.wait({self._reading})
                finally:
                    self._reading.cancel()
                if not self._reading.cancelled():
                    self._reading.result()
        except* OSError:
            pass  # it was cut off under the application's hands

    async def _read(self, http: Http1) -> None:
        try:
            while data := await self._reader.read(_READ):
                if not self._ending:
                    await http.handle(RawData(data))
        except OSError:
            pass
        if not http.is_whole:
            await http.handle(Closed())

    async def _send(self, event: Event) -> None:
        """What the protocol wants: bytes to be sent, or the end. Raises ``OSError`` once the caller is gone or takes
        nothing."""
        if isinstance(event, RawData):
            if event.data:
                self._write(event.data)
                if self._wire.is_full:
                    try:
                        async with asyncio.timeout(TAKEN_SECONDS):
                            await self._writer.drain()
                    except TimeoutError:
                        self._writer.transport.abort()
                        raise
        elif isinstance(event, Closed):
            self._end()
        elif isinstance(event, Updated):
            if event.idle:
                self._wait_for_head()
            else:
                self._due = None
                self._server.became_busy(self)

    def _write(self, data: bytes) -> None:
        if self._ending or self._writer.is_closing():
            raise ConnectionResetError("the connection is closed")
        self._writer.write(data)

    def _wait_for_head(self) -> None:
        self._close_in(KEEP_ALIVE_SECONDS)
        self._server.became_idle(self)

    def _close_in(self, seconds: float) -> None:
        self._due = self._loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(self._due, self._look_at_the_clock)

    def _look_at_the_clock(self) -> None:
        """One timer for all of its requests: what is due may have been put off since."""
        self._timer = None
        if self._due is not None and self._due <= self._loop.time():
            self.close()
        elif self._due is not None:
            self._close_in(self._due - self._loop.time())

    def _end(self) -> None:
        """Nothing is sent any more: the caller gets to read what was."""
        if self._ending or self._writer.is_closing():
            return
        self._ending = True
        try:
            self._writer.write_eof()
        except OSError:
            self.close()
            return
        if self._no_more:
            self.close()
            return
        self._close_in(LINGER_SECONDS)
        self._server.became_idle(self)

    def close(self) -> None:
        """Close it: there is no request under way."""
        self._server.became_busy(self)
        self._writer.close()
        if self._writer.transport.get_write_buffer_size() and not self._closing:
            self._closing = self._loop.call_later(TAKEN_SECONDS, self._writer.transport.abort)

    # -- called by the wire

    def no_more(self) -> None:
        """The caller has closed its side, or all of it: which, the first answer that is sent will show."""
        self._no_more = True
        if self._ending:
            self.close()
        elif self._http is not None:
            self._http.no_more = True
            self._soon(self._http.tell())

    def lost(self) -> None:
        """There is nobody any more, and no descriptor."""
        self._lost.set()
        if self._reading is not None:
            self._reading.cancel()
        if self._http is not None:
            self._soon(self._http.handle(Closed()))

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(self._told(work))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _told(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - told
            self._server.tell_trouble(error)


class _Wire(asyncio.StreamReaderProtocol):
    """Tells a connection of its end at once, also while nobody reads."""

    is_full = False
    """What was written has not been taken yet."""

    def __init__(self, reader: asyncio.StreamReader, connection: Connection) -> None:
        super().__init__(reader)
        self._connection = connection

    def pause_writing(self) -> None:
        """Too much waits to be taken."""
        super().pause_writing()
        self.is_full = True

    def resume_writing(self) -> None:
        """It was taken."""
        super().resume_writing()
        self.is_full = False

    def eof_received(self) -> bool | None:
        """The other side sends no more."""
        stays_open = super().eof_received()
        self._connection.no_more()
        return stays_open

    def connection_lost(self, exc: Exception | None) -> None:
        """The descriptor is free."""
        super().connection_lost(exc)
        self._connection.lost()


def _host_and_port(address: Any) -> tuple[str, int] | None:
    return (address[0], address[1]) if isinstance(address, tuple) and len(address) >= 2 else None
