"""Answers lost, requests doubled, daemons, containers and data gone: no second run, and an end for every job."""

import asyncio
import itertools
from typing import Any

import pytest

from tests.faults.caller import Answer
from tests.faults.rig import LEASE, Rig
from tests.faults.tally import Tally, tries
from tests.support.network_plan import Action, Duplicate, Fault

COMMAND = b"/proxy/44772/command HTTP/1.1"
"""In the head of every submission to a daemon, through the engine's proxy."""

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


async def running(rig: Rig, command_id: str) -> None:
    """Waits until the job has noted its mark, which stands for: it runs."""
    async with asyncio.timeout(20):
        while (await rig.caller.job(rig.urls[0], command_id)).body.get("state") != "running":
            await asyncio.sleep(0.02)


async def noted(rig: Rig, marks: list[str]) -> None:
    """Waits until the commands of these marks have begun."""
    async with asyncio.timeout(20):
        while not all(rig.runs()[mark] for mark in marks):
            await asyncio.sleep(0.02)


# -- answers that are lost


@pytest.mark.parametrize("cut", ["cut_before_init", "cut_after_init", "cut_after_complete", "drop", "drop_before"])
@tries(short=4, long=100)
async def test_the_answer_to_a_submission_is_cut(rig: Rig, tries: int, cut: str) -> None:
    tally = Tally(f"answer of a submission: {cut.replace('_', ' ')}")
    await rig.start(replicas=2)
    sandbox_id = await rig.sandbox()
    jobs: dict[str, str | None] = {}
    for number in range(tries):
        mark = f"m{number}"
        await rig.order_fault(submit_reply=cut)
        answer = await submitted(rig, sandbox_id, mark)
        jobs[mark] = answer.command_id if answer.status == 202 else None
        assert (await rig.caller.send("GET", f"{rig.engine.url}/_dev/faults")).body == {}, "the fault was met"
    await tally.audit(rig, rig.urls[0], jobs)
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
        await asyncio.wait_for(doubled.answered.wait(), 20)
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
    marks = [f"m{number}" for number in range(tries)]
    for some in _by(marks, 5):
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
        (rig.engine.volume_root / "ledger" / "workspace" / "go").touch()
        await tally.audit(rig, rig.urls[1], ids(some, answers))
        (rig.engine.volume_root / "ledger" / "workspace" / "go").unlink()
        await asyncio.gather(*(rig.delete_at_engine(place) for place in places))
    tally.check()


@pytest.mark.parametrize("end", ["timed_out", "cancelled"])
@tries(short=2, long=20)
async def test_execd_restarted__deadline_and_cancel_still_hold(rig: Rig, tries: int, end: str) -> None:
    tally = Tally(f"execd restarted under a job, then {end.replace('_', ' ')}")
    await rig.start(replicas=2)
    for number in range(tries):
        sandbox_id = await rig.sandbox()
        mark = f"m{number}"
        beat = f"{rig.place}/beat{number}"
        loop = f"while :; do echo >> {beat}; sleep 0.05; done"
        answer = await submitted(rig, sandbox_id, mark, then=loop, timeout=3 if end == "timed_out" else 60)
        await noted(rig, [mark])
        await running(rig, answer.command_id)
        await rig.execd(sandbox_id, "restart")
        if end == "cancelled":
            wished = await rig.caller.send("DELETE", f"{rig.urls[1]}/v1/exec-jobs/{answer.command_id}")
            assert wished.status == 202
        tally.tries += 1
        job = await rig.caller.ended(rig.urls[0], answer.command_id)
        if job.get("state") != end:
            tally.wrong("lost" if job.get("cursor") is None else "stuck", f"{mark}: {job}")
        beats = (rig.engine.volume_root / "ledger" / "workspace" / f"beat{number}").stat().st_size
        await asyncio.sleep(0.3)
        after = (rig.engine.volume_root / "ledger" / "workspace" / f"beat{number}").stat().st_size
        assert beats == after, "a job that is over still works"
        assert rig.runs()[mark] == 1
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
        while (job := (await rig.caller.job(rig.urls[0], answer.command_id)).body)["output"] != "begun\n":
            await asyncio.sleep(0.05)
        await rig.execd(sandbox_id, "kill")
        async with asyncio.timeout(20):
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


async def cut_then_restart(rig: Rig, sandbox_id: str, mark: str, filesystem: str, then: str) -> "asyncio.Task[Answer]":
    """The answer of a submission is lost, and before anybody can look, its container is restarted."""
    first = rig.replicas[0]
    first.points.hold("after_dispatch")
    await rig.order_fault(submit_reply="cut_before_init")
    call = asyncio.create_task(
        rig.caller.submit(first.url, sandbox_id, rig.command(mark, then=then), key=mark, timeout=60)
    )
    await first.points.reached("after_dispatch")
    await noted(rig, [mark])
    await rig.restart_container(sandbox_id, filesystem=filesystem)
    first.points.forget()
    return call


