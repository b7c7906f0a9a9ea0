"""Quotas and rates over two replicas: counted together, and never leaked by a crash."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from service.core.claims import failpoints
from service.core.limits import quotas
from tests.integration.core_rig import eventually
from tests.integration.tenants_rig import ALICE, BOB, Replica, TenantsRig, tenants_file

pytestmark = pytest.mark.integration


async def pair(tenants: TenantsRig, directory: Path, quota: str, **settings: Any) -> tuple[Replica, Replica]:
    file = tenants_file(directory, quota=quota)
    return await tenants.replica(file, **settings), await tenants.replica(file, **settings)


async def test_live_sandboxes_are_counted_over_all_replicas(tenants: TenantsRig, tmp_path: Path) -> None:
    one, other = await pair(tenants, tmp_path, "sandboxes = 2")
    first = await one.create(ALICE, "a")
    second = await other.create(ALICE, "b")
    for replica in (one, other):
        refused = await replica.ask(ALICE, "POST", "/v1/sandboxes", {}, key="c")
        assert (refused.status, refused.json["code"]) == (429, "QUOTA_EXCEEDED")
        assert int(refused.headers["retry-after"]) >= 1
    assert await other.create(ALICE, "a") == first, "a replay needs no slot"
    await one.create(BOB)
    assert (await one.ask(ALICE, "DELETE", f"/v1/sandboxes/{second}")).status == 204
    await other.create(ALICE, "c")


async def test_many_creates_at_once_get_no_more_than_the_quota(tenants: TenantsRig, tmp_path: Path) -> None:
    one, other = await pair(tenants, tmp_path, "sandboxes = 3")
    got = await asyncio.gather(
        *((one, other)[n % 2].ask(ALICE, "POST", "/v1/sandboxes", {}, key=f"k{n}") for n in range(12))
    )
    assert sorted(each.status for each in got) == [201] * 3 + [429] * 9
    listed = (await one.ask(ALICE, "GET", "/v1/sandboxes")).json["items"]
    assert {item["sandbox_id"] for item in listed} == {each.json["sandbox_id"] for each in got if each.status == 201}


async def test_running_jobs_are_counted_over_all_replicas(tenants: TenantsRig, tmp_path: Path) -> None:
    one, other = await pair(tenants, tmp_path, "jobs = 2")
    sandbox = await one.create(ALICE)
    first = await one.submit(ALICE, sandbox, "sleep 300", "a")
    second = await other.submit(ALICE, sandbox, "sleep 300", "b")
    for path in ("/v1/exec-jobs", "/v1/exec"):
        refused = await one.ask(ALICE, "POST", path, {"sandbox_id": sandbox, "command": "true"}, key=f"c{path}")
        assert (refused.status, refused.json["code"]) == (429, "QUOTA_EXCEEDED")
    assert await other.submit(ALICE, sandbox, "sleep 300", "a") == first
    await other.ask(ALICE, "DELETE", f"/v1/exec-jobs/{second}")
    await one.finished(ALICE, second)
    assert (await other.ask(ALICE, "POST", "/v1/exec", {"sandbox_id": sandbox, "command": "true"})).status == 200
    third = await one.submit(ALICE, sandbox, "true", "c/v1/exec-jobs")
    assert (await one.finished(ALICE, third))["exit_code"] == 0


@pytest.fixture
def crash_after_count(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.Event]:
    """The next one who has counted and not yet sent stops there for good; the event says that it did."""
    held: list[asyncio.Event] = []

    async def reach(point: str) -> None:
        if point == failpoints.BEFORE_DISPATCH and held and not held[0].is_set():
            held[0].set()
            await asyncio.Event().wait()

    monkeypatch.setattr(failpoints, "reach", reach)
    return held


async def die(replica: Replica, there: asyncio.Event, request: asyncio.Task[Any]) -> None:
    """The replica ends at that point as a crash would end it: nothing of it runs any more, and nothing is undone."""
    await there.wait()
    for task in list(replica.core.tasks._running):
        task.cancel()
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)


async def test_a_crash_between_count_and_create_heals_itself(
    tenants: TenantsRig, tmp_path: Path, crash_after_count: list[asyncio.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "BEGINNING", 1.0)
    one, other = await pair(tenants, tmp_path, "sandboxes = 1", lease=2.0)
    crash_after_count.append(there := asyncio.Event())
    request = asyncio.ensure_future(one.ask(ALICE, "POST", "/v1/sandboxes", {}, key="crashed"))
    await die(one, there, request)
    counted = await other.ask(ALICE, "POST", "/v1/sandboxes", {}, key="another")
    assert counted.status == 429, "the slot was taken before the crash"

    async def created() -> bool:
        return (await other.ask(ALICE, "POST", "/v1/sandboxes", {}, key="another")).status == 201

    await eventually(created)
    listed = (await other.ask(ALICE, "GET", "/v1/sandboxes")).json["items"]
    assert len(listed) == 1


async def test_the_retry_of_a_create_that_crashed_needs_no_second_slot(
    tenants: TenantsRig, tmp_path: Path, crash_after_count: list[asyncio.Event]
) -> None:
    one, other = await pair(tenants, tmp_path, "sandboxes = 1", lease=2.0)
    crash_after_count.append(there := asyncio.Event())
    request = asyncio.ensure_future(one.ask(ALICE, "POST", "/v1/sandboxes", {}, key="crashed"))
    await die(one, there, request)
    assert await other.create(ALICE, "crashed")
    assert (await other.ask(ALICE, "POST", "/v1/sandboxes", {}, key="another")).status == 429


async def test_a_crash_between_count_and_start_of_a_job_heals_itself(
    tenants: TenantsRig, tmp_path: Path, crash_after_count: list[asyncio.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "BEGINNING", 1.0)
    one, other = await pair(tenants, tmp_path, "jobs = 1")
    sandbox = await one.create(ALICE)
    crash_after_count.append(there := asyncio.Event())
    body = {"sandbox_id": sandbox, "command": "true"}
    request = asyncio.ensure_future(one.ask(ALICE, "POST", "/v1/exec-jobs", body, key="crashed"))
    await die(one, there, request)
    assert (await other.ask(ALICE, "POST", "/v1/exec", body, key="another")).status == 429

    async def ran() -> bool:
        return (await other.ask(ALICE, "POST", "/v1/exec", body, key="another")).status == 200

    await eventually(ran)


async def test_a_slot_that_was_not_given_back_at_a_job_s_end_is_found_when_it_is_needed(
    tenants: TenantsRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes the end may stop before it gives the slot back; others are told "no" no longer than it takes."""
    one, other = await pair(tenants, tmp_path, "jobs = 1")
    sandbox = await one.create(ALICE)

    async def stops(*_: Any) -> None:
        """Nothing is given back."""

    for replica in (one, other):
        monkeypatch.setattr(replica.core.quotas, "free_job", stops)
    body = {"sandbox_id": sandbox, "command": "true"}
    first = (await one.ask(ALICE, "POST", "/v1/exec-jobs", body)).json["command_id"]
    assert (await one.finished(ALICE, first))["exit_code"] == 0
    assert list(await one.core.store.holders("jobs:alice")) == [first]
    second = await other.ask(ALICE, "POST", "/v1/exec-jobs", body)
    assert second.status == 202


