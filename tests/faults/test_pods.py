"""On Kubernetes: pods that are made anew, killed, failed for good and unheard of; creates that are taken back."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.faults.caller import Answer
from tests.faults.rig import ENGINE_KEY, OWNER, Rig
from tests.faults.tally import Tally, tries
from tests.support.waiting import PATIENCE, eventually

KUBERNETES = ("--like", "kubernetes", "--ready-timeout", "3")
ALWAYS = (*KUBERNETES, "--restart-policy", "Always")
REMADE = 2.0
"""Seconds that a pod takes to be made anew here."""

RESTARTED = ("container_restarted", "execd_restarted")
"""The second where sandboxes are plain processes, whose first one is the machine's."""


async def started(rig: Rig, sandbox_id: str, mark: str) -> str:
    """A job of five minutes that has noted its mark; its id."""
    command = rig.command(mark, then="sleep 300")
    answer = await rig.caller.submit_until_answered(rig.urls, sandbox_id, command, key=mark, timeout=600)
    assert answer.status == 202, answer
    await eventually(lambda: rig.runs()[mark])
    return answer.command_id


async def once_more(rig: Rig, sandbox_id: str, mark: str) -> Answer:
    """The same submission again."""
    command = rig.command(mark, then="sleep 300")
    return await rig.caller.submit_until_answered(rig.urls, sandbox_id, command, key=mark, timeout=600)


