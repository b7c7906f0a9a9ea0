"""One replica's use cases, wired together over a store and an engine."""

from __future__ import annotations

import asyncio
import logging
import os
import socket

from service.core import identity
from service.core.admission import Admission
from service.core.background import Background
from service.core.claims import Claims
from service.core.creating import LOOKUP_TRIES, Creator
from service.core.execs import Execs
from service.core.expiry import Expiry
from service.core.fences import Fences
from service.core.following import Follower
from service.core.jobs import Jobs
from service.core.looking import Looker
from service.core.pacing import Pace
from service.core.policy import OneTenant, Policy
from service.core.quotas import Quotas
from service.core.rates import Rates
from service.core.reading import Reader
from service.core.reconciling import Reconciler
from service.core.room import Room
from service.core.sandbox_records import SandboxRecords
from service.core.sandboxes import Sandboxes
from service.core.submitting import Submitter
from service.core.sweeping import Sweeper
from service.core.tasks import Tasks
from service.core.telemetry import Silence, Telemetry
from service.core.watching import Watches
from service.errors import StoreUnavailable
from service.ports.engine import Engine
from service.ports.store import Store
from service.settings import Settings

log = logging.getLogger("oncebox")

CLOCK_AGE = 10.0
"""Seconds for which the distance to the store's clock is believed."""
CHECK = 3.0
"""Seconds for one check of readiness."""
MOST_WORDS = 300
"""Characters of what a store said itself that the log repeats."""


class Core:
    """What a replica does. ``start`` it before use, ``shutdown`` it at the end."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        settings: Settings,
        *,
        policy: Policy | None = None,
        telemetry: Telemetry | None = None,
        owner: str | None = None,
        lookup_tries: tuple[float, ...] = LOOKUP_TRIES,
    ) -> None:
        self.store = store
        self.engine = engine
        self.settings = settings
        self.policy = policy or OneTenant()
        self.quotas = Quotas(store, self.policy)
        self.rates = Rates(store, self.policy)
        self.lookup_tries = lookup_tries
        self.telemetry = telemetry or Silence()
        self.stopping = asyncio.Event()
        self.tasks = Tasks()
        self.background = Background(self.tasks, self.telemetry.restarted)
        self.room = Room()
        self.admission = Admission()
        self.fences = Fences(engine, settings.fence_dir)
        self.watches = Watches(store, self.tasks)
        self.claims = Claims(
            store,
            self.watches,
            self.tasks,
            owner=owner or _replica_name(),
            lease=settings.lease,
            telemetry=self.telemetry,
        )
        self.sandbox_records = SandboxRecords(store, self.quotas, retention=settings.retention)
        self.expiry = Expiry(store, engine, self.sandbox_records, self.tasks)
        self.creator = Creator(self)
        self.sandboxes = Sandboxes(self)
        self.pace = Pace(store, settings.engine_interval)
        self.looker = Looker(self)
        self.reconciler = Reconciler(self)
        self.follower = Follower(self)
        self.watches.tend = self.follower.tend
        self.reader = Reader(self)
        self.submitter = Submitter(self)
        self.jobs = Jobs(self)
        self.execs = Execs(self)
        self.sweeper = Sweeper(self)
        self._clock: tuple[float, float] | None = None
        self._unready: list[str] = []

    async def start(self) -> None:
        """Begin to listen for changes, to follow jobs, to sweep, and to keep up with what tenants may do."""
        self.background.start("changes", self.watches.listen)
        self.background.start("follower", self.follower.run)
        self.background.start("sweeper", self.sweeper.run)
        self.background.start("policy", self.policy.watch)

    async def shutdown(self, grace: float) -> None:
        """Finish what is owned, for ``grace`` seconds at most; give back what was not dispatched; close everything."""
        self.stop_waiting()
        await self.claims.drain(grace)
        await self.tasks.cancel_all()
        await self.engine.close()
        await self.store.close()

    def stop_waiting(self) -> None:
        """Long polls answer at once, and events end."""
        self.stopping.set()
        self.watches.wake_all()

    async def clock(self) -> float:
        """The store's time, Unix seconds; asked for now and then, and carried on by this process's steady clock."""
        steady = asyncio.get_running_loop().time()
        if self._clock is None or steady - self._clock[0] > CLOCK_AGE:
            now = await self.store.now() / 1000
            self._clock = (asyncio.get_running_loop().time(), now)
            return now
        return self._clock[1] + steady - self._clock[0]

    async def readiness(self) -> list[str]:
        """Why this replica should get no requests now, in sentences; empty: it should.

        An engine that does not answer is no such reason: recorded results are there all the same, and what needs
        the engine says so.
        """
        reasons, cause = await self._store_trouble()
        if self.stopping.is_set():
            reasons.append("The replica is stopping.")
        if failing := self.background.failing():
            reasons.append(f"What must run all the time goes on failing: {', '.join(failing)}; see this replica's log.")
        if reasons != self._unready:  # told once each time, with what is for operators only
            told = ("not ready: %s %s", " ".join(reasons), cause) if reasons else ("ready again",)
            log.warning(*told)
            self._unready = reasons
        return reasons

    async def _store_trouble(self) -> tuple[list[str], str]:
        """Why the store keeps this replica from its work, and what it said itself; empty: it does not."""
        try:
            async with asyncio.timeout(CHECK):
                health, _ = await asyncio.gather(self.store.health(), self.store.check_writes())
        except StoreUnavailable as error:
            return [error.detail], " ".join(str(error.__cause__ or "").split())[:MOST_WORDS]
        except TimeoutError:
            return ["Redis did not answer in time."], f"Not within {CHECK:g} s."
        if health.maxmemory_policy in (None, "noeviction"):
            return [], ""
        evicts = (
            f"Redis may evict keys (maxmemory_policy is {health.maxmemory_policy}); set it to noeviction: "
            "an evicted claim would let a command run twice."
        )
        return [evicts], ""


def _replica_name() -> str:
    host = "".join(char if char.isalnum() or char in "-." else "-" for char in socket.gethostname())[:40]
    return f"{host}-{os.getpid()}-{identity.random_token()[:8]}"
