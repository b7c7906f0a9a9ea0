"""What each route asks of the core and answers with; query parameters; ids in paths."""

from typing import Any

import pytest

from service.core.jobs.listing import Wanted
from service.messages import CreateSandbox, Encoding, Exec, JobState, SandboxState, SubmitJob
from tests.unit.api.fakes import FakeCore, ask, post


@pytest.mark.parametrize("prefix", ["/v1", ""])
async def test_every_route_answers_with_and_without_its_prefix(prefix: str) -> None:
    core = FakeCore()
    app = core.app()
    created = await post(app, f"{prefix}/sandboxes", {"image": "i", "wait_ready": 0})
    assert (created.status, created.headers["location"]) == (201, "/v1/sandboxes/sb")
    assert created.json["state"] == "running"
    assert core.asked["request"] == CreateSandbox(image="i", wait_ready=0)
    assert core.asked["tenant"] == "default"

    submitted = await post(app, f"{prefix}/exec-jobs", {"sandbox_id": "sb", "command": "true", "timeout": None})
    assert (submitted.status, submitted.headers["location"]) == (202, "/v1/exec-jobs/cmd_c2I_0")
    assert "output" not in submitted.json
    assert core.asked["request"] == SubmitJob(sandbox_id="sb", command="true")

    executed = await post(app, f"{prefix}/exec", {"sandbox_id": "sb", "command": "true", "encoding": "base64"})
    assert (executed.status, executed.json["stdout"]) == (200, "hi\n")
    assert core.asked["request"] == Exec(sandbox_id="sb", command="true", encoding=Encoding.BASE64)

    assert (await ask(app, "GET", f"{prefix}/sandboxes")).json["next_page_token"] is None
    assert (await ask(app, "GET", f"{prefix}/sandboxes/sb")).status == 200
    assert (await post(app, f"{prefix}/sandboxes/sb/renew", {"timeout": 60})).status == 200
    assert core.asked == {"tenant": "default", "sandbox_id": "sb", "timeout": 60}
    assert (await ask(app, "POST", f"{prefix}/sandboxes/sb/pause")).status == 202
    assert (await post(app, f"{prefix}/sandboxes/sb/resume", {})).status == 202
    deleted = await ask(app, "DELETE", f"{prefix}/sandboxes/sb")
    assert (deleted.status, deleted.body) == (204, b"")
    assert (await ask(app, "GET", f"{prefix}/exec-jobs")).json["items"][0]["command_id"] == "cmd_c2I_0"
    assert (await ask(app, "GET", f"{prefix}/exec-jobs/cmd_c2I_0")).json["output"] == "hi\n"
    assert (await ask(app, "DELETE", f"{prefix}/exec-jobs/cmd_c2I_0")).status == 202


async def test_parameters_of_a_job_have_their_defaults_and_reach_the_core() -> None:
    core = FakeCore()
    await ask(core.app(), "GET", "/v1/exec-jobs/cmd_x")
    assert core.asked == {
        "tenant": "default", "command_id": "cmd_x", "cursor": None, "limit": 1024 * 1024, "wait": 0,
        "timeout": None, "encoding": Encoding.UTF8, "full": False, "stream": None,
    }  # fmt: skip
    query = "cursor=c%2B1&limit=8388608&wait=1.5&timeout=60&encoding=base64&full=true&stream=stderr"
    await ask(core.app(), "GET", f"/v1/exec-jobs/cmd_x?{query}")
    assert core.asked == {
        "tenant": "default", "command_id": "cmd_x", "cursor": "c+1", "limit": 8_388_608, "wait": 1.5,
        "timeout": 60, "encoding": Encoding.BASE64, "full": True, "stream": "stderr",
    }  # fmt: skip
    await ask(core.app(), "GET", "/v1/exec-jobs/cmd_x?cursor=")
    assert core.asked["cursor"] is None


