"""What each use costs: commands to Redis, round trips to it, and calls to the engine, counted where they arrive.

The numbers are exact: one more is a failure, and one less wants a smaller number here. Redis tells of each command
(a script is one), the engine of each call; a write of several commands is one round trip. The route to the sandbox is
fresh and its startup variables are known, but where a row says otherwise. The loops in the background stand still.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest

from service.core.jobs import polls
from service.core.model import identity
from service.core.sandboxes import expiry
from service.messages import CreateSandbox, Exec, SubmitJob
from tests.integration.core_rig import Rig
from tests.integration.cost_rig import Meter, Spent, metered

MAY_START = 0.4
"""Seconds until a job's first look here: the answer is counted by then, and a short job is over."""
TENANT = "default"
LIVES, TAKES = 7200, 60
"""Seconds for sandboxes and jobs: no job here is a reason to keep its sandbox longer, but where a row says so."""


class Cost(msgspec.Struct, frozen=True):
    """Commands, round trips and engine calls: all three as they are, and what none may exceed."""

    exact: tuple[int, int, int]
    most: tuple[int, int, int]


class Bench:
    """One replica, one sandbox, and the uses that are counted."""

    def __init__(self, meter: Meter, sandbox_id: str) -> None:
        self.meter = meter
        self.core = meter.core
        self.sandbox_id = sandbox_id
        self.warm = identity.random_token()
        """The key of what has been done already."""

    def key(self) -> str:
        """One that was not used before, on this engine either."""
        return identity.random_token()

    async def create(self, key: str | None) -> str:
        """A sandbox's id."""
        answer = await self.core.sandboxes.create(TENANT, CreateSandbox(timeout=LIVES), key)
        assert answer.value.ready
        return answer.value.sandbox_id

    async def submit(self, key: str | None, command: str = "echo x", timeout: int = TAKES, **more: Any) -> str:
        """A job's id."""
        request = SubmitJob(sandbox_id=self.sandbox_id, command=command, timeout=timeout, **more)
        return (await self.core.jobs.submit(TENANT, request, key)).value.command_id

    async def execute(self, key: str | None) -> None:
        """`echo x`, to its result."""
        request = Exec(sandbox_id=self.sandbox_id, command="echo x", timeout=TAKES)
        result = (await self.core.execs.run(TENANT, request, key)).value
        assert (result.exit_code, result.stdout) == (0, "x\n")

    async def running(self) -> tuple[str, str]:
        """A job that runs and was looked at by a poll, and the cursor at its end."""
        job = await self.submit(None, "sleep 30")
        await self.meter.quiet()
        self.looks_are_due(True)
        page = (await self.core.jobs.get(TENANT, job)).whole()
        await self.meter.quiet()
        assert page.cursor is not None
        return job, page.cursor

    def looks_are_due(self, due: bool) -> None:
        """At every reading, or at none."""
        self.core.pace.seconds = lambda: 0.01 if due else 600.0  # type: ignore[method-assign]

    async def poll(self, job: str, cursor: str) -> None:
        """One reading."""
        await self.core.jobs.get(TENANT, job, cursor=cursor)


