"""What goes on behind the requests: jobs whose index was lost, sandboxes that can't be swept."""

from __future__ import annotations

import asyncio

import pytest

from service.core import following, records
from service.core.app import Core
from service.core.records import RESERVED, SandboxClaim
from service.core.states import ClaimState
from service.messages import SandboxState
from service.ports.engine import NotReached, SandboxInfo, SandboxListing
from tests.integration.core_rig import Rig, eventually, submit
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.integration


async def test_a_job_whose_index_was_lost_is_listed_again_by_whoever_looks(
    here: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = await here.replica()
    box = await here.sandbox(core)
    id = await submit(core, box, "sleep 60")
    await core.follower.look(id)
    await core.store.end_look(id, sandbox_id=box)
    assert await core.store.active_of(box) == []

    monkeypatch.setattr(following, "NEGLECTED", 0.0)
    await asyncio.sleep(0.05)  # time passes since the last look
    await core.follower.look(id)

    assert await core.store.active_of(box) == [id]
    await core.jobs.cancel("default", id)


async def test_a_sandbox_that_can_not_be_swept_holds_up_no_other(here: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    core = await here.replica()
    digest = "d" * 32
    claim = SandboxClaim(tenant="t", fingerprint="f", generation="g", given_up=[1], sandbox_id="kept")
    _, mine = await core.store.claim(digest, token="t", owner="o", lease=60, body=records.encode(claim))
    await core.store.settle(mine, ClaimState.DONE, body=records.encode(claim), ttl=60)
    labels = {
        f"{RESERVED}{k}": v for k, v in {"idem": digest, "tenant": "t", "generation": "g", "attempt": "1"}.items()
    }
    late = [
        SandboxInfo(id=name, state=SandboxState.RUNNING, metadata=labels, created_at=1.0) for name in ("stuck", "b")
    ]
    tried: list[str] = []

    async def listed(*_: object, **__: object) -> SandboxListing:
        return SandboxListing(items=late, has_next=False)

    async def delete(sandbox_id: str) -> None:
        tried.append(sandbox_id)
        if sandbox_id == "stuck":
            raise NotReached("no")

    monkeypatch.setattr(core.engine, "list_sandboxes", listed)
    monkeypatch.setattr(core.engine, "delete_sandbox", delete)
    await core.sweeper.round()

    assert tried == ["stuck", "b"]


# -- ready


async def test_why_a_replica_is_not_ready_is_logged_once(
    core: Core, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        return [line.getMessage() for line in caplog.records if "ready" in line.getMessage()]

    assert await core.readiness() == []
    redis_server.kill()
    for _ in range(3):
        assert await core.readiness() == ["Redis does not answer."]
    (line,) = told()
    assert line.startswith("not ready: Redis does not answer. ")
    assert len(line) > len("not ready: Redis does not answer. "), "and what the client saw"
    redis_server.start()

    async def ready() -> bool:
        return await core.readiness() == []

    await eventually(ready)
    assert told()[-1] == "ready again"
