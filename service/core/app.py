"""One replica's use cases, wired together over a store and an engine. Nothing but wiring: each takes what it needs."""

from __future__ import annotations

import asyncio
import os
import socket

from service.core.claims.background import Background
from service.core.claims.once import Claims
from service.core.claims.ownership import Ownership
from service.core.claims.tasks import Tasks
from service.core.claims.watches import Board, Watches
from service.core.fence.client import Fences
from service.core.files.archive import Archives
from service.core.files.leftovers import Leftovers
from service.core.files.listing import Lists
from service.core.files.names import Names
from service.core.files.read import Reads
from service.core.files.service import Files
from service.core.files.shell import Shell
from service.core.files.transfers import Transfers
from service.core.files.upload import Uploads
from service.core.jobs.dispatch import Dispatcher
from service.core.jobs.exec import Execs
from service.core.jobs.foreground import Foreground
from service.core.jobs.ledger import Ledger
from service.core.jobs.listing import JobList
from service.core.jobs.observe import Observer
from service.core.jobs.orders import Orders
from service.core.jobs.pacing import Pace
from service.core.jobs.poller import Poller
from service.core.jobs.polls import Polls
from service.core.jobs.prepare import Preparation
from service.core.jobs.read import Reader
from service.core.jobs.reconcile import Reconciler
from service.core.jobs.restore import Restorer
from service.core.jobs.service import Jobs
from service.core.jobs.statistics import Statistics
from service.core.jobs.submit import Submitter
from service.core.limits.admission import Admission
from service.core.limits.quotas import Quotas
from service.core.limits.rates import Rates
from service.core.limits.room import ESCAPED, Room
from service.core.model import identity
from service.core.model.policy import OneTenant, Policy
from service.core.readiness import Readiness
from service.core.sandboxes.access import Access
from service.core.sandboxes.create import LOOKUP_TRIES, Creator
from service.core.sandboxes.expiry import Expiry
from service.core.sandboxes.listing import SandboxList
from service.core.sandboxes.liveness import Liveness
from service.core.sandboxes.records import SandboxRecords
from service.core.sandboxes.service import Sandboxes
from service.core.sweep import Sweeper
from service.core.telemetry import Telemetry
from service.ports.engine import Engine
from service.ports.store import Store
from service.settings import Settings


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
        self.policy = policy = policy or OneTenant()
        self.telemetry = telemetry = telemetry or Telemetry()
        self.stopping = stopping = asyncio.Event()
        keep, secret = settings.record_output, settings.secret
        mounts = [mount for _, mount in settings.workspace_dirs]

        # what all of it stands on
        self.tasks = tasks = Tasks()
        self.background = Background(tasks, telemetry.restarted)
        self._readiness = Readiness(store, self.background, stopping)
        self.rates = Rates(store, policy)
        self.quotas = quotas = Quotas(store, policy)
        self.room = room = Room()
        self.board = board = Board()
        self.ownership = ownership = Ownership(
            store, board, tasks, owner=owner or _replica_name(), lease=settings.lease
        )
        self.fences = fences = Fences(engine, settings.fence_dir)

        # what is known of sandboxes
        self.sandbox_records = sandbox_records = SandboxRecords(store, quotas, retention=settings.retention)
        self.access = access = Access(store, engine, sandbox_records, secret=secret)
        self.liveness = liveness = Liveness(engine)
        self.expiry = expiry = Expiry(store, engine, sandbox_records, tasks)

        # jobs: records, what is found of them, attempts, polls
        self.ledger = ledger = Ledger(store, ownership, quotas, expiry, telemetry, retention=settings.retention)
        self.pace = pace = Pace(store, settings.engine_interval)
        self.restorer = restorer = Restorer(store, fences, ledger, access, interval=settings.engine_interval)
        self.reconciler = Reconciler(engine, fences, pace)
        self.observer = Observer(engine, fences, self.reconciler, expiry, pace, keep=keep)
        self.preparation = preparation = Preparation(engine, fences, restorer)
        self.foreground = Foreground(store, engine, fences, ledger, pace, telemetry, keep=keep)
        self.dispatcher = Dispatcher(
            store,
            engine,
            fences,
            ownership,
            ledger,
            preparation,
            self.foreground,
            quotas,
            expiry,
            telemetry,
        )
        self.polls = polls = Polls(store, ownership, ledger, self.observer, self.dispatcher, pace, tasks, telemetry)
        self.poller = poller = Poller(store, polls, liveness, pace, tasks, telemetry)

        # use cases
        self.watches = watches = Watches(board, store, tasks, poller.on_read)
        self.claims = claims = Claims(store, ownership, watches, tasks, telemetry)
        self.submitter = submitter = Submitter(
            store,
            ownership,
            claims,
            ledger,
            preparation,
            polls,
            quotas,
            Admission(),
            tasks,
            telemetry,
            claim_wait=settings.claim_wait,
        )
        orders = Orders(store, access, retention=settings.retention)
        self.reader = reader = Reader(store, engine, liveness, tasks, most=min(2 * ESCAPED * keep, room.capacity // 4))
        self.jobs = Jobs(store, orders, submitter, ledger, restorer, polls, poller, watches, reader, stopping)
        self.job_list = JobList(store, telemetry)
        self.execs = Execs(orders, submitter, claims, polls, reader, tasks)
        self.creator = Creator(
            store,
            engine,
            ownership,
            claims,
            sandbox_records,
            liveness,
            quotas,
            policy,
            telemetry,
            settings,
            lookup_tries=lookup_tries,
        )
        self.sandboxes = Sandboxes(
            store, engine, fences, self.creator, access, sandbox_records, expiry, liveness, quotas, polls
        )
        self.sandbox_list = SandboxList(store, engine, telemetry, secret=secret)
        self.statistics = Statistics(store, self.job_list, self.sandbox_list)
        shell = Shell(engine, settings.fence_dir, startup=fences.startup, asleep=liveness.asleep, mounts=mounts)
        uploads = Uploads(engine, store, shell, tasks, most=settings.max_file)
        transfers = Transfers(access, liveness, expiry)
        archives = Archives(engine, shell, uploads, self.jobs, tasks, look=polls.poll)
        reads = Reads(engine, shell, tasks)
        self.files = Files(access, transfers, uploads, reads, Lists(shell), Names(shell), archives)
        self.sweeper = Sweeper(store, engine, fences, liveness, telemetry, settings, Leftovers(shell))

    async def start(self) -> None:
        """Begin to listen for changes, to poll jobs, to sweep, and to keep up with what tenants may do."""
        self.background.start("changes", self.watches.listen)
        self.background.start("poller", self.poller.run)
        self.background.start("sweeper", self.sweeper.run)
        self.background.start("policy", self.policy.watch)

    async def shutdown(self, grace: float) -> None:
        """Finish what is owned, for ``grace`` seconds at most; give back what was not dispatched; close everything."""
        self.stop_waiting()
        await self.ownership.drain(grace)
        await self.tasks.cancel_all()
        await self.engine.close()
        await self.store.close()

    def stop_waiting(self) -> None:
        """Long polls answer at once, and events end."""
        self.stopping.set()
        self.board.wake_all()

    async def readiness(self) -> list[str]:
        """Why this replica should get no requests now, in sentences; empty: it should."""
        return await self._readiness.reasons()


def _replica_name() -> str:
    host = "".join(char if char.isalnum() or char in "-." else "-" for char in socket.gethostname())[:40]
    return f"{host}-{os.getpid()}-{identity.random_token()[:8]}"
