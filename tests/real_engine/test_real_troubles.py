"""What goes wrong on a real engine: doubled and lost answers, a dead daemon, Redis emptied, a restarted container."""

import asyncio

import pytest

from tests.faults.caller import TERMINAL
from tests.real_engine.engine_rig import RealRig
from tests.support.network_plan import Action, Duplicate, Fault

pytestmark = [pytest.mark.acceptance, pytest.mark.integration]

COMMAND = b"/proxy/44772/command HTTP/1.1"
CREATE = b"POST /v1/sandboxes HTTP/1.1"


async def test_a_doubled_submission_runs_once(real: RealRig) -> None:
    await real.start_on(mode="always", network=True)
    sandbox_id = await real.ready_sandbox()
    for number in range(5):
        mark = f"m{number}"
        doubled = real.engine_net.plan.duplicate = Duplicate(match=COMMAND)
        answer = await real.caller.submit(real.urls[0], sandbox_id, real.command(mark), key=mark)
        assert answer.status == 202, answer
        await asyncio.wait_for(doubled.answered.wait(), 20)
        real.engine_net.plan.duplicate = None
        job, output = await real.whole(answer.command_id, replica=1)
        assert (job["state"], job["exit_code"], output) == ("exited", 7, f"out-{mark}\n")
    assert sorted(await real.ran(sandbox_id)) == [f"m{number}" for number in range(5)]


@pytest.mark.timeout(180)
async def test_a_lost_answer_to_a_submission_is_settled(real: RealRig) -> None:
    await real.start_on(mode="always", network=True)
    sandbox_id = await real.ready_sandbox()
    for number, place in enumerate((1, 120, 200, 300, 380, 450, 520)):
        mark = f"m{number}"
        real.engine_net.plan.reply = Fault(Action.RESET, after=place, when=COMMAND)
        answer = await real.caller.submit_until_answered(real.urls, sandbox_id, real.command(mark), key=mark)
        real.engine_net.plan.reply = None
        assert answer.status == 202, answer
        job, output = await real.whole(answer.command_id)
        assert (job["state"], job["exit_code"], output) == ("exited", 7, f"out-{mark}\n")
    assert sorted(await real.ran(sandbox_id)) == [f"m{number}" for number in range(7)]


async def test_a_lost_answer_to_a_create_is_found(real: RealRig) -> None:
    await real.start_on(mode="always", network=True)
    real.engine_net.plan.reply = Fault(Action.RESET, after=1, when=CREATE)
    first = await real.create(key="lost", timeout=600)
    assert real.engine_net.plan.reply.hits == 1
    real.engine_net.plan.reply = None
    for _ in range(5):
        if first.status == 201:
            break
        first = await real.create(key="lost", timeout=600)
    again = await real.create(key="lost", replica=1, timeout=600)
    assert (first.status, again.status) == (201, 201), (first, again)
    assert first.body["sandbox_id"] == again.body["sandbox_id"]
    assert again.body["ready"]


async def test_redis_emptied__the_same_keys_meet_the_same_sandbox_and_run(real: RealRig) -> None:
    await real.start_on()
    sandbox_id = await real.ready_sandbox(key="box")
    command = real.command("m", then="sleep 3")
    first = await real.caller.submit(real.urls[0], sandbox_id, command, key="job")
    silent = await real.caller.submit(real.urls[0], sandbox_id, "echo silent; exit 4", key="silent")
    await real.whole(silent.command_id)
    with real.redis.client() as client:
        client.flushall()
    assert await real.ready_sandbox(key="box", replica=1) == sandbox_id
    again = await real.caller.submit_until_answered(real.urls, sandbox_id, command, key="job")
    assert (again.status, again.command_id) == (202, first.command_id), again
    job, output = await real.whole(first.command_id, replica=1)
    assert (job["state"], job["exit_code"], output) == ("exited", 7, "out-m\n")
    assert await real.ran(sandbox_id) == ["m"]
    # By its id alone: nobody submits it again.
    job, output = await real.whole(silent.command_id)
    assert (job["state"], job["exit_code"], output) == ("exited", 4, "silent\n")


