"""Agents of mini-swe-agent whose environments are Oncebox's sandboxes, run in the adapter's own environment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.adapters import FILES, Adapter
from tests.support.processes import ManagedProcess, Spawner
from tests.support.waiting import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo the patch"
QUIET = {"MSWEA_SILENT_STARTUP": "1"}
MOST = 10 * 1024 * 1024


class Agents:
    """Runs agents, one after the other, in a process."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.listed = adapter.listed

    def start(self, *runs: dict[str, Any], name: str = "agents") -> ManagedProcess:
        """Each of ``runs`` has a config and commands."""
        program = FILES / "mini_swe_agent_runs.py"
        env = {**QUIET, "FORWARDED": "here", "SET": "here"}
        return self.adapter.start("python", program, name=name, stdin=json.dumps(runs).encode(), env=env)

    def results(self, process: ManagedProcess) -> list[Any]:
        """What came of each run."""
        assert process.wait(timeout=180) == 0, process.stderr
        return [json.loads(line) for line in process.stdout.splitlines()]


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    folder = tmp_path_factory.mktemp("agents")
    spawn = Spawner(folder)
    yield Agents(Adapter("mini-swe-agent", spawn, folder))
    spawn.kill_all()


def test_an_agent_does_its_task_in_a_sandbox_of_its_own(agents: Agents) -> None:
    config = {
        "cwd": "/usr",
        "env": {"SET": "in the config"},
        "forward_env": ["FORWARDED", "SET", "NOT_SET"],
        "timeout": 120,
        "interpreter": ["bash", "-c"],
    }
    commands = ['echo "$FORWARDED, $SET"; pwd', "echo out; echo err >&2; exit 3", DONE]
    too_much = [f"yes | head -c {MOST + 1000}; sleep 1000", DONE]
    process = agents.start(
        {"config": config, "commands": commands},
        {"config": config, "commands": too_much},
        {"config": {**config, "timeout": 1}, "commands": ["echo begun; sleep 1000"]},
        {"config": config, "commands": ["echo \ud83d", DONE]},
    )
    did, printed_much, slow, no_text = agents.results(process)
    assert did["end"] == {"exit_status": "Submitted", "submission": "the patch\n"}
    assert did["first"].startswith("You are on Linux with ")
    assert [(each["raw_output"], each["returncode"]) for each in did["said"]] == [
        ("here, in the config\n/usr\n", 0),
        ("out\nerr\n", 3),
    ]
    assert did["log"]["info"]["config"]["environment_type"].endswith("OnceboxEnvironment")

    [told] = printed_much["said"]
    assert MOST < len(told["raw_output"]) <= MOST + 1000
    assert (told["returncode"], told["exception_type"]) == (-1, "TooMuchOutput")
    assert "printed more than 10,485,760 characters" in told["exception_info"]

    [told] = slow["said"]
    assert "begun\n".startswith(told["raw_output"])
    assert (told["returncode"], told["exception_type"]) == (-1, "TimeoutError")
    assert "timed out after 1 seconds" in told["exception_info"]

    [told] = no_text["said"]
    assert (told["returncode"], told["exception_type"]) == (-1, "UnicodeEncodeError")

    assert printed_much["end"]["exit_status"] == no_text["end"]["exit_status"] == "Submitted", "the agent went on"
    assert slow["end"]["exit_status"] == "LimitsExceeded"
    assert [job["state"] for job in agents.listed("exec-jobs?q=head%20-c")] == ["cancelled"]
    assert agents.listed("sandboxes") == [], "none is left, submitted or not"


async def test_a_killed_agent_that_is_repeated_with_its_key_finds_its_work(agents: Agents, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    wait = f"until test -e {gate}; do sleep 0.1; done; wc -l <ran"
    asked = {
        "config": {"key": "mine", "timeout": 600, "interpreter": ["sh", "-c"], "container_timeout": "1h"},
        "commands": ["echo >>ran; echo begun", wait, DONE],
    }
    first = agents.start(asked, name="killed")
    await eventually(
        lambda: any("wc -l" in job["command"] for job in agents.listed("exec-jobs?state=running")), timeout=90
    )
    [sandbox] = agents.listed("sandboxes")
    assert sandbox["metadata"] == {"mini_swe_agent": "environment"}
    first.kill()
    first.wait()
    gate.touch()
    [again] = agents.results(agents.start(asked, name="again"))
    assert [each["raw_output"].split() for each in again["said"]] == [["begun"], ["1"]], "each command ran once"
    ours = [job for job in agents.listed("exec-jobs?q=ran") if "<ran" in job["command"]]
    assert [job["sandbox_id"] for job in ours] == [sandbox["sandbox_id"]]
    assert agents.listed("sandboxes") == []


def test_what_the_docker_environment_takes_and_this_does_not_is_refused(agents: Agents) -> None:
    process = agents.start({"config": {"run_args": ["--network", "none"]}, "commands": [DONE]}, name="refused")
    assert process.wait(timeout=180) != 0
    assert "run_args" in process.stderr
    assert agents.listed("sandboxes?state=running") == []


def test_the_program_of_the_page_prints_what_the_page_says(agents: Agents) -> None:
    agents.adapter.run_page("howto/mini-swe-agent.md", QUIET)
    assert agents.listed("sandboxes") == []
