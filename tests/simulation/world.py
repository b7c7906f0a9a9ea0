"""A simulated world: replicas of the real core on a simulated Redis and a simulated engine, callers, and a plan."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar, cast
from unittest import mock

from service.core.app import Core
from service.core.model.labels import RESERVED
from service.ports.engine import Engine
from service.settings import Settings
from tests.simulation.callers import Caller
from tests.simulation.client import SimClient
from tests.simulation.engine import SimEngine
from tests.simulation.history import AnyEvent, Begun, Inventory, Living, Quiet, StoreLost
from tests.simulation.history import Fault as Noted
from tests.simulation.inventory import kept
from tests.simulation.loop import Host, VirtualLoop
from tests.simulation.network import Dropped, Network, Weather
from tests.simulation.plan import Fault, Plan
from tests.simulation.redis import Snapshot
from tests.simulation.store import Node, store_of

T = TypeVar("T")

SETTLED = 300.0
"""Seconds after the last trouble within which everything settles: a job's time, a grace, and a rare poll."""
CALL_TIMEOUT = 60.0
"""Seconds for which a caller waits for an answer."""


class Replica:
    """A replica, and its lives so far."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.life = 0
        self.host: Host
        self.core: Core | None = None
        self.calls: dict[asyncio.Future[Any], None] = {}
        self.start()

    @property
    def name(self) -> str:
        """As the network knows it."""
        return f"replica{self.number}"

    def start(self) -> None:
        """A new process."""
        self.life += 1
        world = self.world
        self.host = Host(self.name, world.loop)
        world.hosts.append(self.host)
        self.host.start(self._run(), "replica")

    async def _run(self) -> None:
        world = self.world
        store = store_of(world.node, self.host, world.settings)
        engine = SimClient(world.engine, world.network, self.host)
        core = Core(store, cast(Engine, engine), world.settings, owner=f"{self.name}-{self.life}")
        world.cores.append(core)
        await core.start()
        self.core = core

    def kill(self) -> None:
        """As SIGKILL: who waits for an answer hears of a broken connection."""
        self.host.kill()
        self.core = None
        for answer in list(self.calls):
            if not answer.done():
                answer.set_exception(Dropped("the connection broke"))
        self.calls.clear()


class World:
    """All of it, at one moment of virtual time."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = VirtualLoop()  # type: ignore[abstract]
        self.hosts: list[Host] = []
        self.cores: list[Core] = []
        self.settings = Settings(redis_url="redis://sim", engine_url="http://sim", lease=5.0, claim_wait=10.0)
        self.network = Network(self.rng("network"))
        self.node = Node(self.loop, self.rng("redis"))
        self.engine = SimEngine(self.loop, self.rng("engine"), tell=self.tell)
        self.history: list[AnyEvent] = []
        self.over = False
        self.submissions = 0
        self.stuck: list[str] = []
        self.replicas: list[Replica] = []
        self._call_rng = self.rng("calls")

    def rng(self, name: str) -> random.Random:
        """Chance of one part alone: what another part draws changes nothing for it."""
        return random.Random(f"{name} {self.plan.seed}")

    def tell(self, event: AnyEvent) -> None:
        """Write the history on."""
        if not self.over:
            self.history.append(event)

    # -- calls of callers

    async def call(self, replica: Replica, name: str, work: Callable[[Core], Awaitable[T]]) -> T:
        """Call a replica. Raises ``Dropped``, and what the use case raises."""
        rng, loop = self._call_rng, self.loop
        await asyncio.sleep(rng.uniform(0.0005, 0.003))
        core, host = replica.core, replica.host
        if core is None or not host.alive:
            raise Dropped("the connection was refused")
        answer: asyncio.Future[T] = loop.create_future()
        replica.calls[answer] = None
        lost = rng.random() < self.network.at("callers").lost
        delay = rng.uniform(0.0005, 0.003)

        def told(done: asyncio.Task[T]) -> None:
            if done.cancelled() or (done.exception() is not None and lost) or lost:
                return
            loop.at(loop.now + delay, settle, done)

        def settle(done: asyncio.Task[T]) -> None:
            error = done.exception()
            if answer.done():
                return
            if error is None:
                answer.set_result(done.result())
            else:
                answer.set_exception(error)

        async def serve() -> T:
            return await work(core)

        task = host.start(serve(), name)
        host_less(loop, task.add_done_callback, told)
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                return await answer
        except TimeoutError as error:
            raise Dropped("no answer in time") from error
        finally:
            replica.calls.pop(answer, None)

    # -- faults

    def begin(self, fault: Fault) -> None:
        """A trouble begins; it ends by itself."""
        who = self.replicas[fault.who].name
        self.tell(Noted(at=self.loop.now, until=self.loop.now + fault.lasts, what=fault.kind, who=who))
        getattr(self, f"_{fault.kind}")(fault)

    def _later(self, fault: Fault, what: Callable[..., None], *args: Any) -> None:
        self.loop.at(self.loop.now + fault.lasts, what, *args)

    def _kill(self, fault: Fault) -> None:
        replica = self.replicas[fault.who]
        if replica.host.alive:
            replica.kill()
            self._later(fault, replica.start)

    def _kill_at_step(self, fault: Fault) -> None:
        replica = self.replicas[fault.who]
        if replica.host.alive:
            replica.host.at_step = (replica.host.steps + 1 + int(fault.size * 400), lambda: self._kill(fault))

    def _freeze(self, fault: Fault) -> None:
        host = self.replicas[fault.who].host
        host.freeze()
        self._later(fault, host.thaw)

    def _redis_restart(self, fault: Fault) -> None:
        if self.node.up:
            data = self.node.redis.snapshot()
            self.node.crash()
            self._later(fault, self._redis_back, data)

    def _redis_flush(self, fault: Fault) -> None:
        if self.node.up:
            self.node.crash()
            self.tell(StoreLost(at=self.loop.now))
            self._later(fault, self._redis_back, None)

    def _redis_back(self, data: Snapshot | None) -> None:
        self.node.start(data)

    def _redis_cut(self, fault: Fault) -> None:
        self.node.cut(self.replicas[fault.who].name)

    def _weather(self, fault: Fault) -> None:
        level = 0.3 * fault.size
        self.network.weather = Weather(lost=level / 2, cut=level, doubled=level, late=level, latency=0.01)
        self._later(fault, self._fair)

    def _fair(self) -> None:
        self.network.weather = Weather()

    # -- a run

    async def _calm(self) -> None:
        """No trouble any more, and everybody is there."""
        self.tell(Quiet(at=self.loop.now))
        self._fair()
        for replica in self.replicas:
            replica.host.thaw()
            replica.host.at_step = None
            if not replica.host.alive and replica.core is None:
                replica.start()
        if not self.node.up:
            self.node.start(self.node.redis.snapshot())

    def _settled(self) -> bool:
        """Nothing is under way in the store."""
        return not any(key.endswith(b":looks") for key in self.node.redis.names())

    async def main(self) -> None:
        self.tell(Begun(at=0.0, seed=self.plan.seed, what="simulated", settled=SETTLED))
        self.replicas = [Replica(self, number) for number in range(self.plan.replicas)]
        callers = [Caller(self, each) for each in self.plan.callers]
        tasks = []
        for caller in callers:
            self.hosts.append(caller.host)
            tasks.append(caller.host.start(caller.run(), f"caller {caller.plan.number}"))
        for fault in self.plan.faults:
            self.loop.at(fault.at, self.begin, fault)
        await asyncio.sleep(self.plan.seconds)
        await self._calm()
        done, left = await asyncio.wait(tasks, timeout=SETTLED) if tasks else ((), ())
        for task in done:
            task.result()
        for task in left:
            self.stuck.append(task.get_name())
        for _ in range(int(SETTLED)):
            if self._settled():
                break
            await asyncio.sleep(1.0)
        for box in self.engine.boxes.values():
            for process in list(box.processes.values()):
                process.tell(None, None)
        self.tell(self._inventory())

    def _inventory(self) -> Inventory:
        living = tuple(
            Living(sandbox=box.id, digest=box.spec.metadata.get(f"{RESERVED}idem", ""))
            for box in self.engine.boxes.values()
        )
        return Inventory(at=self.loop.now, kept=tuple(kept(self.node.redis)), living=living)


def host_less(loop: VirtualLoop, work: Callable[..., Any], *args: Any) -> None:
    """Call something as the world itself."""
    import contextvars

    contextvars.Context().run(work, *args)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """All chance in the product comes from this seed, while the block lasts."""
    before = random.getstate()
    rng = random.Random(f"tokens {seed}")

    def token(length: int = 16) -> str:
        return rng.randbytes(length).hex()

    random.seed(f"product {seed}")
    try:
        with mock.patch.object(secrets, "token_hex", token):
            yield
    finally:
        random.setstate(before)


def run(plan: Plan) -> World:
    """The world of a plan, from its beginning to its end."""
    with seeded(plan.seed):
        world = World(plan)
        try:
            world.loop.run_until_complete(world.main())
        finally:
            world.over = True
            world.loop.end([*world.hosts, *world.engine.hosts])
    return world
