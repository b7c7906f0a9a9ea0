"""What befalls a world: each kind of fault begins, is noted in the history, and ends by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from service.messages import SandboxState
from tests.simulation.engine import Box
from tests.simulation.history import DISK_FULL, LOOKUP_FAILS, SANDBOX_DEAF, STORE_AWAY, StoreLost
from tests.simulation.history import Fault as Noted
from tests.simulation.network import Weather
from tests.simulation.plan import Fault
from tests.simulation.redis import Snapshot

if TYPE_CHECKING:
    from tests.simulation.world import Replica, World

LOSSY = ("weather", "engine_silent", "freeze", "pause")
"""Kinds that lose an answer of the engine without a word."""
AFTERWARDS = 45.0
"""Seconds after a fault in which its effects are still felt: deadlines of calls, messages that come late."""


class Troubles:
    """The faults of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._calming: list[Callable[[], None]] = []
        """What is left to be mended."""

    def begin(self, fault: Fault) -> None:
        """A fault begins."""
        kind: Callable[[Fault], None] = getattr(self, f"_{fault.kind}")
        kind(fault)

    def calm(self) -> None:
        """All of them are over."""
        for mend in self._calming:
            mend()
        self._calming.clear()

    # -- what they are made of

    def _note(self, what: str, lasts: float, who: str = "") -> None:
        now = self._world.loop.now
        self._world.tell(Noted(at=now, until=now + lasts, what=what, who=who))

    def _until(self, lasts: float, mend: Callable[[], None]) -> None:
        """Mend it after ``lasts`` seconds, or when the world is calmed."""
        over = False

        def once() -> None:
            nonlocal over
            if not over:
                over = True
                mend()

        self._calming.append(once)
        self._world.loop.at(self._world.loop.now + lasts, once)

    def _replica(self, fault: Fault) -> Replica:
        return self._world.replicas[fault.who % len(self._world.replicas)]

    def _box(self, fault: Fault) -> Box | None:
        boxes = list(self._world.engine.boxes.values())
        return boxes[fault.who % len(boxes)] if boxes else None

    def _set(self, what: Any, name: str, value: Any, after: Any, lasts: float) -> None:
        setattr(what, name, value)
        self._until(lasts, lambda: setattr(what, name, after))

    # -- replicas

    def _kill(self, fault: Fault) -> None:
        replica = self._replica(fault)
        if replica.host.alive:
            self._note("kill", fault.lasts, replica.name)
            replica.kill()
            self._until(fault.lasts, replica.start)

    def _kill_at_step(self, fault: Fault) -> None:
        """Killed in the middle of whatever it does."""
        replica = self._replica(fault)
        if replica.host.alive:
            step = replica.host.steps + 1 + int(fault.size * 400)
            replica.host.at_step = (step, lambda: self._kill(fault))

    def _freeze(self, fault: Fault) -> None:
        replica = self._replica(fault)
        host = replica.host
        self._note("freeze", fault.lasts, replica.name)
        host.freeze()
        self._until(fault.lasts, host.thaw)

    def _roll(self, fault: Fault) -> None:
        """A release: told to stop, with a grace, and started anew."""
        replica = self._replica(fault)
        if replica.host.alive:
            self._note("roll", fault.lasts, replica.name)
            replica.roll(grace=4.0 * fault.size)

    def _drift(self, fault: Fault) -> None:
        """Its clock runs too fast or too slow, for good."""
        self._replica(fault).host.drift(0.85 + 0.3 * fault.size)

    # -- Redis

    def _redis_restart(self, fault: Fault) -> None:
        """With its data."""
        self._redis_down(fault.lasts, self._world.node.redis.snapshot())

    def _redis_flush(self, fault: Fault) -> None:
        """Without."""
        if self._world.node.up:
            self._world.tell(StoreLost(at=self._world.loop.now))
            self._redis_down(fault.lasts, None)

    def _redis_down(self, lasts: float, data: Snapshot | None) -> None:
        node = self._world.node
        if not node.up:
            return
        self._note(STORE_AWAY, lasts + 5)
        node.crash()
        self._until(lasts, lambda: node.start(data))

    def _redis_failover(self, fault: Fault) -> None:
        """Its replica was behind for a while, and then takes its place: what was written meanwhile is lost."""
        node, behind = self._world.node, 3 * fault.size
        if not node.up:
            return
        data, since, lives = node.redis.snapshot(), self._world.loop.now, node.lives

        def fail_over() -> None:
            if node.up and node.lives == lives:
                self._world.tell(StoreLost(at=self._world.loop.now, everything=False, since=since))
                self._redis_down(min(fault.lasts, 5.0), data)

        self._world.loop.at(since + behind, fail_over)

    def _redis_cut(self, fault: Fault) -> None:
        """The connections of a replica break."""
        name = self._replica(fault).name
        self._note(STORE_AWAY, 5, name)
        self._world.node.cut(name)

    def _redis_silent(self, fault: Fault) -> None:
        """Nothing comes through between it and a replica."""
        node, name = self._world.node, self._replica(fault).name
        self._note(STORE_AWAY, fault.lasts + 5, name)
        node.silent.add(name)
        self._until(fault.lasts, lambda: node.silent.discard(name))

    def _redis_slow(self, fault: Fault) -> None:
        self._note(STORE_AWAY, fault.lasts + 5)
        self._set(self._world.node, "slow", 4 * fault.size, 0.0, fault.lasts)

    def _redis_full(self, fault: Fault) -> None:
        self._note(STORE_AWAY, fault.lasts + 5)
        self._set(self._world.node.redis, "full", True, False, fault.lasts)

    def _redis_read_only(self, fault: Fault) -> None:
        self._note(STORE_AWAY, fault.lasts + 5)
        self._set(self._world.node.redis, "read_only", True, False, fault.lasts)

    def _redis_clock(self, fault: Fault) -> None:
        """Its wall clock jumps, forward or back."""
        self._world.node.ahead += 20 * (fault.size - 0.5)

    # -- the network, and the engine

    def _weather(self, fault: Fault) -> None:
        network, level = self._world.network, 0.3 * fault.size
        self._deaf(fault.lasts)
        weather = Weather(lost=level / 2, cut=level, doubled=level, late=level, latency=0.01)
        self._set(network, "weather", weather, Weather(), fault.lasts)

    def _engine_silent(self, fault: Fault) -> None:
        """Nothing comes through between the engine and a replica."""
        of_host, name = self._world.network.of_host, self._replica(fault).name
        self._deaf(fault.lasts)
        of_host[name] = Weather(silent=True)

        def back() -> None:
            of_host.pop(name, None)

        self._until(fault.lasts, back)

    def _engine_down(self, fault: Fault) -> None:
        """The lifecycle server; sandboxes go on."""
        self._note(LOOKUP_FAILS, fault.lasts + AFTERWARDS)
        self._set(self._world.engine, "up", False, True, fault.lasts)

    def _engine_slow(self, fault: Fault) -> None:
        self._deaf(fault.lasts)
        self._set(self._world.engine, "slowness", 1 + 200 * fault.size, 1.0, fault.lasts)

    def _deaf(self, lasts: float) -> None:
        self._note(LOOKUP_FAILS, lasts + AFTERWARDS)
        self._note(SANDBOX_DEAF, lasts + AFTERWARDS)

    # -- sandboxes

    def _daemon_restart(self, fault: Fault) -> None:
        if (box := self._box(fault)) is not None:
            self._note(SANDBOX_DEAF, AFTERWARDS, box.id)
            box.restart_daemon()

    def _daemon_down(self, fault: Fault) -> None:
        """Dead for a while."""
        box = self._box(fault)
        if box is None or box.daemon is None:
            return
        self._note(SANDBOX_DEAF, fault.lasts + AFTERWARDS, box.id)
        box.kill_daemon()
        self._until(fault.lasts, lambda: box.restart_daemon() if box.lives and box.daemon is None else None)

    def _container_restart(self, fault: Fault) -> None:
        """With its files."""
        if (box := self._box(fault)) is not None:
            self._note(SANDBOX_DEAF, AFTERWARDS, box.id)
            box.restart(new_files=False)

    def _container_new(self, fault: Fault) -> None:
        """With a new file system."""
        if (box := self._box(fault)) is not None:
            self._note(SANDBOX_DEAF, AFTERWARDS, box.id)
            box.restart(new_files=True)

    def _pod_gone(self, fault: Fault) -> None:
        """Kubernetes makes the pod anew: pending and without an address meanwhile, and then with new files."""
        box = self._box(fault)
        if box is None or box.state is not SandboxState.RUNNING:
            return
        self._note(SANDBOX_DEAF, fault.lasts + AFTERWARDS, box.id)
        box.end()
        box.state = SandboxState.PENDING
        box.addressed = fault.size < 0.5

        def back() -> None:
            if box.lives:
                box.state, box.addressed = SandboxState.RUNNING, True
                box.restart(new_files=True)

        self._until(fault.lasts, back)

    def _pause(self, fault: Fault) -> None:
        """Frozen, with all that runs in it."""
        box = self._box(fault)
        if box is None or box.state is not SandboxState.RUNNING:
            return
        self._note(SANDBOX_DEAF, fault.lasts + AFTERWARDS, box.id)
        box.state = SandboxState.PAUSED
        box.pause(True)

        def resume() -> None:
            if box.lives and box.state is SandboxState.PAUSED:
                box.state = SandboxState.RUNNING
                box.pause(False)

        self._until(fault.lasts, resume)

    def _box_gone(self, fault: Fault) -> None:
        """Its container has ended for good, or somebody has deleted it."""
        if (box := self._box(fault)) is not None:
            self._world.engine.remove(box, "deleted by somebody")

    def _disk_full(self, fault: Fault) -> None:
        if (box := self._box(fault)) is not None:
            self._note(DISK_FULL, fault.lasts + AFTERWARDS, box.id)
            self._set(box, "full", True, False, fault.lasts)

    def _box_clock(self, fault: Fault) -> None:
        """A sandbox's clock jumps."""
        if (box := self._box(fault)) is not None:
            box.ahead += 20 * (fault.size - 0.5)


KINDS = tuple(
    name.removeprefix("_")
    for name in vars(Troubles)
    if name.startswith("_") and not name.startswith("__")
    and name not in ("_note", "_until", "_replica", "_box", "_set", "_redis_down", "_deaf")
)  # fmt: skip
"""Every kind of fault."""
