"""The local engine with `--like kubernetes`: what becomes of pods, as it was seen on a real cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from service.local_engine.kubernetes import expand
from tests.contract.local_engine_rig import CREATE, DEADLINE, Answer, RunningEngine, RunningSandbox, call, shared_engine
from tests.support.processes import Spawner


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """Nobody starts a first process again, and there is no registry: the example's template, as it comes."""
    folder = tmp_path_factory.mktemp("engine")
    with shared_engine(folder, "--like", "kubernetes", "--ready-timeout", "2") as running:
        yield running


def until(check: Callable[[], object], timeout: float = DEADLINE) -> None:
    """Waits until a check holds."""
    deadline = time.monotonic() + timeout
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def pod(sandbox: RunningSandbox, action: str, **more: Any) -> None:
    answer = sandbox.engine.call("POST", f"/_dev/sandboxes/{sandbox.id}/pod", {"action": action, **more})
    assert answer.status == 204, answer


def endpoint(sandbox: RunningSandbox) -> Answer:
    return sandbox.engine.call("GET", f"{sandbox.path}/endpoints/44772")


def by_proxy(sandbox: RunningSandbox) -> Answer:
    return sandbox.engine.call("GET", f"{sandbox.path}/proxy/44772/ping")


def answers(address: str) -> bool:
    """Whether a daemon is at the address; a port without one refuses, and does not reset."""
    try:
        return call(f"{address}/ping").status == 200
    except ConnectionRefusedError:
        return False


def test_each_pod_has_an_address_of_its_own_without_a_path(engine: RunningEngine) -> None:
    one, two = engine.create(), engine.create()
    assert one.execd != two.execd
    assert one.execd.endswith(":44772")
    assert one.output("echo here") == "here"
    assert answers(two.execd)


def test_a_pod_that_is_deleted_is_made_anew_elsewhere_with_the_same_id(engine: RunningEngine) -> None:
    sandbox = engine.create()
    old = sandbox.execd
    running = sandbox.submit("sleep 60")
    sandbox.output("touch /workspace/here || touch here")
    pod(sandbox, "delete", seconds=3600)
    assert not answers(old)
    until(lambda: sandbox.state() == "Pending")
    found = endpoint(sandbox)
    assert (found.status, found.json["code"]) == (404, "KUBERNETES::POD_IP_NOT_AVAILABLE")
    assert by_proxy(sandbox).json["code"] == "KUBERNETES::POD_IP_NOT_AVAILABLE"
    pod(sandbox, "delete", seconds=0.1)
    until(lambda: sandbox.state() == "Running")
    assert sandbox.execd != old
    assert call(f"{sandbox.execd}/command/status/{running}").status == 404
    assert sandbox.output("ls") == ""


def test_a_first_process_that_is_killed_leaves_a_pod_that_nobody_starts_again(engine: RunningEngine) -> None:
    sandbox = engine.create()
    address = sandbox.execd
    pod(sandbox, "kill")
    until(lambda: sandbox.state() == "Pending")
    assert sandbox.execd == address
    until(lambda: not answers(address))
    refused = by_proxy(sandbox)
    assert (refused.status, refused.json["code"]) == (502, "BACKEND_CONNECTION_FAILED")


def test_with_always_it_comes_back_once_and_is_failed_for_ever_after_though_it_answers(
    spawn: Spawner, tmp_path: Path
) -> None:
    engine = RunningEngine(spawn, "--like", "kubernetes", "--restart-policy", "Always", root=tmp_path)
    sandbox = engine.create()
    address = sandbox.execd
    for state in ("Running", "Failed"):
        sandbox.output("touch here")
        pod(sandbox, "kill")
        until(lambda: sandbox.state() == "Pending")
        until(lambda state=state: sandbox.state() == state)  # type: ignore[misc]
        assert sandbox.execd == address
        assert sandbox.output("ls") == ""


def test_an_evicted_pod_has_no_address_and_no_successor(engine: RunningEngine) -> None:
    sandbox = engine.create()
    pod(sandbox, "evict")
    assert sandbox.state() == "Pending"
    assert endpoint(sandbox).json["code"] == "KUBERNETES::POD_IP_NOT_AVAILABLE"


def test_a_silent_node_makes_its_pods_pending_while_all_in_them_goes_on(engine: RunningEngine) -> None:
    sandbox = engine.create()
    pod(sandbox, "node", reports=False)
    assert sandbox.state() == "Pending"
    assert sandbox.output("echo on") == "on"
    pod(sandbox, "node", reports=True)
    assert sandbox.state() == "Running"


