"""What can't be sent as it was meant is refused before anything is sent, by the name of its argument."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from service.client import AsyncClient, Client, InvalidIdempotencyKey, InvalidRequest, OnceboxError
from tests.unit.client.fake_service import answer, problem
from tests.unit.client.scripted import Scripted, body, done, job, sandbox

INF, NAN = float("inf"), float("nan")
LONE = "caf\udce9"
"""How Python shows an argument that is not UTF-8: with a lone surrogate."""

Call = Callable[[Any, Any], Any]
NUMBERS: list[tuple[str, Call]] = [
    ("timeout", lambda client, bad: client.create_sandbox(timeout=bad)),
    ("wait_ready", lambda client, bad: client.create_sandbox(wait_ready=bad)),
    ("timeout", lambda client, bad: client.sandbox("sb-1").submit("make", timeout=bad)),
    ("timeout", lambda client, bad: client.sandbox("sb-1").exec("make", timeout=bad)),
    ("timeout", lambda client, bad: client.sandbox("sb-1").run("make", timeout=bad)),
    ("timeout", lambda client, bad: client.sandbox("sb-1").renew(bad)),
    ("page_size", lambda client, bad: client.jobs(page_size=bad)),
    ("page_size", lambda client, bad: client.sandboxes(page_size=bad)),
    ("timeout", lambda client, bad: client.map("make", ["sb-1"], timeout=bad)),
]
TEXTS: list[tuple[str, Call]] = [
    ("sandbox_id", lambda client, bad: client.sandbox(bad).refresh()),
    ("sandbox_id", lambda client, bad: client.sandbox(bad).submit("make")),
    ("sandbox_id", lambda client, bad: client.sandbox(bad).delete()),
    ("sandbox_id", lambda client, bad: client.sandbox(bad).pause()),
    ("sandbox_id", lambda client, bad: client.jobs(sandbox_id=bad)),
    ("command_id", lambda client, bad: client.job(bad).status()),
    ("command_id", lambda client, bad: client.job(bad).cancel()),
    ("command_id", lambda client, bad: client.job(bad).result()),
    ("command_id", lambda client, bad: client.job(bad).stream()),
    ("cursor", lambda client, bad: client.job("cmd_1").stream(cursor=bad)),
    ("command", lambda client, bad: client.sandbox("sb-1").submit(bad)),
    ("command", lambda client, bad: client.sandbox("sb-1").exec(bad)),
    ("command", lambda client, bad: client.sandbox("sb-1").run(bad)),
    ("command", lambda client, bad: client.map(bad, ["sb-1"])),
    ("cwd", lambda client, bad: client.sandbox("sb-1").submit("make", cwd=bad)),
    ("env", lambda client, bad: client.sandbox("sb-1").submit("make", env={bad: "1"})),
    ("env.HOME", lambda client, bad: client.sandbox("sb-1").submit("make", env={"HOME": bad})),
    ("metadata.run", lambda client, bad: client.sandbox("sb-1").submit("make", metadata={"run": bad})),
    ("image", lambda client, bad: client.create_sandbox(image=bad)),
    ("entrypoint.1", lambda client, bad: client.create_sandbox(entrypoint=["sleep", bad])),
    ("env.HOME", lambda client, bad: client.create_sandbox(env={"HOME": bad})),
    ("metadata.run", lambda client, bad: client.create_sandbox(metadata={"run": bad})),
    ("resources.cpu", lambda client, bad: client.create_sandbox(resources={"cpu": bad})),
    ("workspace_owner", lambda client, bad: client.create_sandbox(workspace_owner=bad)),
    ("metadata.run", lambda client, bad: client.jobs(metadata={"run": bad})),
    ("metadata.run", lambda client, bad: client.sandboxes(metadata={"run": bad})),
    ("state", lambda client, bad: client.sandboxes(state=bad)),
]


def refused(call: Call, bad: Any) -> InvalidRequest:
    """The error of ``call``; nothing is sent, since the network has no answer."""
    network = Scripted()
    with pytest.raises(InvalidRequest) as caught:
        list(call(network.client(), bad))
    assert network.requests == []
    str(caught.value).encode()  # it can be shown
    return caught.value


async def refused_async(call: Call, bad: Any) -> InvalidRequest:
    network = Scripted()

    async def called() -> None:
        made = call(network.async_client(), bad)
        await made if hasattr(made, "__await__") else [item async for item in made]

    with pytest.raises(InvalidRequest) as caught:
        await called()
    assert network.requests == []
    return caught.value


@pytest.mark.parametrize("bad", [INF, -INF, NAN, 2**64, -(2**64), 10**400, Decimal("Infinity")])
@pytest.mark.parametrize(("field", "call"), NUMBERS)
async def test_a_number_that_json_can_t_hold_is_refused_by_name(field: str, call: Call, bad: Any) -> None:
    for error in (refused(call, bad), await refused_async(call, bad)):
        assert [item.field for item in error.errors] == [field]


@pytest.mark.parametrize("bad", [LONE, "\ud83d", b"bytes", INF])
@pytest.mark.parametrize(("field", "call"), TEXTS)
async def test_a_text_that_is_not_unicode_is_refused_by_name(field: str, call: Call, bad: Any) -> None:
    for error in (refused(call, bad), await refused_async(call, bad)):
        assert [item.field for item in error.errors] == [field]


@pytest.mark.parametrize(("field", "call"), [case for case in TEXTS if case[0] in ("sandbox_id", "command_id")])
def test_an_id_of_nothing_is_refused_by_name(field: str, call: Call) -> None:
    assert [item.field for item in refused(call, "").errors] == [field]


@pytest.mark.parametrize("name", [".", ".."])
def test_an_id_of_dots_stays_an_id(name: str) -> None:
    network = Scripted(problem(404, "SANDBOX_NOT_FOUND"), problem(404, "JOB_NOT_FOUND"))
    for call in (network.client().sandbox(name).refresh, network.client().job(name).status):
        with pytest.raises(OnceboxError):
            call()

    dots = name.replace(".", "%2E")
    assert [request.path.partition("?")[0] for request in network.requests] == [
        f"/v1/sandboxes/{dots}",
        f"/v1/exec-jobs/{dots}",
    ]


def test_a_key_that_is_not_text_is_refused_too() -> None:
    for bad in (LONE, b"key", 7):
        with pytest.raises(InvalidIdempotencyKey):
            Scripted().client().sandbox("sb-1").submit("make", idempotency_key=bad)  # type: ignore[arg-type]


def test_an_entrypoint_that_is_one_text_is_not_taken_for_its_letters() -> None:
    error = refused(lambda client, bad: client.create_sandbox(entrypoint=bad), "sleep 1")
    assert [item.field for item in error.errors] == ["entrypoint"]


def test_a_label_is_not_taken_for_another_one() -> None:
    error = refused(lambda client, bad: client.jobs(metadata=bad), {"a=b": "c"})
    assert [item.field for item in error.errors] == ["metadata"]


def test_whole_numbers_of_any_kind_are_sent_as_they_are() -> None:
    class Index:
        def __index__(self) -> int:
            return 600

    network = Scripted(*[answer(202, job("pending"))] * 3)
    for timeout in (600, 600.0, Index()):
        network.client().sandbox("sb-1").submit("make", timeout=timeout)  # type: ignore[arg-type]

    assert [body(request)["timeout"] for request in network.requests] == [600, 600, 600]


@pytest.mark.parametrize(("given", "patience"), [(10**18, 120), (-(10**18), 0), (1e300, 120), (7, 7)])
def test_what_the_service_would_refuse_reaches_it_in_a_time_that_sockets_can_wait(given: Any, patience: int) -> None:
    network = Scripted(problem(422, "INVALID_REQUEST"))

    with pytest.raises(InvalidRequest):
        network.client(timeout=30).create_sandbox(wait_ready=given)

    assert network.requests[0].read_timeout == 30 + patience


# In a map


def test_an_id_that_can_t_be_sent_fails_alone_in_a_map() -> None:
    network = Scripted(answer(202, job("pending")), done("out"))

    results = {item.sandbox_id: item for item in network.client().map("make", [LONE, "", "sb-1"], concurrency=1)}

    assert results["sb-1"].output == "out"
    for bad in (LONE, ""):
        assert isinstance(results[bad].error, InvalidRequest)


async def test_so_it_does_in_an_asynchronous_map() -> None:
    network = Scripted(answer(202, job("pending")), done("out"))

    mapped = network.async_client().map("make", [LONE, "", "sb-1"], concurrency=1)
    results = {item.sandbox_id: item async for item in mapped}

    assert results["sb-1"].output == "out"
    for bad in (LONE, ""):
        assert isinstance(results[bad].error, InvalidRequest)


@pytest.mark.parametrize("bad", [0, -1, INF, NAN, 2.5, "3"])
def test_a_map_s_concurrency_is_a_whole_number(bad: Any) -> None:
    for client in (Scripted().client(), Scripted().async_client()):
        with pytest.raises(ValueError, match="concurrency"):
            client.map("make", [], concurrency=bad)


# Times that are not sent


@pytest.mark.parametrize("options", [{"timeout": NAN}, {"timeout": INF}, {"timeout": 1e300}, {"deadline": NAN}])
def test_a_client_s_times_are_numbers_that_can_be_waited(options: dict[str, Any]) -> None:
    for cls in (Client, AsyncClient):
        with pytest.raises(ValueError, match="seconds"):
            cls(**options)


@pytest.mark.parametrize(
    "call",
    [
        lambda job, bad: job.result(timeout=bad),
        lambda job, bad: list(job.stream(timeout=bad)),
        lambda job, bad: list(job.stream_bytes(timeout=bad)),
        lambda job, bad: job.output_to(print, timeout=bad),
    ],
)
@pytest.mark.parametrize("bad", [NAN, "5"])
def test_nan_is_no_time_to_wait_for_a_job(call: Call, bad: Any) -> None:
    network = Scripted()
    with pytest.raises(ValueError, match="timeout"):
        call(network.client().job("cmd_1"), bad)
    assert network.requests == []


def test_infinity_is_for_ever_where_nothing_is_sent() -> None:
    network = Scripted(answer(202, job("pending")), done("out"), answer(200, sandbox()))
    client = network.client(deadline=INF)

    assert client.sandbox("sb-1").submit("make").result(timeout=INF).output == "out"
    assert client.sandbox("sb-1").refresh().ready


@pytest.mark.parametrize(
    "url", ["http://x:99999", "http://x:0", "http://x:port", f"http://{LONE}", "http://u:secret@x", "http://[x"]
)
def test_a_url_that_no_request_can_go_to_is_refused_at_once(url: str) -> None:
    for cls in (Client, AsyncClient):
        with pytest.raises(ValueError, match="URL") as caught:
            cls(url)
        assert "secret" not in str(caught.value)