async def test_lists_are_filtered_by_all_metadata_and_any_state() -> None:
    core = FakeCore()
    query = "metadata=a=1&metadata=b=x%3Dy&state=running&state=paused&q=py&page_size=200&page_token=t"
    await ask(core.app(), "GET", "/v1/sandboxes", headers=[("Cache-Control", "no-transform, max-age=5")])
    assert core.asked["max_age"] == 5
    await ask(core.app(), "GET", f"/v1/sandboxes?{query}")
    assert core.asked == {
        "tenant": "default", "metadata": {"a": "1", "b": "x=y"},
        "states": {SandboxState.RUNNING, SandboxState.PAUSED}, "page_size": 200, "page_token": "t",
        "text": "py", "max_age": 0.0,
    }  # fmt: skip
    await ask(core.app(), "GET", "/v1/exec-jobs?sandbox_id=sb&state=timed_out&metadata=a=&kind=exec&q=make")
    wanted = Wanted(states=frozenset({JobState.TIMED_OUT}), metadata={"a": ""}, kind="exec", text="make")
    assert core.asked == {
        "tenant": "default", "wanted": wanted, "page_size": 50, "page_token": None, "sandbox_id": "sb",
    }  # fmt: skip


WRONG = [
    ("/v1/sandboxes?pagesize=5", "pagesize"),
    ("/v1/sandboxes?page_size=0", "page_size"),
    ("/v1/sandboxes?page_size=201", "page_size"),
    ("/v1/sandboxes?page_size=x", "page_size"),
    ("/v1/sandboxes?page_size=", "page_size"),
    ("/v1/sandboxes?page_size=5&page_size=6", "page_size"),
    ("/v1/sandboxes?state=alive", "state"),
    ("/v1/sandboxes?metadata=a", "metadata"),
    ("/v1/sandboxes?metadata==a", "metadata"),
    ("/v1/sandboxes?metadata=a=1&metadata=a=2", "metadata"),
    ("/v1/sandboxes?" + "metadata=a=1&" * 101, "query"),
    ("/v1/sandboxes?page_token=" + "x" * 5000, "page_token"),
    ("/v1/sandboxes/sb?full=true", "full"),
    ("/v1/exec-jobs?sandbox_id=a&sandbox_id=b", "sandbox_id"),
    ("/v1/exec-jobs?state=terminated", "state"),
    ("/v1/exec-jobs?kind=sandbox", "kind"),
    ("/v1/exec-jobs?q=" + "x" * 257, "q"),
    ("/v1/exec-jobs/cmd_x?wait=31", "wait"),
    ("/v1/exec-jobs/cmd_x?wait=-1", "wait"),
    ("/v1/exec-jobs/cmd_x?wait=nan", "wait"),
    ("/v1/exec-jobs/cmd_x?wait=inf", "wait"),
    ("/v1/exec-jobs/cmd_x?limit=0", "limit"),
    ("/v1/exec-jobs/cmd_x?limit=8388609", "limit"),
    ("/v1/exec-jobs/cmd_x?limit=" + "9" * 5000, "limit"),
    ("/v1/exec-jobs/cmd_x?timeout=0", "timeout"),
    ("/v1/exec-jobs/cmd_x?timeout=14401", "timeout"),
    ("/v1/exec-jobs/cmd_x?encoding=utf-8", "encoding"),
    ("/v1/exec-jobs/cmd_x?full=maybe", "full"),
    ("/v1/exec-jobs/cmd_x?cursor=a&cursor=b", "cursor"),
    ("/v1/exec-jobs/cmd_x?cursor=%FF", "query"),
    ("/v1/exec-jobs/cmd_x/output?cursor=a", "cursor"),
    ("/v1/exec-jobs/cmd_x/events?limit=1", "limit"),
    ("/healthz?x=1", "x"),
]


