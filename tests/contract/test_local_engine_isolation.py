"""What a sandbox of the local engine keeps to itself, what ends with it, and what outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.contract.local_engine_rig import (
    BWRAP_MISSING,
    CREATE,
    KEY,
    RunningEngine,
    RunningSandbox,
    call,
    shared_engine,
)
from tests.support.processes import Spawner
from tests.support.waiting import PATIENCE

needs_bwrap = pytest.mark.skipif(bool(BWRAP_MISSING), reason=BWRAP_MISSING or "bwrap is there")


@pytest.fixture(scope="module", params=["bwrap", "plain"])
def engine(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[RunningEngine]:
    """One for all tests of a mode: each has sandboxes and owners of its own."""
    if request.param == "bwrap" and BWRAP_MISSING:
        pytest.skip(BWRAP_MISSING)
    with shared_engine(tmp_path_factory.mktemp(request.param), "--isolation", request.param) as running_engine:
        yield running_engine


only_bwrap = pytest.mark.parametrize("engine", ["bwrap"], indirect=True, scope="module")
only_plain = pytest.mark.parametrize("engine", ["plain"], indirect=True, scope="module")


def eventually(condition: Callable[[], object], timeout: float = PATIENCE) -> None:
    """Returns as soon as the condition is true; fails after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def running(mark: str) -> list[int]:
    """Processes of the machine whose command line holds `mark` as a word of its own."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark.encode() in words:
                found.append(int(entry.name))
    return found


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def unique() -> str:
    """Seconds of a sleep that no other test has."""
    return f"{1000 + os.getpid() % 1000}.{time.time_ns() % 1_000_000_000:09d}"


def volume(engine: RunningEngine, owner: str, directory: str, target: str) -> dict[str, object]:
    name = directory.strip(".")
    return {
        "name": name,
        "host": {"path": str(engine.volume_root)},
        "mountPath": target,
        "subPath": f"{owner}/{directory}",
    }


def owners(engine: RunningEngine, owner: str) -> list[dict[str, object]]:
    """An owner's workspace and state directories."""
    places = {"workspace": "/workspace", "claude": "/root/.claude", "codex": "/root/.codex", "gemini": "/root/.gemini"}
    return [volume(engine, owner, directory, target) for directory, target in places.items()]


@only_bwrap
def test_sandboxes_see_neither_each_others_files_nor_processes(engine: RunningEngine) -> None:
    one, other = engine.create(), engine.create()
    seconds = unique()
    one.run("echo secret | tee /tmp/file /workspace/file /root/file >/dev/null")
    one.submit(f"exec sleep {seconds}")
    assert other.output("cat /tmp/file /workspace/file /root/file 2>&1 | grep -c 'No such file'") == "3"
    assert other.output(f"ps -ef | grep -c '[s]leep {seconds}'") == "0"
    assert one.output(f"ps -ef | grep -c '[s]leep {seconds}'") == "1"
    for path in ("/tmp/file", "/workspace/file", "/root/file"):
        assert other.read(path).status == 404
        assert one.read(path).body == b"secret\n"
    assert other.output(f"ls -A {engine.root} 2>/dev/null | wc -l") == "0"


@only_bwrap
def test_the_rest_of_the_machine_can_be_read_and_not_written(engine: RunningEngine) -> None:
    sandbox = engine.create()
    assert sandbox.output("test -e /usr/bin/env && echo there; touch /usr/x 2>&1 | grep -c 'Read-only'") == "there\n1"


@only_bwrap
def test_links_lead_where_they_lead_inside(engine: RunningEngine) -> None:
    """A download follows a link in the sandbox's own root, never the machine's."""
    sandbox = engine.create()
    sandbox.run(
        "echo inside > /tmp/target; ln -s /tmp/target /workspace/link; ln -s ../../../../tmp/target /workspace/up"
    )
    assert sandbox.read("/workspace/link").body == b"inside\n"
    assert sandbox.read("/workspace/up").body == b"inside\n"


@only_bwrap
def test_output_goes_to_a_file_that_the_command_knows_by_its_own_path(engine: RunningEngine) -> None:
    sandbox = engine.create()
    command = sandbox.submit("readlink /proc/$$/fd/1; ps -o pgid= -p $$; echo $$")
    sandbox.wait(command)
    path, group, pid = sandbox.read(f"/tmp/{command}.output").body.split()
    assert path.decode() == f"/tmp/{command}.output"
    assert group == pid


