"""One chaos run: a world of real processes, callers, troubles, quiet, and the history of it all."""

import asyncio
import contextlib
import json
import random
import shutil
import tempfile
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.chaos import inventory
from tests.chaos.callers import TENANTS, ChaosCaller, tenants_file
from tests.chaos.recorder import Recorder, executions
from tests.chaos.stores import STORES, Store
from tests.chaos.troubles import Troubles
from tests.faults.execd_rig import ExecdRig, OneSandbox
from tests.faults.rig import OWNER, EngineProcess, Rig
from tests.simulation.history import Begun, Call, EngineReads, Quiet, Quota
from tests.support.ports import LOOPBACK
from tests.support.processes import Spawner
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import eventually

SETTLED = 150.0
"""Seconds after the last trouble within which everything settles: what is unknown is looked for once a minute, and a
machine that has more to do than it can gives everybody less.
"""
LEASE = 2.0


@dataclass(frozen=True)
class World:
    """What one run is made of. ``execd``: the URL of a real one; None: the local engine."""

    store: str
    seed: str
    seconds: float
    callers: int = 12
    replicas: int = 3
    execd: str | None = None


class ChaosRig(ExecdRig):
    """The rig of the fault tests on any of the stores."""

    async def start_world(self, world: World, store: Store) -> None:
        """Starts everything, and waits until every replica is ready."""
        await store.start()
        url = store.url
        if world.execd is None:
            self._engine = await asyncio.to_thread(EngineProcess, self._spawn, self._folder / "engine", ())
            self._engine_net = await TcpProxy(LOOPBACK, self._engine.port).__aenter__()
        else:
            self._execd = world.execd.rstrip("/")
            parts = urllib.parse.urlsplit(self._execd)
            self._engine_net = await TcpProxy(str(parts.hostname), parts.port or 80).__aenter__()
            self._lifecycle = OneSandbox(f"{LOOPBACK}:{self._engine_net.port}{parts.path}")
            await self._lifecycle.start()
        if world.store == "alone":
            self._redis_net = await TcpProxy(LOOPBACK, store.first.port).__aenter__()
            url = f"redis://{LOOPBACK}:{self._redis_net.port}/0"
        self._redis = store.first
        tenants = self._folder / "tenants.toml"
        tenants.write_text(tenants_file())
        env = {
            "ONCEBOX_REDIS_URL": url,
            "ONCEBOX_CLAIM_REPLICAS": str(store.claim_replicas),
            "ONCEBOX_TENANTS": str(tenants),
            "ONCEBOX_LEASE": str(LEASE),
            "ONCEBOX_FENCE_DIR": f"/tmp/oncebox-chaos-{self._folder.name}",
        }
        for number in range(world.replicas):
            self.add_replica(f"replica{number}", env)
        for replica in self.replicas:
            replica.launch()
        await asyncio.gather(*(replica.ready() for replica in self.replicas))

    def engine_settings(self) -> dict[str, str]:
        return super().engine_settings() if self._engine is None else Rig.engine_settings(self)

    @property
    def directory(self) -> Path:
        return self.engine.volume_root / OWNER / "workspace"

    @property
    def place(self) -> str:
        if self._engine is None:
            return super().place
        return "/workspace" if self.engine.private else str(self.directory)

    def ledger(self) -> str:
        """What the commands wrote down."""
        if self._engine is None:
            return self.downloaded()
        return self._ledger.read_text() if self._ledger.exists() else ""

    async def make_ledger(self) -> None:
        """Where the commands of a real execd find it."""
        if self._engine is None:
            form = aiohttp.FormData()
            meta = json.dumps({"path": f"{self.place}/ledger"})
            form.add_field("metadata", meta, filename="metadata", content_type="application/json")
            form.add_field("file", b"", filename="ledger")
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{self._execd}/files/upload", data=form) as made,
            ):
                made.raise_for_status()

    async def heal(self, store: Store) -> None:
        """No trouble any more, and everybody is there."""
        await store.heal()
        for network in filter(None, (self._engine_net, self._redis_net)):
            network.release()
            network.plan.duplicate = network.plan.reply = None
            network.plan.delay_request = network.plan.delay_reply = 0.0
            await network.listen()
        if self._engine is not None:
            await self.forget_faults()
        for replica in self.replicas:
            if replica.process.alive:
                replica.thaw()
            else:
                replica.launch()
        await asyncio.gather(*(replica.ready() for replica in self.replicas))


