"""A history, sorted by what its events are of: what the checker's rules ask for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from tests.simulation.history import (
    LOOKUP_FAILS,
    AnyEvent,
    Begun,
    Call,
    ContainerRestarted,
    DaemonRestarted,
    EngineReads,
    Event,
    Executed,
    Fault,
    FencesWiped,
    Inventory,
    Quiet,
    SandboxEnded,
    SandboxMade,
    Seen,
    StoreLost,
)

E = TypeVar("E", bound=Event)

OVER = frozenset({"exited", "timed_out", "cancelled", "failed", "lost"})
FINAL = OVER - {"failed"}
"""What never changes; ``failed`` ends an attempt."""


class Violation(msgspec.Struct, frozen=True):
    """One thing that must not have happened."""

    rule: str
    at: float
    what: str


class Sighting(msgspec.Struct, frozen=True):
    """What one call told of one job."""

    call: Call
    seen: Seen

    @property
    def final(self) -> bool:
        """Its state is one that stays."""
        return self.seen.state in FINAL


@dataclass
class Job:
    """One ``command_id``: who asked for it, and what was told of it, by the time of the answer."""

    id: str
    submits: list[Call] = field(default_factory=list)
    """The submissions that named it."""
    sightings: list[Sighting] = field(default_factory=list)

    @property
    def marks(self) -> list[str]:
        """Of the requests that were answered with it."""
        return sorted({call.mark for call in self.submits})


class Facts:
    """A history's events, by kind and by what they are of."""

    def __init__(self, history: Iterable[AnyEvent]) -> None:
        self.events: Sequence[AnyEvent] = sorted(history, key=lambda event: event.at)
        self.until = self.events[-1].at if self.events else 0.0
        """When it ends."""
        self.begun = next(iter(self.all(Begun)), Begun(at=0.0))
        self.quiet = next((event.at for event in self.all(Quiet)), None)
        self.calls = sorted(self.all(Call), key=lambda call: call.until)
        self.submits = [call for call in self.calls if call.what == "submit"]
        self.creates = [call for call in self.calls if call.what == "create"]
        self.executed: dict[str, list[Executed]] = _by(self.all(Executed), lambda event: event.mark)
        self.asked: dict[str, list[Call]] = _by(self.submits, lambda call: call.mark)
        self.restarts = list(self.all(ContainerRestarted))
        self.ends = list(self.all(SandboxEnded))
        self.losses = list(self.all(StoreLost))
        self.wipes = list(self.all(FencesWiped))
        self.daemons = list(self.all(DaemonRestarted))
        self.faults = list(self.all(Fault))
        self.made = list(self.all(SandboxMade))
        self.reads = list(self.all(EngineReads))
        self.inventories = list(self.all(Inventory))
        self.jobs = self._jobs()

    def all(self, kind: type[E]) -> Iterator[E]:
        """The events of a kind, by their time."""
        return (event for event in self.events if isinstance(event, kind))

    def _jobs(self) -> dict[str, Job]:
        jobs: dict[str, Job] = {}

        def job(id: str) -> Job:
            return jobs.setdefault(id, Job(id))

        for call in self.calls:
            if call.what == "submit":
                for id in {seen.id for seen in call.seen} | ({call.told_id} - {""}):
                    job(id).submits.append(call)
            if call.what in ("submit", "status", "output", "cancel", "list"):
                for seen in call.seen:
                    job(seen.id).sightings.append(Sighting(call, seen))
        return jobs

    # -- what befell the world

    def runs(self, job: Job) -> list[Executed]:
        """What was executed of a job, by its requests' names."""
        return [run for mark in job.marks for run in self.executed.get(mark, ())]

    def lost_store(self, since: float, until: float, *, everything: bool | None = None) -> bool:
        """Redis lost data in between (all of it, or only the latest)."""
        return any(since <= event.at <= until for event in self.losses if everything in (None, event.everything))

    def new_files(self, sandbox: str, since: float, until: float) -> bool:
        """A sandbox's file system was replaced in between."""
        return any(
            since <= event.at <= until for event in self.restarts if event.sandbox == sandbox and event.new_files
        )

    def restarted(self, sandbox: str, since: float, until: float) -> bool:
        """A sandbox's container was restarted in between."""
        return any(since <= event.at <= until for event in self.restarts if event.sandbox == sandbox)

    def daemon_restarted(self, sandbox: str, since: float, until: float) -> bool:
        """A sandbox's daemon died in between."""
        return any(since <= event.at <= until for event in self.daemons if event.sandbox == sandbox)

    def wiped(self, sandbox: str, since: float, until: float) -> bool:
        """A command of a sandbox deleted its fences in between."""
        return any(since <= event.at <= until for event in self.wipes if event.sandbox == sandbox)

    def gone(self, sandbox: str, until: float) -> bool:
        """A sandbox had ended by then."""
        return any(event.at <= until for event in self.ends if event.sandbox == sandbox)

    def troubled(self, what: str, since: float, until: float, who: str = "") -> bool:
        """There was such a fault in between, for everybody or for this one."""
        return any(
            fault.at <= until and fault.until >= since
            for fault in self.faults
            if fault.what == what and fault.who in ("", who)
        )

    # -- jobs

    def first_asked(self, job: Job) -> float:
        """When a job was first asked for."""
        return min((call.at for mark in job.marks for call in self.asked[mark]), default=0.0)

    def retried(self, job: Job, since: float, until: float) -> bool:
        """A submission of a job's key was under way in between."""
        return any(call.at <= until and call.until >= since for mark in job.marks for call in self.asked[mark])

    def may_be_forgotten(self, job: Job, until: float) -> bool:
        """Redis lost its data, and the job's sandbox holds no fence of it (any more)."""
        since = self.first_asked(job)
        if not self.lost_store(since, until):
            return False
        runs = self.runs(job)
        if any(
            self.gone(sandbox, until) or self.new_files(sandbox, since, until) or self.wiped(sandbox, since, until)
            for sandbox in {call.sandbox for call in job.submits}
        ):
            return True
        return not runs or any(not run.fenced for run in runs)

    def may_be_active(self, mark: str, call: Call) -> bool:
        """Whether a request's job may have been under way during ``call``."""
        if min(asked.at for asked in self.asked[mark]) > call.until:
            return False
        ids = {seen.id for asked in self.asked[mark] for seen in asked.seen}
        over = [
            seen.call.until
            for id in ids
            for seen in self.jobs[id].sightings
            if seen.seen.over and seen.seen.state in OVER
        ]
        return not over or min(over) > call.at

    # -- the exceptions that README's limits name

    def store_and_files_lost(self, sandbox: str, since: float, until: float) -> bool:
        """Redis emptied, or fallen back, and the sandbox's file system replaced, both at once."""
        return self.lost_store(since, until) and self.new_files(sandbox, since, until)

    def store_lost_and_lookup_failed(self, since: float, until: float) -> bool:
        """Redis emptied and the lookup at the engine failing, both at once."""
        return self.lost_store(since, until, everything=True) and self.troubled(LOOKUP_FAILS, since, until)


def _by(events: Iterable[E], key: Callable[[E], str]) -> dict[str, list[E]]:
    found: dict[str, list[E]] = defaultdict(list)
    for event in events:
        found[key(event)].append(event)
    return dict(found)
