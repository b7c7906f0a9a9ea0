"""Who gets metrics, and what requests leave in them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.api.application import Application
from service.core.model.answers import Event
from service.messages import OutputEvent
from service.observability import Observability
from service.settings import Settings
from tests.support.waiting import PATIENCE
from tests.unit.api.fakes import Connection, FakeCore, Got, ask, post

TOKEN = "tell-me-all"
LABELS = {
    "route", "method", "code", "wait", "kind", "outcome", "hop", "cause", "state", "error", "version", "python", "le",
    "loop",
}  # fmt: skip


class Served:
    """An application with metrics of its own."""

    def __init__(self, core: FakeCore | None = None, **settings: Any) -> None:
        self.observability = Observability({})
        self.core = core or FakeCore()
        self.app = Application(
            self.core,  # type: ignore[arg-type]
            Settings(**settings),
            manages_core=False,
            observed=self.observability,
        )

    def value(self, name: str, **labels: str) -> float:
        return self.observability.metrics.registry.get_sample_value(name, labels) or 0.0

    def text(self) -> str:
        return self.observability.render()[0].decode()


def from_peer(app: Callable[..., Any], peer: tuple[str, int] | None) -> Callable[..., Any]:
    async def called(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "client": peer}, receive, send)

    return called


def bearer(token: str) -> list[tuple[str, str]]:
    return [("Authorization", f"Bearer {token}")]


# -- who


async def test_with_the_token_anybody_who_has_it_is_answered() -> None:
    served = Served(metrics_token=TOKEN, insecure=True)
    app = from_peer(served.app, ("192.0.2.7", 4711))
    headers = [*bearer(TOKEN), ("Host", "oncebox-1:8700")]
    got = await ask(app, "GET", "/metrics", headers=headers)
    assert got.status == 200
    assert got.headers["content-type"].startswith("text/plain; version=0.0.4")
    names = {family.name for family in text_string_to_metric_families(got.body.decode())}
    assert {"oncebox_build_info", "oncebox_claims", "oncebox_poller_lag_seconds"} <= names


@pytest.mark.parametrize(
    "headers",
    [
        [],
        bearer("wrong"),
        bearer(""),
        bearer("t\xe9ll"),
        [("Authorization", f"Basic {TOKEN}")],
        [("Authorization", TOKEN)],
        [*bearer(TOKEN), *bearer(TOKEN)],
    ],
)
async def test_where_there_is_a_token_nothing_else_will_do(headers: list[tuple[str, str]]) -> None:
    got = await ask(Served(metrics_token=TOKEN).app, "GET", "/metrics", headers=headers)
    assert got.status == 401
    assert got.json["code"] == "UNAUTHENTICATED"
    assert b"oncebox_" not in got.body


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
async def test_without_a_token_this_machine_is_answered(peer: str) -> None:
    assert (await ask(from_peer(Served().app, (peer, 1)), "GET", "/metrics")).status == 200


@pytest.mark.parametrize("peer", [("192.0.2.7", 1), ("::ffff:192.0.2.7", 1), ("fe80::1%eth0", 1), ("", 0), None])
async def test_without_a_token_no_other_machine_is_answered(peer: tuple[str, int] | None) -> None:
    app = from_peer(Served(insecure=True).app, peer)
    for headers in ([], [("X-Forwarded-For", "127.0.0.1")], [("Forwarded", "for=127.0.0.1")], bearer("")):
        got = await ask(app, "GET", "/metrics", headers=headers)
        assert got.status == 403
        assert b"oncebox_" not in got.body


@pytest.mark.parametrize(
    "headers",
    [
        [("Host", "evil.example")],
        [("Host", "evil.example"), ("Host", "localhost")],
        [("X-Forwarded-For", "192.0.2.7")],
        [("Forwarded", "for=192.0.2.7")],
        [("Via", "1.1 balancer")],
    ],
)
async def test_a_web_page_and_a_proxy_on_this_machine_are_not_this_machine(headers: list[tuple[str, str]]) -> None:
    got = await ask(Served(insecure=True).app, "GET", "/metrics", headers=headers)
    assert got.status == 403


# -- what


async def test_a_request_is_counted_by_its_template() -> None:
    served = Served()
    await ask(served.app, "GET", "/v1/exec-jobs/cmd_c2I_0")
    await ask(served.app, "GET", "/exec-jobs/cmd_c2I_1")
    route = "/v1/exec-jobs/{command_id}"
    assert served.value("oncebox_http_requests_total", route=route, method="GET", code="200") == 2
    count = "oncebox_http_request_duration_seconds_count"
    assert served.value(count, route=route, method="GET", wait="none") == 2


async def test_no_label_grows_with_callers() -> None:
    served = Served()
    await ask(served.app, "GET", "/first")
    series = len(served.text().splitlines())
    for number in range(20):
        await ask(served.app, "GET", f"/path-{number}")
        await ask(served.app, "GET", "/v1/exec-jobs/cmd_c2I_0", headers=[("X-Request-Id", f"r{number}")])
        await ask(served.app, f"BREW{number}", "/v1/sandboxes")
    families = list(text_string_to_metric_families(served.text()))
    labels = {label for family in families for sample in family.samples for label in sample.labels}
    assert labels <= LABELS
    grown = len(served.text().splitlines()) - series
    assert grown < 60, "a new series for each method, template and code; not for each request"
    assert served.value("oncebox_http_requests_total", route="none", method="GET", code="404") == 21
    assert "BREW" not in served.text()
    assert "path-" not in served.text()


async def test_a_long_poll_is_open_while_it_waits_and_is_no_latency() -> None:
    core = FakeCore(pending=asyncio.Event())
    served = Served(core)
    sent = Connection(served.app, "GET", "/v1/exec-jobs/cmd_x?wait=30")
    async with asyncio.timeout(PATIENCE):
        while not core.calls:
            await asyncio.sleep(0)
    assert served.value("oncebox_http_waits_open", wait="long_poll") == 1
    assert core.pending is not None
    core.pending.set()
    assert (await sent.answer()).status == 200
    assert served.value("oncebox_http_waits_open", wait="long_poll") == 0
    count = "oncebox_http_request_duration_seconds_count"
    route = "/v1/exec-jobs/{command_id}"
    assert served.value(count, route=route, method="GET", wait="long_poll") == 1
    assert served.value(count, route=route, method="GET", wait="none") == 0
    assert served.value("oncebox_streams_lost_total", hop="caller", cause="left") == 0


async def test_a_waiting_caller_who_left_is_a_stream_lost_on_his_hop() -> None:
    events: list[Any] = [Event("output", "c1", OutputEvent(output="hi")), asyncio.Event()]
    served = Served(FakeCore(events_script=events))
    sent = Connection(served.app, "GET", "/v1/exec-jobs/cmd_x/events")
    async with asyncio.timeout(PATIENCE):
        while len(sent.got.parts) < 1:
            await asyncio.sleep(0)
        assert served.value("oncebox_http_waits_open", wait="events") == 1
        sent.disconnect()
        await sent.answer()
    assert served.value("oncebox_http_waits_open", wait="events") == 0
    assert served.value("oncebox_streams_lost_total", hop="caller", cause="left") == 1
    age = served.value("oncebox_stream_lost_age_seconds_sum", hop="caller")
    silence = served.value("oncebox_stream_lost_silence_seconds_sum", hop="caller")
    assert 0 < silence < age, "a byte was sent after the beginning"


async def test_a_long_poll_that_its_caller_cut_short_is_lost_on_his_hop_though_it_was_answered() -> None:
    core = FakeCore(pending=asyncio.Event())
    served = Served(core)
    sent = Connection(served.app, "GET", "/v1/exec-jobs/cmd_x?wait=30")
    async with asyncio.timeout(PATIENCE):
        while not core.calls:
            await asyncio.sleep(0)
        sent.disconnect()
        assert (await sent.answer()).status == 200
    assert served.value("oncebox_http_waits_open", wait="long_poll") == 0
    assert served.value("oncebox_streams_lost_total", hop="caller", cause="left") == 1


async def test_readiness_is_told() -> None:
    served = Served()
    await ask(served.app, "GET", "/readyz")
    assert served.value("oncebox_ready") == 1
    served.core.reasons = ["Redis is away."]
    await ask(served.app, "GET", "/readyz")
    assert served.value("oncebox_ready") == 0


async def test_an_application_without_metrics_has_no_such_route() -> None:
    got: Got = await ask(FakeCore().app(), "GET", "/metrics")
    assert got.status == 404


async def test_a_refused_exec_waits_no_more() -> None:
    served = Served()
    got = await post(served.app, "/v1/exec", {"sandbox_id": "../x", "command": "true"})
    assert got.status == 404
    got = await post(served.app, "/v1/exec", {"sandbox_id": "sb", "command": "true"})
    assert got.status == 200
    assert served.value("oncebox_http_waits_open", wait="exec") == 0