@pytest.fixture
async def bench(here: Rig, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    """Warm: scripts, connections, the route and the startup variables."""
    monkeypatch.setattr(polls, "FIRST_POLLS", (MAY_START, 0.4, 0.8, 1.6, 3.2))
    monkeypatch.setattr(expiry, "TOGETHER", 0.3)
    async with metered(here) as meter:
        made = Bench(meter, "")
        made.sandbox_id = await made.create(made.warm)
        await made.submit(made.warm)
        await made.execute(None)
        await meter.quiet()
        yield made


Count = Callable[[Bench], Awaitable[Spent]]


async def submission(bench: Bench, key: str | None) -> Spent:
    return await bench.meter.of(lambda: bench.submit(key))


async def submission_of_an_old_route(bench: Bench) -> Spent:
    route = bench.core.engine.endpoints  # type: ignore[attr-defined]
    clock = route._clock
    route._clock = lambda: clock() + 6
    try:
        return await submission(bench, bench.key())
    finally:
        route._clock = clock


async def submission_after_a_minute(bench: Bench) -> Spent:
    bench.core.fences._startup.clear()
    return await submission(bench, bench.key())


async def life(bench: Bench, key: str | None, timeout: int = TAKES) -> Spent:
    return await bench.meter.of(lambda: bench.submit(key, timeout=timeout), aftermath=True)


async def life_with(bench: Bench, **more: Any) -> Spent:
    return await bench.meter.of(lambda: bench.submit(None, **more), aftermath=True)


async def poll_of_streams_apart(bench: Bench) -> Spent:
    job = await bench.submit(None, "sleep 30", stderr="apart")
    await bench.meter.quiet()
    bench.looks_are_due(True)
    await bench.core.jobs.get(TENANT, job, stream="stdout")
    await bench.meter.quiet()
    await asyncio.sleep(0.1)  # the one before is over
    return await bench.meter.of(lambda: bench.core.jobs.get(TENANT, job, stream="stderr"), aftermath=True)


async def replay_of_a_submission(bench: Bench) -> Spent:
    return await bench.meter.of(lambda: bench.submit(bench.warm), aftermath=True)


async def poll_of_a_running_job(bench: Bench) -> Spent:
    job, cursor = await bench.running()
    bench.looks_are_due(False)
    return await bench.meter.of(lambda: bench.poll(job, cursor), aftermath=True)


async def poll_of_a_running_job_with_a_look_due(bench: Bench) -> Spent:
    job, cursor = await bench.running()
    await asyncio.sleep(0.1)  # the one before is over
    return await bench.meter.of(lambda: bench.poll(job, cursor), aftermath=True)


async def reading_of_a_finished_job(bench: Bench) -> Spent:
    job = await bench.submit(None)
    await bench.meter.quiet()
    await bench.core.jobs.get(TENANT, job)
    return await bench.meter.of(lambda: bench.core.jobs.get(TENANT, job), aftermath=True)


async def create(bench: Bench, key: str | None) -> Spent:
    return await bench.meter.of(lambda: bench.create(key), aftermath=True)


async def exec_(bench: Bench, key: str | None) -> Spent:
    return await bench.meter.of(lambda: bench.execute(key), aftermath=True)


JOB = (6, 6, 6)
TABLE: dict[str, tuple[Count, Cost]] = {
    "submission, keyed, until its answer": (
        lambda bench: submission(bench, bench.key()), Cost(exact=(4, 3, 2), most=(4, 3, 3))),
    "submission, unkeyed, until its answer": (
        lambda bench: submission(bench, None), Cost(exact=(3, 3, 2), most=(3, 3, 2))),
    "submission, keyed, the route older than 5 s": (
        submission_of_an_old_route, Cost(exact=(4, 3, 3), most=(4, 3, 4))),
    "submission, keyed, startup variables older than a minute": (
        submission_after_a_minute, Cost(exact=(4, 3, 3), most=(4, 3, 4))),
    "short job, keyed, its whole life": (lambda bench: life(bench, bench.key()), Cost(exact=(6, 5, 5), most=JOB)),
    "short job, unkeyed, its whole life": (lambda bench: life(bench, None), Cost(exact=(5, 5, 5), most=JOB)),
    "short job with an input of 1 KiB": (
        lambda bench: life_with(bench, stdin="x" * 1024), Cost(exact=(5, 5, 6), most=(5, 5, 6))),
    "short job with an input of 900 KiB": (
        lambda bench: life_with(bench, stdin="x" * 900 * 1024), Cost(exact=(5, 5, 6), most=(5, 5, 6))),
    "short job that reads a file": (
        lambda bench: life_with(bench, stdin_path="/etc/passwd"), Cost(exact=(5, 5, 5), most=(5, 5, 5))),
    "short job of a user": (lambda bench: life_with(bench, user="0:0"), Cost(exact=(5, 5, 6), most=(5, 5, 6))),
    "short job with its streams apart": (
        lambda bench: life_with(bench, stderr="apart"), Cost(exact=(5, 5, 6), most=(5, 5, 6))),
    "poll of a running job with its streams apart, a look due": (
        poll_of_streams_apart, Cost(exact=(3, 3, 3), most=(3, 3, 3))),
    "replay of a submission": (replay_of_a_submission, Cost(exact=(2, 1, 0), most=(3, 3, 0))),
    "poll of a running job, nothing due": (poll_of_a_running_job, Cost(exact=(1, 1, 0), most=(1, 1, 0))),
    "poll of a running job, a look due": (
        poll_of_a_running_job_with_a_look_due, Cost(exact=(3, 3, 2), most=(3, 3, 2))),
    "reading of a finished job": (reading_of_a_finished_job, Cost(exact=(2, 2, 0), most=(2, 2, 0))),
    "create, keyed": (lambda bench: create(bench, bench.key()), Cost(exact=(5, 5, 6), most=(5, 5, 6))),
    "create, unkeyed": (lambda bench: create(bench, None), Cost(exact=(5, 5, 5), most=(5, 5, 5))),
    "replay of a create": (lambda bench: create(bench, bench.warm), Cost(exact=(2, 2, 1), most=(2, 2, 1))),
    "exec, keyed, to its result and after": (
        lambda bench: exec_(bench, bench.key()), Cost(exact=(6, 5, 5), most=JOB)),
    "exec, unkeyed, to its result and after": (lambda bench: exec_(bench, None), Cost(exact=(5, 5, 5), most=JOB)),
}  # fmt: skip


@pytest.mark.parametrize("use", TABLE)
async def test_a_use_costs_what_the_table_says(bench: Bench, use: str) -> None:
    work, cost = TABLE[use]
    spent = await work(bench)
    assert spent.counts == cost.exact, told(spent)
    assert all(is_ <= most for is_, most in zip(cost.exact, cost.most, strict=True))


async def test_the_meter_counts_what_is_added(bench: Bench) -> None:
    """A command more and a call more, in whatever follows from the use, are seen."""
    more = bench.core.sandboxes

    async def work() -> None:
        await bench.submit(None)
        bench.core.tasks.start(more.get(TENANT, bench.sandbox_id), "one more")

    before = await life(bench, None)
    after = await bench.meter.of(work, aftermath=True)
    assert after.commands - before.commands == {"GET": 1}, told(after)
    assert after.calls - before.calls == {"get": 1}, told(after)
    assert (before.trips, after.trips) == (5, 6)


def told(spent: Spent) -> Any:
    """What it was that was spent."""
    return {"commands": dict(spent.commands), "trips": spent.trips, "calls": dict(+spent.calls)}
