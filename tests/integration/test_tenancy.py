"""Another tenant's id answers byte for byte like one that does not exist, on every path, and nothing happens to it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from service.core.model import identity
from service.core.model.cursors import Cursor
from tests.integration.tenants_rig import ALICE, BOB, Replica, TenantsRig
from tests.unit.api.fakes import Got

pytestmark = pytest.mark.integration

CURSOR = Cursor(0, "running").encode()
FILE = "kept"
Ask = tuple[str, str, Any, dict[str, str]]


def asks(sandbox_id: str, command_id: str) -> list[Ask]:
    """Every path that takes an id, with what it takes."""
    sandbox, job = f"/v1/sandboxes/{sandbox_id}", f"/v1/exec-jobs/{command_id}"
    run = {"sandbox_id": sandbox_id, "command": "true"}
    events = {"Accept": "text/event-stream"}
    return [
        ("GET", sandbox, None, {}),
        ("GET", sandbox.removeprefix("/v1"), None, {}),
        ("HEAD", sandbox, None, {}),
        ("DELETE", sandbox, None, {}),
        ("POST", f"{sandbox}/renew", {"timeout": 600}, {}),
        ("POST", f"{sandbox}/pause", None, {}),
        ("POST", f"{sandbox}/resume", None, {}),
        ("PUT", f"{sandbox}/files?path={FILE}", "theirs", {}),
        ("GET", f"{sandbox}/files?path={FILE}", None, {}),
        ("HEAD", f"{sandbox}/files?path={FILE}", None, {}),
        ("DELETE", f"{sandbox}/files?path={FILE}", None, {}),
        ("GET", f"{sandbox}/files/info?path={FILE}", None, {}),
        ("GET", f"{sandbox}/directories?path=.", None, {}),
        ("POST", f"{sandbox}/directories", {"path": "d"}, {}),
        ("PUT", f"{sandbox}/archive?path=d", None, {}),
        ("GET", f"{sandbox}/archive?path=.", None, {}),
        ("POST", "/v1/exec", run, {}),
        ("POST", "/v1/exec", run, events),
        ("POST", "/v1/exec-jobs", run, {}),
        ("GET", f"/v1/exec-jobs?sandbox_id={sandbox_id}", None, {}),
        ("GET", job, None, {}),
        ("GET", f"{job}?wait=5&cursor={CURSOR}&timeout=60&full=true", None, {}),
        ("GET", f"{job}/output", None, {}),
        ("GET", f"{job}/output", None, {"Range": "bytes=0-1"}),
        ("HEAD", f"{job}/output", None, {}),
        ("GET", f"{job}/events", None, events),
        ("GET", f"{job}/events", None, {"Last-Event-ID": CURSOR}),
        ("DELETE", job, None, {}),
    ]


def nowhere() -> tuple[str, str]:
    """Ids of the same form that nobody has."""
    sandbox_id = str(uuid.uuid4())
    return sandbox_id, identity.command_id(sandbox_id, identity.job_ref(identity.random_token()))


def shown(got: Got, ids: tuple[str, str]) -> tuple[int, list[tuple[str, str]], bytes]:
    """The whole answer, with the id that was asked for left out of it."""
    body = got.body.replace(ids[1].encode(), b"<job>").replace(ids[0].encode(), b"<sandbox>")
    return got.status, got.header_list, body


async def compare(replica: Replica, real: tuple[str, str], *, statuses: set[int]) -> None:
    unknown = nowhere()
    for (method, target, body, headers), (_, other, other_body, _) in zip(asks(*real), asks(*unknown), strict=True):
        foreign = await replica.ask(BOB, method, target, body, key="k", **headers)
        nobody_s = await replica.ask(BOB, method, other, other_body, key="k", **headers)
        assert shown(foreign, real) == shown(nobody_s, unknown), (method, target)
        assert foreign.status in statuses, (method, target, foreign.body)


async def running(replica: Replica) -> tuple[str, str]:
    sandbox_id = await replica.create(ALICE, metadata={"team": "red"})
    put = await replica.ask(ALICE, "PUT", f"/v1/sandboxes/{sandbox_id}/files?path={FILE}", "hers")
    assert put.status == 201, put.body
    return sandbox_id, await replica.submit(ALICE, sandbox_id, "echo secret; sleep 300")


async def still_runs(replica: Replica, ids: tuple[str, str]) -> None:
    """Nothing has happened to what is Alice's."""
    assert (await replica.ask(ALICE, "GET", f"/v1/sandboxes/{ids[0]}")).json["state"] == "running"
    job = await replica.ask(ALICE, "GET", f"/v1/exec-jobs/{ids[1]}")
    assert job.json["state"] == "running", job.body
    names = await replica.ask(ALICE, "GET", f"/v1/sandboxes/{ids[0]}/directories?path=.")
    assert [item["path"].rpartition("/")[2] for item in names.json["items"]] == [FILE]
    assert (await replica.ask(ALICE, "GET", f"/v1/sandboxes/{ids[0]}/files?path={FILE}")).json == "hers"


