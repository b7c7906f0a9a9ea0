"""Times of jobs that Redis forgot: what is not known is null, and nothing ends before it was submitted."""

from __future__ import annotations

import asyncio

import pytest

from service.core.app import Core
from service.messages import Job, JobState
from tests.integration.core_rig import Rig, follow, submit
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.integration


def forget(redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        client.flushall()


def in_order(job: Job) -> bool:
    times = [time for time in (job.submitted_at, job.started_at, job.finished_at) if time is not None]
    return times == sorted(times)


async def test_a_job_that_is_found_by_its_fence_does_not_show_when_it_was_submitted(
    core: Core, box: str, redis_server: RedisServer
) -> None:
    id = await submit(core, box, "echo said")
    before, _ = await follow(core, id)
    assert before.submitted_at is not None
    await asyncio.sleep(0.01)
    forget(redis_server)
    page, text = await follow(core, id)
    assert (page.state, text) == (JobState.EXITED, "said\n")
    assert page.submitted_at is None
    assert page.finished_at is not None
    listed = await core.job_list.page("default", sandbox_id=box, page_size=5, page_token=None)
    assert [job.submitted_at for job in listed.items] == [None]


async def test_a_retry_that_adopts_a_forgotten_run_does_not_say_that_it_was_submitted_after_its_end(
    core: Core, other: Core, box: str, redis_server: RedisServer
) -> None:
    id = await submit(core, box, "true", "key")
    await follow(core, id)
    await asyncio.sleep(0.05)
    forget(redis_server)
    assert await submit(other, box, "true", "key") == id
    page, _ = await follow(other, id)
    assert (page.state, page.exit_code) == (JobState.EXITED, 0)
    assert page.submitted_at is None
    assert in_order(page)


async def test_one_that_nothing_was_forgotten_of_shows_all_its_times(core: Core, here: Rig, box: str) -> None:
    page, _ = await follow(core, await submit(core, box, "true", "key"))
    assert None not in (page.submitted_at, page.started_at, page.finished_at)


async def test_a_run_that_execd_forgot_too_does_not_show_when_it_ended(
    core: Core, box: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await submit(core, box, "exit 3")
    await follow(core, id)
    forget(redis_server)
    monkeypatch.setattr("service.core.jobs.outcome.engine_id_of", lambda _: None)  # as of a log that names no command
    page, _ = await follow(core, id)
    assert (page.state, page.exit_code) == (JobState.EXITED, 3)
    assert (page.submitted_at, page.finished_at) == (None, None)
