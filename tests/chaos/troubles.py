"""What befalls the parts of a chaos run: drawn from one seed, several at once, each for a while."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from tests.chaos.recorder import Recorder
from tests.chaos.stores import Store, Trouble
from tests.faults.caller import Answer
from tests.faults.rig import ENGINE_KEY, Replica, Rig
from tests.simulation.history import (
    LOOKUP_FAILS,
    SANDBOX_DEAF,
    STORE_AWAY,
    ContainerRestarted,
    DaemonRestarted,
    Fault,
    SandboxEnded,
)
from tests.support.network_plan import Action, Duplicate
from tests.support.network_plan import Fault as NetFault

AT_ONCE = 3
"""Troubles that may overlap."""
COMMAND = b"/command HTTP/1.1"
CUTS = ("drop", "drop_before", "cut_before_init", "cut_after_init", "cut_after_complete")


class Troubles:
    """Makes trouble until ``stop`` is set. ``sandboxes``: those that there are, at any moment."""

    def __init__(
        self, rig: Rig, store: Store, recorder: Recorder, rng: random.Random, sandboxes: Callable[[], Sequence[str]]
    ) -> None:
        self.rig = rig
        self.store = store
        self.recorder = recorder
        self.rng = rng
        self.sandboxes = sandboxes
        self.stop = asyncio.Event()
        self._away: set[str] = set()
        """Replicas that somebody makes trouble for already."""

    def all(self) -> dict[str, Trouble]:
        """Every trouble of this world, by name."""
        of_store = self.store.troubles()
        if self.rig._redis_net is not None:
            of_store |= {"cut": self.redis_cut, "mute": self.redis_mute, "slow": self.redis_slow}
        found = {f"redis {name}": self._store_away(trouble) for name, trouble in of_store.items()}
        found |= {
            "replica killed": self.replica_killed,
            "replica frozen": self.replica_frozen,
            "replica rolled": self.replica_rolled,
            "engine mute": self.engine_mute,
            "engine deaf": self.engine_deaf,
            "engine cut": self.engine_cut,
            "engine slow": self.engine_slow,
            "submission doubled": self.doubled,
            "answer cut": self.answer_cut,
        }
        if self.rig._engine is not None:
            found |= {
                "engine's answers": self.ordered,
                "daemon killed": self.daemon_killed,
                "container restarted": self.container_restarted,
                "sandbox deleted": self.sandbox_deleted,
            }
        return found

    async def run(self) -> None:
        """A random mixture, until ``stop`` is set; what is under way then is ended in order."""
        room = asyncio.Semaphore(AT_ONCE)
        troubles = self.all()
        names = sorted(troubles)
        async with asyncio.TaskGroup() as group:
            while not self.stop.is_set():
                await room.acquire()
                name = self.rng.choice(names)
                group.create_task(self._one(name, troubles[name], self.rng.choice((0.3, 1.5, 3.0, 8.0)), room))
                await self._pause(self.rng.choice((0.2, 1.0, 3.0, 8.0)))  # now and then everybody may work

    async def _one(self, name: str, trouble: Trouble, seconds: float, room: asyncio.Semaphore) -> None:
        at = self.recorder.now()
        async with trouble():
            await self._pause(seconds)
        self.recorder.add(Fault(at=at, until=self.recorder.now(), what=name))
        room.release()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stop.wait(), seconds)

    @contextlib.contextmanager
    def noted(self, *what: str, who: str = "") -> Iterator[None]:
        """What the trouble means to the checker; for a while longer than it lasts."""
        at = self.recorder.now()
        try:
            yield
        finally:
            until = self.recorder.now() + 1.0
            self.recorder.add(*(Fault(at=at, until=until, what=name, who=who) for name in what))

    # -- replicas

    @contextlib.contextmanager
    def _replica(self) -> Iterator[Replica | None]:
        there = [replica for replica in self.rig.replicas if replica.name not in self._away]
        replica = self.rng.choice(there) if len(there) > 1 else None
        if replica is not None:
            self._away.add(replica.name)
        try:
            yield replica
        finally:
            if replica is not None:
                self._away.discard(replica.name)

    @contextlib.asynccontextmanager
    async def replica_killed(self) -> AsyncIterator[None]:
        """SIGKILL; then a new process."""
        with self._replica() as replica:
            if replica is not None:
                replica.kill()
            yield
            if replica is not None:
                replica.launch()

    @contextlib.asynccontextmanager
    async def replica_frozen(self) -> AsyncIterator[None]:
        """SIGSTOP, past its lease; then it goes on."""
        with self._replica() as replica:
            if replica is not None and replica.process.alive:
                replica.freeze()
            yield
            if replica is not None and replica.process.alive:
                replica.thaw()

    @contextlib.asynccontextmanager
    async def replica_rolled(self) -> AsyncIterator[None]:
        """SIGTERM; then a new process."""
        with self._replica() as replica:
            if replica is not None and replica.process.alive:
                replica.signal_to_stop()
            yield
            if replica is not None:
                replica.kill()
                replica.launch()

    # -- the store

    def _store_away(self, trouble: Trouble) -> Trouble:
        @contextlib.asynccontextmanager
        async def happening() -> AsyncIterator[None]:
            with self.noted(STORE_AWAY):
                async with trouble():
                    yield

        return happening

    @contextlib.asynccontextmanager
    async def redis_cut(self) -> AsyncIterator[None]:
        """All connections to Redis are reset, and new ones refused."""
        await self.rig.redis_net.stop_listening()
        self.rig.redis_net.cut()
        yield
        await self.rig.redis_net.listen()

    @contextlib.asynccontextmanager
    async def redis_mute(self) -> AsyncIterator[None]:
        """It does what it is told; its answers do not arrive."""
        self.rig.redis_net.plan.hold_reply = True
        yield
        self.rig.redis_net.plan.hold_reply = False

    @contextlib.asynccontextmanager
    async def redis_slow(self) -> AsyncIterator[None]:
        """Each message takes a while."""
        self.rig.redis_net.plan.delay_reply = self.rng.uniform(0.05, 1.5)
        yield
        self.rig.redis_net.plan.delay_reply = 0.0

    # -- the network to the engine

    @contextlib.asynccontextmanager
    async def engine_mute(self) -> AsyncIterator[None]:
        """It does what it is told; its answers do not arrive."""
        with self.noted(SANDBOX_DEAF, LOOKUP_FAILS):
            self.rig.engine_net.plan.hold_reply = True
            yield
            self.rig.engine_net.plan.hold_reply = False

    @contextlib.asynccontextmanager
    async def engine_deaf(self) -> AsyncIterator[None]:
        """What is sent does not arrive until later."""
        with self.noted(SANDBOX_DEAF, LOOKUP_FAILS):
            self.rig.engine_net.plan.hold_request = True
            yield
            self.rig.engine_net.plan.hold_request = False

    @contextlib.asynccontextmanager
    async def engine_cut(self) -> AsyncIterator[None]:
        """Its port refuses, and what was connected is reset."""
        with self.noted(SANDBOX_DEAF, LOOKUP_FAILS):
            await self.rig.engine_net.stop_listening()
            self.rig.engine_net.cut()
            yield
            await self.rig.engine_net.listen()

    @contextlib.asynccontextmanager
    async def engine_slow(self) -> AsyncIterator[None]:
        """Each message takes a while."""
        plan = self.rig.engine_net.plan
        with self.noted(SANDBOX_DEAF, LOOKUP_FAILS):
            plan.delay_request, plan.delay_reply = self.rng.uniform(0.0, 1.0), self.rng.uniform(0.0, 1.0)
            yield
            plan.delay_request = plan.delay_reply = 0.0

    @contextlib.asynccontextmanager
    async def doubled(self) -> AsyncIterator[None]:
        """Submissions arrive twice."""
        self.rig.engine_net.plan.duplicate = Duplicate(match=COMMAND, delay=self.rng.uniform(0.0, 2.0), times=None)
        yield
        self.rig.engine_net.plan.duplicate = None

    @contextlib.asynccontextmanager
    async def answer_cut(self) -> AsyncIterator[None]:
        """The answers of submissions are reset at some byte."""
        action = self.rng.choice((Action.RESET, Action.CLOSE))
        fault = NetFault(action, after=self.rng.randint(0, 900), when=COMMAND, times=self.rng.randint(1, 5))
        self.rig.engine_net.plan.reply = fault
        yield
        self.rig.engine_net.plan.reply = None

    # -- the engine

    @contextlib.asynccontextmanager
    async def ordered(self) -> AsyncIterator[None]:
        """Some answers of the engine are cut, or come as a gateway's."""
        kind = self.rng.choice(("submit", "submit", "create", "list", "status"))
        cut = self.rng.choice(CUTS if kind == "submit" else CUTS[:2])
        with self.noted(LOOKUP_FAILS):
            await self.rig.order_fault(**{f"{kind}_reply": cut, "count": self.rng.randint(1, 5)})
            yield
            await self.rig.forget_faults()

    @contextlib.asynccontextmanager
    async def daemon_killed(self) -> AsyncIterator[None]:
        """A sandbox's daemon dies, and comes back with an empty table."""
        sandbox = self._sandbox()
        with self.noted(SANDBOX_DEAF, who=sandbox):
            self._befalls(DaemonRestarted(at=self.recorder.now(), sandbox=sandbox))
            await self._order(sandbox, "execd", action="kill")
            yield
            await self._order(sandbox, "execd", action="start")
            self._befalls(DaemonRestarted(at=self.recorder.now(), sandbox=sandbox))

    @contextlib.asynccontextmanager
    async def container_restarted(self) -> AsyncIterator[None]:
        """A sandbox's processes end, and it starts anew, on its files or, where it has some of its own, without."""
        sandbox, new = self._sandbox(), self.rig.engine.private and self.rng.random() < 0.5
        self._befalls(ContainerRestarted(at=self.recorder.now(), sandbox=sandbox, new_files=new))
        await self._order(sandbox, "container", action="restart", filesystem="new" if new else "kept")
        self._befalls(ContainerRestarted(at=self.recorder.now(), sandbox=sandbox, new_files=new))
        yield

    @contextlib.asynccontextmanager
    async def sandbox_deleted(self) -> AsyncIterator[None]:
        """Somebody deletes a sandbox at the engine."""
        sandbox = self._sandbox()
        if sandbox and self.rng.random() < 0.3:
            self.recorder.add(SandboxEnded(at=self.recorder.now(), sandbox=sandbox, why="deleted at the engine"))
            url = f"{self.rig.engine.url}/v1/sandboxes/{sandbox}"
            await self.rig.caller.send("DELETE", url, headers={"OPEN-SANDBOX-API-KEY": ENGINE_KEY})
        yield

    def _sandbox(self) -> str:
        there = self.sandboxes()
        return self.rng.choice(there[-12:]) if there else ""

    def _befalls(self, event: DaemonRestarted | ContainerRestarted) -> None:
        if event.sandbox:
            self.recorder.add(event)

    async def _order(self, sandbox: str, what: str, **order: str) -> Answer | None:
        """At the engine itself; a sandbox that is gone is none of our business."""
        if not sandbox:
            return None
        url = f"{self.rig.engine.url}/_dev/sandboxes/{sandbox}/{what}"
        return await self.rig.caller.send("POST", url, json=order)
