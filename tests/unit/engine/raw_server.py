"""A server that does to a connection exactly what a test says, and counts what arrives."""

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

Behaviour = Callable[["Arrived", asyncio.StreamWriter], Awaitable[None]]


class Arrived:
    """One request, read whole."""

    def __init__(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.body = body

    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


class RawServer:
    """Listens on loopback; `behave` gets each request and the connection. Requests that it answered
    with a `Connection: close` or not at all leave the connection closed.
    """

    def __init__(self, behave: Behaviour) -> None:
        self.behave = behave
        self.requests: list[Arrived] = []
        self.connections = 0
        self.open_now = 0
        self.open_most = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def address(self) -> str:
        """`host:port`."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    @property
    def url(self) -> str:
        """The address with its scheme."""
        return f"http://{self.address}"

    def count(self, method: str, target: str) -> int:
        """How many requests arrived whose target begins with `target`."""
        return sum(each.method == method and each.target.startswith(target) for each in self.requests)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open_now += 1
        self.open_most = max(self.open_most, self.open_now)
        try:
            while not writer.is_closing():
                self.requests.append(request := await _read_request(reader))
                await self.behave(request, writer)
                await writer.drain()
                if request.headers.get("connection") == "close":
                    break
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open_now -= 1
            self._tasks.discard(task)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def _read_request(reader: asyncio.StreamReader) -> Arrived:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Arrived(method, target, headers, body)


def reply(
    status: int,
    body: bytes | str | dict[str, Any] | list[Any] = b"",
    content_type: str | None = None,
    **headers: str,
) -> bytes:
    """A whole response; underscores in header names stand for hyphens."""
    if isinstance(body, (dict, list)):
        body, content_type = json.dumps(body).encode(), content_type or "application/json"
    elif isinstance(body, str):
        body = body.encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
    if content_type:
        lines.append(f"Content-Type: {content_type}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def stream_head(**headers: str) -> bytes:
    """The head of an event stream in chunks."""
    extra = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return (f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n{extra}\r\n").encode()


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; an empty one is its end."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def reset(writer: asyncio.StreamWriter) -> None:
    """Close the connection with a RST."""
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