async def test_a_rate_is_shared_by_all_replicas(tenants: TenantsRig, tmp_path: Path) -> None:
    one, other = await pair(tenants, tmp_path, "submits_per_second = 0.001\npolls_per_second = 0.002")
    sandbox = await one.create(ALICE)
    assert (await one.ask(ALICE, "GET", f"/v1/sandboxes/{sandbox}")).status == 200
    for replica in (one, other):
        for method, target, body, policy in (
            ("GET", f"/v1/sandboxes/{sandbox}", None, '"polls";q=1;w=500'),
            ("POST", "/v1/exec-jobs", {"sandbox_id": sandbox, "command": "true"}, '"submits";q=1;w=1000'),
        ):
            refused = await replica.ask(ALICE, method, target, body)
            assert (refused.status, refused.json["code"]) == (429, "RATE_LIMITED")
            assert refused.headers["ratelimit-policy"] == policy
            assert 400 < int(refused.headers["retry-after"]) <= 1000
    assert (await other.ask(BOB, "GET", "/v1/exec-jobs")).status == 200


async def test_without_redis_a_limited_tenant_is_told_so(tenants: TenantsRig, tmp_path: Path, start_redis: Any) -> None:
    server = start_redis()
    tenants.redis_url = server.url
    replica = await tenants.replica(tenants_file(tmp_path, quota="polls_per_second = 5"))
    server.kill()
    got = await replica.ask(ALICE, "GET", "/v1/exec-jobs")
    assert (got.status, got.json["code"]) == (503, "STORE_UNAVAILABLE")
