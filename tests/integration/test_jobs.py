"""Jobs on real commands, real Redis and several replicas: output by cursor, states told apart, results that last."""

from __future__ import annotations

import asyncio
import base64
import functools
import random
import secrets
import shlex
from datetime import datetime
from typing import Any

import pytest

from service import errors
from service.core.app import Core
from service.core.jobs import pacing
from service.core.jobs.listing import Wanted
from service.core.jobs.read import Chunk
from service.messages import CreateSandbox, Encoding, Exec, ExecJobOutput, JobState, Reason, SubmitJob
from tests.integration.core_rig import WAITS, Rig, eventually, execute, follow, go, submit, there
from tests.support.redis_server import RedisServer
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.integration


# -- once


async def test_fifty_submissions_with_one_key_run_the_command_once(core: Core, other: Core, box: str) -> None:
    request = SubmitJob(sandbox_id=box, command="echo x >>count; echo done")
    answers = await asyncio.gather(
        *(replica.jobs.submit("default", request, "one-key") for replica in [core, other] * 25)
    )
    assert len({answer.value.command_id for answer in answers}) == 1
    assert sum(not answer.replayed for answer in answers) == 1
    await follow(other, answers[0].value.command_id)
    assert await execute(core, box, "cat count") == "x\n"


async def test_fifty_creates_with_one_key_make_one_sandbox(here: Rig, core: Core, other: Core) -> None:
    before = (await here.dev("stats"))["create"]
    answers = await asyncio.gather(
        *(replica.sandboxes.create("default", CreateSandbox(image="x"), "key") for replica in [core, other] * 25)
    )
    assert len({answer.value.sandbox_id for answer in answers}) == 1
    assert (await here.dev("stats"))["create"] - before == 1


async def test_two_jobs_without_a_key_are_two_jobs(core: Core, box: str) -> None:
    ids = [await submit(core, box, "echo x >>count") for _ in range(2)]
    for id in ids:
        await follow(core, id)
    assert await execute(core, box, "cat count") == "x\nx\n"


async def test_a_key_used_for_another_command_runs_nothing(core: Core, other: Core, box: str) -> None:
    await submit(core, box, "echo one >>count", "key")
    with pytest.raises(errors.IdempotencyKeyReused):
        await submit(other, box, "echo two >>count", "key")
    await eventually(lambda: execute_equals(core, box, "cat count", "one\n"))


async def execute_equals(core: Core, box: str, command: str, wanted: str) -> bool:
    return await execute(core, box, command) == wanted


# -- output by cursor


@pytest.mark.parametrize("seed", range(4))
async def test_joined_chunks_equal_the_log_however_they_are_cut(core: Core, other: Core, box: str, seed: int) -> None:
    chance = random.Random(seed)
    log = "".join(chance.choice("aé€𝄞\n") for _ in range(3000)).encode() + b"\xff\xfe" + "ü".encode()[:1]
    packed = base64.b64encode(log).decode()
    command = f"echo {packed} | base64 -d >log; head -c 2000 log; sleep 0.6; tail -c +2001 log"
    id = await submit(core, box, command)
    for encoding in (Encoding.UTF8, Encoding.BASE64):
        pieces, cursor = [], None
        async with asyncio.timeout(PATIENCE):
            while True:
                replica = chance.choice([core, other])
                limit = chance.choice([1, 2, 3, 7, 100, 4096])
                page = (
                    await replica.jobs.get("default", id, cursor=cursor, limit=limit, wait=1, encoding=encoding)
                ).whole()
                pieces.append(page.output)  # type: ignore[union-attr]
                cursor = page.cursor
                if cursor is None:
                    break
        if encoding is Encoding.UTF8:
            assert "".join(pieces) == log.decode("utf-8", "replace")
        else:
            assert b"".join(base64.b64decode(piece) for piece in pieces) == log


async def test_a_read_that_fails_keeps_the_place_and_the_state(here: Rig, core: Core, box: str) -> None:
    id = await submit(core, box, "echo first; sleep 30")
    page = (await core.jobs.get("default", id, cursor=None, wait=0)).whole()
    async with asyncio.timeout(60):
        while page.output != "first\n":  # type: ignore[union-attr]
            page = (await core.jobs.get("default", id)).whole()
    await here.dev(f"sandboxes/{box}/execd", {"action": "kill"})
    async with asyncio.timeout(60):
        while page.logs_ok:
            page = (await core.jobs.get("default", id, cursor=page.cursor)).whole()
            await asyncio.sleep(0.05)
    assert page.state is JobState.RUNNING
    assert page.cursor is not None


