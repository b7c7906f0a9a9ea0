"""Names looked up once for all who ask at the same time, and remembered for some seconds."""

import asyncio
import socket
from ipaddress import ip_address

from aiohappyeyeballs import AddrInfoType

TTL = 10.0
"""Seconds that an address of a name is remembered."""
MOST = 1000
"""Names."""


class Names:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[float, list[AddrInfoType]]] = {}
        self._under_way: dict[tuple[str, int], asyncio.Task[list[AddrInfoType]]] = {}

    async def addresses(self, host: str, port: int) -> list[AddrInfoType]:
        """Raises ``OSError`` where there are none."""
        if (literal := _literal(host, port)) is not None:
            return [literal]
        known = self._known.get((host, port))
        if known is not None and asyncio.get_running_loop().time() - known[0] <= TTL:
            return known[1]
        if (task := self._under_way.get((host, port))) is None:
            task = self._under_way[host, port] = asyncio.ensure_future(self._look_up(host, port))
            task.add_done_callback(lambda done: self._found(host, port, done))
        return await asyncio.shield(task)

    async def _look_up(self, host: str, port: int) -> list[AddrInfoType]:
        loop = asyncio.get_running_loop()
        try:
            return list(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except UnicodeError as error:
            raise OSError(f"no name: {error}") from error

    def _found(self, host: str, port: int, done: asyncio.Task[list[AddrInfoType]]) -> None:
        self._under_way.pop((host, port), None)
        if done.cancelled() or done.exception() is not None:
            return
        self._known[host, port] = (asyncio.get_running_loop().time(), done.result())
        while len(self._known) > MOST:
            self._known.pop(next(iter(self._known)))


def _literal(host: str, port: int) -> AddrInfoType | None:
    try:
        version = ip_address(host.partition("%")[0]).version
    except ValueError:
        return None
    if version == 4:
        return (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))
    return None if "%" in host else (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port, 0, 0))
