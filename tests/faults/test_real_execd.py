"""The faults that need no controls of the engine's, on the execd that `ONCEBOX_TEST_EXECD_URL` names."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.faults.execd_rig import ExecdRig
from tests.faults.tally import Tally, batches, tries
from tests.faults.test_fence_faults import LONGEST_REPLY, ids, noted, submitted
from tests.faults.test_files import NEW, OLD, Uploads
from tests.support.network_plan import Action, Duplicate, Fault
from tests.support.processes import Spawner

COMMAND = b"/command HTTP/1.1"


@pytest.fixture
async def execd(_redis_is_there: None, spawn: Spawner, tmp_path: Path) -> AsyncIterator[ExecdRig]:
    """Replicas and Redis around a real execd."""
    url = os.environ.get("ONCEBOX_TEST_EXECD_URL")
    if not url:
        pytest.skip("ONCEBOX_TEST_EXECD_URL names no real execd")
    async with ExecdRig(spawn, tmp_path) as rig:
        await rig.start_on(url)
        yield rig
        await rig.stop()


@tries(short=10, long=LONGEST_REPLY)
async def test_the_answer_to_a_submission_is_cut_at_any_byte(execd: ExecdRig, tries: int) -> None:
    tally = Tally("real execd: answer of a submission reset at any byte")
    sandbox_id = await execd.sandbox()
    jobs: dict[str, str | None] = {}
    for number in range(tries):
        place = (number + 1) * LONGEST_REPLY // tries
        execd.engine_net.plan.reply = Fault(Action.RESET, after=place, when=COMMAND)
        answer = await submitted(execd, sandbox_id, f"m{number}")
        jobs[f"m{number}"] = answer.command_id if answer.status == 202 else None
    await tally.audit(execd, execd.urls[0], jobs)
    tally.check()


@tries(short=4, long=100)
async def test_a_submission_that_a_proxy_sends_twice_runs_once(execd: ExecdRig, tries: int) -> None:
    tally = Tally("real execd: submission duplicated by a proxy")
    sandbox_id = await execd.sandbox()
    jobs: dict[str, str | None] = {}
    for number in range(tries):
        mark = f"m{number}"
        doubled = execd.engine_net.plan.duplicate = Duplicate(match=COMMAND)
        answer = await submitted(execd, sandbox_id, mark, then="sleep 0.3")
        jobs[mark] = answer.command_id if answer.status == 202 else None
        await asyncio.wait_for(doubled.answered.wait(), 60)
    await tally.audit(execd, execd.urls[0], jobs)
    tally.check()


@tries(short=4, long=100)
async def test_redis_emptied_while_jobs_run__the_same_key_is_the_same_run(execd: ExecdRig, tries: int) -> None:
    tally = Tally("real execd: Redis emptied while jobs run, then the same keys")
    sandbox_id = await execd.sandbox()
    for some in batches("m", tries, 20):
        first = await asyncio.gather(*(submitted(execd, sandbox_id, mark, then="sleep 2") for mark in some))
        await noted(execd, some)
        with execd.redis.client() as client:
            client.flushall()
        again = await asyncio.gather(*(submitted(execd, sandbox_id, mark, then="sleep 2") for mark in some))
        assert [answer.command_id for answer in again] == [answer.command_id for answer in first]
        await tally.audit(execd, execd.urls[1], ids(some, list(again)))
    tally.check()


@pytest.mark.parametrize("point", ["dispatched", "after_dispatch"])
@tries(short=4, long=50)
async def test_a_replica_killed_at_dispatched__its_jobs_are_settled(execd: ExecdRig, tries: int, point: str) -> None:
    """Voided where nothing was sent, adopted where it was."""
    tally = Tally(f"real execd: replica killed at `{point}`")
    sandbox_id = await execd.sandbox()
    doomed, other = execd.replicas
    for some in batches("m", tries, 10):
        if not doomed.process.alive:
            await doomed.start()
        doomed.points.hold(point)
        calls = [
            asyncio.create_task(execd.caller.submit(doomed.url, sandbox_id, execd.command(m), key=m)) for m in some
        ]
        await doomed.points.reached(point, times=len(some))
        doomed.kill()
        await asyncio.gather(*calls)
        doomed.points.forget()
        answers = await asyncio.gather(
            *(execd.caller.submit_until_answered([other.url], sandbox_id, execd.command(m), key=m) for m in some)
        )
        await tally.audit(execd, other.url, ids(some, list(answers)))
    tally.check()


@tries(short=10, long=300)
async def test_an_upload_whose_network_is_cut_is_whole_or_not_at_all(execd: ExecdRig, tries: int) -> None:
    tally = Tally("real execd: upload, the network cut")
    url = execd.urls[0]
    uploads = Uploads(execd, await execd.sandbox(), tally)
    for name in [f"{execd.place}/{mark}" for some in batches("u", tries, 5) for mark in some]:
        await uploads.put(url, name, OLD)
        action, side = random.choice([Action.RESET, Action.CLOSE]), random.choice(["reply", "request"])
        after = random.randrange(len(NEW)) if side == "request" else random.randrange(200)
        setattr(
            execd.engine_net.plan, side, Fault(action, when=random.choice([b"/files/upload", COMMAND]), after=after)
        )
        status, _ = await uploads.ask("PUT", url, name, NEW)
        execd.engine_net.plan.reply = execd.engine_net.plan.request = None
        await uploads.check(url, name, status)
    tally.check()
