"""New worlds in each run, the same world for the same seed, and a killed replica that does nothing any more."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from tests.simulation.facts import Violation
from tests.simulation.judging import Verdict, fingerprint, judged, smaller, timeline
from tests.simulation.loop import Host, VirtualLoop
from tests.simulation.plan import CallerPlan, Fault, Plan, plan_of

SEEDS = 24 if os.environ.get("CI") == "true" else 8


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_promise_is_broken_in_a_world(seed: int) -> None:
    verdict = judged(plan_of(seed))
    if verdict.failed:
        told = "\n".join(timeline(smaller(verdict)))
        pytest.fail(f"python -m tests.simulation --seed {seed}\n{told}", pytrace=False)


def test_a_seed_gives_the_same_history_in_every_process() -> None:
    code = (
        "from tests.simulation.judging import fingerprint, judged\n"
        "from tests.simulation.plan import CallerPlan, Fault, Plan, plan_of\n"
        "print(fingerprint(judged(plan_of(8)).history))\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": str(hashes)},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout.strip()
        for hashes in (1, 2)
    }
    assert found == {fingerprint(judged(plan_of(8)).history)}


def test_another_seed_gives_another_world() -> None:
    assert fingerprint(judged(plan_of(8)).history) != fingerprint(judged(plan_of(9)).history)


def test_a_killed_host_takes_no_further_step_not_even_finally() -> None:
    loop, told = VirtualLoop(), list[str]()  # type: ignore[abstract]
    killed, other = Host("killed", loop), Host("other", loop)

    async def work() -> None:
        try:
            await asyncio.sleep(1)
            told.append("after")
        finally:
            told.append("finally")

    killed.start(work(), "work")
    loop.at(0.5, killed.kill)
    loop.run_until_complete(other.start(asyncio.sleep(5), "wait"))
    assert told == []
    loop.end([killed, other])


def test_a_frozen_host_goes_on_where_it_was() -> None:
    loop, told = VirtualLoop(), list[float]()  # type: ignore[abstract]
    frozen, other = Host("frozen", loop), Host("other", loop)

    async def work() -> None:
        await asyncio.sleep(1)
        told.append(loop.now)

    frozen.start(work(), "work")
    loop.at(0.5, frozen.freeze)
    loop.at(3.0, frozen.thaw)
    loop.run_until_complete(other.start(asyncio.sleep(5), "wait"))
    assert told == [3.0]


def test_a_clock_that_drifts_waits_by_its_own_seconds() -> None:
    loop = VirtualLoop()  # type: ignore[abstract]
    fast = Host("fast", loop, rate=2.0)

    async def work() -> float:
        before = asyncio.get_running_loop().time()
        await asyncio.sleep(4)
        return asyncio.get_running_loop().time() - before

    assert loop.run_until_complete(fast.start(work(), "work")) == 4.0
    assert loop.now == 2.0


def test_a_failing_world_is_made_as_small_as_it_can_be() -> None:
    def judge(plan: Plan) -> Verdict:
        """It takes caller 2 and a kill."""
        fails = any(caller.number == 2 for caller in plan.callers) and any(each.kind == "kill" for each in plan.faults)
        return Verdict(plan, [], 0, [Violation("at_most_once", 1.0, "twice")] if fails else [], [])

    kinds = ("freeze", "kill", "weather", "kill", "redis_cut")
    faults = tuple(Fault(float(number), kind, 1.0, 0, 0.5) for number, kind in enumerate(kinds))
    callers = tuple(CallerPlan(number, "red", 0.0, 5, number) for number in range(6))

    small = smaller(judge(Plan(1, 2, 10.0, callers, faults)), judge).plan

    assert [(each.number, each.jobs) for each in small.callers] == [(2, 1)]
    assert [each.kind for each in small.faults] == ["kill"]
