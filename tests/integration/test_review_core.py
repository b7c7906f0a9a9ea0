"""Corners of jobs, execs and sandboxes that a review found: each failed once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import Any

import msgspec
import pytest

from service import errors
from service.core import records
from service.core.app import Core
from service.core.fence.protocol import Ready
from service.core.jobs import foreground, observe, trouble
from service.core.jobs.decisions import Change
from service.core.model.answers import ExecEvent
from service.core.model.states import ClaimState
from service.core.sandboxes import expiry
from service.messages import (
    CreateSandbox,
    Exec,
    ExecJobOutput,
    ExecResult,
    ExecStart,
    ExecText,
    JobOutput,
    JobState,
    SubmitJob,
)
from service.ports.engine import Refused, Unclear
from service.ports.store import Record
from service.store import keys
from tests.integration.core_rig import WAITS, Rig, eventually, execute, follow, go, submit, there
from tests.support.redis_server import RedisServer
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.integration


# -- replays


async def test_a_create_right_after_a_delete_on_another_replica_makes_a_new_sandbox(core: Core, other: Core) -> None:
    request = CreateSandbox(image="x")
    first = await core.sandboxes.create("default", request, "key")
    await core.sandboxes.create("default", request, "key")  # this replica has just seen it alive
    await other.sandboxes.delete("default", first.value.sandbox_id)
    second = await core.sandboxes.create("default", request, "key")
    assert second.value.sandbox_id != first.value.sandbox_id
    assert not second.replayed


async def test_a_submission_is_replayed_though_its_sandbox_was_deleted(core: Core, other: Core, box: str) -> None:
    request = SubmitJob(sandbox_id=box, command="echo kept; exit 4")
    first = await core.jobs.submit("default", request, "key")
    await follow(core, first.value.command_id)
    await core.sandboxes.delete("default", box)
    again = await other.jobs.submit("default", request, "key")
    assert (again.replayed, again.value.command_id) == (True, first.value.command_id)
    assert (again.value.state, again.value.exit_code) == (JobState.EXITED, 4)
    with pytest.raises(errors.SandboxNotFound):
        await other.jobs.submit("default", request, "another key")
    with pytest.raises(errors.SandboxNotFound):
        await other.jobs.submit("default", request, None)


async def test_after_redis_lost_its_data_a_reused_key_does_not_hide_the_run(
    core: Core, other: Core, box: str, redis_server: RedisServer
) -> None:
    request = SubmitJob(sandbox_id=box, command=f"echo one; {WAITS}; exit 3")
    id = (await core.jobs.submit("default", request, "key")).value.command_id
    await eventually(lambda: has_fence(core, id))
    with redis_server.client() as client:
        client.flushall()
    with pytest.raises(errors.IdempotencyKeyReused):
        await submit(other, box, "echo two", "key")
    await go(core, box)
    page, text = await follow(core, id)
    assert (page.state, page.exit_code, text) == (JobState.EXITED, 3, "one\n")
    again = await other.jobs.submit("default", request, "key")
    assert (again.replayed, again.value.state) == (True, JobState.EXITED)


async def has_fence(core: Core, id: str) -> bool:
    record = await core.store.get(id)
    return record is not None and record.state is ClaimState.RUNNING


# -- sandboxes that end, pause and are renewed


async def test_a_job_in_a_paused_sandbox_is_not_lost_when_its_deadline_passes(
    core: Core, box: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trouble, "DEADLINE_GRACE", 0.5)
    id = await submit(core, box, "echo said; sleep 60", timeout=2)
    await eventually(lambda: has_fence(core, id))
    record = await core.store.get(id)
    assert record is not None
    await core.sandboxes.pause("default", box)
    for _ in range(3):
        await asyncio.sleep(1.2)
        record = await core.store.get(id)
        assert record is not None
        found = await trouble.of_run(core.engine, record, records.job_body(record), Unclear("silent"))
        record = await core.ledger.apply(record, found)
    assert record.state.active
    await core.sandboxes.resume("default", box)
    page, _ = await follow(core, id)
    assert page.state is JobState.TIMED_OUT


async def test_a_job_that_prints_all_the_time_keeps_its_sandbox_too(
    here: Rig, core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observe, "EXPIRY_EVERY", 1.0)
    answer = await core.sandboxes.create("default", CreateSandbox(timeout=60), None)
    box = answer.value.sandbox_id
    await here.dev("faults", {"renew_reply": "drop_before"})
    id = await submit(core, box, "while :; do echo $((n += 1)); sleep 0.05; done", timeout=3000)

    async def renewed() -> bool:
        await core.jobs.get("default", id)
        return str((await core.sandboxes.get("default", box)).expires_at) > str(answer.value.expires_at)

    await eventually(renewed)
    await core.jobs.cancel("default", id)


async def test_a_job_that_is_over_does_not_lengthen_a_renewal(core: Core, box: str) -> None:
    id = await submit(core, box, "true", timeout=14_000)
    await follow(core, id)
    await core.store._redis.command("SADD", keys.active(box), id)  # type: ignore[attr-defined]
    before = await core.store.now() / 1000
    sandbox = await core.sandboxes.renew("default", box, 60)
    assert sandbox.expires_at is not None
    assert sandbox.expires_at < str(records.rfc3339(before + 300))


async def test_a_delete_records_what_a_running_exec_has_printed(core: Core, other: Core, box: str) -> None:
    request = Exec(sandbox_id=box, command="echo said; echo complained >&2; touch printed; sleep 60")
    running = asyncio.ensure_future(core.execs.run("default", request, "key"))
    ids: list[str] = []

    async def listed() -> bool:
        ids[:] = await core.store.active_of(box)
        return bool(ids) and await has_fence(core, ids[0])

    await eventually(listed)
    await there(core, box, "printed")
    await other.sandboxes.delete("default", box)
    with pytest.raises(errors.OutcomeUnknown) as first:
        await running
    assert not first.value.replayed
    with pytest.raises(errors.OutcomeUnknown) as again:
        await other.execs.run("default", request, "key")
    assert again.value.replayed
    shown = (await other.jobs.get("default", ids[0])).whole()
    assert isinstance(shown, ExecJobOutput)
    assert (shown.state, shown.stdout, shown.stderr) == (JobState.LOST, "said\n", "complained\n")
    assert not shown.output_complete


# -- execs


async def test_an_exec_that_removes_its_own_output_still_answers(core: Core, box: str) -> None:
    command = 'echo x; rm -f "$(readlink /proc/$$/fd/1)"; echo kept >&2; exit 3'
    async with asyncio.timeout(60):
        answer = await core.execs.run("default", Exec(sandbox_id=box, command=command, timeout=60), None)
    assert (answer.value.exit_code, answer.value.stdout, answer.value.stderr) == (3, "", "kept\n")
    assert answer.value.truncated


async def test_an_exec_whose_recorded_output_had_to_go_says_so(core: Core, other: Core, box: str) -> None:
    request = Exec(sandbox_id=box, command="echo said")
    first = await core.execs.run("default", request, "key")
    await core.store.trim_outputs(0)
    again = await other.execs.run("default", request, "key")
    assert (again.value.exit_code, again.value.stdout, again.value.truncated) == (0, "", True)
    assert (first.value.skipped_bytes, again.value.skipped_bytes) == (0, len("said\n"))
    shown = (await other.jobs.get("default", first.value.command_id)).whole()
    assert isinstance(shown, ExecJobOutput)
    assert (shown.truncated, shown.output_complete) == (True, False)


async def test_a_reader_who_leaves_a_streamed_exec_leaves_nothing_that_waits(core: Core, box: str) -> None:
    stream = core.execs.stream("default", Exec(sandbox_id=box, command="echo a; sleep 3600", timeout=3600), None)
    async with contextlib.aclosing(stream):
        async for event in stream:
            if event.kind == "stdout":
                break

    async def nobody_waits() -> bool:
        return not any(task.get_name().startswith("result ") for task in asyncio.all_tasks())

    await eventually(nobody_waits)


# -- output that goes away


@pytest.mark.parametrize("damage", [': >"$log"', 'rm -f "$log"'])
@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_log_that_its_own_job_damages_is_read_to_an_end(here: Rig, damage: str, size: int) -> None:
    core = await here.replica(record_output=1000)
    box = await here.sandbox(core)
    command = f"log=$(readlink /proc/$$/fd/1); seq {size}; {WAITS}; {damage}; sleep 1; exit 5"
    id = await submit(core, box, command)
    whole = "".join(f"{n}\n" for n in range(1, size + 1))
    place, cursor, pages = 0, None, 0
    async with asyncio.timeout(60):
        while True:
            page = (await core.jobs.get("default", id, cursor=cursor, limit=20_000, wait=5)).whole()
            assert isinstance(page, JobOutput)
            place = 0 if page.replace else place + page.skipped_bytes
            assert page.output == whole[place : place + len(page.output)]
            place += len(page.output)
            if place == len(whole):
                await go(core, box)
            cursor, pages = page.cursor, pages + 1
            assert pages < 500
            if cursor is None:
                break
    assert (page.state, page.exit_code, page.output_complete) == (JobState.EXITED, 5, False)
    assert place == len(whole)


# -- looks that are due


async def test_a_resumed_sandbox_has_its_jobs_looked_at_at_once(core: Core, box: str) -> None:
    id = await submit(core, box, "sleep 600", timeout=3600)
    await eventually(lambda: has_fence(core, id))
    await core.sandboxes.pause("default", box)
    await core.store.request_cancel(id)
    await asyncio.sleep(2.5)
    await core.store.schedule(id, after=3600)  # as after minutes without an answer
    await core.sandboxes.resume("default", box)

    async def cancelled() -> bool:
        record = await core.store.get(id)
        assert record is not None
        return records.job_body(record).state is JobState.CANCELLED

    await eventually(cancelled)


async def test_what_a_job_wrote_is_recorded_before_a_delete_though_others_look_at_it(
    here: Rig, core: Core, other: Core, box: str
) -> None:
    id = await submit(core, box, "sleep 1; seq 200000; touch printed; sleep 600")
    await eventually(lambda: has_fence(core, id))
    looks = [0]
    write = core.ledger.apply

    async def raced(record: Record, change: Change) -> Record:
        """Another replica's look comes first, once."""
        looks[0] += 1
        if looks[0] == 1:
            seen = await other.store.get(id)
            assert seen is not None
            await other.ledger.apply(seen, Change(state=seen.state, body=records.job_body(seen), notify=False))
        return await write(record, change)

    await there(core, box, "printed")
    core.ledger.apply = raced  # type: ignore[method-assign, assignment]
    await core.polls.record_before_delete(box)
    core.ledger.apply = write  # type: ignore[method-assign]
    span = await core.store.output_span(id)
    assert span is not None
    assert span[1] == sum(len(str(n)) + 1 for n in range(1, 200_001))


