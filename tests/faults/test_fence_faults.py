"""Answers lost, requests doubled, daemons, containers and data gone: no second run, and an end for every job."""

import asyncio
import itertools
from typing import Any

import pytest

from tests.faults.caller import Answer
from tests.faults.rig import Rig
from tests.faults.tally import Tally, batches, tries
from tests.support.network_plan import Action, Duplicate, Fault

COMMAND = b"/proxy/44772/command HTTP/1.1"
"""In the head of every submission to a daemon, through the engine's proxy."""

AT_ONCE = 5
"""Sandboxes that meet their fault at the same time."""

CUTS = {
    "cut_before_init": "cut before `init`",
    "cut_after_init": "cut after `init`",
    "cut_after_complete": "cut after `execution_complete`",
    "drop": "dropped whole",
    "drop_before": "none, the request was not carried out",
}
"""Faults that the engine takes orders for, and how the table calls them."""

LONGEST_REPLY = 900
"""Bytes of the daemon's answer to a submission, head included, at the most."""


async def submitted(rig: Rig, sandbox_id: str, mark: str, **options: Any) -> Answer:
    """Submits a mark, with retries, until it is answered."""
    then = options.pop("then", "")
    command = rig.command(mark, then=then)
    return await rig.caller.submit_until_answered(rig.urls, sandbox_id, command, key=mark, **options)


def ids(marks: list[str], answers: list[Answer]) -> dict[str, str | None]:
    """Mark -> command_id; None: not accepted."""
    return {mark: a.command_id if a.status == 202 else None for mark, a in zip(marks, answers, strict=True)}


async def shown(rig: Rig, command_id: str, output: str) -> dict[str, Any]:
    """The job, once its output is this."""
    async with asyncio.timeout(60):
        while (job := (await rig.caller.job(rig.urls[0], command_id)).body)["output"] != output:
            await asyncio.sleep(0.05)
    return job


async def noted(rig: Rig, marks: list[str]) -> None:
    """Waits until the commands of these marks have begun."""
    async with asyncio.timeout(60):
        while not all(rig.runs()[mark] for mark in marks):
            await asyncio.sleep(0.02)


# -- answers that are lost


@tries(short=2, long=100)
async def test_the_answer_to_a_submission_is_cut(rig: Rig, tries: int) -> None:
    """`tries` is for each kind of cut."""
    await rig.start(replicas=2)
    sandbox_id = await rig.sandbox()
    earlier = 0
    for cut in ("cut_before_init", "cut_after_init", "cut_after_complete", "drop", "drop_before"):
        tally = Tally(f"answer of a submission: {CUTS[cut]}")
        jobs: dict[str, str | None] = {}
        for mark in [f"{cut}{number}" for number in range(tries)]:
            await rig.order_fault(submit_reply=cut)
            answer = await submitted(rig, sandbox_id, mark)
            jobs[mark] = answer.command_id if answer.status == 202 else None
            due = await rig.caller.send("GET", f"{rig.engine.url}/_dev/faults")
            assert due.body == {}, "the fault was met"
        await tally.audit(rig, rig.urls[0], jobs)
        # Sent again only past a void, which raises the attempt.
        allowed = sum(rig.attempt(command_id) for command_id in jobs.values() if command_id)
        total = await rig.submissions(rig.replicas[0], sandbox_id) if rig.engine.private else earlier
        if total - earlier > allowed:
            tally.wrong("duplicates", f"{total - earlier} submissions reached the daemon, {allowed} were allowed")
        earlier = total
        tally.check()


@tries(short=10, long=LONGEST_REPLY)
async def test_the_answer_to_a_submission_is_cut_at_any_byte(rig: Rig, tries: int) -> None:
    tally = Tally("answer of a submission reset at any byte")
    await rig.start(replicas=2, networks=True)
    sandbox_id = await rig.sandbox()
    jobs: dict[str, str | None] = {}
    for number in range(tries):
        mark = f"m{number}"
        place = (number + 1) * LONGEST_REPLY // tries
        rig.engine_net.plan.reply = Fault(Action.RESET, after=place, when=COMMAND)
        answer = await submitted(rig, sandbox_id, mark)
        jobs[mark] = answer.command_id if answer.status == 202 else None
    await tally.audit(rig, rig.urls[0], jobs)
    tally.check()


