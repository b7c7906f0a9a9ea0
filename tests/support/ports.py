"""Free TCP ports on loopback."""

import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"

LOWEST_PORT = 12_000
"""Below it stand the default ports of common services."""

BLOCK = 100
"""Ports that a process takes for itself at a time."""

_left: list[int] = []
"""Ports that are ours, and were not handed out."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on, never the same one twice.

    No other process that asks here is given it, so a server may bind it later, and leave it and come back. It lies
    below the range from which the kernel takes source ports. In that range a client that connects to a dead server
    again and again can meet itself, and a server that restarts can find its port taken.
    """
    while True:
        if not _left:
            _left.extend(_own_block())
        port = _left.pop()
        if _can_bind(port):
            return port


def _own_block() -> list[int]:
    """The ports of a block that no living process has."""
    firsts = list(range(LOWEST_PORT, _first_source_port() - BLOCK + 1, BLOCK))
    random.shuffle(firsts)
    for first in firsts:
        taken = socket.socket(socket.AF_UNIX)
        try:
            taken.bind(f"\0oncebox-tests-ports-{first}")
        except OSError:
            taken.close()
            continue
        taken.detach()  # stays bound until this process ends, however it ends
        return random.sample(range(first, first + BLOCK), BLOCK)
    raise RuntimeError("no free port found")


def _first_source_port() -> int:
    """Where the kernel's source ports begin; where they begin too low to leave room, that is ignored."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        return 32_768
    return first if first >= LOWEST_PORT + 2_000 else 60_000


def _can_bind(port: int) -> bool:
    with socket.socket() as candidate:
        # As servers do: a connection of a former owner in TIME_WAIT does no harm.
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
