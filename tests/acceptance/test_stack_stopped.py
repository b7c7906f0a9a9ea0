"""All of it is stopped in order, replicas before the local engine, and started again."""

import sys
from pathlib import Path

import pytest

from tests.acceptance.http_rig import Replica
from tests.support.ports import free_port
from tests.support.processes import ManagedProcess, Spawner
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.acceptance, pytest.mark.integration]


def test_the_local_engine_takes_running_jobs_with_it_and_they_are_lost_and_not_run_again(
    spawn: Spawner, redis_server: RedisServer, tmp_path: Path
) -> None:
    port = free_port()

    def engine() -> ManagedProcess:
        words: list[str | Path] = [sys.executable, "-P", "-m", "service.local_engine", "--bind", f"127.0.0.1:{port}"]
        words += ["--isolation", "plain"]  # commands note what they did outside of their sandbox
        process = spawn([*words, "--root", tmp_path / "engine"], name="engine", env={"OPEN_SANDBOX_API_KEY": "k"})
        process.wait_for_line('"url"')
        return process

    settings = {
        "ONCEBOX_REDIS_URL": redis_server.url,
        "ONCEBOX_ENGINE_URL": f"http://127.0.0.1:{port}",
        "ONCEBOX_ENGINE_API_KEY": "k",
        "ONCEBOX_SHUTDOWN_DELAY": "0",
    }
    running_engine = engine()
    replica = Replica(spawn, settings)
    sandbox, mark = replica.sandbox(), tmp_path / "ran"
    command = f"echo >> {mark}; echo begun; sleep 600"
    over, running = replica.submit(sandbox, "echo done; exit 3"), replica.submit(sandbox, command, key="once")
    assert replica.follow(over)[0]["exit_code"] == 3
    while not replica.ask("GET", f"/v1/exec-jobs/{running}").json()["output"]:
        pass
    assert replica.process.terminate() == 0
    assert running_engine.terminate() == 0

    engine()
    replica = Replica(spawn, settings)
    job, output = replica.follow(over)
    assert (job["state"], job["exit_code"], output) == ("exited", 3, b"done\n")
    job, _ = replica.follow(running)
    assert (job["state"], job["exit_code"], job["reason"]) == ("lost", None, "sandbox_gone")
    again = replica.ask("POST", "/v1/exec-jobs", {"sandbox_id": sandbox, "command": command}, Idempotency_Key="once")
    assert (again.status, again.json().get("command_id")) == (202, running)
    assert mark.read_text() == "\n"
