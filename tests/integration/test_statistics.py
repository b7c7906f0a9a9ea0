"""``GET /v1/stats``: what the scripts that run anyway have counted, a tenant's own."""

from __future__ import annotations

import asyncio
from collections import Counter

from service.core.app import Core
from service.core.model import identity
from service.messages import CreateSandbox, Exec
from tests.integration.core_rig import Rig, follow, submit


async def test_a_tenants_jobs_are_counted_by_state_and_by_minute(core: Core, box: str) -> None:
    for command in ("true", "exit 3", "true"):
        await follow(core, await submit(core, box, command))
    await core.execs.run("default", Exec(sandbox_id=box, command="true"), None)
    running = await submit(core, box, "sleep 60")

    stats = await core.statistics.of("default")

    assert (stats.jobs["exited"], sum(stats.jobs.values())) == (4, 5)
    assert stats.sandboxes["running"] >= 1, "the engine has those of other tests, too"
    ends: Counter[str] = Counter()
    for minute in stats.minutes:
        ends.update(minute.states)
        assert minute.ended == sum(minute.states.values())
    assert (sum(minute.started for minute in stats.minutes), ends) == (5, {"exited": 4})
    assert len(stats.minutes) == 60
    assert [minute.at for minute in stats.minutes] == sorted(minute.at for minute in stats.minutes)
    other = await core.statistics.of("somebody-else")
    assert (other.jobs, other.sandboxes, sum(minute.started for minute in other.minutes)) == ({}, {}, 0)
    await core.jobs.cancel("default", running)


async def test_counting_is_done_once_in_five_seconds_whoever_asks(here: Rig) -> None:
    core = await here.replica()
    await core.sandboxes.create("default", CreateSandbox(timeout=600), None)
    before = (await here.dev("stats"))["list"]
    answers = [await core.statistics.of("default") for _ in range(5)]
    assert all(answer is answers[0] for answer in answers)
    assert (await here.dev("stats"))["list"] - before == 1


async def test_many_who_look_at_a_list_are_one_who_asks_the_engine(here: Rig) -> None:
    core = await here.replica()
    request = CreateSandbox(timeout=600, metadata={"mark": identity.random_token().strip("-_")})
    assert request.metadata is not None
    wanted = request.metadata
    made = (await core.sandboxes.create("default", request, None)).value.sandbox_id

    async def listed(max_age: float) -> list[str]:
        page = await core.sandbox_list.page(
            "default", metadata=wanted, states=set(), page_size=50, page_token=None, max_age=max_age
        )
        return [sandbox.sandbox_id for sandbox in page.items]

    before = (await here.dev("stats"))["list"]
    assert await asyncio.gather(*(listed(5) for _ in range(20))) == [[made]] * 20
    assert (await here.dev("stats"))["list"] - before == 1
    other = (await core.sandboxes.create("default", request, None)).value.sandbox_id
    assert await listed(0) == [other, made], "who says nothing of an age has it as it is"
