"""Faults on order: what tests of the service drive the local engine with."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.contract.local_engine_rig import CREATE, Answer, RunningEngine, RunningSandbox, call, shared_engine
from tests.support.processes import Spawner
from tests.support.waiting import PATIENCE

CUT = (ConnectionError, http.client.HTTPException)


@pytest.fixture
def engine(spawn: Spawner, tmp_path: Path) -> RunningEngine:
    return RunningEngine(spawn, root=tmp_path / "engine")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """For tests that keep to one sandbox, and order faults that they use up."""
    with shared_engine(tmp_path_factory.mktemp("shared")) as running:
        yield running


@pytest.fixture
def sandbox(shared: RunningEngine) -> RunningSandbox:
    return shared.create()


def order(engine: RunningEngine, **fault: Any) -> None:
    answer = call(engine.url + "/_dev/faults", "POST", fault)
    assert answer.status == 200, answer


def control(sandbox: RunningSandbox, what: str, **action: str) -> None:
    answer = call(f"{sandbox.engine.url}/_dev/sandboxes/{sandbox.id}/{what}", "POST", action)
    assert answer.status == 204, answer


def submit(sandbox: RunningSandbox, command: str) -> Answer:
    return call(sandbox.execd + "/command", "POST", {"command": command, "background": True})


def eventually(condition: Callable[[], object], timeout: float = PATIENCE) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def count(engine: RunningEngine) -> int:
    total: int = engine.call("GET", "/v1/sandboxes").json["pagination"]["totalItems"]
    return total


def test_without_the_option_there_are_no_controls(spawn: Spawner, tmp_path: Path) -> None:
    engine = RunningEngine(spawn, "--isolation", "plain", root=tmp_path / "engine", dev_controls=False)
    assert call(engine.url + "/_dev/stats").status == 401
    assert engine.call("GET", "/_dev/stats").status == 404


def test_a_create_whose_reply_is_lost_was_carried_out_or_not(engine: RunningEngine) -> None:
    order(engine, create_reply="drop")
    with pytest.raises(CUT):
        engine.call("POST", "/v1/sandboxes", CREATE)
    eventually(lambda: count(engine) == 1)
    order(engine, create_reply="drop_before")
    with pytest.raises(CUT):
        engine.call("POST", "/v1/sandboxes", CREATE)
    order(engine, create_status=503, create_body="<html>", create_content_type="text/html")
    answer = engine.call("POST", "/v1/sandboxes", CREATE)
    assert (answer.status, answer.body, answer.headers["content-type"]) == (503, b"<html>", "text/html")
    assert count(engine) == 1


def test_a_create_can_be_slow_and_outlives_its_caller(engine: RunningEngine) -> None:
    order(engine, create_delay=2)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        engine.call("POST", "/v1/sandboxes", CREATE, timeout=0.2)
    assert count(engine) == 0 or time.monotonic() - began > 2
    eventually(lambda: count(engine) == 1)


def read_until_cut(sandbox: RunningSandbox, command: str) -> bytes:
    """What a submit's reply held before the connection was cut; fails when it ends as it should."""
    connection = http.client.HTTPConnection(sandbox.engine.url.removeprefix("http://"), timeout=PATIENCE)
    body = json.dumps({"command": command, "background": True})
    connection.request("POST", f"/execd/{sandbox.id}/command", body)
    seen = b""
    try:
        response = connection.getresponse()
        while piece := response.read1(4096):
            seen += piece
    except CUT:
        return seen
    finally:
        connection.close()
    raise AssertionError(f"not cut: {seen!r}")


@pytest.mark.parametrize("reply", ["drop_before", "cut_before_init", "cut_after_init", "cut_after_complete"])
def test_a_submit_can_be_cut_anywhere(sandbox: RunningSandbox, reply: str) -> None:
    order(sandbox.engine, submit_reply=reply)
    seen = read_until_cut(sandbox, "echo ran > ran")
    assert (b'"init"' in seen) == (reply in ("cut_after_init", "cut_after_complete"))
    assert (b"execution_complete" in seen) == (reply == "cut_after_complete")
    if reply == "drop_before":
        assert sandbox.read("/workspace/ran").status == 404
    else:
        eventually(lambda: sandbox.read("/workspace/ran").status == 200)


def test_a_dead_daemon_leaves_commands_alone_and_forgets_them(sandbox: RunningSandbox) -> None:
    engine = sandbox.engine
    waits = "until [ -e {0} ]; do sleep 0.05; done; echo {0}"
    while True:
        began = time.monotonic()
        command = sandbox.submit(f"({waits.format('late')}) & {waits.format('on')}", timeout=2000)
        control(sandbox, "execd", action="kill")
        if time.monotonic() - began < 2:
            break
        control(sandbox, "execd", action="start")  # the machine stood still: its timeout may have ended it
    with pytest.raises(CUT):
        call(sandbox.execd + "/ping")
    answer = engine.call("GET", f"{sandbox.path}/proxy/44772/ping")
    assert (answer.status, answer.json["code"]) == (502, "BACKEND_RESPONSE_FAILED")
    assert sandbox.state() == "Running"
    control(sandbox, "execd", action="start")
    assert call(f"{sandbox.execd}/command/status/{command}").status == 404
    # Neither its timeout nor the end of its first process ends the rest any more.
    time.sleep(max(0.0, began + 2.2 - time.monotonic()))
    for name, output in (("on", b"on\n"), ("late", b"on\nlate\n")):
        sandbox.write(f"/workspace/{name}", b"")
        eventually(lambda: sandbox.read(f"/tmp/{command}.output").body == output)  # noqa: B023 - called at once


