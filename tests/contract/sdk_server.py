"""The fake service behind real sockets, in time that runs 250 times as fast, over a network that misbehaves."""

from __future__ import annotations

import contextlib
import random
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

from service.client.driver import Hooks
from service.client.rules import Terms
from service.client.steps import Answer, Dropped, Request
from service.client.transport import Target
from service.client.transport_async import AsyncTransport
from service.client.transport_sync import SyncTransport
from tests.unit.client.fake_service import FakeService

S = TypeVar("S", bound="SdkServer")

SPEED = 250.0
"""Seconds of the fake service in one of ours."""


def fast_clock() -> float:
    return time.monotonic() * SPEED


class _Handler(socketserver.StreamRequestHandler):
    server: SdkServer

    def handle(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while request := self._request():
                self.server.seen.append((self.client_address[1], *request[:3]))
                if not self.server.answer_to(self, *request):
                    return

    def _request(self) -> tuple[str, str, dict[str, str], bytes] | None:
        line = self.rfile.readline()
        if not line:
            return None
        method, target, _ = line.decode().split()
        headers = {}
        while (line := self.rfile.readline()) not in (b"\r\n", b""):
            name, value = line.decode().split(":", 1)
            headers[name.strip().lower()] = value.strip()
        return method, target, headers, self.rfile.read(int(headers.get("content-length", 0)))

    def hold(self) -> None:
        """Says nothing more, and closes nothing: until the other side does."""
        while self.rfile.read(1):
            pass

    def reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


class SdkServer(socketserver.ThreadingTCPServer):
    """Serves a fake service; with a seed, not always."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, service: FakeService, seed: int | None = None, rate: float = 0.3) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.service = service
        self.rng = random.Random(seed) if seed is not None else None
        self.rate = rate
        self.lock = threading.Lock()
        self.faults: list[str] = []
        self.seen: list[tuple[int, str, str, dict[str, str]]] = []
        """The client's port, and the method, target and headers, of each request."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass

    def answer_to(self, door: _Handler, method: str, target: str, headers: dict[str, str], body: bytes) -> bool:
        """Answers one request; whether the connection goes on."""
        with self.lock:
            fault = self._fault()
        if fault == "lost":
            return False
        if fault == "page":
            page = b"<html>502 Bad Gateway</html>"
            return self._send(door, Answer(502, {"content-type": "text/html"}, page))
        made = self._served(method, target, headers, body)
        if fault == "dead":
            door.hold()
            return False
        if fault == "reset":
            door.reset()
            return False
        if fault == "late":
            time.sleep(20 / SPEED)
        whole = _wire(made)
        if fault == "cut":
            door.wfile.write(whole[: len(whole) // 2])
            return False
        if fault == "unframed":
            head, _, rest = whole.replace(b"content-length", b"x-length").partition(b"\r\n\r\n")
            door.wfile.write(head + b"\r\nconnection: close\r\n\r\n" + rest[: len(rest) // 2])
            return False
        door.wfile.write(whole * (2 if fault == "doubled" else 1))
        return True

    def _fault(self) -> str | None:
        if self.rng is None or self.rng.random() > self.rate:
            return None
        kinds = ["lost", "page", "dead", "reset", "late", "cut", "unframed", "doubled"]
        self.faults.append(self.rng.choice(kinds))
        return self.faults[-1]

    def _served(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        with self.lock:
            until = self.service.waits_until(method, target, fast_clock())
        time.sleep(max(0.0, until - fast_clock()) / SPEED)
        with self.lock:
            return self.service.handle(method, target, headers, body, fast_clock())

    def _send(self, door: _Handler, made: Answer) -> bool:
        door.wfile.write(_wire(made))
        return True


def _wire(made: Answer) -> bytes:
    lines = [f"HTTP/1.1 {made.status} x"]
    lines += [f"{name}: {value}" for name, value in made.headers.items()]
    if made.status != 204:
        lines.append(f"content-length: {len(made.body)}")
    return "\r\n".join([*lines, "", ""]).encode() + made.body


@contextlib.contextmanager
def serving(server: S) -> Iterator[S]:
    """The server, while the block lasts."""
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class FastSync(SyncTransport):
    def send(self, request: Request) -> Answer | Dropped:
        return super().send(replace(request, read_timeout=request.read_timeout / SPEED))


class FastAsync(AsyncTransport):
    async def send(self, request: Request) -> Answer | Dropped:
        return await super().send(replace(request, read_timeout=request.read_timeout / SPEED))


def fast_hooks() -> Hooks:
    """Hooks for a client whose time runs as fast as the service's, over the real transports."""
    import asyncio

    async def async_sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / SPEED)

    def sync_transport(target: Target) -> FastSync:
        return FastSync(target)

    def async_transport(target: Target) -> FastAsync:
        return FastAsync(target)

    return Hooks(
        terms=Terms(clock=fast_clock),
        sleep=lambda seconds: time.sleep(seconds / SPEED),
        async_sleep=async_sleep,
        sync_transport=sync_transport,
        async_transport=async_transport,
    )