# -- states told apart


async def test_each_end_is_told_apart(core: Core, other: Core, box: str) -> None:
    ids = {
        "exit": await submit(core, box, "exit 3"),
        "killed": await submit(core, box, "kill -9 $$"),
        "timeout": await submit(core, box, "echo said; sleep 60", timeout=3),
        "cancel": await submit(core, box, "echo said; sleep 60"),
    }
    await other.jobs.cancel("default", ids["cancel"])
    ends = {name: await follow(other, id) for name, id in ids.items()}
    assert (ends["exit"][0].state, ends["exit"][0].exit_code) == (JobState.EXITED, 3)
    assert (ends["killed"][0].state, ends["killed"][0].exit_code) == (JobState.EXITED, 137)
    assert (ends["timeout"][0].state, ends["timeout"][0].timed_out) == (JobState.TIMED_OUT, True)
    assert ends["timeout"][1] == "said\n"
    assert ends["cancel"][0].state is JobState.CANCELLED


async def test_a_cancel_that_meets_the_exit_gives_one_of_the_two_for_good(core: Core, other: Core, box: str) -> None:
    for wait in (0.0, 0.05, 0.1, 0.15):
        id = await submit(core, box, "sleep 0.1; exit 5")
        await asyncio.sleep(wait)
        await other.jobs.cancel("default", id)
        first, _ = await follow(core, id)
        assert first.state in (JobState.EXITED, JobState.CANCELLED)
        await other.jobs.cancel("default", id)
        again, _ = await follow(other, id)
        assert (again.state, again.exit_code) == (first.state, first.exit_code)


async def test_a_command_that_can_not_start_has_failed_and_its_key_is_free(core: Core, box: str) -> None:
    with pytest.raises(errors.EngineRejected):
        await submit(core, box, "pwd", "key", cwd="/no/such/directory")
    page, text = await follow(core, await submit(core, box, "pwd", "key", cwd="/"))
    assert (page.state, text) == (JobState.EXITED, "/\n")


async def test_the_sandbox_gone_under_a_running_job_is_lost_with_its_output(core: Core, other: Core, box: str) -> None:
    id = await submit(core, box, "echo written; sleep 60")
    await eventually(lambda: output_is(core, id, "written\n"))
    await other.sandboxes.delete("default", box)
    page, text = await follow(core, id)
    assert (page.state, page.reason, text) == (JobState.LOST, Reason.SANDBOX_GONE, "written\n")
    assert not page.output_complete


async def output_is(core: Core, id: str, wanted: str) -> bool:
    return (await core.jobs.get("default", id)).whole().output == wanted  # type: ignore[union-attr]


# -- results that last


async def test_a_result_outlives_its_sandbox_though_nobody_polled(core: Core, other: Core, box: str) -> None:
    id = await submit(core, box, "echo kept; echo $$ >pid; exit 4")
    await there(core, box, "pid")
    await eventually(lambda: execute_equals(core, box, "kill -0 $(cat pid) 2>/dev/null || echo over", "over\n"))
    await core.sandboxes.delete("default", box)
    page, text = await follow(other, id)
    assert (page.state, page.exit_code, text, page.output_complete) == (JobState.EXITED, 4, "kept\n", True)


async def test_all_that_was_written_before_a_delete_is_kept(here: Rig, core: Core, box: str) -> None:
    id = await submit(core, box, "seq 100000; echo end; touch printed; sleep 60")
    await there(core, box, "printed")
    await core.sandboxes.delete("default", box)
    _, text = await follow(core, id, limit=10_000)
    assert text.endswith("99999\n100000\nend\n")
    assert len(text) >= 200_000


async def test_of_a_long_output_the_end_is_kept_and_how_much_came_before(here: Rig) -> None:
    core = await here.replica(record_output=1000)
    box = await here.sandbox(core)
    id = await submit(core, box, "seq 100000")
    await follow(core, id)
    await core.sandboxes.delete("default", box)
    page = (await core.jobs.get("default", id)).whole()
    whole = "".join(f"{n}\n" for n in range(1, 100_001))
    assert page.skipped_bytes == len(whole) - 1000
    assert page.output == whole[-1000:]  # type: ignore[union-attr]


async def test_a_job_that_nobody_polls_reaches_its_recorded_end(core: Core, box: str) -> None:
    id = await submit(core, box, "sleep 1; echo late; exit 6")

    async def recorded() -> bool:
        record = await core.store.get(id)
        return record is not None and record.state.value == "closed"

    await eventually(recorded)


