"""Counts what a replica asks Redis and the engine for: by Redis's own account, and by the engine's."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import redis
import redis.asyncio

from service.core.app import Core
from service.core.model import identity
from service.engine import OpenSandboxEngine
from service.store import open_store
from service.store.observing import PoolObserver
from service.store.scripts import scripts
from tests.integration.core_rig import KEY, Rig

_CONNECTION = frozenset({"HELLO", "AUTH", "CLIENT", "SELECT", "PING"})
"""What a client says when it connects."""


class Spent(msgspec.Struct, frozen=True):
    """What something took. ``trips``: writes to Redis, each of one command or of several that are sent together."""

    commands: Counter[str]
    trips: int
    calls: Counter[str]

    @property
    def counts(self) -> tuple[int, int, int]:
        """Commands, trips, engine calls."""
        return self.commands.total(), self.trips, self.calls.total()


class _Trips(PoolObserver):
    def __init__(self) -> None:
        self.count = 0

    def trip(self, seconds: float) -> None:
        self.count += 1


class Meter:
    """Counts for one replica, whose loops in the background are not running: all that is counted was asked for."""

    def __init__(self, rig: Rig, core: Core, trips: _Trips, monitor: Any) -> None:
        self._rig = rig
        self.core = core
        self._trips = trips
        self._monitor = monitor
        self._names = {script.sha: name for name, script in scripts().items()}
        self._aside = redis.Redis.from_url(rig.settings.redis_url)

    async def of(self, work: Callable[[], Awaitable[Any]], *, aftermath: bool = False) -> Spent:
        """What ``work`` takes; with ``aftermath`` all that the replica does because of it, too."""
        await self.quiet()
        await self._commands()
        self._trips.count = 0
        before = await self._calls()
        await work()
        if aftermath:
            await self.quiet()
        trips, after = self._trips.count, await self._calls()
        return Spent(await self._commands(), trips, after - before)

    async def quiet(self) -> None:
        """Wait until nothing is under way in the replica."""
        async with asyncio.timeout(60):
            while self.core.tasks._running:
                await asyncio.sleep(0.005)

    async def _calls(self) -> Counter[str]:
        found = await self._rig.dev("stats")
        return Counter({kind: count for kind, count in found.items() if kind not in ("seconds", "bytes", "outputs")})

    async def _commands(self) -> Counter[str]:
        """By name, from the last reading on; a script's own commands are part of it."""
        mark = identity.random_token()
        self._aside.echo(mark)
        found: Counter[str] = Counter()
        async with asyncio.timeout(60):
            while mark not in (said := await self._monitor.next_command())["command"]:
                words = said["command"].split(" ", 2)
                name = words[0].upper()
                if said["client_type"] == "lua" or name in _CONNECTION:
                    continue
                if name in ("EVALSHA", "EVAL"):
                    name = self._names.get(words[1], "text of a script")
                found[name] += 1
        return found


@contextlib.asynccontextmanager
async def metered(rig: Rig) -> AsyncIterator[Meter]:
    """A replica without its loops in the background, and its meter.

    Its fences have a directory of their own: sandboxes of a plain local engine share the machine's `/tmp`, which
    other tests wipe.
    """
    fences, trips = f"/tmp/oncebox-costs-{identity.random_token()}", _Trips()
    settings = msgspec.structs.replace(rig.settings, fence_dir=fences)
    store = open_store(
        settings.redis_url, retention=settings.retention, record_output=settings.record_output, observer=trips
    )
    engine = OpenSandboxEngine(settings.engine_url, api_key=KEY, proxy=settings.engine_proxy)
    core = Core(store, engine, settings)
    rig.replicas.append(core)
    aside = redis.asyncio.Redis.from_url(settings.redis_url)
    try:
        async with aside, aside.monitor() as monitor:
            yield Meter(rig, core, trips, monitor)
    finally:
        shutil.rmtree(fences, ignore_errors=True)