async def test_a_retry_whose_fence_is_damaged_is_not_told_that_its_key_was_reused(
    core: Core, other: Core, box: str, redis_server: RedisServer
) -> None:
    each = f"for f in {core.settings.fence_dir}/*; do case $f in */boot) ;; *) echo >$f; esac; done"
    command = f"{each}; touch damaged; {WAITS}; exit 3"
    id = await submit(core, box, command, "key")
    await there(core, box, "damaged")
    with redis_server.client() as client:
        client.flushall()
    await core.jobs.get("default", id)
    assert await submit(other, box, command, "key") == id
    await go(core, box)
    page, _ = await follow(core, id)
    assert (page.state, page.exit_code) == (JobState.EXITED, 3)


async def test_the_raw_output_of_a_paused_sandbox_is_what_was_recorded(core: Core, box: str) -> None:
    id = await submit(core, box, "echo said; sleep 60")
    await eventually(lambda: recorded(core, id, b"said\n"))
    await core.sandboxes.pause("default", box)
    async with asyncio.timeout(60):
        raw = await core.jobs.raw("default", id, range=None)
        assert b"".join([piece async for piece in raw.chunks]) == b"said\n"
    await core.sandboxes.resume("default", box)
    await core.jobs.cancel("default", id)


async def test_the_output_of_a_paused_sandbox_does_not_wait_for_its_daemon(
    core: Core, box: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a daemon that never answers, where only the engine's word that the sandbox is paused ends the wait."""
    running = await submit(core, box, "echo said; sleep 60")
    over = await submit(core, box, "echo over")
    await follow(core, over)
    await eventually(lambda: recorded(core, running, b"said\n"))
    await core.sandboxes.pause("default", box)
    monkeypatch.setattr("service.core.jobs.read.EXTENT", 3600.0)
    refreshed = core.poller.refreshed

    async def patient(record: Record) -> Record:
        return await refreshed(record, timeout=3600.0)

    core.poller.refreshed = patient  # type: ignore[method-assign, assignment]

    async def silent(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    for name in ("read_file", "log", "status", "run_short"):
        monkeypatch.setattr(core.engine, name, silent)
    for id, said in ((running, b"said\n"), (over, b"over\n")):
        raw = await asyncio.wait_for(core.jobs.raw("default", id, range=None), 60)
        assert b"".join([piece async for piece in raw.chunks]) == said
        page = (await asyncio.wait_for(core.jobs.get("default", id), 60)).whole()
        assert isinstance(page, JobOutput)
        assert page.output.encode() == said
    monkeypatch.undo()
    await core.sandboxes.resume("default", box)


async def recorded(core: Core, id: str, wanted: bytes) -> bool:
    kept = await core.store.output(id, 0, 100)
    return kept is not None and kept.data == wanted


# -- several who change one sandbox


async def test_a_renewal_for_a_job_does_not_undo_a_caller_s_that_came_meanwhile(core: Core, other: Core) -> None:
    box = (await core.sandboxes.create("default", CreateSandbox(timeout=60), None)).value.sandbox_id
    asked, go, renew = asyncio.Event(), asyncio.Event(), core.engine.renew_sandbox

    async def late(sandbox_id: str, expires_at: float) -> float:
        asked.set()
        await go.wait()
        return await renew(sandbox_id, expires_at)

    core.engine.renew_sandbox = late  # type: ignore[method-assign]
    await submit(core, box, "sleep 30", timeout=1000)
    await asked.wait()
    shown = await other.sandboxes.renew("default", box, 80_000)
    go.set()

    async def as_asked() -> bool:
        told = (await core.engine.get_sandbox(box)).expires_at
        return records.rfc3339(told) == shown.expires_at == (await other.sandboxes.get("default", box)).expires_at

    await eventually(as_asked)


async def test_a_job_s_end_gives_back_the_time_that_it_took(core: Core) -> None:
    made = (await core.sandboxes.create("default", CreateSandbox(timeout=60), None)).value
    box = made.sandbox_id
    longer = await submit(core, box, "until [ -e over ]; do sleep 0.05; done", timeout=1000)
    shorter = await submit(core, box, "until [ -e done ]; do sleep 0.05; done", timeout=500)

    async def kept(least: float, most: float) -> bool:
        """From now on, by the engine itself."""
        told = (await core.engine.get_sandbox(box)).expires_at
        assert told is not None
        return least < told - await core.store.now() / 1000 < most

    await eventually(lambda: kept(1000, 1000 + expiry.MARGIN + expiry.STEP + 5))
    await execute(core, box, "touch over")
    await follow(core, longer)
    await eventually(lambda: kept(500, 500 + expiry.MARGIN + expiry.STEP + 5))
    await execute(core, box, "touch done")
    await follow(core, shorter)
    # What the caller asked for is nearly over by now: there is always time to fetch what a job has left.
    await eventually(lambda: kept(30, expiry.MARGIN + 5))


async def test_a_renewal_that_is_refused_counts_for_nothing(core: Core, box: str) -> None:
    before = await core.sandboxes.get("default", box)
    renew = core.engine.renew_sandbox

    async def refused(sandbox_id: str, expires_at: float) -> float:
        raise Refused("over the server's maximum")

    core.engine.renew_sandbox = refused  # type: ignore[method-assign]
    with pytest.raises(errors.EngineRejected):
        await core.sandboxes.renew("default", box, 80_000)
    core.engine.renew_sandbox = renew  # type: ignore[method-assign]
    await core.expiry.settle(box, tell=True)
    assert (await core.sandboxes.get("default", box)).expires_at == before.expires_at


async def test_a_look_for_readiness_does_not_bring_back_what_was_deleted(core: Core, other: Core, box: str) -> None:
    raw = await core.store.get_sandbox(box)
    assert raw is not None
    unready = msgspec.structs.replace(records.sandbox_record(raw), ready=False)
    await core.store.put_sandbox(box, records.encode(unready), ttl=1000)
    asked, go, ready = asyncio.Event(), asyncio.Event(), core.fences.ready

    async def late(sandbox_id: str) -> Ready:
        answer = await ready(sandbox_id)
        asked.set()
        await go.wait()
        return answer

    core.fences.ready = late  # type: ignore[method-assign]
    showing = asyncio.ensure_future(core.sandboxes.get("default", box))
    await asked.wait()
    await other.sandboxes.delete("default", box)
    go.set()
    await showing
    raw = await core.store.get_sandbox(box)
    assert raw is not None
    assert records.sandbox_record(raw).deleted


# -- live text


async def test_a_reader_who_takes_nothing_does_not_hold_up_the_result(
    core: Core, box: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreground, "STALLED", 0.1)
    request = Exec(sandbox_id=box, command="seq 100000; exit 7", timeout=60)
    events: list[ExecEvent] = []
    id, waited = "", False
    async with asyncio.timeout(PATIENCE):
        async for event in core.execs.stream("default", request, None):
            if isinstance(event.data, ExecStart):
                id = event.data.command_id
            if event.kind == "stdout" and not waited:
                waited = True
                await eventually(functools.partial(is_over, core, id))
            events.append(event)
    result = events[-1].data
    assert isinstance(result, ExecResult)
    assert (result.exit_code, result.truncated) == (7, True)
    text = "".join(event.data.text for event in events if isinstance(event.data, ExecText))
    assert "".join(f"{n}\n" for n in range(1, 100_001)).startswith(text)


async def is_over(core: Core, id: str) -> bool:
    return (await core.jobs.get("default", id)).job.state.terminal


async def test_a_reader_who_keeps_up_gets_all_the_text_soon(core: Core, box: str) -> None:
    request = Exec(sandbox_id=box, command="seq 50000; exit 7", timeout=60)
    async with asyncio.timeout(PATIENCE):
        events = [event async for event in core.execs.stream("default", request, None)]
    text = "".join(event.data.text for event in events if isinstance(event.data, ExecText))
    assert text == "".join(f"{n}\n" for n in range(1, 50_001))
    assert len(events) < 5000
