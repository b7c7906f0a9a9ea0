"""A replica that is killed (SIGKILL) at any point of a submission: nothing runs twice, nothing stays in between."""

import asyncio

import pytest

from tests.faults.caller import Answer
from tests.faults.rig import LEASE, Replica, Rig
from tests.faults.tally import SETTLED_WITHIN, Tally, batches, tries


@pytest.fixture
def rig(rig: Rig) -> Rig:
    rig.lease = LEASE
    return rig


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
    told = {(answer.status, answer.body.get("state")) for answer in answers}
    assert told <= {(0, None), (202, "pending")}, "nobody was told of an end"
    doomed.points.forget()


async def retry(rig: Rig, url: str, sandbox_id: str, marks: list[str]) -> dict[str, str | None]:
    """Retries every mark until it is answered: mark -> command_id."""
    answers: list[Answer] = await asyncio.gather(
        *(rig.caller.submit_until_answered([url], sandbox_id, rig.command(mark), key=mark) for mark in marks)
    )
    return {mark: a.command_id if a.status == 202 else None for mark, a in zip(marks, answers, strict=True)}


async def settled(rig: Rig, url: str, sandbox_id: str) -> dict[str, str]:
    """command_id -> state of each job of the sandbox, once none is pending or unknown, or the time is over."""
    deadline = asyncio.get_running_loop().time() + SETTLED_WITHIN
    while True:
        states = {job["command_id"]: job["state"] for job in await rig.caller.jobs(url, sandbox_id)}
        open_ = [state for state in states.values() if state in ("pending", "unknown")]
        if not open_ or asyncio.get_running_loop().time() > deadline:
            return states
        await asyncio.sleep(0.1)


@tries(short=5, long=200)
async def test_killed_before_the_request_left__only_a_retry_runs_the_command(rig: Rig, tries: int) -> None:
    """One replica for each point. `tries` is for each point; all but those of the last one are retried at once."""
    points = ["after_claim", "before_dispatch", "dispatched", "after_claim"]
    names = [
        "after the claim",
        "before the dispatch",
        "at `dispatched`, nothing sent",
        "after the claim, nobody retries",
    ]
    tallies = [Tally(f"replica killed {name}") for name in names]
    await rig.start(replicas=1 + len(points))
    other, *doomed = rig.replicas
    places = [await rig.sandbox(other) for _ in points]
    for marks in batches("m", tries, AT_ONCE):
        await asyncio.gather(*(replica.start() for replica in doomed if not replica.process.alive))
        groups = [[f"{mark}at{place}" for mark in marks] for place in range(len(points))]
        await asyncio.gather(
            *(submit_and_kill(rig, d, p, s, g) for d, p, s, g in zip(doomed, points, places, groups, strict=True))
        )
        assert not rig.runs().keys() & {mark for group in groups for mark in group}, "a dead attempt ran"

        jobs = await asyncio.gather(*(retry(rig, other.url, s, g) for s, g in zip(places[:3], groups[:3], strict=True)))

        for tally, some in zip(tallies[:3], jobs, strict=True):
            await tally.audit(rig, other.url, some)
        await check_failed(rig, tallies[3], other.url, places[3], groups[3])
    for tally in tallies:
        tally.check()


async def check_failed(rig: Rig, tally: Tally, url: str, sandbox_id: str, marks: list[str]) -> None:
    """The jobs that nobody retried end as failed, and have not run; their keys are free for a retry."""
    states = await settled(rig, url, sandbox_id)
    ended = [command_id for command_id, state in states.items() if state != "failed"]
    before = tally.tries
    assert len(states) == before + len(marks)
    for command_id in ended[before:]:
        tally.wrong("stuck", f"{command_id} is {states[command_id]}")
    assert not rig.runs().keys() & set(marks)
    await tally.audit(rig, url, await retry(rig, url, sandbox_id, marks))


@tries(short=5, long=100)
async def test_killed_after_the_request_left__it_is_never_sent_again(rig: Rig, tries: int) -> None:
    """Twice two replicas; to the second two nobody retries until everything is settled."""
    points = ["after_dispatch", "before_settle"] * 2
    names = [
        "after the dispatch",
        "before it settles",
        "after the dispatch, nobody retries",
        "before it settles, nobody retries",
    ]
    tallies = [Tally(f"replica killed {name}") for name in names]
    await rig.start(replicas=1 + len(points))
    other, *doomed = rig.replicas
    places = [await rig.sandbox(other) for _ in points]
    for marks in batches("m", tries, AT_ONCE):
        await asyncio.gather(*(replica.start() for replica in doomed if not replica.process.alive))
        groups = [[f"{mark}at{place}" for mark in marks] for place in range(len(points))]
        await asyncio.gather(
            *(submit_and_kill(rig, d, p, s, g) for d, p, s, g in zip(doomed, points, places, groups, strict=True))
        )

        first = await asyncio.gather(
            *(retry(rig, other.url, s, g) for s, g in zip(places[:2], groups[:2], strict=True))
        )
        states = [await settled(rig, other.url, place) for place in places[2:]]
        assert all(state in ("running", "exited") for some in states for state in some.values()), states
        assert rig.runs().keys() >= {mark for group in groups for mark in group}
        second = await asyncio.gather(
            *(retry(rig, other.url, s, g) for s, g in zip(places[2:], groups[2:], strict=True))
        )

        for tally, place, some in zip(tallies, places, first + second, strict=True):
            await tally.audit(rig, other.url, some)
            if rig.engine.private and (sent := await rig.submissions(other, place)) != tally.tries:
                tally.wrong("duplicates", f"{sent} submissions reached the daemon, {tally.tries} would do")
    for tally in tallies:
        tally.check()
