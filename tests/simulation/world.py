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
from service.ports.engine import Engine
from service.settings import Settings
from tests.simulation.callers import Caller
from tests.simulation.client import SimClient
from tests.simulation.engine import SimEngine
from tests.simulation.history import AnyEvent, Begun, Inventory, Living, Quiet, StoreLost
from tests.simulation.inventory import kept
from tests.simulation.loop import Host, VirtualLoop
from tests.simulation.network import Dropped, Network
from tests.simulation.plan import Plan
from tests.simulation.store import Node, store_of
from tests.simulation.troubles import LOSSY, Troubles

T = TypeVar("T")

SETTLED = 300.0
"""Seconds after the last trouble within which everything settles: a job's time, a grace, and a rare poll."""
CREATE_LOST = 900.0
"""The same where messages may be lost without a word: a create is waited for, and then looked for, as long."""
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

    def roll(self, grace: float) -> None:
        """Told to stop, given ``grace`` seconds, and started anew."""
        core, self.core = self.core, None
        if core is not None:
            self.host.start(self._rolled(core, grace), "stop")

    async def _rolled(self, core: Core, grace: float) -> None:
        life = self.life
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace + 12):
                await core.shutdown(grace)
        self.world.loop.at(self.world.loop.now + 0.1, self._again, life)

    def _again(self, life: int) -> None:
        if self.life == life and self.host.alive:
            self.kill()
            self.start()

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
        self.troubles = Troubles(self)
        lossy = any(fault.kind in LOSSY for fault in plan.faults)
        self.settled = CREATE_LOST if lossy else SETTLED
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

    # -- a run

    async def _calm(self) -> None:
        """No trouble any more, and everybody is there."""
        for replica in self.replicas:
            replica.host.at_step = None
        self.troubles.calm()
        self.tell(Quiet(at=self.loop.now))

    def _settled(self) -> bool:
        """Nothing is under way in the store, and no sandbox is left that should be swept."""
        if any(key.endswith(b":looks") for key in self.node.redis.names()):
            return False
        digests = [box.digest for box in self.engine.boxes.values()]
        forgotten = any(isinstance(event, StoreLost) for event in self.history)
        return forgotten or len(set(digests)) == len(digests)

    async def main(self) -> None:
        self.tell(Begun(at=0.0, seed=self.plan.seed, what="simulated", settled=self.settled))
        self.replicas = [Replica(self, number) for number in range(self.plan.replicas)]
        callers = [Caller(self, each) for each in self.plan.callers]
        tasks = []
        for caller in callers:
            self.hosts.append(caller.host)
            tasks.append(caller.host.start(caller.run(), f"caller {caller.plan.number}"))
        for fault in self.plan.faults:
            self.loop.at(fault.at, self.troubles.begin, fault)
        if tasks:
            await asyncio.wait(tasks, timeout=self.plan.seconds)
        await self._calm()
        done, left = await asyncio.wait(tasks, timeout=self.settled) if tasks else ((), ())
        for task in done:
            task.result()
        for task in left:
            self.stuck.append(task.get_name())
        for _ in range(int(self.settled)):
            if self._settled():
                break
            await asyncio.sleep(1.0)
        for box in self.engine.boxes.values():
            for process in list(box.processes.values()):
                process.tell(None, None)
        self.tell(self._inventory())

    def _inventory(self) -> Inventory:
        living = tuple(
            Living(sandbox=box.id, digest=box.digest, request=box.request) for box in self.engine.boxes.values()
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