@tries(short=8, long=200)
async def test_a_submission_is_cut_at_any_byte(rig: Rig, tries: int) -> None:
    tally = Tally("submission reset at any byte of the request")
    await rig.start(replicas=2, networks=True)
    sandbox_id = await rig.sandbox()
    jobs: dict[str, str | None] = {}
    for number in range(tries):
        mark = f"m{number}"
        rig.engine_net.plan.request = Fault(Action.RESET, after=(number + 1) * 2400 // tries, marker=COMMAND)
        answer = await submitted(rig, sandbox_id, mark)
        jobs[mark] = answer.command_id if answer.status == 202 else None
    await tally.audit(rig, rig.urls[0], jobs)
    tally.check()


# -- requests that come twice


@pytest.mark.parametrize("winner", ["first", "second"])
@tries(short=4, long=100)
async def test_a_submission_that_a_proxy_sends_twice_runs_once(rig: Rig, tries: int, winner: str) -> None:
    """Where the second copy wins, the service follows a command that ran nothing: it adopts the run."""
    tally = Tally(f"submission duplicated by a proxy, the {winner} copy runs")
    await rig.start(replicas=2, networks=True)
    sandbox_id = await rig.sandbox()
    jobs: dict[str, str | None] = {}
    for number in range(tries):
        mark = f"m{number}"
        if winner == "second":
            await rig.order_fault(submit_delay=0.3)
        doubled = rig.engine_net.plan.duplicate = Duplicate(match=COMMAND)
        answer = await submitted(rig, sandbox_id, mark, then="sleep 0.5")
        jobs[mark] = answer.command_id if answer.status == 202 else None
        await asyncio.wait_for(doubled.answered.wait(), 60)
        while (job := (await rig.caller.job(rig.urls[0], answer.command_id)).body)["state"] == "running":
            assert not job["output"].startswith("oncebox-fence"), "the marker is never shown"
            await asyncio.sleep(0.05)
    await tally.audit(rig, rig.urls[0], jobs)
    tally.check()


# -- the daemon


@pytest.mark.parametrize("when", ["running", "ended"])
@tries(short=3, long=100)
async def test_execd_restarted__the_job_has_its_end_and_its_output(rig: Rig, tries: int, when: str) -> None:
    tally = Tally(f"execd killed and restarted, job {when}")
    await rig.start(replicas=2)
    for some in batches("m", tries, AT_ONCE):
        places = await asyncio.gather(*(rig.sandbox() for _ in some))
        then = f"while [ ! -e {rig.place}/go ]; do sleep 0.05; done" if when == "running" else ""
        answers = await asyncio.gather(
            *(submitted(rig, place, mark, then=then) for place, mark in zip(places, some, strict=True))
        )
        await noted(rig, some)
        for place in places:
            await rig.execd(place, "kill")
        if when == "running":
            seen = [(await rig.caller.job(rig.urls[0], answer.command_id)).body["state"] for answer in answers]
            assert set(seen) == {"running"}, "the last known state"
        for place in places:
            await rig.execd(place, "start")
        (rig.directory / "go").touch()
        await tally.audit(rig, rig.urls[1], ids(some, answers))
        (rig.directory / "go").unlink()
        await asyncio.gather(*(rig.delete_at_engine(place) for place in places))
    tally.check()


@tries(short=4, long=20)
async def test_execd_restarted__deadline_and_cancel_still_hold(rig: Rig, tries: int) -> None:
    """Every other job is cancelled, the rest time out."""
    tallies = {end: Tally(f"execd restarted under a job, then {end}") for end in ("timed_out", "cancelled")}
    await rig.start(replicas=2)

    async def check(mark: str, end: str) -> None:
        sandbox_id = await rig.sandbox()
        beat = rig.directory / f"beat{mark}"
        loop = f"while :; do echo >> {rig.place}/{beat.name}; sleep 0.05; done"
        answer = await submitted(rig, sandbox_id, mark, then=loop, timeout=3 if end == "timed_out" else 60)
        await noted(rig, [mark])
        await rig.execd(sandbox_id, "restart")
        if end == "cancelled":
            wished = await rig.caller.send("DELETE", f"{rig.urls[1]}/v1/exec-jobs/{answer.command_id}")
            assert wished.status == 202
        tallies[end].tries += 1
        job = await rig.caller.ended(rig.urls[0], answer.command_id)
        if job.get("state") != end:
            tallies[end].wrong("lost" if job.get("cursor") is None else "stuck", f"{mark}: {job}")
        size = beat.stat().st_size
        await asyncio.sleep(0.3)
        if beat.stat().st_size != size:
            tallies[end].wrong("stuck", f"{mark} is over and works on")
        assert rig.runs()[mark] == 1

    for some in batches("m", tries, AT_ONCE):
        await asyncio.gather(*(check(m, ("timed_out", "cancelled")[int(m[1:]) % 2]) for m in some))
    for tally in tallies.values():
        tally.check()


@tries(short=2, long=20)
async def test_execd_dead__the_last_known_state_and_no_answer_that_lies(rig: Rig, tries: int) -> None:
    tally = Tally("execd killed and not restarted")
    await rig.start(replicas=2)
    for number in range(tries):
        sandbox_id = await rig.sandbox()
        mark = f"m{number}"
        answer = await submitted(rig, sandbox_id, mark, then="echo begun; sleep 60")
        await noted(rig, [mark])
        job = await shown(rig, answer.command_id, "begun\n")
        await rig.execd(sandbox_id, "kill")
        async with asyncio.timeout(60):
            while (await rig.caller.job(rig.urls[1], answer.command_id, cursor=job["cursor"])).body["logs_ok"]:
                await asyncio.sleep(0.05)
        job = (await rig.caller.job(rig.urls[1], answer.command_id)).body
        tally.tries += 1
        if (job["state"], job["output"]) != ("running", "begun\n"):
            tally.wrong("lost", f"{mark}: {job}")
        refused = await rig.caller.submit(rig.urls[0], sandbox_id, rig.command("no"), key=f"no{number}")
        assert (refused.status, refused.code) == (503, "ENGINE_UNAVAILABLE")
        again = await rig.caller.submit(
            rig.urls[0], sandbox_id, rig.command(mark, then="echo begun; sleep 60"), key=mark
        )
        assert again.command_id == answer.command_id
        assert rig.runs() == {f"m{n}": 1 for n in range(number + 1)}
    tally.check()


@pytest.mark.faults_long
@pytest.mark.timeout(300)
async def test_execd_dead_past_the_deadline_and_its_grace__lost(rig: Rig) -> None:
    await rig.start(replicas=2)
    sandbox_id = await rig.sandbox()
    answer = await submitted(rig, sandbox_id, "m0", then="echo begun; exec sleep 300", timeout=2)
    await noted(rig, ["m0"])
    await rig.execd(sandbox_id, "kill")
    job = await rig.caller.ended(rig.urls[0], answer.command_id, within=200)
    tally = Tally("execd killed and never restarted: lost past deadline and grace", tries=1)
    if (job["state"], job["reason"]) != ("lost", "engine_unreachable"):
        tally.wrong("stuck", str(job))
    tally.check()


# -- the container


async def cut_then_restart(rig: Rig, jobs: dict[str, str], filesystem: str, then: str) -> list[Answer]:
    """The answers of submissions (mark -> sandbox) are lost; their containers restart before anybody can look."""
    first = rig.replicas[0]
    before = first.points.count("after_dispatch")
    first.points.hold("after_dispatch")
    await rig.order_fault(submit_reply="cut_before_init", count=len(jobs))
    calls = [
        asyncio.create_task(rig.caller.submit(first.url, place, rig.command(mark, then=then), key=mark))
        for mark, place in jobs.items()
    ]
    await first.points.reached("after_dispatch", times=before + len(jobs))
    await noted(rig, list(jobs))
    await asyncio.gather(*(rig.restart_container(place, filesystem=filesystem) for place in jobs.values()))
    first.points.release("after_dispatch")
    return await asyncio.gather(*calls)


def needs_private_sandboxes(rig: Rig) -> None:
    """Where sandboxes share the machine's /tmp, there is no file system to replace."""
    if not rig.engine.private:
        pytest.skip("bwrap does not work here: sandboxes have no file system of their own to replace")


@pytest.mark.parametrize("filesystem", ["new", "kept"])
@tries(short=3, long=100)
async def test_the_container_is_restarted_between_dispatch_and_reconcile(rig: Rig, tries: int, filesystem: str) -> None:
    tally = Tally(f"container restarted ({filesystem} file system) between dispatch and reconcile")
    await rig.start(replicas=2)
    needs_private_sandboxes(rig)
    for some in batches("m", tries, AT_ONCE):
        jobs = {mark: await rig.sandbox() for mark in some}
        answers = await cut_then_restart(rig, jobs, filesystem, "sleep 60")
        for (mark, place), answer in zip(jobs.items(), answers, strict=True):
            assert answer.status in (202, 502), answer
            job = await rig.caller.ended(rig.urls[0], answer.command_id)
            tally.tries += 1
            if (job.get("state"), job.get("reason")) != ("lost", "container_restarted"):
                tally.wrong("stuck", f"{mark}: {job}")
            again = await submitted(rig, place, mark, then="sleep 60")
            assert (again.command_id, again.body["state"]) == (answer.command_id, "lost")
            if rig.runs()[mark] != 1:
                tally.wrong("duplicates", mark)
            await rig.delete_at_engine(place)
    tally.check()


@tries(short=3, long=50)
async def test_the_container_is_restarted_on_its_files__what_had_ended_has_its_result(rig: Rig, tries: int) -> None:
    tally = Tally("container restarted (kept file system) after the end, before reconcile")
    await rig.start(replicas=2)
    needs_private_sandboxes(rig)
    for some in batches("m", tries, AT_ONCE):
        jobs = {mark: await rig.sandbox() for mark in some}
        first = rig.replicas[0]
        before = first.points.count("after_dispatch")
        first.points.hold("after_dispatch")
        await rig.order_fault(submit_reply="cut_before_init", count=len(jobs))
        calls = [
            asyncio.create_task(rig.caller.submit(first.url, place, rig.command(mark), key=mark))
            for mark, place in jobs.items()
        ]
        await first.points.reached("after_dispatch", times=before + len(jobs))
        await noted(rig, some)
        await asyncio.gather(*(exit_noted(rig, place) for place in jobs.values()))
        await asyncio.gather(*(rig.restart_container(place, filesystem="kept") for place in jobs.values()))
        first.points.release("after_dispatch")
        await tally.audit(rig, rig.urls[1], ids(some, await asyncio.gather(*calls)))
    tally.check()


async def exit_noted(rig: Rig, sandbox_id: str) -> None:
    """Waits until the fence of the sandbox's one job has its exit code."""
    waiting = "while ! grep -qs '^exit=' /tmp/.oncebox/*; do sleep 0.02; done"
    body = {"sandbox_id": sandbox_id, "command": waiting}
    answer = await rig.caller.send("POST", f"{rig.urls[1]}/v1/exec", json=body)
    assert answer.status == 200, answer


@tries(short=4, long=50)
async def test_the_container_is_restarted_under_a_running_job__lost(rig: Rig, tries: int) -> None:
    tally = Tally("container restarted under a job that is followed")
    await rig.start(replicas=2)
    needs_private_sandboxes(rig)

    async def check(mark: str, filesystem: str) -> None:
        sandbox_id = await rig.sandbox()
        answer = await submitted(rig, sandbox_id, mark, then="echo begun; sleep 60")
        await shown(rig, answer.command_id, "begun\n")
        await rig.restart_container(sandbox_id, filesystem=filesystem)
        job = await rig.caller.ended(rig.urls[1], answer.command_id)
        tally.tries += 1
        if (job["state"], job["reason"], job["output"]) != ("lost", "container_restarted", "begun\n"):
            tally.wrong("stuck" if job["state"] == "running" else "lost", f"{filesystem} {mark}: {job}")
        again = await submitted(rig, sandbox_id, mark, then="echo begun; sleep 60")
        assert again.command_id == answer.command_id
        assert rig.runs()[mark] == 1

    for some in batches("m", tries, AT_ONCE):
        await asyncio.gather(*(check(mark, ("new", "kept")[int(mark[1:]) % 2]) for mark in some))
    tally.check()


@tries(short=2, long=20)
async def test_the_sandbox_is_deleted_under_a_running_job__lost_with_its_output(rig: Rig, tries: int) -> None:
    tally = Tally("sandbox deleted at the engine under a running job")
    await rig.start(replicas=2)
    for number in range(tries):
        sandbox_id = await rig.sandbox()
        answer = await submitted(rig, sandbox_id, f"m{number}", then="echo begun; sleep 60")
        await shown(rig, answer.command_id, "begun\n")
        await rig.delete_at_engine(sandbox_id)
        job = await rig.caller.ended(rig.urls[1], answer.command_id)
        tally.tries += 1
        told = (job["state"], job["reason"], job["output"], job["output_complete"])
        if told != ("lost", "sandbox_gone", "begun\n", False):
            tally.wrong("lost" if job["state"] != "running" else "stuck", str(job))
    tally.check()


# -- the data


@tries(short=6, long=100)
async def test_redis_emptied_while_jobs_run__the_same_key_is_the_same_run(rig: Rig, tries: int) -> None:
    tally = Tally("Redis emptied while jobs run, then the same keys")
    await rig.start(replicas=2)
    sandbox_id = await rig.sandbox()
    for some in batches("m", tries, 20):
        go = rig.directory / "go"
        then = f"while [ ! -e {rig.place}/go ]; do sleep 0.05; done"
        first = await asyncio.gather(*(submitted(rig, sandbox_id, mark, then=then) for mark in some))
        await noted(rig, some)
        with rig.redis.client() as client:
            client.flushall()
        again = await asyncio.gather(*(submitted(rig, sandbox_id, mark, then=then) for mark in some))
        assert [answer.command_id for answer in again] == [answer.command_id for answer in first]
        go.touch()
        await tally.audit(rig, rig.urls[1], ids(some, list(again)))
        go.unlink()
    tally.check()


@tries(short=6, long=100)
async def test_redis_emptied__get_and_cancel_find_the_job_by_its_fence(rig: Rig, tries: int) -> None:
    tally = Tally("Redis emptied, then GET and DELETE by the old command_id")
    await rig.start(replicas=2)
    sandbox_id = await rig.sandbox()
    marks = [f"m{number}" for number in range(tries)]
    answers = await asyncio.gather(*(submitted(rig, sandbox_id, mark) for mark in marks))
    endless = await submitted(rig, sandbox_id, "endless", then="exec sleep 60")
    await asyncio.gather(*(rig.caller.ended(rig.urls[0], answer.command_id) for answer in answers))
    await noted(rig, ["endless"])
    with rig.redis.client() as client:
        client.flushall()

    wished = await rig.caller.send("DELETE", f"{rig.urls[1]}/v1/exec-jobs/{endless.command_id}")
    assert wished.status == 202, wished
    await tally.audit(rig, rig.urls[1], ids(marks, list(answers)))
    assert (await rig.caller.ended(rig.urls[0], endless.command_id))["state"] == "cancelled"
    made_up = answers[0].command_id[:-4] + "0000"
    assert (await rig.caller.job(rig.urls[0], made_up)).status == 404
    tally.check()


@tries(short=3, long=50)
async def test_a_voided_attempt_before_redis_was_emptied_is_walked_through(rig: Rig, tries: int) -> None:
    tally = Tally("attempts voided before Redis was emptied, then the same keys")
    await rig.start(replicas=2)
    sandbox_id = await rig.sandbox()
    jobs: dict[str, str | None] = {}
    for number in range(tries):
        mark = f"m{number}"
        voids = number % 3 + 1
        for _ in range(voids):
            await rig.order_fault(submit_reply="drop_before")
            failed = await rig.caller.submit(rig.urls[0], sandbox_id, rig.command(mark), key=mark)
            assert (failed.status, failed.code) == (503, "ENGINE_UNAVAILABLE"), failed
        answer = await submitted(rig, sandbox_id, mark)
        await noted(rig, [mark])
        with rig.redis.client() as client:
            client.flushall()
        if number % 2:
            assert (await rig.caller.job(rig.urls[1], answer.command_id)).status == 200
        again = await submitted(rig, sandbox_id, mark)
        assert again.command_id == answer.command_id
        jobs[mark] = again.command_id
        await tally.audit(rig, rig.urls[1], {mark: jobs[mark]})
    tally.check()


@tries(short=6, long=60)
async def test_no_job_stays_unknown(rig: Rig, tries: int) -> None:
    """Without a key and without anybody who asks: the reconciler settles it."""
    tally = Tally("answer lost, no key, nobody asks")
    await rig.start(replicas=2)
    sandbox_id = await rig.sandbox()
    marks = [f"m{number}" for number in range(tries)]
    rig.replicas[0].points.hold("after_dispatch")
    for number, cut in zip(range(tries), itertools.cycle(["drop", "cut_after_init", "cut_before_init"]), strict=False):
        await rig.order_fault(submit_reply=cut)
        call = asyncio.create_task(rig.caller.submit(rig.urls[0], sandbox_id, rig.command(marks[number]), key=None))
        await rig.replicas[0].points.reached("after_dispatch", times=number + 1)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    rig.replicas[0].points.release("after_dispatch")
    listed = {job["command"]: job["command_id"] for job in await rig.caller.jobs(rig.urls[1], sandbox_id)}
    await tally.audit(rig, rig.urls[1], {mark: listed.get(rig.command(mark)) for mark in marks})
    tally.check()
