"""The store on Redis: ``service.ports.store.Store`` in one class."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from service.errors import StoreUnavailable
from service.ports.store import StoreHealth
from service.store import keys
from service.store.base import call
from service.store.changes import changes
from service.store.claims import Transitions
from service.store.indexes import Indexes
from service.store.observing import PoolObserver
from service.store.redis_client import RedisClient
from service.store.slots import Slots
from service.store.urls import server

CLOCK_AGE = 10.0
"""Seconds for which the server's last word on the time is carried on."""
_PROBE_TTL = 1000
"""Milliseconds for which what ``check_writes`` wrote stands."""


class RedisStore(Transitions, Indexes, Slots):
    """Claims, what is kept beside them, and the indexes, on one Redis.

    Belongs to the event loop that it is used in.
    """

    def changes(self) -> AsyncIterator[str | None]:
        """Ids of records as they change, from every replica; None when messages may have been lost."""
        return changes(self._redis)

    async def now(self) -> int:
        """The store's time, Unix milliseconds: its last word, carried on by this process's steady clock."""
        if self._time is None or asyncio.get_running_loop().time() - self._time[0] > CLOCK_AGE:
            return self._told(await self._redis.script(call("now", (keys.LOOKS[0],))))
        at, told = self._time
        return told + round((asyncio.get_running_loop().time() - at) * 1000)

    async def health(self) -> StoreHealth:
        """What the server says of itself."""
        if self._redis.server.memory:
            return StoreHealth(version="in the process", role="master")
        info = _fields(await self._redis.parsed("INFO"))
        return StoreHealth(
            version=info.get("redis_version"),
            maxmemory_policy=info.get("maxmemory_policy"),
            persistence=await self._persistence(info),
            role=info.get("role"),
        )

    async def check_writes(self) -> None:
        """A write like that of a claim: acknowledged, where claims must be."""
        await self._redis.script(call("touch", (keys.memo("written"),), _PROBE_TTL), acknowledge=True)

    async def _persistence(self, info: dict[str, str]) -> str | None:
        if info.get("aof_enabled") == "1":
            return "aof"
        try:
            saved = await self._redis.parsed("CONFIG GET", "save")
        except StoreUnavailable:
            # Where CONFIG is closed to us, as in most managed servers.
            return None
        return "rdb" if _fields(saved).get("save") else "none"

    async def close(self) -> None:
        """Close every connection."""
        await self._redis.close()


def _fields(info: Any) -> dict[str, str]:
    """An answer as redis-py gives it: fields, or, on a cluster, fields by node."""
    by_node = [value for value in info.values() if isinstance(value, dict)]
    if by_node and len(by_node) == len(info):
        info = by_node[0]
    return {str(name): str(value) for name, value in dict(info).items()}


def open_store(
    url: str,
    *,
    retention: float,
    record_output: int,
    claim_replicas: int = 0,
    max_connections: int = 64,
    observer: PoolObserver | None = None,
) -> RedisStore:
    """A store at ``url``; nothing is connected yet.

    ``memory://`` is a server in the process, a fresh one each time. ``retention`` in seconds and ``record_output`` in
    bytes are the settings of that name. ``claim_replicas`` Redis replicas must acknowledge a new owner. At most
    ``max_connections`` commands are in flight; more wait. ``observer`` is told of them. Raises ``ValueError`` for a URL
    that is not understood.
    """
    where = server(url, max_connections)
    replicas = 0 if where.memory else claim_replicas
    redis = RedisClient(where, max_connections=max_connections, replicas=replicas, observer=observer)
    return RedisStore(redis, retention=retention, record_output=record_output)
