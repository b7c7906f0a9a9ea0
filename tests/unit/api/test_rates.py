"""Rates at the door: what counts as what, the headers of the draft, and 429."""

import asyncio
import random
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from service import errors
from service.api import rates
from service.core.limits.rates import Rate, window_of
from service.ports.store import Admission
from tests.unit.api.fakes import FakeCore, ask, post

SUBMIT = {"sandbox_id": "sb", "command": "true"}


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/sandboxes", {}), ("/exec", SUBMIT), ("/v1/exec-jobs", SUBMIT), ("/exec-jobs", SUBMIT)]
)
async def test_what_makes_something_is_a_submit(path: str, body: object) -> None:
    core = FakeCore()
    await post(core.app(), path, body)
    assert core.counted == [("default", "submits")]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/exec-jobs"),
        ("DELETE", "/exec-jobs/cmd_x"),
        ("POST", "/v1/sandboxes/sb/pause"),
        ("PUT", "/v1/sandboxes/sb/files?path=f"),
        ("GET", "/v1/sandboxes/sb/files?path=f"),
        ("PUT", "/v1/sandboxes/sb/archive?path=d"),
        ("GET", "/nowhere"),
    ],
)
async def test_all_else_is_a_poll(method: str, path: str) -> None:
    core = FakeCore()
    await ask(core.app(), method, path)
    assert core.counted == [("default", "polls")]


class Nobody:
    def authenticate(self, headers: Mapping[str, Sequence[str]]) -> str:
        raise errors.Unauthenticated


async def test_nobody_s_requests_and_probes_count_for_nobody() -> None:
    core = FakeCore()
    await ask(core.app(authenticator=Nobody()), "GET", "/v1/exec-jobs")
    for path in ("/healthz", "/readyz", "/openapi.json", "/docs"):
        await ask(core.app(), "GET", path)
    assert core.counted == []


async def test_answers_tell_what_holds_and_what_is_left() -> None:
    core = FakeCore(rate=Rate("polls", 20, 1, Admission(True, 7, 0.0, 0.65)))
    got = await ask(core.app(), "GET", "/v1/exec-jobs")
    assert got.status == 200
    assert got.headers["ratelimit-policy"] == '"polls";q=20;w=1'
    assert got.headers["ratelimit"] == '"polls";r=7;t=1'


async def test_a_problem_tells_it_too() -> None:
    core = FakeCore(rate=Rate("submits", 2, 1, Admission(True, 1, 0.0, 0.5)), error=errors.EngineUnavailable())
    got = await post(core.app(), "/v1/exec-jobs", SUBMIT)
    assert (got.status, got.headers["ratelimit"]) == (503, '"submits";r=1;t=1')


async def test_too_many_are_told_when_to_come_again_and_nothing_is_done() -> None:
    core = FakeCore(rate=Rate("submits", 1, 4, Admission(False, 0, 2.3, 4.0)))
    got = await post(core.app(), "/v1/exec-jobs", SUBMIT, headers=[("Idempotency-Key", "k")])
    assert (got.status, got.json["code"], got.json["retryable"]) == (429, "RATE_LIMITED", True)
    assert got.headers["retry-after"] == "3"
    assert got.headers["ratelimit-policy"] == '"submits";q=1;w=4'
    assert got.headers["ratelimit"] == '"submits";r=0;t=4'
    assert got.headers["idempotency-key"] == "k"
    assert core.calls == []


async def test_without_a_limit_there_is_nothing_to_tell() -> None:
    got = await ask(FakeCore().app(), "GET", "/v1/exec-jobs")
    assert "ratelimit" not in got.headers
    assert "ratelimit-policy" not in got.headers


@pytest.mark.parametrize(
    ("per_second", "shown"),
    [(20.0, (20, 1)), (2.5, (2, 1)), (0.25, (1, 4)), (0.3, (1, 4)), (0.0001, (1, 3600)), (1e4, (10000, 1))],
)  # fmt: skip
def test_a_rate_is_whole_requests_in_whole_seconds(per_second: float, shown: tuple[int, int]) -> None:
    assert window_of(per_second) == shown


async def test_who_did_not_wait_is_answered_late_and_only_so_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(random, "uniform", lambda least, most: most)
    told = Rate("polls", 1, 1, Admission(False, 0, 0.2, 1.0))
    core = FakeCore(rate=told)
    app = core.app()
    assert (await ask(app, "GET", "/v1/exec-jobs")).status == 429
    assert slept == [], "the first is told at once"
    for wait, held in ((0.2, 0.2), (60.0, rates.HOLD)):
        core.rate = msgspec.structs.replace(told, remembered=True, admission=Admission(False, 0, wait, wait))
        assert (await ask(app, "GET", "/v1/exec-jobs")).status == 429
        assert slept.pop() == held
    core.rate = msgspec.structs.replace(told, remembered=True)
    monkeypatch.undo()
    monkeypatch.setattr(random, "uniform", lambda least, most: most / 10)
    began = asyncio.get_running_loop().time()
    answers = await asyncio.gather(*(ask(app, "GET", "/v1/exec-jobs") for _ in range(5)))
    assert {answer.status for answer in answers} == {429}
    assert asyncio.get_running_loop().time() - began >= 5 * 0.2 / 10, "the later, the more of one tenant are held"
    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(rates, "MOST_HELD", 0)
    assert (await ask(app, "GET", "/v1/exec-jobs")).status == 429
    assert slept == []