@pytest.mark.parametrize("mode", ["auto", "always"])
async def test_execd_killed_and_started_again__jobs_keep_their_ends(real: RealRig, mode: str) -> None:
    await real.start_on(mode=mode)
    sandbox_id = await real.ready_sandbox()
    ended = await real.caller.submit(real.urls[0], sandbox_id, real.command("ended"), key="ended")
    await asyncio.sleep(0.5)  # its output is read only after the daemon has forgotten it
    running = await real.caller.submit(real.urls[0], sandbox_id, real.command("running", then="sleep 8"), key="running")
    await real.kill_execd(sandbox_id, back_after=2)
    await asyncio.sleep(1)
    for mark, answer in (("ended", ended), ("running", running)):
        job, output = await real.whole(answer.command_id, replica=1)
        assert (job["state"], job["exit_code"], output) == ("exited", 7, f"out-{mark}\n"), job
    assert sorted(await real.ran(sandbox_id)) == ["ended", "running"]
    again = await real.caller.submit(real.urls[0], sandbox_id, real.command("running", then="sleep 8"), key="running")
    assert again.command_id == running.command_id


@pytest.mark.timeout(240)
async def test_execd_dead_for_good__nothing_new_is_sent_and_its_jobs_end_after_their_deadline(real: RealRig) -> None:
    """In the Docker runtime nobody starts it again: the sandbox is "running" for ever."""
    await real.start_on()
    sandbox_id = await real.ready_sandbox()
    running = await real.caller.submit(real.urls[0], sandbox_id, "echo so far; sleep 60", key=None, timeout=5)
    await asyncio.sleep(1.5)
    shown = (await real.caller.job(real.urls[0], running.command_id)).body
    assert shown["output"] == "so far\n"
    place = shown["cursor"]
    await real.kill_execd(sandbox_id, back_after=None)
    await asyncio.sleep(2)
    answer = await real.caller.submit(real.urls[1], sandbox_id, "echo never", key="never")
    assert (answer.status, answer.code) == (503, "ENGINE_UNAVAILABLE"), answer
    async with asyncio.timeout(30):
        while (shown := (await real.caller.job(real.urls[1], running.command_id, cursor=place)).body)["logs_ok"]:
            await asyncio.sleep(0.2)
    assert shown["state"] in ("running", "unknown"), shown
    job = await real.caller.ended(real.urls[1], running.command_id, within=150)
    assert (job["state"], job["reason"], job["output_complete"]) == ("lost", "engine_unreachable", False), job


@pytest.mark.usefixtures("_docker")
@pytest.mark.timeout(180)
async def test_a_restarted_container_that_kept_its_files__its_jobs_are_lost_and_not_run_again(real: RealRig) -> None:
    await real.start_on()
    sandbox_id = await real.ready_sandbox()
    ended = await real.caller.submit(real.urls[0], sandbox_id, real.command("ended"), key="ended")
    await real.whole(ended.command_id)
    unread = await real.caller.submit(real.urls[0], sandbox_id, real.command("unread"), key="unread")
    running = await real.caller.submit(
        real.urls[0], sandbox_id, real.command("running", then="sleep 60"), key="running"
    )
    await asyncio.sleep(1.5)
    await real.restart_container(sandbox_id)
    for mark, answer in (("ended", ended), ("unread", unread)):
        job, output = await real.whole(answer.command_id, replica=1)
        assert (job["state"], job["exit_code"], output) == ("exited", 7, f"out-{mark}\n"), job
    job, _ = await real.whole(running.command_id)
    assert (job["state"], job["reason"]) == ("lost", "container_restarted"), job
    command = real.command("running", then="sleep 60")
    again = await real.caller.submit_until_answered(real.urls, sandbox_id, command, key="running")
    assert (again.status, again.body["state"]) == (202, "lost")
    assert again.body["state"] in TERMINAL
    assert sorted(await real.ran(sandbox_id)) == ["ended", "running", "unread"]