async def test_a_sandbox_is_renewed_for_its_job(core: Core, here: Rig) -> None:
    answer = await core.sandboxes.create("default", CreateSandbox(timeout=60), None)
    id = await submit(core, answer.value.sandbox_id, "sleep 60", timeout=3000)

    async def renewed() -> bool:
        sandbox = await core.sandboxes.get("default", answer.value.sandbox_id)
        return str(sandbox.expires_at) > str(answer.value.expires_at)

    await eventually(renewed)
    await core.jobs.cancel("default", id)


# -- Redis forgot


async def test_after_redis_lost_its_data_a_job_is_found_by_its_id_and_its_key(
    here: Rig, core: Core, other: Core, box: str, redis_server: RedisServer
) -> None:
    command = "echo x >>count; sleep 2; echo out; exit 7"
    id = await submit(core, box, command, "key")
    await eventually(lambda: execute_equals(core, box, "cat count", "x\n"))
    with redis_server.client() as client:
        client.flushall()
    assert await submit(other, box, command, "key") == id
    page, text = await follow(core, id)
    assert (page.state, page.exit_code, text) == (JobState.EXITED, 7, "out\n")
    with redis_server.client() as client:
        client.flushall()
    page, text = await follow(other, id)
    assert (page.state, page.exit_code, text) == (JobState.EXITED, 7, "out\n")
    assert await execute(core, box, "cat count") == "x\n"
    with pytest.raises(errors.IdempotencyKeyReused):
        await submit(core, box, "something else", "key")


async def test_a_made_up_id_is_not_found(core: Core, box: str) -> None:
    from service.core.model import identity

    for made_up in (identity.command_id(box, "0" * 32), identity.command_id("no-such", "0" * 32), "cmd_x", "x"):
        with pytest.raises(errors.JobNotFound):
            await core.jobs.get("default", made_up)


# -- execs


async def test_an_exec_gives_both_outputs_exactly(core: Core, box: str) -> None:
    request = Exec(sandbox_id=box, command=r"printf 'a\r\nb\n\nno end'; printf 'é\377' >&2; exit 9")
    result = (await core.execs.run("default", request, None)).value
    assert (result.exit_code, result.stdout, result.stderr) == (9, "a\r\nb\n\nno end", "é\ufffd")


async def test_an_exec_with_a_key_is_replayed(core: Core, other: Core, box: str) -> None:
    request = Exec(sandbox_id=box, command="echo x >>count; cat count")
    first = await core.execs.run("default", request, "key")
    again = await other.execs.run("default", request, "key")
    assert (first.replayed, again.replayed) == (False, True)
    assert again.value == first.value
    shown = (await other.jobs.get("default", first.value.command_id)).whole()
    assert isinstance(shown, ExecJobOutput)
    assert (shown.kind, shown.stdout, shown.exit_code) == ("exec", "x\n", 0)


async def test_an_exec_that_times_out_keeps_what_it_printed(core: Core, box: str) -> None:
    request = Exec(sandbox_id=box, command="echo partial; sleep 30", timeout=3)
    result = (await core.execs.run("default", request, None)).value
    assert (result.timed_out, result.stdout) == (True, "partial\n")


async def test_an_exec_s_bounded_output_says_that_it_was_cut(here: Rig) -> None:
    core = await here.replica(record_output=100)
    box = await here.sandbox(core)
    command = "seq 1000; seq 1000 >&2; echo short"
    result = (await core.execs.run("default", Exec(sandbox_id=box, command=command), None)).value
    printed = 2 * len("".join(f"{n}\n" for n in range(1, 1001))) + len("short\n")
    assert result.truncated
    assert result.stdout.endswith("999\n1000\nshort\n")
    assert len(result.stdout) == len(result.stderr) == 100
    assert result.skipped_bytes == printed - 200
    shown = (await core.jobs.get("default", result.command_id)).whole()
    assert isinstance(shown, ExecJobOutput)
    assert (shown.truncated, shown.skipped_bytes) == (True, printed - 200)


async def test_a_streamed_exec_shows_text_as_it_comes_and_ends_with_the_result(core: Core, box: str) -> None:
    request = Exec(sandbox_id=box, command=f"echo a; echo b >&2; {WAITS}; echo c; exit 2")
    events = []
    async for event in core.execs.stream("default", request, None):
        events.append(event)
        if {"stdout", "stderr"} <= {each.kind for each in events} and len(events) == 3:
            await go(core, box)
    kinds = [event.kind for event in events]
    assert (kinds[0], kinds[-1]) == ("start", "result")
    assert sorted(kinds[1:-1]) == ["stderr", "stdout", "stdout"]
    assert events[-1].data.exit_code == 2  # type: ignore[union-attr]


