"""A replica that is killed (SIGKILL) at any point of a submission: nothing runs twice, nothing stays in between."""

import asyncio

import pytest

from tests.faults.caller import Answer
from tests.faults.rig import Replica, Rig
from tests.faults.tally import SETTLED_WITHIN, Tally, tries

AT_ONCE = 10
"""Submissions that one kill meets."""


async def submit_and_kill(rig: Rig, doomed: Replica, point: str, sandbox_id: str, marks: list[str]) -> None:
    """Submits every mark (which is its key as well) to a replica, and kills it while they all wait at the point."""
    doomed.points.hold(point)
    submitting = [
        asyncio.create_task(rig.caller.submit(doomed.url, sandbox_id, rig.command(mark), key=mark)) for mark in marks
    ]
    await doomed.points.reached(point, times=len(marks))
    doomed.kill()
    answers = await asyncio.gather(*submitting)
    assert [answer.status for answer in answers] == [0] * len(marks), "a replica that is dead has answered"
    doomed.points.forget()


async def retry(rig: Rig, url: str, sandbox_id: str, marks: list[str]) -> dict[str, str | None]:
    """Retries every mark until it is answered: mark -> command_id."""
    answers: list[Answer] = await asyncio.gather(
        *(rig.caller.submit_until_answered([url], sandbox_id, rig.command(mark), key=mark) for mark in marks)
    )
    return {
        mark: answer.command_id if answer.status == 202 else None for mark, answer in zip(marks, answers, strict=True)
    }


async def list_until_settled(rig: Rig, url: str, sandbox_id: str) -> dict[str, str]:
    """command_id -> state of each job of the sandbox, once none is pending or unknown."""
    deadline = asyncio.get_running_loop().time() + SETTLED_WITHIN
    while True:
        states = {job["command_id"]: job["state"] for job in await rig.caller.jobs(url, sandbox_id)}
        open_ = [state for state in states.values() if state in ("pending", "unknown")]
        if not open_ or asyncio.get_running_loop().time() > deadline:
            return states
        await asyncio.sleep(0.1)


def batches(count: int) -> list[list[str]]:
    """The marks of all tries, by kill."""
    marks = [f"m{number}" for number in range(count)]
    return [marks[start : start + AT_ONCE] for start in range(0, count, AT_ONCE)]


@pytest.mark.parametrize("point", ["after_claim", "before_dispatch"])
@tries(short=10, long=200)
async def test_killed_before_the_dispatch__only_the_retry_runs_the_command(rig: Rig, tries: int, point: str) -> None:
    tally = Tally("replica killed between claim and dispatch, then a retry")
    await rig.start(replicas=2)
    doomed, other = rig.replicas
    sandbox_id = await rig.sandbox(other)
    for marks in batches(tries):
        await submit_and_kill(rig, doomed, point, sandbox_id, marks)

        assert not rig.runs().keys() & set(marks), "the dead attempt ran"
        jobs = await retry(rig, other.url, sandbox_id, marks)

        await tally.audit(rig, other.url, jobs)
        await doomed.start()
    tally.check()


@tries(short=10, long=100)
async def test_killed_before_the_dispatch_and_not_retried__ends_as_failed(rig: Rig, tries: int) -> None:
    tally = Tally("replica killed between claim and dispatch, no retry")
    await rig.start(replicas=2)
    doomed, other = rig.replicas
    sandbox_id = await rig.sandbox(other)
    for marks in batches(tries):
        await submit_and_kill(rig, doomed, "after_claim", sandbox_id, marks)

        states = await list_until_settled(rig, other.url, sandbox_id)

        tally.tries += len(marks)
        assert len(states) == tally.tries
        for command_id, state in states.items():
            if state != "failed":
                tally.wrong("stuck", f"{command_id} is {state}")
        assert not rig.runs()
        await doomed.start()
    tally.check()


@tries(short=10, long=100)
async def test_killed_when_it_had_said_dispatched_and_sent_nothing__the_retry_runs_it(rig: Rig, tries: int) -> None:
    tally = Tally("replica killed at `dispatched`, before the request left")
    await rig.start(replicas=2)
    doomed, other = rig.replicas
    sandbox_id = await rig.sandbox(other)
    for marks in batches(tries):
        await submit_and_kill(rig, doomed, "dispatched", sandbox_id, marks)

        jobs = await retry(rig, other.url, sandbox_id, marks)

        await tally.audit(rig, other.url, jobs)
        await doomed.start()
    tally.check()


@pytest.mark.parametrize("point", ["after_dispatch", "before_settle"])
@pytest.mark.parametrize("retried", [True, False], ids=["retried", "not_retried"])
@tries(short=10, long=100)
async def test_killed_between_dispatch_and_settle__is_never_sent_again(
    rig: Rig, tries: int, point: str, retried: bool
) -> None:
    tally = Tally(f"replica killed between dispatch and settle, {'a' if retried else 'no'} retry")
    await rig.start(replicas=2)
    doomed, other = rig.replicas
    sandbox_id = await rig.sandbox(other)
    for marks in batches(tries):
        await submit_and_kill(rig, doomed, point, sandbox_id, marks)

        if retried:
            jobs = await retry(rig, other.url, sandbox_id, marks)
        else:
            await list_until_settled(rig, other.url, sandbox_id)
            jobs = await retry(rig, other.url, sandbox_id, marks)  # tells whose id is whose
            assert all(mark in rig.runs() for mark in marks)

        await tally.audit(rig, other.url, jobs)
        await doomed.start()
    tally.check()