def test_a_pause_without_a_registry_ends_by_itself_and_nobody_is_told(engine: RunningEngine) -> None:
    sandbox = engine.create()
    assert engine.call("POST", f"{sandbox.path}/pause").status == 202
    assert sandbox.state() == "Pausing"
    until(lambda: sandbox.state() == "Running")
    assert sandbox.output("echo on") == "on"


def test_a_pause_with_a_registry_keeps_the_files_and_nothing_else(spawn: Spawner, tmp_path: Path) -> None:
    engine = RunningEngine(spawn, "--like", "kubernetes", "--snapshots", root=tmp_path)
    sandbox = engine.create()
    old = sandbox.execd
    sandbox.output("echo kept >here")
    running = sandbox.submit("sleep 60")
    engine.call("POST", f"{sandbox.path}/pause")
    until(lambda: sandbox.state() == "Paused")
    assert not answers(old)
    assert endpoint(sandbox).status == 404
    assert engine.call("POST", f"{sandbox.path}/pause").json["code"] == "KUBERNETES::INVALID_STATE"
    assert engine.call("POST", f"{sandbox.path}/resume").status == 202
    until(lambda: sandbox.state() == "Running")
    assert sandbox.execd != old
    assert sandbox.output("cat here") == "kept"
    assert call(f"{sandbox.execd}/command/status/{running}").status == 404


def test_a_quantity_that_does_not_parse_holds_up_every_create(engine: RunningEngine) -> None:
    asked = {**CREATE, "resourceLimits": {"cpu": "1", "memory": "262144K"}, "metadata": {"stuck": "yes"}}
    with ThreadPoolExecutor() as pool:
        bad = pool.submit(engine.call, "POST", "/v1/sandboxes", asked)
        until(lambda: stuck(engine))
        beside = engine.call("POST", "/v1/sandboxes", CREATE)
        assert not stuck(engine), "it was answered when the bad one had been taken back"
        assert beside.status in (202, 504)
        assert bad.result().json["code"] == "KUBERNETES::POD_READY_TIMEOUT"
    assert engine.create().state() == "Running"


def stuck(engine: RunningEngine) -> bool:
    found = engine.call("GET", "/v1/sandboxes?pageSize=200&metadata=stuck%3Dyes").json["items"]
    return any(each["status"]["state"] == "Pending" for each in found)


def test_a_create_that_times_out_leaves_nothing_unless_it_could_not_be_taken_back(engine: RunningEngine) -> None:
    body = {"image": {"uri": "i"}, "entrypoint": ["true"], "resourceLimits": {"cpu": "1", "memory": "1Gi"}}
    mine = {"metadata": {"made": "late"}}

    def left() -> int:
        return len(engine.call("GET", "/v1/sandboxes?metadata=made%3Dlate").json["items"])

    assert engine.call("POST", "/v1/sandboxes", body | mine).json["code"] == "KUBERNETES::POD_READY_TIMEOUT"
    assert left() == 0
    assert engine.call("POST", "/_dev/cluster", {"keeps": 1}).status == 204
    assert engine.call("POST", "/v1/sandboxes", body | mine).status == 504
    assert left() == 1


def test_a_claim_that_is_not_there_and_must_be_is_waited_for_until_the_create_is_taken_back(
    engine: RunningEngine,
) -> None:
    volume = {"name": "w", "pvc": {"claimName": "nowhere", "createIfNotExists": False}, "mountPath": "/w"}
    body = {"image": {"uri": "i"}, "entrypoint": ["sleep", "9"], "resourceLimits": {"cpu": "1"}, "volumes": [volume]}
    assert engine.call("POST", "/v1/sandboxes", body).json["code"] == "KUBERNETES::POD_READY_TIMEOUT"


def test_dollars_are_expanded_in_the_environment_and_the_entrypoint(engine: RunningEngine) -> None:
    sandbox = engine.create(
        env={"X": "x", "Y": "$(X)", "Z": "a$$b", "N": "$(NOBODY)"},
        entrypoint=["sh", "-c", "echo '$$' >said; sleep 60"],
    )
    assert sandbox.output('echo "$Y $Z $N"') == "x a$b $(NOBODY)"
    until(lambda: sandbox.output("cat said") == "$")


@pytest.mark.parametrize(
    ("text", "found"),
    [("$(A)", "1"), ("$$(A)", "$(A)"), ("$$$(A)", "$1"), ("$(B)", "$(B)"), ("$A", "$A"), ("$(", "$("), ("a$", "a$")],
)
def test_what_kubernetes_makes_of_a_dollar(text: str, found: str) -> None:
    assert expand(text, {"A": "1"}) == found
