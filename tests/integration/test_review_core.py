"""Corners of jobs, execs and sandboxes that a review found: each failed once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from service.core import records
from service.core.app import Core
from service.core.states import ClaimState
from service.messages import CreateSandbox
from tests.integration.core_rig import Rig, follow, local_engine, rig, submit
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    root = str(tmp_path_factory.mktemp("engine"))
    with local_engine(root) as url:
        yield url, root


@pytest.fixture
async def here(engine: tuple[str, str], redis_server: RedisServer) -> AsyncIterator[Rig]:
    url, root = engine
    async with rig(url, redis_server.url, root) as built:
        yield built


@pytest.fixture
async def core(here: Rig) -> Core:
    return await here.replica()


@pytest.fixture
async def other(here: Rig) -> Core:
    return await here.replica()


@pytest.fixture
async def box(here: Rig, core: Core) -> str:
    return await here.sandbox(core)


# -- replays


async def test_a_create_right_after_a_delete_on_another_replica_makes_a_new_sandbox(core: Core, other: Core) -> None:
    request = CreateSandbox(image="x")
    first = await core.sandboxes.create("default", request, "key")
    await core.sandboxes.create("default", request, "key")  # this replica has just seen it alive
    await other.sandboxes.delete("default", first.value.sandbox_id)
    second = await core.sandboxes.create("default", request, "key")
    assert second.value.sandbox_id != first.value.sandbox_id
    assert not second.replayed


async def has_fence(core: Core, id: str) -> bool:
    record = await core.store.get(id)
    return record is not None and record.state is ClaimState.RUNNING


# -- sandboxes that end, pause and are renewed


async def test_a_job_that_is_over_does_not_lengthen_a_renewal(core: Core, box: str) -> None:
    id = await submit(core, box, "true", timeout=14_000)
    await follow(core, id)
    await core.store.index_job(id, tenant="default", sandbox_id=box, look_in=3600)  # as a crash may leave it
    before = await core.clock()
    sandbox = await core.sandboxes.renew("default", box, 60)
    assert sandbox.expires_at is not None
    assert sandbox.expires_at < str(records.rfc3339(before + 300))
