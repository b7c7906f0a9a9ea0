"""One run: the stack, the callers, the troubles, the measurements, the verdict."""

import asyncio
import contextlib
import os
import platform
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.load import callers as calling
from tests.load import recording, report, troubles, verdict
from tests.load.callers import Callers
from tests.load.plan import SEED, Plan
from tests.load.recording import Journal
from tests.load.sampling import Sampler
from tests.simulation.history import AnyEvent
from tests.support.stack import Stack

RUN_SECONDS = 840.0
"""A run of 500 sandboxes that takes longer has hung; more may take as much longer."""
RAMP_SECONDS = 400.0
PROGRESS_SECONDS = 10.0
IDLE_CONNECTIONS = 20
ASKED_AGAIN = 40
"""Results that are asked for again when their sandboxes are gone."""


@dataclass
class Run:
    """What is left of a run when its stack is gone."""

    plan: Plan
    journal: Journal
    callers: Callers
    sampler: Sampler
    found: list[verdict.Check]
    facts: dict[str, Any]
    history: list[AnyEvent]

    @property
    def title(self) -> str:
        """One line."""
        return f"Oncebox load run: {self.plan.sandboxes} sandboxes, three replicas"

    def html(self) -> str:
        """The report."""
        return report.page(self.title, self.facts, self.found, self.journal, self.callers, self.sampler)

    def json(self) -> str:
        """The figures."""
        return report.as_json(self.title, self.facts, self.found, self.journal, self.callers)


async def run(sandboxes: int, folder: Path) -> Run:
    """Runs it, and shows progress. Raises nothing for a run that fails: its checks say so."""
    plan = Plan.of(sandboxes)
    settings = {"ONCEBOX_SHUTDOWN_DELAY": "3", "ONCEBOX_SHUTDOWN_GRACE": "15"}
    async with Stack(folder, settings=settings) as stack:
        print(f"The stack is up: {stack.balancer_kind}, three replicas, isolation {stack.isolation}.", flush=True)
        ledger = stack.volume_root / calling.OWNER / "workspace" / "ledger"
        journal = Journal()
        place = "/workspace/ledger" if stack.isolation == "bwrap" else str(ledger)
        callers = Callers(plan, stack.url, place, journal)
        sampler = Sampler(stack, callers, journal)
        return await _measured(stack, ledger, callers, sampler)


async def _measured(stack: Stack, ledger: Path, callers: Callers, sampler: Sampler) -> Run:
    plan, journal = callers.plan, callers.journal
    beside = [asyncio.create_task(sampler.run()), asyncio.create_task(_progress(callers, sampler))]
    ramped = troubled = ended = float("inf")
    idle = [0]
    try:
        async with asyncio.timeout(RUN_SECONDS * plan.scale):
            calls = asyncio.create_task(callers.run())
            await asyncio.wait_for(callers.ramped.wait(), RAMP_SECONDS * plan.scale)
            ramped = journal.now()
            journal.note("every sandbox is there, its first job under way")
            dropping = asyncio.create_task(troubles.idle_connections(stack, journal, IDLE_CONNECTIONS))
            await troubles.make(stack, journal, plan.pace)
            troubled = journal.now()
            idle = [await dropping]
            await calls
    except TimeoutError:
        journal.note("the run took too long")
    finally:
        ended = journal.now()
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
    jobs = list(plan.all())
    again = await _asked_again(stack, callers)
    history = recording.history(journal, sampler, plan, troubled, _read(ledger))
    found = verdict.checks(jobs, history, callers, journal, sampler, ramped, ended, again, (idle[0], IDLE_CONNECTIONS))
    outlived = any(each.states.get("running") for each in sampler.samples if each.at > troubled)
    facts = {
        "jobs": len(jobs),
        "callers": len(callers.outcomes),
        "seconds": round(ended, 1),
        "ramp-up, seconds": round(ramped, 1),
        "jobs outlived the troubles": "yes" if outlived else "no",
        "balancer": stack.balancer_kind,
        "isolation": stack.isolation,
        "processor seconds": {each.name: round(each.cpu_seconds(), 1) for each in stack.services},
        "machine": machine(),
    }
    return Run(plan, journal, callers, sampler, found, facts, history)


async def _asked_again(stack: Stack, callers: Callers) -> list[str]:
    small = [job for job in callers.plan.all() if job.mark in callers.ids and len(job.output) < 200_000]
    chosen = random.Random(SEED).sample(small, min(ASKED_AGAIN, len(small)))
    try:
        return await calling.recorded(stack.url, [(callers.ids[job.mark], job) for job in chosen])
    except Exception as error:  # noqa: BLE001 - part of the verdict
        return [f"{type(error).__name__}: {error}"]


async def _progress(callers: Callers, sampler: Sampler) -> None:
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        states, journal = callers.states, callers.journal
        rates = {
            name: sampler.rates(*kinds) for name, kinds in (("status", ("status",)), ("output", ("outputs", "log")))
        }
        asked = ", ".join(f"{name} {found[-1][1]:.0f}/s" for name, found in rates.items() if found)
        wrong = sum(bool(each.wrong) for each in callers.outcomes)
        last = f"; last: {journal.events[-1][1]}" if journal.events else ""
        print(
            f"{journal.now():5.0f} s  to come {states['to come']}, running {states['running']}, over {states['over']}"
            f"{f', WRONG {wrong}' if wrong else ''}; engine: {asked or '-'}{last}",
            flush=True,
        )


def _read(ledger: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return ledger.read_text()
    return ""


def machine() -> str:
    """What it ran on, and how busy that was."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "?"
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = "/".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{os.cpu_count()} cores ({model}), {memory:.0f} GiB, Linux {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}; load average {load} at {time.strftime('%Y-%m-%d %H:%M', time.gmtime())}"
    )


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
