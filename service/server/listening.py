"""The socket that a replica listens on, and the line that says where."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading

import msgspec

BACKLOG = 2048
"""Connections that wait to be accepted: with a short queue a burst of hundreds waits for resends."""
UNSENT = 128 * 1024
"""Bytes that the kernel takes for a caller who reads nothing; by itself it takes some 3 MiB for each."""
STALLED_SECONDS = 90
"""Without a sign of life, after which a connection is cut off: its reader takes nothing, or is gone."""

log = logging.getLogger("oncebox")


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A bound TCP socket that cuts off stalled connections. ``shared``: others may have the port too."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Accepted connections inherit these.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, seconds in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
            if hasattr(socket, name):
                listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_SECONDS * 1000)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener


def url_of(listener: socket.socket) -> str:
    """Where a bound socket is reached from this machine."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def announce(url: str) -> None:
    """Say, on standard output, that ``url`` is served; in a thread, for a pipe that nobody reads."""
    line = msgspec.json.encode({"url": url}) + b"\n"
    sys.stdout.flush()
    threading.Thread(target=_print, args=(sys.stdout.fileno(), line), name="announce", daemon=True).start()


def _print(descriptor: int, line: bytes) -> None:
    try:
        os.write(descriptor, line)
    except OSError as error:
        log.warning("standard output took no line: %s", error.strerror)
