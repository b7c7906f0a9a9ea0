"""A replica that is late: frozen past its lease, or given its answer when nobody expects it any more."""

import asyncio
from typing import Any

import pytest

from service.store import keys
from tests.faults.caller import Answer
from tests.faults.rig import LEASE, OWNER, Replica, Rig
from tests.faults.tally import Tally, tries


async def freeze_at(rig: Rig, replica: Replica, point: str, work: Any) -> "asyncio.Task[Answer]":
    """Starts a request at a replica, and freezes it when it has reached the point."""
    replica.points.hold(point)
    task: asyncio.Task[Answer] = asyncio.create_task(work)
    await replica.points.reached(point)
    replica.freeze()
    return task


def thaw(replica: Replica) -> None:
    """It goes on where it was, as if nothing had happened."""
    replica.points.forget()
    replica.thaw()


def stored(rig: Rig, id: str) -> bytes:
    """A claim as it stands in Redis."""
    with rig.redis.client() as client:
        client.connection_pool.connection_kwargs["decode_responses"] = False
        raw: Any = client.get(keys.claim(id))
    return bytes(raw)


def attempt_of(raw: bytes) -> int:
    """The attempt of a claim: its header is `1 state epoch attempt ...`."""
    return int(raw.split(b" ", 4)[3])


@pytest.mark.parametrize("point", ["after_claim", "before_dispatch", "dispatched", "after_dispatch", "before_settle"])
@tries(short=1, long=40)
async def test_a_replica_frozen_past_its_lease_changes_nothing(rig: Rig, tries: int, point: str) -> None:
    tally = Tally("replica frozen past its lease, then goes on")
    await rig.start(replicas=2)
    stale, other = rig.replicas
    sandbox_id = await rig.sandbox(other)
    for number in range(tries):
        mark = f"m{number}"
        late = await freeze_at(rig, stale, point, rig.caller.submit(stale.url, sandbox_id, rig.command(mark), key=mark))
        answer = await rig.caller.submit_until_answered([other.url], sandbox_id, rig.command(mark), key=mark)
        assert answer.status == 202, answer
        await tally.audit(rig, other.url, {mark: answer.command_id})
        before = stored(rig, answer.command_id)

        thaw(stale)

        answered_late = await late
        assert answered_late.command_id == answer.command_id
        assert (answered_late.status, answered_late.body["state"]) == (202, "exited"), "it answers with what stands"
        assert stored(rig, answer.command_id) == before
        assert rig.runs()[mark] == 1
    tally.check()


@pytest.mark.parametrize("point", ["after_claim", "before_dispatch", "dispatched", "after_dispatch", "before_settle"])
@tries(short=1, long=40)
async def test_a_replica_frozen_past_its_lease_hands_out_no_second_sandbox(rig: Rig, tries: int, point: str) -> None:
    tally = Tally("replica frozen past its lease while it creates a sandbox, then goes on")
    await rig.start(replicas=2)
    stale, other = rig.replicas
    for number in range(tries):
        fields: dict[str, Any] = {"key": f"k{number}", "workspace_owner": OWNER}
        late = await freeze_at(rig, stale, point, rig.caller.create(stale.url, **fields))
        answer = await rig.caller.create_until_answered([other.url], **fields)
        assert answer.status == 201, answer

        thaw(stale)

        tally.tries += 1
        answered_late = await late
        if answered_late.passing:
            answered_late = await rig.caller.create_until_answered([stale.url], **fields)
        if answered_late.body.get("sandbox_id") != answer.body["sandbox_id"]:
            tally.wrong("duplicates", f"k{number}: {answered_late} and {answer}")
        for url in rig.urls:
            again = await rig.caller.create(url, **fields)
            assert again.body["sandbox_id"] == answer.body["sandbox_id"]
    tally.check()


@tries(short=2, long=50)
async def test_a_submission_that_arrives_after_its_void_runs_nothing(rig: Rig, tries: int) -> None:
    """The engine takes the request, keeps it for longer than caller, lease and replica last, and then runs it."""
    tally = Tally("a submission arrives after caller, lease and replica are gone")
    await rig.start(replicas=2)
    doomed, other = rig.replicas
    sandbox_id = await rig.sandbox(other)
    for number in range(tries):
        mark = f"m{number}"
        await rig.order_fault(submit_delay=3 * LEASE)
        submits = (await rig.engine_counts())["submit"]
        late = asyncio.create_task(rig.caller.submit(doomed.url, sandbox_id, rig.command(mark), key=mark, patience=0.5))
        while (await rig.engine_counts())["submit"] == submits:
            await asyncio.sleep(0.01)
        doomed.freeze()
        assert (await late).status == 0, "the caller has given up"

        answer = await rig.caller.submit_until_answered([other.url], sandbox_id, rig.command(mark), key=mark)
        assert answer.status == 202, answer
        doomed.thaw()

        await tally.audit(rig, other.url, {mark: answer.command_id})
        assert (
            await rig.caller.submit(doomed.url, sandbox_id, rig.command(mark), key=mark)
        ).command_id == answer.command_id
        assert rig.runs()[mark] == 1
        assert attempt_of(stored(rig, answer.command_id)) == 2, "the first attempt was voided"
    tally.check()


@tries(short=1, long=20)
async def test_a_submission_that_takes_longer_than_lease_and_caller_keeps_its_claim(rig: Rig, tries: int) -> None:
    tally = Tally("an answer after the caller's timeout and the lease, the replica alive")
    await rig.start(replicas=2)
    owner, other = rig.replicas
    sandbox_id = await rig.sandbox(other)
    for number in range(tries):
        mark = f"m{number}"
        await rig.order_fault(submit_delay=4 * LEASE)
        assert (await rig.caller.submit(owner.url, sandbox_id, rig.command(mark), key=mark, patience=0.5)).status == 0

        answer = await rig.caller.submit_until_answered([other.url], sandbox_id, rig.command(mark), key=mark)

        assert answer.status == 202
        await tally.audit(rig, other.url, {mark: answer.command_id})
        assert stored(rig, answer.command_id).startswith(b"1 closed 1 1 "), "one epoch, one attempt"
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
