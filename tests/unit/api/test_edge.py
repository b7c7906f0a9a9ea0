"""Around every request: problems, headers, the access log, web pages, large heads, callers who left."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from service import errors
from service.api import execs, middleware
from service.settings import Settings, SettingsError
from tests.support.waiting import PATIENCE
from tests.unit.api.fakes import Connection, FakeCore, ask, post

JSON_ERRORS = [error for error in errors.BY_CODE.values() if error is not errors.NotFound]


@pytest.mark.parametrize("error", JSON_ERRORS)
async def test_every_error_is_a_problem(error: type[errors.OnceboxError]) -> None:
    core = FakeCore(error=error("why", command_id="cmd_x", sandbox_id="sb"))
    got = await post(core.app(), "/v1/sandboxes", {}, headers=[("Idempotency-Key", "k")])
    assert got.status == error.status
    assert got.headers["content-type"] == "application/problem+json"
    assert got.json == {
        "type": f"/docs#{error.code}", "title": error.title, "status": error.status, "detail": "why",
        "code": error.code, "retryable": error.retryable, "command_id": "cmd_x", "sandbox_id": "sb",
    }  # fmt: skip
    assert ("retry-after" in got.headers) == error.retryable
    assert ("www-authenticate" in got.headers) == (error is errors.Unauthenticated)


@pytest.mark.parametrize(("seconds", "shown"), [(0.0, "1"), (0.2, "1"), (1.0, "1"), (1.1, "2"), (30, "30")])
async def test_retry_after_is_whole_seconds_and_at_least_one(seconds: float, shown: str) -> None:
    core = FakeCore(error=errors.SandboxNotRunning(retry_after=seconds))
    assert (await ask(core.app(), "GET", "/v1/sandboxes/sb")).headers["retry-after"] == shown


async def test_a_bug_is_a_500_that_tells_nothing_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    core = FakeCore(error=RuntimeError("password=hunter2"))
    got = await ask(core.app(), "GET", "/v1/sandboxes/sb")
    assert (got.status, got.json["code"]) == (500, "INTERNAL")
    assert b"hunter2" not in got.body
    assert got.headers["x-request-id"] in caplog.text


async def test_a_detail_that_no_json_can_hold_is_still_a_problem() -> None:
    core = FakeCore(error=errors.EngineRejected("bad \ud800 " + "x" * 100_000))
    got = await ask(core.app(), "GET", "/v1/sandboxes/sb")
    assert got.status == 422
    assert len(got.body) < 4_000


@pytest.mark.parametrize(
    ("method", "target"), [("GET", "/healthz"), ("GET", "/nowhere"), ("PUT", "/v1/exec"), ("GET", "/docs")]
)
async def test_no_answer_may_be_kept_or_sniffed(method: str, target: str) -> None:
    got = await ask(FakeCore().app(), method, target)
    assert got.headers["cache-control"] == "no-store"
    assert got.headers["x-content-type-options"] == "nosniff"


# -- pages of other sites


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "", "10.0.0.1:8700", "127.0.0.1:8700@evil",
     "evil.example:8700", "[::2]:8700", "localhost:x", "0.0.0.0:8700"],
)  # fmt: skip
async def test_without_keys_only_loopback_names_are_served(host: str) -> None:
    core = FakeCore()
    got = await ask(core.app(), "GET", "/v1/sandboxes", headers=[("Host", host)])
    assert (got.status, got.json["code"]) == (403, "FORBIDDEN")
    assert core.calls == []


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8700", "127.0.0.1", "127.8.9.1:1", "[::1]:8700"])
async def test_loopback_names_are_served(host: str) -> None:
    assert (await ask(FakeCore().app(), "GET", "/v1/sandboxes", headers=[("Host", host)])).status == 200


async def test_two_hosts_are_refused() -> None:
    hosts = [("Host", "localhost"), ("Host", "localhost")]
    assert (await ask(FakeCore().app(), "GET", "/v1/sandboxes", headers=hosts)).status == 403


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://localhost.evil.example", "http://evil.example:8700", "file://", "",
     "http://127.0.0.1@evil.example", "chrome-extension://abc", "http://[::1", "localhost"],
)  # fmt: skip
async def test_without_keys_a_foreign_page_is_refused(origin: str) -> None:
    core = FakeCore()
    got = await post(core.app(), "/v1/exec-jobs", {"sandbox_id": "a", "command": "b"}, headers=[("Origin", origin)])
    assert got.status == 403
    assert core.calls == []


@pytest.mark.parametrize("origin", ["http://127.0.0.1:8700", "http://localhost:3000", "http://[::1]:8700"])
async def test_a_page_of_this_machine_is_served(origin: str) -> None:
    assert (await ask(FakeCore().app(), "GET", "/v1/sandboxes", headers=[("Origin", origin)])).status == 200


async def test_insecure_serves_any_host_but_only_its_own_pages() -> None:
    app = FakeCore().app(Settings(bind="0.0.0.0:8700", insecure=True))
    host = ("Host", "box.example:8700")
    assert (await ask(app, "GET", "/v1/sandboxes", headers=[host])).status == 200
    own = ("Origin", "http://box.example:8700")
    assert (await ask(app, "GET", "/v1/sandboxes", headers=[host, own])).status == 200
    foreign = ("Origin", "http://localhost:8700")
    assert (await ask(app, "GET", "/v1/sandboxes", headers=[host, foreign])).status == 403


def test_keys_that_were_asked_for_are_never_left_out() -> None:
    with pytest.raises(SettingsError, match="ONCEBOX_TENANTS"):
        FakeCore().app(Settings(tenants="tenants.toml"))


# -- who is asking


class OneKey:
    def authenticate(self, headers: Mapping[str, Sequence[str]]) -> str:
        if headers.get("authorization") == ["Bearer right"]:
            return "acme"
        raise errors.Unauthenticated


async def test_the_tenant_is_whose_key_it_is() -> None:
    core = FakeCore()
    got = await ask(
        core.app(authenticator=OneKey()), "GET", "/v1/sandboxes", headers=[("Authorization", "Bearer right")]
    )
    assert (got.status, core.asked["tenant"]) == (200, "acme")


@pytest.mark.parametrize("target", ["/v1/sandboxes", "/exec-jobs/cmd_x", "/nowhere"])
async def test_without_a_key_nothing_is_told(target: str) -> None:
    core = FakeCore()
    got = await ask(core.app(authenticator=OneKey()), "GET", target)
    assert (got.status, got.json["code"], got.headers["www-authenticate"]) == (401, "UNAUTHENTICATED", "Bearer")
    assert core.calls == []


@pytest.mark.parametrize("target", ["/healthz", "/readyz", "/openapi.json", "/docs"])
async def test_probes_and_documents_need_no_key(target: str) -> None:
    assert (await ask(FakeCore().app(authenticator=OneKey()), "GET", target)).status == 200


# -- large heads


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/v1/sandboxes", [("X-A", "b")] * 101),
        ("/v1/sandboxes", [("X-A", "b" * 20_000), ("X-B", "b" * 20_000)]),
        ("/v1/sandboxes?page_token=" + "x" * 9000, []),
        ("/" + "x" * 9000, []),
    ],
)
async def test_a_head_too_large_is_refused(target: str, headers: list[Any]) -> None:
    core = FakeCore()
    assert (await ask(core.app(), "GET", target, headers=headers)).status == 422
    assert core.calls == []


# -- the access log


async def test_one_line_a_request_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "oncebox.access")
    secret = "s3cret"
    body = {"sandbox_id": "sb", "command": f"echo {secret}", "env": {"A": secret}, "metadata": {"a": secret}}
    headers = [("Idempotency-Key", secret), ("Authorization", f"Bearer {secret}"), ("X-Request-Id", "r1")]
    await post(FakeCore().app(), f"/v1/exec-jobs?{secret}=1", body, headers=headers)
    await post(FakeCore().app(), "/v1/exec-jobs", body, headers=headers)
    await ask(FakeCore().app(), "GET", f"/v1/exec-jobs/cmd_{secret}?cursor={secret}")
    await ask(FakeCore().app(), "GET", f"/{secret}")
    assert secret not in caplog.text
    lines = [msgspec.json.decode(record.getMessage()) for record in caplog.records]
    ms = lines[1].pop("ms")
    assert isinstance(ms, float)
    assert lines[1] == {
        "method": "POST", "route": "/v1/exec-jobs", "status": 202, "request_id": "r1", "tenant": "default",
    }  # fmt: skip
    assert [line["status"] for line in lines] == [422, 202, 200, 404]
    assert lines[2]["route"] == "/v1/exec-jobs/{command_id}"
    assert lines[3]["route"] is None
    refused = await ask(FakeCore().app(), "POST", "/exec-jobs", headers=[("content-type", "text/plain")])
    assert refused.status == 415
    last = msgspec.json.decode(caplog.records[-1].getMessage())
    assert last["route"] == "/v1/exec-jobs", "a request that was refused on its way has its route too"


async def test_probes_leave_no_lines_unless_they_fail(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "oncebox.access")
    await ask(FakeCore().app(), "GET", "/healthz")
    assert not caplog.records
    await ask(FakeCore(reasons=["Redis is away."]).app(), "GET", "/readyz")
    assert len(caplog.records) == 1


# -- callers who left


async def test_a_long_poll_ends_when_its_caller_leaves_with_what_there_is() -> None:
    core = FakeCore(pending=asyncio.Event())
    sent = Connection(core.app(), "GET", "/v1/exec-jobs/cmd_x?wait=30")
    async with asyncio.timeout(PATIENCE):
        while not core.calls:
            await asyncio.sleep(0)
        sent.disconnect()
        got = await sent.answer()
    assert (got.status, got.json["output"]) == (200, "hi\n"), "it may have closed only its own side"
    assert core.poll_cancelled


@pytest.mark.parametrize("target", ["/healthz", "/nowhere", "/v1/exec-jobs/cmd_x?wait=30", "/v1/sandboxes?x=1"])
async def test_a_caller_that_is_cut_off_before_any_answer_or_problem_is_no_error(
    target: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "oncebox.access")
    sent = Connection(FakeCore().app(), "GET", target)
    sent.cut_off = True
    async with asyncio.timeout(PATIENCE):
        await sent.answer()
    (line,) = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    assert line["status"] == 499


async def test_a_caller_that_closed_its_side_during_a_long_exec_hears_that_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(execs, "_settle", lambda _: 0.0)
    core = FakeCore(pending=asyncio.Event())
    body = b'{"sandbox_id": "sb", "command": "sleep 60"}'
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Idempotency-Key", "k")]
    sent = Connection(core.app(), "POST", "/v1/exec", headers=headers, body=[body])
    async with asyncio.timeout(PATIENCE):
        while not core.calls:
            await asyncio.sleep(0)
        sent.disconnect()
        got = await sent.answer()
    assert (got.status, got.json["code"], got.json["retryable"]) == (502, "OUTCOME_UNKNOWN", True)


async def test_a_long_poll_answers_its_caller() -> None:
    core = FakeCore(pending=asyncio.Event())
    sent = Connection(core.app(), "GET", "/v1/exec-jobs/cmd_x?wait=30")
    await asyncio.sleep(0)
    assert core.pending is not None
    core.pending.set()
    assert (await sent.answer()).status == 200


# -- health, readiness, lifespan


async def test_readiness_gives_its_reasons() -> None:
    core = FakeCore()
    app = core.app()
    assert (await ask(app, "GET", "/readyz")).json == {"status": "ok", "reasons": []}
    core.reasons = ["Redis is away."]
    got = await ask(app, "GET", "/readyz")
    assert (got.status, got.json) == (503, {"status": "not_ready", "reasons": ["Redis is away."]})
    assert (await ask(app, "GET", "/healthz")).status == 200


async def test_a_draining_replica_is_not_ready_still_serves_and_sends_its_callers_elsewhere() -> None:
    app = FakeCore().app()
    assert "connection" not in (await ask(app, "GET", "/v1/sandboxes")).headers
    app.draining = True
    assert (await ask(app, "GET", "/readyz")).status == 503
    got = await ask(app, "GET", "/v1/sandboxes")
    assert (got.status, got.headers["connection"]) == (200, "close")


async def test_the_lifespan_starts_and_shuts_down_the_core() -> None:
    core = FakeCore()
    app = core.app(Settings(shutdown_grace=7), manages_core=True)
    messages = asyncio.Queue[dict[str, Any]]()
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    messages.put_nowait({"type": "lifespan.startup"})
    messages.put_nowait({"type": "lifespan.shutdown"})
    await app({"type": "lifespan"}, messages.get, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert (core.started, core.shut_down) == (1, [7])


def test_limits_are_what_the_documentation_says() -> None:
    assert (middleware.MAX_HEADERS, middleware.MAX_HEAD, middleware.MAX_TARGET) == (100, 32_768, 8_192)