async def test_in_one_process(one: Replica) -> None:
    ids = await running(one)
    await compare(one, ids, statuses={404, 200})
    await still_runs(one, ids)


async def test_across_replicas(one: Replica, two: Replica) -> None:
    ids = await running(one)
    await compare(two, ids, statuses={404, 200})
    await still_runs(one, ids)


async def test_after_redis_lost_its_data(tenants: TenantsRig, one: Replica, two: Replica) -> None:
    ids = await running(one)
    await tenants.flush()
    await compare(two, ids, statuses={404, 200})
    await still_runs(one, ids)
    await compare(two, ids, statuses={404, 200})


async def test_what_was_deleted(one: Replica, two: Replica) -> None:
    ids = await running(one)
    assert (await one.ask(ALICE, "DELETE", f"/v1/sandboxes/{ids[0]}")).status == 204
    await compare(two, ids, statuses={404, 200})
    assert (await two.ask(ALICE, "DELETE", f"/v1/sandboxes/{ids[0]}")).status == 204


async def test_while_the_engine_is_away(tenants: TenantsRig, one: Replica) -> None:
    ids = await running(one)
    tenants.engine_url, there = "http://127.0.0.1:1", tenants.engine_url
    cut_off = await tenants.replica_like(one)
    tenants.engine_url = there
    await compare(cut_off, ids, statuses={503, 200})


async def test_both_cost_the_engine_the_same_so_that_time_tells_nothing(tenants: TenantsRig, one: Replica) -> None:
    ids = await running(one)
    await one.ask(ALICE, "DELETE", f"/v1/exec-jobs/{ids[1]}")
    await one.finished(ALICE, ids[1])

    async def looks(target: Callable[[tuple[str, str]], str], asked: tuple[str, str]) -> list[int]:
        costs = []
        for _ in range(3):
            before = (await tenants.engine("GET", "/_dev/stats"))["get"]
            assert (await one.ask(BOB, "GET", target(asked))).status == 404
            costs.append((await tenants.engine("GET", "/_dev/stats"))["get"] - before)
        return costs

    for flushed in (False, True):
        if flushed:
            await tenants.flush()
        assert await looks(lambda asked: f"/v1/sandboxes/{asked[0]}", ids) == [1, 0, 0]
        assert await looks(lambda asked: f"/v1/sandboxes/{asked[0]}", nowhere()) == [1, 0, 0]
        other = await running(one)
        assert await looks(lambda asked: f"/v1/exec-jobs/{asked[1]}", other) == [1, 0, 0]
        assert await looks(lambda asked: f"/v1/exec-jobs/{asked[1]}", nowhere()) == [1, 0, 0]


async def test_lists_show_what_is_one_s_own(tenants: TenantsRig, one: Replica, two: Replica) -> None:
    alices, job = await running(one)
    bobs = await two.create(BOB, metadata={"team": "red"})
    for _ in range(2):
        for replica in (one, two):
            for query in ("", "?metadata=team=red", "?metadata=oncebox.io/tenant=alice"):
                page = (await replica.ask(BOB, "GET", f"/v1/sandboxes{query}")).json
                listed = [item["sandbox_id"] for item in page.get("items", [])]
                assert listed in ([bobs], []), (query, page)
                assert alices not in listed
            assert (await replica.ask(BOB, "GET", "/v1/exec-jobs")).json["items"] == []
            mine = (await replica.ask(ALICE, "GET", "/v1/sandboxes")).json["items"]
            assert [item["sandbox_id"] for item in mine] == [alices]
        assert [item["command_id"] for item in (await one.ask(ALICE, "GET", "/v1/exec-jobs")).json["items"]] == [job]
        await tenants.flush()
        await one.ask(ALICE, "GET", f"/v1/exec-jobs/{job}")


async def test_a_page_token_of_another_tenant_is_no_way_in(one: Replica) -> None:
    ids = [await one.create(ALICE) for _ in range(2)]
    token = (await one.ask(ALICE, "GET", "/v1/sandboxes?page_size=1")).json["next_page_token"]
    jobs = [await one.submit(ALICE, ids[0], "true") for _ in range(2)]
    jobs_token = (await one.ask(ALICE, "GET", "/v1/exec-jobs?page_size=1")).json["next_page_token"]
    assert token
    assert jobs_token
    assert jobs
    assert (await one.ask(BOB, "GET", f"/v1/sandboxes?page_token={token}")).json["items"] == []
    assert (await one.ask(BOB, "GET", f"/v1/exec-jobs?page_token={jobs_token}")).json["items"] == []