async def test_an_exec_whose_stream_is_lost_still_gives_its_result(here: Rig, core: Core, box: str) -> None:
    await here.dev("faults", {"submit_reply": "cut_after_init"})
    result = (await core.execs.run("default", Exec(sandbox_id=box, command="sleep 1; echo out; exit 3"), None)).value
    assert (result.exit_code, result.stdout) == (3, "out\n")


# -- events and lists


async def test_events_resume_exactly_where_they_broke_off(core: Core, other: Core, box: str) -> None:
    id = await submit(core, box, "for i in 1 2 3 4; do echo $i; sleep 0.3; done")
    seen, cursor = "", None
    async for event in core.jobs.events("default", id):
        seen += event.data.output if event.kind == "output" else ""  # type: ignore[union-attr]
        cursor = event.id
        if "2\n" in seen:
            break
    async for event in other.jobs.events("default", id, cursor=cursor):
        seen += event.data.output if event.kind == "output" else ""  # type: ignore[union-attr]
        cursor = event.id
    assert seen == "1\n2\n3\n4\n"
    assert core.jobs.is_end(cursor)


async def test_events_end_at_once_when_the_replica_stops_during_a_read(
    here: Rig, box: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = await here.replica()
    id = await submit(core, box, "echo begun; sleep 600")
    reading = asyncio.Event()
    read = core.reader.chunk

    async def noticed(*args: Any, **more: Any) -> Chunk:
        chunk = await read(*args, **more)
        if not chunk.data:
            reading.set()
            await asyncio.sleep(0.2)  # the stop comes meanwhile
        return chunk

    core.reader.chunk = noticed  # type: ignore[method-assign]

    async def stop() -> None:
        await reading.wait()
        core.stop_waiting()

    monkeypatch.setattr("service.core.jobs.service.AGAIN", 3600.0)
    stopping = asyncio.ensure_future(stop())
    kinds = [event.kind async for event in core.jobs.events("default", id)]
    await stopping
    assert "end" not in kinds


async def test_pages_of_jobs_neither_repeat_nor_skip_while_jobs_come(core: Core, other: Core, box: str) -> None:
    before = [await submit(core, box, f"echo {n}") for n in range(7)]
    seen: list[str] = []
    token = None
    while True:
        page = await other.job_list.page("default", sandbox_id=box, page_size=2, page_token=token)
        seen += [job.command_id for job in page.items]
        token = page.next_page_token
        if token is None:
            break
        await submit(core, box, "echo more")
    assert seen == before[::-1]


async def test_jobs_are_listed_by_state_and_metadata(core: Core, box: str) -> None:
    ended = await submit(core, box, "true", metadata={"run": "a"})
    running = await submit(core, box, "sleep 60", metadata={"run": "b"})
    await follow(core, ended)

    done = await core.execs.run("default", Exec(sandbox_id=box, command="true", metadata={"run": "Up"}), None)

    async def ids(**wanted: Any) -> list[str]:
        page = await core.job_list.page(
            "default", sandbox_id=None, wanted=Wanted(**wanted), page_size=50, page_token=None
        )
        return [job.command_id for job in page.items]

    executed = done.value.command_id
    assert await ids(states=frozenset({JobState.EXITED})) == [executed, ended]
    assert await ids(states=frozenset({JobState.RUNNING, JobState.PENDING})) == [running]
    assert await ids(metadata={"run": "a"}) == [ended]
    assert await ids(metadata={"run": "c"}) == []
    assert await ids(kind="exec") == await ids(text="RUN=uP") == [executed]
    assert await ids(kind="job") == [running, ended]
    assert await ids(text="SLEEP 6") == await ids(text=running[8:]) == [running]
    assert await ids(text=box) == [executed, running, ended]
    assert await ids(text="nowhere") == []


async def test_a_job_tells_what_happened_to_it(core: Core, box: str) -> None:
    command_id = await submit(core, box, "sleep 0.2")
    await follow(core, command_id)
    page = (await core.jobs.get("default", command_id)).whole()

    steps = page.history
    assert [step.state for step in steps][:2] == ["dispatched", "accepted"]
    assert steps[-1].state == "closed"
    assert {step.replica for step in steps} == {core.ownership.owner}
    assert all(step.attempt == 1 and step.reason is None for step in steps)
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    assert page.submitted_at is not None
    assert (
        abs(datetime.fromisoformat(steps[0].at) - datetime.fromisoformat(page.submitted_at)).total_seconds() < PATIENCE
    )


# -- the pace


async def test_callers_who_poll_as_fast_as_they_like_do_not_hurry_the_engine(
    here: Rig, core: Core, other: Core
) -> None:
    box = await here.sandbox(core)
    ids = [await submit(core, box, "for i in $(seq 60); do echo $i; sleep 0.1; done") for _ in range(10)]
    await asyncio.sleep(1)
    before = await here.dev("stats")
    started = asyncio.get_running_loop().time()

    async def poll(replica: Core, id: str) -> None:
        cursor = None
        while asyncio.get_running_loop().time() < started + 3:
            cursor = (await replica.jobs.get("default", id, cursor=cursor)).whole().cursor

    await asyncio.gather(*(poll(replica, id) for id in ids for replica in (core, other) for _ in range(2)))
    took = asyncio.get_running_loop().time() - started
    after = await here.dev("stats")
    most = len(ids) * (took / 0.5 + 2)
    assert after["status"] - before["status"] <= most
    assert after["file"] - before["file"] <= most


async def test_watched_jobs_make_room_for_the_first_and_last_reads_of_others(
    here: Rig, core: Core, other: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "JOBS_AT_INTERVAL", 20)
    box = await here.sandbox(core)
    ids = [await submit(core, box, "sleep 60") for _ in range(20)]
    for id in ids:
        await eventually(functools.partial(state_is, core, id, JobState.RUNNING))
    polls = []
    for id in ids:
        for replica in (core, other):
            cursor = (await replica.jobs.get("default", id)).whole().cursor
            polls.append(asyncio.create_task(replica.jobs.get("default", id, cursor=cursor, wait=30)))
    await asyncio.sleep(1.5)
    before = await here.dev("stats")
    started = asyncio.get_running_loop().time()
    for _ in range(25):
        await submit(core, box, "echo short")
        await asyncio.sleep(0.2)
    took = asyncio.get_running_loop().time() - started
    after = await here.dev("stats")
    for poll in polls:
        poll.cancel()
    await asyncio.gather(*polls, return_exceptions=True)
    a_second = pacing.SHARE * 20 / here.settings.engine_interval
    most = a_second * (took + here.settings.engine_interval) + pacing.BURST
    status, outputs = (after[kind] - before[kind] for kind in ("status", "outputs"))
    assert status <= most
    assert outputs <= most
    assert status > 0, "and they are looked at"


async def state_is(core: Core, id: str, state: JobState) -> bool:
    return (await core.jobs.get("default", id)).whole().state is state


# -- what a shell does before it runs a command


PROFILES = {
    "counts": "echo read >>{here}/read",
    "hides its output": "echo read >>{here}/read; exec >/dev/null",
    "logs its output": "echo read >>{here}/read; exec >>{here}/all 2>&1",
}


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
@pytest.mark.parametrize("place", ["sandbox", "command"])
async def test_a_file_that_the_shell_reads_first_is_read_once_and_hides_no_result(
    here: Rig, core: Core, other: Core, profile: str, place: str
) -> None:
    folder = f"/tmp/shell-{secrets.token_hex(4)}"
    env = {"BASH_ENV": f"{folder}/profile", "LC_ALL": "xx_XX", "BASH_FUNC_exit%%": "() { builtin exit 9; }"}
    box = await here.sandbox(core, env=env if place == "sandbox" else None)
    text = shlex.quote(profile.format(here=folder))
    await execute(core, box, f"mkdir {folder}; printf %s {text} >{folder}/profile")  # not there yet, so not read yet
    sent = env if place == "command" else None
    shown = "" if "exec" in profile else "out\n"

    async def read() -> bytes:
        return (await core.engine.read_file(box, f"{folder}/read", 0, 100)).data

    job = await submit(core, box, "echo out; exit 3", env=sent)
    ended, output = await follow(other, job, seconds=20)
    assert (ended.state, ended.exit_code) == (JobState.EXITED, 9)
    assert output.endswith(shown)
    assert output.count("cannot change locale") <= 1
    assert await read() == b"read\n"

    request = Exec(sandbox_id=box, command="echo out; exit 3", env=sent)
    result = (await core.execs.run("default", request, None)).value
    assert (result.exit_code, result.stdout) == (9, shown)
    assert await read() == b"read\nread\n"
