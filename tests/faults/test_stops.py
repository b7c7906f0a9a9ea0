"""Replicas that are stopped with SIGTERM under load: every caller gets an answer, every command runs once."""

import asyncio
import itertools

import pytest

from tests.faults.rig import LEASE, Replica, Rig
from tests.faults.tally import Tally, tries
from tests.support.waiting import PATIENCE


class Load:
    """So many callers, each submitting one command after the other, with retry, until told to stop."""

    def __init__(self, rig: Rig, sandbox_id: str, *, callers: int, most: int) -> None:
        self.jobs: dict[str, str | None] = {}
        self._rig = rig
        self._sandbox_id = sandbox_id
        self._numbers = iter(range(most))
        self._enough = False
        self._callers = [asyncio.create_task(self._call(number)) for number in range(callers)]

    async def stop(self) -> dict[str, str | None]:
        """Mark -> command_id of all that was submitted; None: no answer in time."""
        self._enough = True
        await asyncio.gather(*self._callers)
        return self.jobs

    async def _call(self, caller: int) -> None:
        urls = self._rig.urls[caller % len(self._rig.urls) :] + self._rig.urls[: caller % len(self._rig.urls)]
        for number in self._numbers:
            mark = f"m{number}"
            answer = await self._rig.caller.submit_until_answered(
                urls, self._sandbox_id, self._rig.command(mark), key=mark, within=PATIENCE
            )
            self.jobs[mark] = answer.command_id if answer.status == 202 else None
            if self._enough:
                return


async def roll(replica: Replica) -> None:
    """Stops a replica as an operator does, and starts it anew."""
    replica.signal_to_stop()
    assert await asyncio.to_thread(replica.process.wait) == 0
    await replica.start()


@tries(short=20, long=200)
async def test_a_rolling_restart_under_load_loses_nothing(rig: Rig, tries: int) -> None:
    """`tries` is the number of concurrent callers."""
    tally = Tally(f"rolling restart of 3 replicas under {tries} concurrent callers, each submission")
    # As an operator has it: a lease of 1 s would run out on a replica that gets no processor for a second.
    await rig.start(replicas=3, env={"ONCEBOX_LEASE": "15"})
    sandbox_id = await rig.sandbox()
    load = Load(rig, sandbox_id, callers=tries, most=tries * 5)
    for replica in rig.replicas:
        done = len(load.jobs)
        await roll(replica)
        while len(load.jobs) < min(done + tries // 2, tries * 4):
            await asyncio.sleep(0.01)
    jobs = await load.stop()
    await tally.audit(rig, rig.urls[0], jobs)
    tally.check()


@tries(short=1, long=10)
async def test_one_sigterm_finishes_what_is_owned(rig: Rig, tries: int) -> None:
    """No caller retries: what was dispatched is settled by the replica that stops, before it ends."""
    tally = Tally("SIGTERM with 20 submissions under way, no retry")
    # Longer than everything here takes on a busy machine: callers, the grace and the lease see the stop through.
    await rig.start(replicas=2, env={"ONCEBOX_LEASE": "120", "ONCEBOX_SHUTDOWN_GRACE": "120"})
    stopped, other = rig.replicas
    sandbox_id = await rig.sandbox(other)
    for round in range(tries):
        marks = [f"r{round}m{number}" for number in range(20)]
        stopped.points.hold("after_dispatch")
        answers = [
            asyncio.create_task(rig.caller.submit(stopped.url, sandbox_id, rig.command(mark), key=mark, patience=120))
            for mark in marks
        ]
        await stopped.points.reached("after_dispatch", times=20)
        stopped.signal_to_stop()
        await asyncio.to_thread(stopped.process.wait_for_line, '"shutting down')
        assert (await rig.caller.send("GET", f"{stopped.url}/readyz", patience=5)).status in (0, 503)
        stopped.points.forget()

        assert await asyncio.to_thread(stopped.process.wait) == 0
        said = await asyncio.gather(*answers)
        jobs = {
            mark: answer.command_id if answer.status == 202 else None for mark, answer in zip(marks, said, strict=True)
        }
        await tally.audit(rig, other.url, jobs)
        await stopped.start()
    tally.check()


async def test_claims_that_sent_nothing_are_given_back_at_the_end_of_the_grace(rig: Rig) -> None:
    tally = Tally("SIGTERM, the grace ends at `claimed`")
    no_mark = {"ONCEBOX_FENCE_DIR": "/proc/no-mark"}  # where there is one, a claim is dispatched as it is made
    await rig.start(replicas=2, env={"ONCEBOX_LEASE": "60", "ONCEBOX_SHUTDOWN_GRACE": "0.5", **no_mark})
    rig.holds_inputs = False
    stopped, other = rig.replicas
    sandbox_id = await rig.sandbox(other)
    stopped.points.hold("after_claim")
    stopped.points.hold("before_dispatch")
    marks = [f"m{number}" for number in range(10)]
    calls = [asyncio.create_task(rig.caller.submit(stopped.url, sandbox_id, rig.command(m), key=m)) for m in marks]
    await stopped.points.reached("after_claim", times=5)
    stopped.points.release("after_claim")
    await stopped.points.reached("before_dispatch", times=10)

    stopped.signal_to_stop()
    assert await asyncio.to_thread(stopped.process.wait) == 0

    assert not rig.runs()
    answers = await asyncio.gather(
        *(rig.caller.submit_until_answered([other.url], sandbox_id, rig.command(m), key=m) for m in marks)
    )
    await asyncio.gather(*calls)
    await tally.audit(
        rig, other.url, {m: a.command_id if a.status == 202 else None for m, a in zip(marks, answers, strict=True)}
    )
    tally.check()


@pytest.mark.parametrize("point", ["after_claim", "before_settle"])
async def test_a_second_sigterm_ends_at_once(rig: Rig, point: str) -> None:
    rig.lease = LEASE  # what it had claimed is left to run out
    await rig.start(replicas=1, env={"ONCEBOX_SHUTDOWN_GRACE": "3600"})
    replica = rig.replicas[0]
    sandbox_id = await rig.sandbox()
    replica.points.hold(point)
    call = asyncio.create_task(rig.caller.submit(replica.url, sandbox_id, rig.command("m"), key="m"))
    await replica.points.reached(point)
    replica.signal_to_stop()
    await asyncio.to_thread(replica.process.wait_for_line, '"shutting down')
    assert replica.process.alive

    replica.signal_to_stop()

    assert await asyncio.to_thread(replica.process.wait) == 1
    assert (await call).status == 0
    replica.points.forget()
    await replica.start()
    answer = await rig.caller.submit_until_answered(
        itertools.repeat(replica.url, 1), sandbox_id, rig.command("m"), key="m"
    )
    tally = Tally("a second SIGTERM")
    await tally.audit(rig, replica.url, {"m": answer.command_id})
    tally.check()