def test_an_owners_directories_are_in_all_of_that_owners_sandboxes_and_no_others(engine: RunningEngine) -> None:
    one = engine.create(volumes=owners(engine, "alice"))
    two = engine.create(volumes=owners(engine, "alice"))
    stranger = engine.create(volumes=owners(engine, "bob"))
    one.run("echo mine > shared; echo state > ~/.claude/state")
    assert two.output("cat shared ~/.claude/state") == "mine\nstate"
    assert two.output("cat shared", cwd="/workspace") == "mine"
    assert two.read("/workspace/shared").body == b"mine\n"
    assert "No such file" in stranger.output("cat shared")
    one.delete()
    two.delete()
    assert (engine.volume_root / "alice/workspace/shared").read_text() == "mine\n"


def test_a_claims_volume_is_shared_by_its_name(engine: RunningEngine) -> None:
    claim = {"name": "v", "pvc": {"claimName": "data"}, "mountPath": "/workspace", "subPath": "a/b"}
    engine.create(volumes=[claim]).run("echo kept > file")
    assert engine.create(volumes=[claim]).output("cat file") == "kept"


def test_a_volume_that_a_link_leads_out_of_is_refused(engine: RunningEngine) -> None:
    (engine.volume_root / "carol").mkdir(parents=True)
    (engine.volume_root / "carol/out").symlink_to("/etc")
    answer = engine.call("POST", "/v1/sandboxes", {**CREATE, "volumes": [volume(engine, "carol", "out", "/workspace")]})
    assert (answer.status, answer.json["code"]) == (400, "VOLUME::INVALID_SUB_PATH")


@only_bwrap
def test_a_read_only_volume_can_not_be_written(engine: RunningEngine) -> None:
    mount = {**volume(engine, "alice", "workspace", "/data"), "readOnly": True}
    assert "Read-only" in engine.create(volumes=[mount]).output("touch /data/x")


@only_bwrap
def test_a_volume_that_can_not_be_mounted_fails_the_create_and_says_why(engine: RunningEngine) -> None:
    mounts = [volume(engine, "alice", "workspace", "/usr/nowhere")]
    body = {**CREATE, "volumes": mounts, "metadata": {"mount": "impossible"}}
    answer = engine.call("POST", "/v1/sandboxes", body)
    assert (answer.status, answer.json["code"]) == (500, "DOCKER::SANDBOX_START_FAILED")
    assert "/usr/nowhere" in answer.json["message"]
    assert engine.call("GET", "/v1/sandboxes?metadata=mount%3Dimpossible").json["items"] == []


@only_plain
def test_plain_mode_says_what_it_is_and_starts_in_the_workspace(engine: RunningEngine) -> None:
    assert "WARNING" in engine.process.stderr
    sandbox = engine.create()
    workspace = Path(sandbox.output("pwd"))
    assert workspace.name == "workspace"
    assert engine.root in workspace.parents
    assert Path(sandbox.output("pwd", cwd="/workspace")) == workspace
    sandbox.run("echo x > file")
    assert sandbox.read("/workspace/file").body == b"x\n"
    command = sandbox.submit("echo on the machine")
    sandbox.wait(command)
    output = Path(f"/tmp/{command}.output")
    assert output.read_text() == "on the machine\n"
    sandbox.delete()
    eventually(lambda: not output.exists())


@pytest.mark.parametrize("how", ["timeout", "delete", "interrupt"])
def test_a_whole_process_group_is_ended(engine: RunningEngine, how: str) -> None:
    sandbox = engine.create()
    seconds = unique()
    command = sandbox.submit(f"sleep {seconds} & sleep {seconds}", **({"timeout": 300} if how == "timeout" else {}))
    if how == "delete":
        eventually(lambda: len(running(seconds)) == 2)
        sandbox.delete()
    elif how == "interrupt":
        eventually(lambda: len(running(seconds)) == 2)
        assert call(f"{sandbox.execd}/command?id={command}", "DELETE").status == 200
    else:
        status = sandbox.wait(command)
        assert (status["exit_code"], status["error"]) == (-1, "signal: killed")
    eventually(lambda: not running(seconds))


@needs_bwrap
def test_the_engine_ends_when_its_helper_does(spawn: Spawner, tmp_path: Path) -> None:
    engine = RunningEngine(spawn, "--isolation", "bwrap", root=tmp_path / "engine")
    seconds = unique()
    engine.create(entrypoint=["sleep", seconds])
    helper = next(pid for pid in running("-I") if parent_of(pid) == engine.process.pid)
    os.kill(helper, signal.SIGKILL)
    assert engine.process.wait() == 1
    eventually(lambda: not running(seconds))


def test_a_child_that_made_its_own_session_survives_an_interrupt_but_not_the_sandbox(engine: RunningEngine) -> None:
    sandbox = engine.create()
    seconds = unique()
    command = sandbox.submit(f"setsid sleep {seconds} & sleep 60")
    eventually(lambda: running(seconds))
    call(f"{sandbox.execd}/command?id={command}", "DELETE")
    assert running(seconds)
    sandbox.delete()
    eventually(lambda: not running(seconds))