def test_open_streams_break_when_the_daemon_dies(sandbox: RunningSandbox) -> None:
    with ThreadPoolExecutor() as pool:
        running = pool.submit(lambda: sandbox.run("echo begun > begun; sleep 600"))
        eventually(lambda: sandbox.read("/workspace/begun").status == 200)
        control(sandbox, "execd", action="restart")
        with pytest.raises(CUT):
            running.result(PATIENCE)


@pytest.mark.parametrize("filesystem", ["kept", "new"])
def test_a_restarted_container_has_new_processes_and_perhaps_new_files(shared: RunningEngine, filesystem: str) -> None:
    engine = shared
    mount = {"name": "v", "pvc": {"claimName": "data"}, "mountPath": "/data"}
    sandbox = engine.create(volumes=[mount])
    started = "cut -d' ' -f22 /proc/1/stat"
    lasts = time.time_ns() % 10**9 / 10**9  # where there is no bwrap, all processes of the machine are seen
    own = "/tmp/file" if engine.isolation == "bwrap" else "/workspace/file"
    sandbox.write(own, b"own")
    sandbox.write("/data/file", b"volume")
    before = sandbox.output(started)
    command = sandbox.submit(f"sleep {60 + lasts}")
    control(sandbox, "container", action="restart", filesystem=filesystem)
    assert sandbox.state() == "Running"
    assert sandbox.read(own).status == (200 if filesystem == "kept" else 404)
    assert sandbox.read("/data/file").body == b"volume"
    assert call(f"{sandbox.execd}/command/status/{command}").status == 404
    assert sandbox.output(f"ps -ef | grep -c '[s]leep {60 + lasts}'") == "0"
    if engine.isolation == "bwrap":
        assert sandbox.output(started) != before


def test_reading_a_large_log_at_once_kills_the_daemon_and_ranges_do_not(shared: RunningEngine) -> None:
    """It holds three copies of what it reads: more than the sandbox's memory is its end."""
    sandbox = shared.create(resourceLimits={"cpu": "1", "memory": "16Mi"})
    command = sandbox.submit("head -c 8000000 /dev/zero")
    sandbox.wait(command)
    path = f"/tmp/{command}.output"
    assert len(sandbox.read(path, Range="bytes=0-7999999").body) == 8_000_000
    assert len(call(f"{sandbox.execd}/command/{command}/logs?cursor=7000000").body) == 1_000_000
    with pytest.raises(CUT):
        call(f"{sandbox.execd}/command/{command}/logs")
    with pytest.raises(CUT):
        call(sandbox.execd + "/ping")
    assert sandbox.state() == "Running"


def test_a_callers_disconnect_ends_no_command(sandbox: RunningSandbox) -> None:
    body = {"command": "echo begun; until [ -e go ]; do sleep 0.05; done; echo done > done"}
    with pytest.raises(TimeoutError):
        call(sandbox.execd + "/command", "POST", body, timeout=0.3)
    sandbox.write("/workspace/go", b"")
    eventually(lambda: sandbox.read("/workspace/done").status == 200)


def test_requests_are_counted(sandbox: RunningSandbox) -> None:
    engine = sandbox.engine
    command = sandbox.submit("echo hi")
    sandbox.wait(command)
    began = time.monotonic()
    call(engine.url + "/_dev/stats", "DELETE")
    sandbox.status(command)
    sandbox.read(f"/tmp/{command}.output")
    call(f"{sandbox.execd}/command/{command}/logs")
    stats = call(engine.url + "/_dev/stats").json
    assert (stats["status"], stats["file"], stats["log"], stats["submit"]) == (1, 1, 1, 0)
    assert (stats["bytes"], stats["outputs"]) == (6, 1)
    assert stats["seconds"] <= time.monotonic() - began


def test_many_sandboxes_at_once_are_many_sandboxes(engine: RunningEngine) -> None:
    """No create is ever taken for another; nobody waits long."""
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda _: engine.create(metadata={"batch": "1"}), range(48)))
        submitted = list(pool.map(lambda sandbox: sandbox.submit("echo $HOSTNAME"), made))
        ended = list(pool.map(lambda pair: pair[0].wait(pair[1])["exit_code"], zip(made, submitted, strict=True)))
    assert len({sandbox.id for sandbox in made}) == 48
    assert set(ended) == {0}
    listed = engine.call("GET", "/v1/sandboxes?metadata=batch%3D1&pageSize=200").json
    assert {item["id"] for item in listed["items"]} == {sandbox.id for sandbox in made}
    assert listed["pagination"]["totalItems"] == 48