@pytest.mark.parametrize(("target", "field"), WRONG)
async def test_a_wrong_parameter_is_named(target: str, field: str) -> None:
    core = FakeCore()
    got = await ask(core.app(), "GET", target)
    assert (got.status, got.json["code"]) == (422, "INVALID_REQUEST")
    assert [item["field"] for item in got.json["errors"]] == [field]
    assert core.calls == []


async def test_a_post_and_a_delete_take_no_parameters() -> None:
    core = FakeCore()
    assert (await post(core.app(), "/v1/sandboxes?timeout=60", {})).json["errors"][0]["field"] == "timeout"
    assert (await ask(core.app(), "DELETE", "/v1/sandboxes/sb?force=1")).json["errors"][0]["field"] == "force"
    assert core.calls == []


@pytest.mark.parametrize("id", ["a b", "x" * 129, "..", ".", "é", "a\x00b", "a?b".replace("?", "%3F"), "<", "a;b"])
async def test_what_can_be_no_sandbox_id_is_as_unknown_as_any_other(id: str) -> None:
    core = FakeCore()
    got = await ask(core.app(), "GET", f"/v1/sandboxes/{id}")
    assert (got.status, got.json["code"]) == (404, "SANDBOX_NOT_FOUND")
    for path in ("/v1/exec-jobs", "/v1/exec"):
        refused = await post(core.app(), path, {"sandbox_id": id[:128].replace("xxx", "x y"), "command": "true"})
        assert refused.status == 404
    assert core.calls == []


@pytest.mark.parametrize("id", ["a b", "x" * 257, "..", "é", "cmd_a.b", "%"])
async def test_what_can_be_no_command_id_is_as_unknown_as_any_other(id: str) -> None:
    core = FakeCore()
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/output"), ("GET", "/events")):
        got = await ask(core.app(), method, f"/v1/exec-jobs/{id}{path}")
        assert (got.status, got.json["code"]) == (404, "JOB_NOT_FOUND")
    assert core.calls == []


NO_ROUTE: list[Any] = ["/", "/v2/sandboxes", "/v1", "/v1/sandboxes/", "/v1//sandboxes", "/v1/v1/sandboxes", "/metrics",
                       "/v1/healthz", "/v1/sandboxes/a/b", "//evil.example/x", "/v1/exec-jobs/cmd_x/logs"]  # fmt: skip


@pytest.mark.parametrize("path", NO_ROUTE)
async def test_no_such_route_is_a_problem(path: str) -> None:
    got = await ask(FakeCore().app(), "GET", path)
    assert (got.status, got.json["code"]) == (404, "NOT_FOUND")
    assert got.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/sandboxes", "GET, HEAD, POST"),
        ("PATCH", "/v1/sandboxes/sb", "DELETE, GET, HEAD"),
        ("OPTIONS", "/v1/exec-jobs", "GET, HEAD, POST"),
        ("GET", "/v1/exec", "POST"),
        ("HEAD", "/v1/exec", "POST"),
        ("POST", "/healthz", "GET, HEAD"),
        ("DELETE", "/v1/exec-jobs", "GET, HEAD, POST"),
        ("TRACE", "/docs", "GET, HEAD"),
    ],
)
async def test_another_method_is_a_problem_that_says_which_are_there(method: str, path: str, allowed: str) -> None:
    got = await ask(FakeCore().app(), method, path)
    assert (got.status, got.headers["allow"]) == (405, allowed)
    if method != "HEAD":
        assert got.json["code"] == "METHOD_NOT_ALLOWED"


async def test_head_is_get_without_its_body() -> None:
    got = await ask(FakeCore().app(), "HEAD", "/v1/sandboxes/sb")
    whole = await ask(FakeCore().app(), "GET", "/v1/sandboxes/sb")
    assert (got.status, got.body) == (200, b"")
    assert got.headers["content-length"] == str(len(whole.body))
    missing = await ask(FakeCore().app(), "HEAD", "/nowhere")
    assert (missing.status, missing.body) == (404, b"")