def test_expiry_is_enforced_and_can_be_moved(engine: RunningEngine) -> None:
    sandbox, kept = engine.create(), engine.create()
    seconds = unique()
    sandbox.submit(f"exec sleep {seconds}")

    def moved() -> bool:
        soon = (datetime.now(UTC) + timedelta(seconds=2)).isoformat()
        return engine.call("POST", f"{sandbox.path}/renew-expiration", {"expiresAt": soon}).status == 200

    eventually(moved)  # a machine that stands still may ask too late
    eventually(lambda: engine.call("GET", sandbox.path).status == 404)
    eventually(lambda: not running(seconds))
    assert engine.call("GET", kept.path).status == 200


def test_the_entrypoint_decides_about_the_sandbox(engine: RunningEngine) -> None:
    """The create says Running; a moment later it shows."""
    for entrypoint, state, reason in (
        (["true"], "Terminated", "CONTAINER_EXITED"),
        (["sh", "-c", "exit 3"], "Failed", "CONTAINER_EXITED_ERROR"),
        (["/nope"], "Failed", "CONTAINER_EXITED_ERROR"),
    ):
        answer = engine.call("POST", "/v1/sandboxes", {**CREATE, "entrypoint": entrypoint})
        assert answer.json["status"]["state"] == "Running"
        sandbox = RunningSandbox(engine, answer.json["id"])
        eventually(lambda: sandbox.state() == state)  # noqa: B023 - called at once
        assert engine.call("GET", sandbox.path).json["status"]["reason"] == reason
        gone = engine.call("GET", f"{sandbox.path}/proxy/44772/ping")
        assert (gone.status, gone.json["code"]) == (502, "BACKEND_CONNECTION_FAILED")
        with pytest.raises(ConnectionError):
            call(sandbox.execd + "/ping")


def test_a_paused_sandbox_stands_still_and_what_was_asked_meanwhile_is_done_later(engine: RunningEngine) -> None:
    sandbox = engine.create()
    execd = sandbox.execd
    ticking = sandbox.submit("while :; do echo tick; sleep 0.02; done")
    eventually(lambda: sandbox.read(f"/tmp/{ticking}.output").status == 200)
    assert engine.call("POST", f"{sandbox.path}/pause").status == 202
    with pytest.raises(TimeoutError):
        call(execd + "/command", "POST", {"command": "echo late > late", "background": True}, timeout=0.5)
    assert sandbox.state() == "Paused"
    assert engine.call("POST", f"{sandbox.path}/resume").status == 202
    eventually(lambda: sandbox.read("/workspace/late").status == 200)
    before = len(sandbox.read(f"/tmp/{ticking}.output").body)
    eventually(lambda: len(sandbox.read(f"/tmp/{ticking}.output").body) > before)


def start_by_hand(tmp_path: Path, isolation: str) -> tuple[subprocess.Popen[bytes], str]:
    """The engine as a child that ends with its standard input."""
    command = [sys.executable, "-m", "service.local_engine", "--exit-with-stdin", "--isolation", isolation]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "OPEN_SANDBOX_API_KEY": KEY, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["url"]


@pytest.mark.parametrize("isolation", [pytest.param("bwrap", marks=needs_bwrap), "plain"])
@pytest.mark.parametrize("end", ["stdin", "SIGTERM", "SIGINT", "SIGKILL"])
def test_nothing_outlives_the_engine(tmp_path: Path, isolation: str, end: str) -> None:
    process, url = start_by_hand(tmp_path, isolation)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        headers = {"OPEN-SANDBOX-API-KEY": KEY}
        entrypoint, command, daemon = unique(), unique(), unique()
        made = call(url + "/v1/sandboxes", "POST", {**CREATE, "entrypoint": ["sleep", entrypoint]}, headers=headers)
        body = {"command": f"setsid sleep {daemon} & sleep {command}", "background": True}
        started = call(f"{url}/execd/{made.json['id']}/command", "POST", body, to_the_end=False)
        output = Path(f"/tmp/{started.events[0]['text']}.output")
        assert output.exists() == (isolation == "plain")
        eventually(lambda: running(entrypoint) and running(command) and running(daemon))
        if end == "stdin":
            process.stdin.close()
        else:
            process.send_signal(signal.Signals[end])
        process.wait(10)
        assert process.returncode == (-signal.SIGKILL if end == "SIGKILL" else 0)
        eventually(lambda: not (running(entrypoint) or running(command) or running(daemon)))
        eventually(lambda: not list(tmp_path.glob("local-engine-*")) and not output.exists())
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
