"""Callers who ask for a lot and read nothing."""

import contextlib
import socket
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import psutil

RECEIVE_BUFFER = 4096
"""Bytes that the kernel takes for a caller who reads nothing."""


class UnreadAnswers:
    """Connections on which requests were sent, and whose answers nobody reads, for as long as the block lasts."""

    def __init__(self, url: str, targets: Sequence[str], *, key: str | None = None) -> None:
        parts = urlsplit(url)
        self.address = (parts.hostname or "", parts.port or 0)
        authorization = f"Authorization: Bearer {key}\r\n" if key is not None else ""
        self.requests = [f"GET {target} HTTP/1.1\r\nHost: localhost\r\n{authorization}\r\n" for target in targets]
        self.connections: list[socket.socket] = []

    def __enter__(self) -> Self:
        for request in self.requests:
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            connection.connect(self.address)
            connection.sendall(request.encode())
            self.connections.append(connection)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.leave()

    def leave(self) -> None:
        """Close all of them."""
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.close()
        self.connections = []


def grown(pid: int, before: int, seconds: float) -> int:
    """The most that a process was larger (bytes of resident memory) than ``before``, within ``seconds``."""
    process, most, until = psutil.Process(pid), 0, time.monotonic() + seconds
    while time.monotonic() < until:
        most = max(most, resident(process.pid) - before)
        time.sleep(0.02)
    return most


def resident(pid: int) -> int:
    """Bytes of a process in memory."""
    return int(psutil.Process(pid).memory_info().rss)
