"""The end of serving, with an application of a few lines."""

import asyncio
import contextlib
import socket
from types import SimpleNamespace
from typing import Any

from service.server.listening import UNSENT, bind
from service.server.replica import Replica
from tests.support.waiting import PATIENCE

GRACE = 2 * PATIENCE


class Application:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answer = asyncio.Event()

    def stop_waiting(self) -> None:
        pass

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for name in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{name}.complete"})
            return
        self.asked.set()
        await self.answer.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def nothing(*_: object) -> None:
    """Stands for what is closed at the end."""


async def ended(connection: socket.socket) -> bool:
    """Nobody keeps the other end of the connection open."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(GRACE / 2):
            while await loop.sock_recv(connection, 4096):
                pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def connect_until_refused(address: tuple[str, int], connections: list[socket.socket]) -> None:
    """Add to ``connections``, each with a request."""
    while len(connections) < 400:
        try:
            connections.append(socket.create_connection(address))
            connections[-1].sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        except ConnectionError:
            return


async def test_a_connection_that_is_accepted_at_the_moment_of_the_stop_is_not_left_open() -> None:
    listener = bind("127.0.0.1", 0)
    listener.listen(100)
    address = listener.getsockname()
    app: Any = Application()
    replica: Any = Replica.__new__(Replica)
    replica.settings = SimpleNamespace(shutdown_grace=GRACE)
    replica.app, replica._listener, replica._stop = app, listener, asyncio.Event()
    replica.core, replica.observability = SimpleNamespace(shutdown=nothing), SimpleNamespace(close=nothing)
    serving = asyncio.create_task(replica.serve())
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await app.asked.wait()

    late: list[socket.socket] = []
    callers = [asyncio.create_task(asyncio.to_thread(connect_until_refused, address, late)) for _ in range(2)]
    while len(late) < 20:
        await asyncio.sleep(0.001)
    app.answer.set()
    replica.stop()
    await asyncio.gather(*callers)
    assert late
    for connection in late:
        connection.setblocking(False)
    assert await asyncio.gather(*map(ended, late)) == [True] * len(late)
    assert (await reader.readline()).startswith(b"HTTP/1.1 204")
    writer.close()
    await serving
    for connection in late:
        connection.close()


def test_the_kernel_takes_little_for_a_caller_who_reads_nothing() -> None:
    listener = bind("127.0.0.1", 0)
    listener.listen()
    with listener, socket.create_connection(listener.getsockname()) as caller, listener.accept()[0] as served:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        served.setblocking(False)
        taken = 0
        with contextlib.suppress(BlockingIOError):
            while taken < 64 * 1024 * 1024:
                taken += served.send(b"x" * 65_536)
        assert 0 < taken < 64 * 1024 * 1024
        assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == UNSENT