@pytest.mark.parametrize("filesystem", ["new", "kept"])
@tries(short=2, long=100)
async def test_the_container_is_restarted_between_dispatch_and_reconcile(rig: Rig, tries: int, filesystem: str) -> None:
    tally = Tally(f"container restarted ({filesystem} file system) between dispatch and reconcile")
    await rig.start(replicas=2)
    if not rig.engine.private:
        pytest.skip("sandboxes share the machine's /tmp here: there is no file system to replace")
    for number in range(tries):
        sandbox_id = await rig.sandbox()
        mark = f"m{number}"
        call = await cut_then_restart(rig, sandbox_id, mark, filesystem, "sleep 60")
        answer = await call
        assert answer.status in (202, 502), answer
        job = await rig.caller.ended(rig.urls[0], answer.command_id)
        tally.tries += 1
        if (job.get("state"), job.get("reason")) != ("lost", "container_restarted"):
            tally.wrong("stuck", f"{mark}: {job}")
        again = await submitted(rig, sandbox_id, mark, then="sleep 60")
        assert (again.command_id, again.body["state"]) == (answer.command_id, "lost")
        if rig.runs()[mark] != 1:
            tally.wrong("duplicates", mark)
        await rig.delete_at_engine(sandbox_id)
    tally.check()


@tries(short=2, long=50)
async def test_the_container_is_restarted_on_its_files__what_had_ended_has_its_result(rig: Rig, tries: int) -> None:
    tally = Tally("container restarted (kept file system) after the end, before reconcile")
    await rig.start(replicas=2)
    if not rig.engine.private:
        pytest.skip("sandboxes share the machine's /tmp here: there is no file system to replace")
    jobs: dict[str, str | None] = {}
    sandbox_id = await rig.sandbox()
    for number in range(tries):
        mark = f"m{number}"
        first = rig.replicas[0]
        first.points.hold("after_dispatch")
        await rig.order_fault(submit_reply="cut_before_init")
        call = asyncio.create_task(rig.caller.submit(first.url, sandbox_id, rig.command(mark), key=mark))
        await first.points.reached("after_dispatch")
        await noted(rig, [mark])
        done = await rig.caller.send(
            "POST",
            f"{rig.urls[1]}/v1/exec",
            json={
                "sandbox_id": sandbox_id,
                "command": "while ! grep -qs '^exit=' /tmp/.oncebox/*; do sleep 0.05; done",
            },
        )
        assert done.status == 200, done
        await rig.restart_container(sandbox_id, filesystem="kept")
        first.points.forget()
        jobs[mark] = (await call).command_id
    await tally.audit(rig, rig.urls[1], jobs)
    tally.check()


@tries(short=2, long=50)
async def test_the_container_is_restarted_under_a_running_job__lost(rig: Rig, tries: int) -> None:
    tally = Tally("container restarted under a job that is followed")
    await rig.start(replicas=2)
    if not rig.engine.private:
        pytest.skip("sandboxes share the machine's /tmp here: there is no file system to replace")
    for number, filesystem in zip(range(tries), itertools.cycle(["new", "kept"]), strict=False):
        sandbox_id = await rig.sandbox()
        mark = f"m{number}"
        answer = await submitted(rig, sandbox_id, mark, then="echo begun; sleep 60")
        while (await rig.caller.job(rig.urls[0], answer.command_id)).body["output"] != "begun\n":
            await asyncio.sleep(0.05)
        await rig.restart_container(sandbox_id, filesystem=filesystem)
        job = await rig.caller.ended(rig.urls[1], answer.command_id)
        tally.tries += 1
        if (job["state"], job["reason"], job["output"]) != ("lost", "container_restarted", "begun\n"):
            tally.wrong("stuck" if job["state"] == "running" else "lost", f"{filesystem} {mark}: {job}")
        again = await submitted(rig, sandbox_id, mark, then="echo begun; sleep 60")
        assert again.command_id == answer.command_id
        assert rig.runs()[mark] == 1
    tally.check()


@tries(short=2, long=20)
async def test_the_sandbox_is_deleted_under_a_running_job__lost_with_its_output(rig: Rig, tries: int) -> None:
    tally = Tally("sandbox deleted at the engine under a running job")
    await rig.start(replicas=2)
    for number in range(tries):
        sandbox_id = await rig.sandbox()
        answer = await submitted(rig, sandbox_id, f"m{number}", then="echo begun; sleep 60")
        while (await rig.caller.job(rig.urls[0], answer.command_id)).body["output"] != "begun\n":
            await asyncio.sleep(0.05)
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
    marks = [f"m{number}" for number in range(tries)]
    for some in _by(marks, 20):
        go = rig.engine.volume_root / "ledger" / "workspace" / "go"
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
    for mark, cut in zip(marks, itertools.cycle(["drop", "cut_after_init", "cut_before_init"]), strict=False):
        await rig.order_fault(submit_reply=cut)
        rig.replicas[0].points.hold("after_dispatch")
        call = asyncio.create_task(rig.caller.submit(rig.urls[0], sandbox_id, rig.command(mark), key=None))
        await rig.replicas[0].points.reached("after_dispatch")
        await rig.forget_faults()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        rig.replicas[0].points.forget()
    listed = {job["command"]: job["command_id"] for job in await rig.caller.jobs(rig.urls[1], sandbox_id)}
    await asyncio.sleep(LEASE)
    await tally.audit(rig, rig.urls[1], {mark: listed.get(rig.command(mark)) for mark in marks})
    tally.check()


def _by(marks: list[str], size: int) -> list[list[str]]:
    return [marks[start : start + size] for start in range(0, len(marks), size)]
