"""A replica that is late: frozen past its lease, or given its answer when nobody expects it any more."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from tests.faults.caller import Answer
from tests.faults.rig import LEASE, OWNER, Replica, Rig
from tests.faults.tally import Tally, batches, tries


@pytest.fixture
def rig(rig: Rig) -> Rig:
    rig.lease = LEASE
    return rig


Answers = list["asyncio.Task[Answer]"]

POINTS = {
    "after_claim": "after the claim",
    "before_dispatch": "before the dispatch",
    "dispatched": "at `dispatched`",
    "after_dispatch": "after the dispatch",
    "before_settle": "before it settles",
}
"""Where a replica is frozen, and how the table calls it."""

AT_ONCE = 10
"""Requests that one freeze meets."""


async def freeze_at(replica: Replica, point: str, work: "Sequence[Coroutine[Any, Any, Answer]]") -> Answers:
    """Starts requests at a replica, and freezes it when all have reached the point."""
    replica.points.hold(point)
    tasks = [asyncio.create_task(call) for call in work]
    await replica.points.reached(point, times=len(tasks))
    replica.freeze()
    return tasks


def thaw(replica: Replica) -> None:
    """It goes on where it was, as if nothing had happened."""
    replica.points.forget()
    replica.thaw()


@tries(short=2, long=40)
async def test_a_replica_frozen_past_its_lease_changes_nothing(rig: Rig, tries: int) -> None:
    """One replica for each point; `tries` is for each point."""
    tallies = [Tally(f"replica frozen past its lease {name}, then goes on") for name in POINTS.values()]
    await rig.start(replicas=1 + len(POINTS))
    other, *stale = rig.replicas
    sandbox_id = await rig.sandbox(other)

    async def check(replica: Replica, point: str, tally: Tally, marks: list[str]) -> None:
        late = await freeze_at(
            replica, point, [rig.caller.submit(replica.url, sandbox_id, rig.command(m), key=m) for m in marks]
        )
        answers = await asyncio.gather(
            *(rig.caller.submit_until_answered([other.url], sandbox_id, rig.command(m), key=m) for m in marks)
        )
        await tally.audit(rig, other.url, {m: a.command_id for m, a in zip(marks, answers, strict=True)})
        before = [rig.stored(answer.command_id) for answer in answers]

        thaw(replica)

        for answer, answered_late in zip(answers, await asyncio.gather(*late), strict=True):
            assert answered_late.command_id == answer.command_id
            assert (answered_late.status, answered_late.body["state"]) in ((202, "exited"), (202, "pending"))
        assert [rig.stored(answer.command_id) for answer in answers] == before
        assert [rig.runs()[mark] for mark in marks] == [1] * len(marks)

    for marks in batches("m", tries, AT_ONCE):
        await asyncio.gather(
            *(
                check(replica, point, tally, [f"{mark}{point}" for mark in marks])
                for replica, point, tally in zip(stale, POINTS, tallies, strict=True)
            )
        )
    for tally in tallies:
        tally.check()


NO_MARK = {"ONCEBOX_FENCE_DIR": "/proc/no-mark"}
"""Where no boot mark can be made."""


@tries(short=5, long=50)
async def test_a_stale_owner_does_not_touch_a_claim_that_another_replica_holds(rig: Rig, tries: int) -> None:
    """Both are at the same step: only the token and the epoch tell them apart.

    Without a mark a claim is made first, and dispatched by a second write; with one it is never taken over.
    """
    tally = Tally("stale owner goes on while the new one holds the claim")
    await rig.start(replicas=2, env=NO_MARK)
    rig.holds_inputs = False
    stale, owner = rig.replicas
    sandbox_id = await rig.sandbox(owner)
    for marks in batches("m", tries, AT_ONCE):
        late = await freeze_at(
            stale, "before_dispatch", [rig.caller.submit(stale.url, sandbox_id, rig.command(m), key=m) for m in marks]
        )
        owner.points.hold("before_dispatch")
        calls = [rig.caller.submit_until_answered([owner.url], sandbox_id, rig.command(m), key=m) for m in marks]
        held = [asyncio.create_task(call) for call in calls]
        await owner.points.reached("before_dispatch", times=len(marks))

        thaw(stale)

        told = await asyncio.gather(*late)
        assert [(a.status, a.body.get("state")) for a in told] == [(202, "pending")] * len(marks), told
        assert not rig.runs().keys() & set(marks), "the stale owner has sent its command"
        for answer in told:
            assert rig.stored(answer.command_id).startswith(b"1 claimed 2 1 "), "the stale owner has written"
        owner.points.forget()
        answers = await asyncio.gather(*held)
        await tally.audit(rig, owner.url, {m: a.command_id for m, a in zip(marks, answers, strict=True)})
    tally.check()


@tries(short=2, long=40)
async def test_a_replica_frozen_past_its_lease_hands_out_no_second_sandbox(rig: Rig, tries: int) -> None:
    """One replica for each point; `tries` is for each point."""
    tallies = [Tally(f"replica frozen past its lease {name}, while it creates a sandbox") for name in POINTS.values()]
    await rig.start(replicas=1 + len(POINTS))
    other, *stale = rig.replicas

    async def check(replica: Replica, point: str, tally: Tally, names: list[str]) -> None:
        fields: dict[str, Any] = {"workspace_owner": OWNER}
        late = await freeze_at(replica, point, [rig.caller.create(replica.url, key=k, **fields) for k in names])
        answers = await asyncio.gather(*(rig.caller.create_until_answered([other.url], key=k, **fields) for k in names))
        thaw(replica)
        await asyncio.gather(*late)
        later = await asyncio.gather(*(rig.caller.create_until_answered([replica.url], key=k, **fields) for k in names))
        tally.tries += len(names)
        for name, early, now, after in zip(names, late, answers, later, strict=True):
            told = {answer.body.get("sandbox_id") for answer in (early.result(), now, after) if not answer.passing}
            if now.status != 201 or after.status != 201:
                tally.wrong("stuck", f"{name}: {now}, {after}")
            elif len(told) != 1:
                tally.wrong("duplicates", f"{name}: {told}")

    for names in batches("k", tries, AT_ONCE):
        await asyncio.gather(
            *(
                check(replica, point, tally, [f"{name}{point}" for name in names])
                for replica, point, tally in zip(stale, POINTS, tallies, strict=True)
            )
        )
    for tally in tallies:
        tally.check()


@tries(short=3, long=50)
async def test_a_submission_that_arrives_after_its_void_runs_nothing(rig: Rig, tries: int) -> None:
    """The engine takes the request, keeps it for longer than caller, lease and replica last, and then runs it."""
    tally = Tally("a submission arrives after caller, lease and replica are gone")
    await rig.start(replicas=2)
    doomed, other = rig.replicas
    sandbox_id = await rig.sandbox(other)
    for marks in batches("m", tries, AT_ONCE):
        await rig.order_fault(submit_delay=4 * LEASE, count=len(marks))
        submits = (await rig.engine_counts())["submit"]
        calls = [rig.caller.submit(doomed.url, sandbox_id, rig.command(m), key=m, patience=LEASE / 2) for m in marks]
        late = [asyncio.create_task(call) for call in calls]
        async with asyncio.timeout(60):
            while (await rig.engine_counts())["submit"] < submits + len(marks):
                await asyncio.sleep(0.01)
        doomed.freeze()
        assert {answer.status for answer in await asyncio.gather(*late)} == {0}, "the callers have given up"

        answers = await asyncio.gather(
            *(rig.caller.submit_until_answered([other.url], sandbox_id, rig.command(m), key=m) for m in marks)
        )
        doomed.thaw()

        await tally.audit(rig, other.url, {m: a.command_id for m, a in zip(marks, answers, strict=True)})
        for mark, answer in zip(marks, answers, strict=True):
            assert rig.attempt(answer.command_id) == 2, "the first attempt was voided"
            again = await rig.caller.submit(doomed.url, sandbox_id, rig.command(mark), key=mark)
            assert again.command_id == answer.command_id
        if rig.engine.private:
            async with asyncio.timeout(60):
                while await rig.submissions(other, sandbox_id) != 2 * tally.tries:
                    await asyncio.sleep(0.1)
        assert [rig.runs()[mark] for mark in marks] == [1] * len(marks), "a late arrival ran"
    tally.check()


@tries(short=1, long=20)
async def test_a_submission_that_takes_longer_than_lease_and_caller_keeps_its_claim(rig: Rig, tries: int) -> None:
    tally = Tally("an answer after the caller's timeout and the lease, the replica alive")
    await rig.start(replicas=2)
    owner, other = rig.replicas
    sandbox_id = await rig.sandbox(other)

    async def kept(mark: str) -> bool:
        await rig.order_fault(submit_delay=4 * LEASE)
        assert (await rig.caller.submit(owner.url, sandbox_id, rig.command(mark), key=mark, patience=0.5)).status == 0

        answer = await rig.caller.submit_until_answered([other.url], sandbox_id, rig.command(mark), key=mark)

        assert answer.status == 202
        await tally.audit(rig, other.url, {mark: answer.command_id})
        return rig.stored(answer.command_id).startswith(b"1 closed 1 1 ")

    for number in range(tries):
        # A machine that stands still for longer than the lease takes the claim from one who lives.
        for again in range(5):
            if await kept(f"m{number}-{again}"):
                break
        else:
            raise AssertionError("not one epoch and one attempt")
    tally.check()


@tries(short=1, long=10)
async def test_a_create_that_takes_longer_than_its_lease_keeps_its_claim(rig: Rig, tries: int) -> None:
    tally = Tally("a create that takes five times its lease")
    await rig.start(replicas=2, env={"ONCEBOX_CLAIM_WAIT": "0.2"})
    owner, other = rig.replicas
    for number in range(tries):
        await rig.order_fault(create_delay=5 * LEASE)
        fields: dict[str, Any] = {"key": f"k{number}", "workspace_owner": OWNER}
        before = (await rig.engine_counts())["create"]
        first = await rig.caller.create(owner.url, **fields)
        seen = [await rig.caller.create(other.url, **fields)]
        while seen[-1].status == 409:
            seen.append(await rig.caller.create(other.url, **fields))

        tally.tries += 1
        assert (first.status, first.code) == (409, "IDEMPOTENCY_IN_PROGRESS")
        assert len(seen) > 5, "others were told that it is in progress all the while"
        if seen[-1].status != 201:
            tally.wrong("stuck", f"k{number}: {seen[-1]}")
        if (await rig.engine_counts())["create"] - before != 1:
            tally.wrong("duplicates", f"k{number}")
    tally.check()