async def told_by_engine(rig: Rig, sandbox_id: str, state: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while await rig.state_at_engine(sandbox_id) != state:
            await asyncio.sleep(0.05)


async def there(rig: Rig) -> Counter[str]:
    """How many sandboxes the engine has, by the label `k`."""
    url = f"{rig.engine.url}/v1/sandboxes?pageSize=200"
    answer = await rig.caller.send("GET", url, headers={"OPEN-SANDBOX-API-KEY": ENGINE_KEY})
    return Counter(each.get("metadata", {}).get("k", "") for each in answer.body["items"])


@tries(short=3, long=40)
async def test_pods_are_made_anew_under_running_jobs_and_while_more_are_submitted(rig: Rig, tries: int) -> None:
    tally = Tally("pod made anew, under a running job and while another is submitted")
    await rig.start(engine=KUBERNETES)
    for number in range(tries):
        sandbox_id = await rig.sandbox()
        running = await started(rig, sandbox_id, f"under{number}")
        await rig.pod(sandbox_id, "delete", seconds=REMADE)
        mark = f"while{number}"
        answer = await rig.caller.submit_until_answered(rig.urls, sandbox_id, rig.command(mark), key=mark)
        await tally.audit(rig, rig.urls[0], {mark: answer.command_id if answer.status == 202 else None})
        job = await rig.caller.ended(rig.urls[1], running)
        if (job.get("state"), job.get("reason") in RESTARTED) != ("lost", True):
            tally.wrong("lost", f"under{number} is {job.get('state')}, {job.get('reason')}")
        again = await once_more(rig, sandbox_id, f"under{number}")
        if again.body.get("command_id") != running or rig.runs()[f"under{number}"] != 1:
            tally.wrong("duplicates", f"under{number}: {again}")
    tally.check()


@tries(short=2, long=30)
async def test_a_first_process_that_comes_back_takes_its_job_and_no_second_run(rig: Rig, tries: int) -> None:
    tally = Tally("first process killed, its container comes back")
    await rig.start(engine=ALWAYS)
    for number in range(tries):
        sandbox_id = await rig.sandbox()
        running = await started(rig, sandbox_id, f"m{number}")
        await rig.pod(sandbox_id, "kill")
        job = await rig.caller.ended(rig.urls[0], running)
        tally.tries += 1
        if (job.get("state"), job.get("reason") in RESTARTED) != ("lost", True):
            tally.wrong("stuck", f"m{number} is {job.get('state')}, {job.get('reason')}")
        again = await once_more(rig, sandbox_id, f"m{number}")
        if again.body.get("command_id") != running or rig.runs()[f"m{number}"] != 1:
            tally.wrong("duplicates", f"m{number}: {again}")
    tally.check()


@tries(short=1, long=15)
async def test_failed_for_good_and_alive__one_sandbox_a_key_and_jobs_once(rig: Rig, tries: int) -> None:
    tally = Tally("sandbox failed for good while its daemon answers")
    await rig.start(engine=ALWAYS)
    for number in range(tries):
        key: dict[str, Any] = {"key": f"k{number}", "workspace_owner": OWNER, "metadata": {"k": f"k{number}"}}
        made = await rig.caller.create_until_answered(rig.urls, **key)
        sandbox_id = made.body["sandbox_id"]
        for state in ("Running", "Failed"):
            await rig.pod(sandbox_id, "kill")
            await told_by_engine(rig, sandbox_id, "Pending")
            await told_by_engine(rig, sandbox_id, state)
        answers = await asyncio.gather(
            *(rig.caller.create_until_answered([rig.urls[n % 2]], wait_ready=0, **key) for n in range(6))
        )
        if {each.body.get("sandbox_id") for each in answers} != {sandbox_id} or (await there(rig))[f"k{number}"] != 1:
            tally.wrong("duplicates", f"k{number}: {answers}")
        marks = [f"k{number}m{n}" for n in range(4)]
        jobs = await asyncio.gather(
            *(rig.caller.submit_until_answered(rig.urls, sandbox_id, rig.command(m), key=m) for m in marks)
        )
        await tally.audit(rig, rig.urls[1], {m: a.body.get("command_id") for m, a in zip(marks, jobs, strict=True)})
    tally.check()


@tries(short=4, long=100)
async def test_a_node_that_does_not_report__jobs_go_on(rig: Rig, tries: int) -> None:
    tally = Tally("node's kubelet silent: all on it is `Pending`")
    await rig.start(engine=KUBERNETES)
    sandbox_id = await rig.sandbox()
    await rig.pod(sandbox_id, "node", reports=False)
    marks = [f"m{number}" for number in range(tries)]
    commands = [rig.command(mark, then="sleep 1") for mark in marks]
    answers = await asyncio.gather(
        *(
            rig.caller.submit_until_answered(rig.urls, sandbox_id, c, key=m)
            for m, c in zip(marks, commands, strict=True)
        )
    )
    await tally.audit(rig, rig.urls[0], {m: a.body.get("command_id") for m, a in zip(marks, answers, strict=True)})
    tally.check()


@tries(short=2, long=30)
@pytest.mark.parametrize("rolled_back", [True, False])
async def test_a_create_that_times_out_at_the_engine__a_retry_and_one_sandbox(
    rig: Rig, tries: int, rolled_back: bool
) -> None:
    tally = Tally("create times out at the engine, " + ("taken back" if rolled_back else "left behind all the same"))
    await rig.start(engine=KUBERNETES, env={"ONCEBOX_CLAIM_WAIT": "20"})
    code = "KUBERNETES::POD_READY_TIMEOUT"
    for number in range(tries):
        fields: dict[str, Any] = {"workspace_owner": OWNER, "metadata": {"k": f"k{number}"}, "wait_ready": 0}
        if rolled_back:
            body = f'{{"code":"{code}","message":"Timeout waiting. Last state: Pending"}}'
            await rig.order_fault(create_status=504, create_body=body, create_content_type="application/json")
        else:
            fields["entrypoint"] = ["true"]
            await rig.caller.send("POST", f"{rig.engine.url}/_dev/cluster", json={"keeps": 1})
        first = await rig.caller.create(rig.urls[0], key=f"k{number}", **fields)
        expected = (503, True) if rolled_back else (201, None)
        if (first.status, first.body.get("retryable")) != expected:
            tally.wrong("stuck", f"k{number}: {first}")
        again = await rig.caller.create_until_answered(rig.urls, key=f"k{number}", **fields)
        tally.tries += 1
        if again.status not in (200, 201):
            tally.wrong("stuck", f"k{number}: {again}")
        if (await there(rig))[f"k{number}"] != 1:
            tally.wrong("duplicates", f"k{number}: {await there(rig)}")
    tally.check()


@tries(short=2, long=30)
async def test_an_image_that_can_not_be_pulled__refused_at_once_to_all_who_ask(rig: Rig, tries: int) -> None:
    tally = Tally("image that can't be pulled, six creates with one key")
    await rig.start(engine=KUBERNETES)
    for number in range(tries):
        asked: dict[str, Any] = {"key": f"k{number}", "image": "no-such-image:1", "metadata": {"k": f"k{number}"}}
        answers = await asyncio.gather(
            *(rig.caller.create_until_answered([rig.urls[n % 2]], **asked) for n in range(6))
        )
        tally.tries += 1
        if {(each.status, each.code, each.body.get("retryable")) for each in answers} != {
            (422, "ENGINE_REJECTED", False)
        } or any("no-such-image:1" not in each.body["detail"] for each in answers):
            tally.wrong("stuck", f"k{number}: {answers}")
        if (await there(rig))[f"k{number}"]:
            tally.wrong("duplicates", f"k{number} was left")
    tally.check()


@pytest.mark.faults_long
@pytest.mark.timeout(600)
async def test_a_first_process_that_nobody_starts_again__lost_after_five_minutes_of_refusals(rig: Rig) -> None:
    tally = Tally("first process killed for good, five minutes of refusals")
    await rig.start(engine=KUBERNETES)
    sandbox_id = await rig.sandbox()
    answer = await rig.caller.submit(
        rig.urls[0], sandbox_id, rig.command("m", then="sleep 9000"), key="m", timeout=14_400
    )
    await eventually(lambda: rig.runs()["m"])
    await rig.pod(sandbox_id, "kill")
    job = await rig.caller.ended(rig.urls[0], answer.command_id, within=60)
    assert job["state"] == "running", "it may come back"
    job = await rig.caller.ended(rig.urls[0], answer.command_id, within=360)
    tally.tries += 1
    if (job["state"], job["reason"]) != ("lost", "engine_unreachable"):
        tally.wrong("stuck", f"{job['state']}, {job['reason']}")
    if rig.runs()["m"] != 1:
        tally.wrong("duplicates", "m")
    tally.check()
