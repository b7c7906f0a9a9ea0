"""Hundreds of requests with one key, at the same time, on several replicas: one execution, one sandbox."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.faults.caller import Answer
from tests.faults.rig import OWNER, Rig
from tests.faults.tally import Tally, tries
from tests.support.network_plan import Duplicate

LONG_COUNT = 100
"""Keys of the long form; each gets this many requests in the long, and this many in the short form:"""
REQUESTS = {True: 500, False: 60}


PATIENCE = 120.0
"""Seconds in which a caller who retries, as the contract tells it to, has its answer."""


def places(rig: Rig, number: int) -> list[str]:
    """The replicas, begun with another one by each of three callers."""
    first = number % len(rig.urls)
    return rig.urls[first:] + rig.urls[:first]


async def at_once(rig: Rig, requests: int, sandbox_id: str, mark: str) -> list[Answer]:
    """So many callers who submit one mark, spread over the replicas."""
    submit, command = rig.caller.submit_until_answered, rig.command(mark)
    return await asyncio.gather(
        *(submit(places(rig, n), sandbox_id, command, key=mark, within=PATIENCE) for n in range(requests))
    )


@tries(short=4, long=LONG_COUNT, timeout=2400)
async def test_requests_with_one_key_run_one_command(rig: Rig, tries: int) -> None:
    requests = REQUESTS[tries == LONG_COUNT]
    tally = Tally(f"{requests} requests with one key on 3 replicas, each key")
    await rig.start(replicas=3, env={"ONCEBOX_LEASE": "5", "ONCEBOX_CLAIM_WAIT": "20"})
    first, second = await rig.sandbox(), await rig.sandbox()
    for number in range(tries):
        mark = f"m{number}"
        answers = await at_once(rig, requests, first, mark)
        said = Counter((answer.status, answer.body.get("command_id")) for answer in answers)
        if len(said) != 1 or answers[0].status != 202:
            tally.wrong("lost", f"{mark}: {said}")
        fresh = sum(not answer.replayed for answer in answers)
        assert fresh <= 1, f"{fresh} answers say that they are the first"

        other_body = await rig.caller.submit(rig.urls[0], first, rig.command(f"other-{mark}"), key=mark)
        assert (other_body.status, other_body.code) == (422, "IDEMPOTENCY_KEY_REUSED")
        elsewhere = await rig.caller.submit(rig.urls[1], second, rig.command(f"elsewhere-{mark}"), key=mark)
        assert elsewhere.status == 202
        assert elsewhere.command_id != answers[0].command_id

        await tally.audit(rig, rig.urls[2], {mark: answers[0].command_id})
        await Tally("another sandbox").audit(rig, rig.urls[2], {f"elsewhere-{mark}": elsewhere.command_id})
    assert not any(mark.startswith("other-") for mark in rig.runs())
    assert set(rig.runs().values()) == {1}
    tally.check()


@tries(short=3, long=LONG_COUNT, timeout=2400)
async def test_requests_with_one_key_make_one_sandbox(rig: Rig, tries: int) -> None:
    requests = REQUESTS[tries == LONG_COUNT]
    tally = Tally(f"{requests} creates with one key on 3 replicas, each key")
    await rig.start(replicas=3, env={"ONCEBOX_LEASE": "5", "ONCEBOX_CLAIM_WAIT": "20"})
    for number in range(tries):
        before = (await rig.engine_counts())["create"]
        wanted: dict[str, Any] = {"key": f"k{number}", "workspace_owner": OWNER, "wait_ready": 0, "within": PATIENCE}
        answers = await asyncio.gather(
            *(rig.caller.create_until_answered(places(rig, n), **wanted) for n in range(requests))
        )
        tally.tries += 1
        if made := (await rig.engine_counts())["create"] - before - 1:
            tally.wrong("duplicates" if made > 0 else "lost", f"k{number}: {made + 1} creates")
        said = Counter((answer.status, answer.body.get("sandbox_id")) for answer in answers)
        if len(said) != 1 or answers[0].status != 201:
            tally.wrong("stuck", f"k{number}: {said}")

        other = await rig.caller.create(
            rig.urls[0], key=f"k{number}", workspace_owner=OWNER, image="other", wait_ready=0
        )
        assert (other.status, other.code) == (422, "IDEMPOTENCY_KEY_REUSED")
        removed = await rig.caller.send("DELETE", f"{rig.urls[1]}/v1/sandboxes/{answers[0].body['sandbox_id']}")
        assert removed.status == 204
    tally.check()


@pytest.mark.parametrize("same", ["key", "key_and_body"])
async def test_two_owners_with_one_key_at_the_same_moment_get_two_sandboxes(rig: Rig, same: str) -> None:
    await rig.start(replicas=3)
    owners = ["alice", "bob"]
    answers = await asyncio.gather(
        *(
            rig.caller.create(
                rig.urls[number % 3],
                key="k",
                workspace_owner=owners[number % 2],
                image="python:3.12" if same == "key_and_body" else f"image-of-{owners[number % 2]}",
            )
            for number in range(24)
        )
    )
    by_owner = {
        owner: {a.body["sandbox_id"] for a in answers if a.body["workspace_owner"] == owner} for owner in owners
    }
    assert [answer.status for answer in answers] == [201] * 24
    assert all(answer.body["workspace_owner"] == owners[number % 2] for number, answer in enumerate(answers))
    assert [len(ids) for ids in by_owner.values()] == [1, 1]
    assert not by_owner["alice"] & by_owner["bob"]
    assert (await rig.engine_counts())["create"] == 2


async def test_a_create_that_a_network_delivers_twice_is_one_sandbox_for_its_callers(rig: Rig) -> None:
    """The engine makes two of it: nobody is told of the second one."""
    await rig.start(replicas=2, networks=True)
    doubled = rig.engine_net.plan.duplicate = Duplicate(match=b"POST /v1/sandboxes HTTP/1.1")
    answers = [await rig.caller.create_until_answered([url], key="k", workspace_owner=OWNER) for url in rig.urls]
    await asyncio.wait_for(doubled.answered.wait(), 60)
    assert (await rig.engine_counts())["create"] == 2
    listed = await rig.caller.send("GET", f"{rig.urls[0]}/v1/sandboxes")
    again = await rig.caller.create_until_answered(rig.urls, key="k", workspace_owner=OWNER)
    assert {answer.body["sandbox_id"] for answer in [*answers, again]} == {answers[0].body["sandbox_id"]}
    assert answers[0].body["sandbox_id"] in [item["sandbox_id"] for item in listed.body["items"]]
    assert len(listed.body["items"]) == 2
