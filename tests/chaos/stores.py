"""The Redis of a chaos run: one server, a master with a replica and Sentinel, or a Cluster; and what befalls each."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import redis

from tests.chaos.recorder import Recorder
from tests.simulation.history import StoreLost
from tests.support.redis_server import (
    SERVICE_NAME,
    Option,
    RedisCluster,
    RedisServer,
    SentinelProcess,
)
from tests.support.waiting import eventually

DURABLE: dict[str, Option] = {"appendonly": True, "appendfsync": "always"}

Trouble = Callable[[], "contextlib.AbstractAsyncContextManager[None]"]


class Store:
    """One server on a durable log."""

    name = "alone"
    claim_replicas = 0

    def __init__(self, folder: Path, recorder: Recorder, rng: random.Random) -> None:
        self.servers = [RedisServer(folder / "redis", **DURABLE)]
        self.recorder = recorder
        self.rng = rng

    @property
    def url(self) -> str:
        """For a replica of the service."""
        return self.servers[0].url

    @property
    def first(self) -> RedisServer:
        return self.servers[0]

    async def start(self) -> None:
        """Starts all of it."""
        for server in self.servers:
            await asyncio.to_thread(server.start)

    def stop(self) -> None:
        """Ends all of it."""
        for server in self.servers:
            server.kill()

    async def heal(self) -> None:
        """All servers run, and none is frozen, full or a replica of nobody."""
        for server in self.servers:
            server.resume()
            if not server.alive:
                await asyncio.to_thread(server.start)

    def masters(self) -> Sequence[RedisServer]:
        """Where the data are."""
        return self.servers

    def troubles(self) -> dict[str, Trouble]:
        """What may befall it, by name."""
        return {"killed": self.killed, "frozen": self.frozen, "emptied": self.emptied, "full": self.full}

    def lost(self, *, everything: bool) -> None:
        """Data is lost now, or was a moment ago."""
        self.recorder.add(StoreLost(at=self.recorder.now(), everything=everything))

    def _one(self) -> RedisServer:
        return self.rng.choice(self.servers)

    @contextlib.asynccontextmanager
    async def killed(self) -> AsyncIterator[None]:
        """Dead; back with its data."""
        server = self._one()
        server.resume()
        server.kill()
        yield
        if not server.alive:
            await asyncio.to_thread(server.start)

    @contextlib.asynccontextmanager
    async def frozen(self) -> AsyncIterator[None]:
        """It answers nothing."""
        server = self._one()
        if server.alive:
            server.pause()
        yield
        server.resume()

    @contextlib.asynccontextmanager
    async def emptied(self) -> AsyncIterator[None]:
        """All data is gone."""
        self.lost(everything=True)
        with contextlib.suppress(redis.RedisError), self._one().client(timeout=5) as client:
            await asyncio.to_thread(client.flushall)
        self.lost(everything=True)
        yield

    @contextlib.asynccontextmanager
    async def full(self) -> AsyncIterator[None]:
        """Out of memory under noeviction."""
        server = self._one()
        await self._set(server, "1mb")
        yield
        await self._set(server, "0")

    async def _set(self, server: RedisServer, memory: str) -> None:
        with contextlib.suppress(redis.RedisError), server.client(timeout=5) as client:
            await asyncio.to_thread(client.config_set, "maxmemory", memory)


class SentinelStore(Store):
    """A master and a replica, a Sentinel, and claims that the replica must acknowledge."""

    name = "sentinel"
    claim_replicas = 1

    def __init__(self, folder: Path, recorder: Recorder, rng: random.Random) -> None:
        super().__init__(folder, recorder, rng)
        options: dict[str, Option] = {**DURABLE, "repl_diskless_sync_delay": 0}
        master = RedisServer(folder / "master", **options)
        self.servers = [master, RedisServer(folder / "replica", replicaof=f"{master.host} {master.port}", **options)]
        self.sentinel = SentinelProcess(folder / "sentinel", master)

    @property
    def url(self) -> str:
        return f"redis+sentinel://{self.sentinel.address}/{SERVICE_NAME}/0"

    async def start(self) -> None:
        await super().start()
        await asyncio.to_thread(self.sentinel.start)
        await self._in_step()

    def stop(self) -> None:
        self.sentinel.kill()
        super().stop()

    async def heal(self) -> None:
        await super().heal()
        self.sentinel.resume()
        if not self.sentinel.alive:
            await asyncio.to_thread(self.sentinel.start)
        await self._in_step()

    async def _in_step(self) -> None:
        """One master, and a replica that follows it."""
        await eventually(lambda: sorted(filter(None, map(role, self.servers))) == ["master", "slave"], timeout=120)

    def masters(self) -> Sequence[RedisServer]:
        return [server for server in self.servers if role(server) == "master"]

    def troubles(self) -> dict[str, Trouble]:
        return {
            "killed": self.failing_over(self.killed),
            "frozen": self.failing_over(self.frozen),
            "emptied": self.emptied,
            "failover": self.failing_over(self.failover),
        }

    def failing_over(self, trouble: Trouble) -> Trouble:
        """What the new master had not heard of is lost, but for acknowledged claims."""

        @contextlib.asynccontextmanager
        async def happening() -> AsyncIterator[None]:
            self.lost(everything=False)
            async with trouble():
                yield
            self.lost(everything=False)

        return happening

    @contextlib.asynccontextmanager
    async def failover(self) -> AsyncIterator[None]:
        """An operator's; until the old master hears of it, it takes writes that are lost."""
        with contextlib.suppress(redis.RedisError), self.sentinel.client(timeout=5) as client:
            await asyncio.to_thread(client.execute_command, "SENTINEL", "FAILOVER", SERVICE_NAME)
        yield

    def _one(self) -> RedisServer:
        masters = self.masters()
        return masters[0] if masters else super()._one()


class ClusterStore(Store):
    """A Cluster of three masters on durable logs."""

    name = "cluster"

    def __init__(self, folder: Path, recorder: Recorder, rng: random.Random) -> None:
        super().__init__(folder, recorder, rng)
        self.cluster = RedisCluster(folder / "cluster", appendonly=True, appendfsync="always")
        self.servers = self.cluster.nodes

    @property
    def url(self) -> str:
        return self.cluster.url

    async def start(self) -> None:
        await asyncio.to_thread(self.cluster.__enter__)


def role(server: RedisServer) -> str | None:
    """``master`` or ``slave``, as it says itself; None: it does not answer."""
    with contextlib.suppress(redis.RedisError), server.client(timeout=2) as client:
        return str(client.info("replication")["role"])
    return None


STORES: dict[str, type[Store]] = {kind.name: kind for kind in (Store, SentinelStore, ClusterStore)}