async def run(world: World, folder: Path, spawn: Spawner, say: Callable[[str], None]) -> Recorder:
    """The history of one world. ``say``: for progress."""
    recorder = Recorder()
    rng = random.Random(f"{world.seed} {world.store}")
    quotas = tuple(Quota(tenant, jobs) for tenant, jobs in TENANTS.items() if jobs is not None)
    what = f"chaos {world.store}, seed {world.seed}, {'local engine' if world.execd is None else 'real execd'}"
    recorder.add(Begun(at=0.0, what=what, settled=SETTLED, quotas=quotas))
    store = STORES[world.store](folder / "store", recorder, rng)
    rig = ChaosRig(spawn, folder)
    try:
        async with rig:
            await rig.start_world(world, store)
            say(f"{what}: {world.replicas} replicas, {world.callers} callers, {world.seconds:.0f} s")
            lines: dict[str, int] = {}
            await _load(world, rig, store, recorder, rng, lines, say)
            recorder.add(*executions(rig.ledger(), recorder.began, lines))
    finally:
        store.stop()
        if world.execd is not None and hasattr(rig, "_lifecycle"):
            await rig.stop()
        shutil.rmtree(f"/tmp/oncebox-chaos-{folder.name}", ignore_errors=True)
    return recorder


async def _load(
    world: World, rig: ChaosRig, store: Store, recorder: Recorder, rng: random.Random, lines: dict[str, int],
    say: Callable[[str], None],
) -> None:  # fmt: skip
    await rig.make_ledger()
    callers = [ChaosCaller(rig, recorder, number, world.seed, lines) for number in range(world.callers)]
    troubles = Troubles(rig, store, recorder, rng, lambda: [id for caller in callers for id in caller.sandboxes])
    tasks = [asyncio.create_task(caller.run()) for caller in callers]
    making = asyncio.create_task(troubles.run())
    sampling = asyncio.create_task(_sample(rig, recorder, callers))
    await asyncio.wait([making, *tasks], timeout=world.seconds, return_when=asyncio.FIRST_EXCEPTION)
    troubles.stop.set()
    await making
    await rig.heal(store)
    recorder.add(Quiet(at=recorder.now()))
    quiet = recorder.now()
    for caller in callers:
        caller.stop.set()
        caller.deadline = quiet + SETTLED + 60.0
    say(f"quiet at {quiet:.0f} s, {_counts(recorder)}")
    await asyncio.gather(*tasks)
    ids = [id for caller in callers for id in caller.ids]
    await _look_again(callers, ids, recorder, quiet)
    sampling.cancel()
    recorder.add(await inventory.taken(recorder, store, rig))


async def _sample(rig: ChaosRig, recorder: Recorder, callers: list[ChaosCaller]) -> None:
    """How often the engine was asked, once a second, for ever."""
    while rig._engine is not None:
        at = recorder.now()
        answer = await rig.caller.send("GET", f"{rig.engine.url}/_dev/stats", patience=10.0)
        if answer.status == 200:
            counts, active = answer.body, sum(caller.following for caller in callers)
            reads = counts["outputs"] + counts["log"]
            recorder.add(EngineReads(at=at, states=counts["status"], outputs=reads, active=active))
        await asyncio.sleep(1.0)


async def _look_again(callers: list[ChaosCaller], ids: list[str], recorder: Recorder, quiet: float) -> None:
    """Once everything must have settled: every job's end, by its owner and by somebody else; and the lists."""
    await eventually(lambda: recorder.now() > quiet + SETTLED, timeout=SETTLED + 60.0)
    owners = {id: caller for caller in callers for id in caller.ids}
    few = asyncio.Semaphore(16)

    async def look(id: str, number: int) -> None:
        async with few:
            await owners[id].follow(id)
            if number % 5 == 0:
                stranger = next(caller for caller in callers if caller.tenant != owners[id].tenant)
                await stranger.look_at(id)

    for caller in callers:
        caller.deadline = float("inf")
    await asyncio.gather(*(look(id, number) for number, id in enumerate(ids)))
    await asyncio.gather(*(caller.list() for caller in callers[: len(TENANTS)]))


def _counts(recorder: Recorder) -> str:
    calls = [event for event in recorder.events if isinstance(event, Call)]
    answers = Counter(call.status for call in calls)
    submits = {call.mark for call in calls if call.mark}
    return f"{len(submits)} jobs asked for, {len(calls)} calls: {dict(sorted(answers.items()))}"


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """A folder for everything."""
    with tempfile.TemporaryDirectory(prefix="oncebox-chaos-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
