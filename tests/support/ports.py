"""Free TCP ports on loopback."""

import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"

LOWEST_PORT = 12_000
"""Below it stand the default ports of common services."""

_handed_out: set[int] = set()


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on, never the same one twice in a process.

    It lies below the range from which the kernel takes source ports. In that range a client that connects
    to a dead server again and again can meet itself, and a server that restarts can find its port taken.
    """
    for _ in range(1000):
        port = random.randrange(LOWEST_PORT, _first_source_port())
        if port not in _handed_out and _can_bind(port):
            _handed_out.add(port)
            return port
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
