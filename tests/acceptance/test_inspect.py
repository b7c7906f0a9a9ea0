"""Evaluations with Inspect AI whose sandboxes are Oncebox's, each in the adapter's own environment."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.support.adapters import FILES, Adapter
from tests.support.processes import ManagedProcess, Spawner
from tests.support.waiting import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(400)]

NOT_FOR_ROOT = {
    "test_read_file_not_allowed",
    "test_write_text_file_without_permissions",
    "test_write_binary_file_without_permissions",
}
"""Checks that want a refusal, where nothing is refused to root."""
ALL = 44


class Evaluations(Adapter):
    """Runs Inspect."""

    def eval(self, folder: str, *options: str) -> ManagedProcess:
        """``inspect eval``, with its log in JSON below ``folder``."""
        task = f"{FILES / 'inspect_tasks.py'}@sums"
        log = ("--log-dir", str(self.folder / folder), "--log-format", "json", "--display", "plain")
        return self.start("inspect", "eval", task, *log, *options, name=f"eval-{folder}")

    def checks(self, *files: str, options: Sequence[str] = (), env: Mapping[str, str] | None = None) -> dict[str, bool]:
        """Runs files of checks: which passed."""
        report = self.folder / "report.xml"
        words = ["-m", "pytest", "-q", "--noconftest", "-c", os.devnull, "--rootdir", str(self.folder)]
        words += ["-p", "no:cacheprovider", "-o", "asyncio_mode=auto", f"--junitxml={report}", *options]
        self.start("python", *words, *(FILES / file for file in files), name="checks", env=env).wait(timeout=360)
        return {str(case.get("name")): len(case) == 0 for case in ElementTree.parse(report).iter("testcase")}

    def log(self, folder: str) -> dict[str, Any]:
        """What an evaluation wrote."""
        [path] = (self.folder / folder).glob("*.json")
        read: dict[str, Any] = json.loads(path.read_text())
        return read


@pytest.fixture
def inspect(spawn: Spawner, tmp_path: Path) -> Evaluations:
    return Evaluations("inspect", spawn, tmp_path)


def test_the_providers_own_self_check(inspect: Evaluations) -> None:
    cases = inspect.checks("self_check_inspect.py", options=("-n", "4"))
    assert len(cases) == ALL
    expected = NOT_FOR_ROOT if os.geteuid() == 0 else {"test_exec_as_user"}
    if not os.stat("/tmp").st_mode & stat.S_IWOTH:  # the machine's own, where sandboxes are not isolated
        expected = {*expected, "test_exec_as_user"}
    assert {name for name, passed in cases.items() if not passed} == expected
    assert inspect.listed("sandboxes") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's commands need root")
def test_limits_and_a_config_are_kept_to_and_what_root_may_others_may_not(inspect: Evaluations) -> None:
    files = ("self_check_inspect.py", "inspect_config.py")
    words = ("-o", "python_files=*.py", "-k", " or ".join(("inspect_config", *NOT_FOR_ROOT)))
    cases = inspect.checks(*files, options=words, env={"SELF_CHECK_USER": "nobody"})
    assert {name for name, passed in cases.items() if not passed} == set()
    assert {*cases} > NOT_FOR_ROOT
    assert len(cases) == 6
    assert [job["state"] for job in inspect.listed("exec-jobs?q=5000")] == ["cancelled"]
    assert inspect.listed("sandboxes") == []


def test_an_evaluation_with_files_setup_tool_and_scorer(inspect: Evaluations) -> None:
    assert inspect.eval("logs").wait(timeout=120) == 0
    log = inspect.log("logs")
    assert log["status"] == "success", log.get("error")
    assert log["results"]["scores"][0]["metrics"]["accuracy"]["value"] == 1
    assert inspect.listed("sandboxes") == []


async def test_an_interrupted_evaluation_leaves_no_sandbox_and_a_killed_one_none_for_long(inspect: Evaluations) -> None:
    for end in (signal.SIGINT, signal.SIGKILL):
        running = inspect.eval(f"logs-{end.name}", "-T", "wait=sleep 600")
        await eventually(
            lambda: any("sleep 600" in job["command"] for job in inspect.listed("exec-jobs?state=running")), timeout=90
        )
        [sandbox] = inspect.listed("sandboxes")
        assert sandbox["metadata"] == {"inspect_ai": "sandbox", "inspect_ai_task": "sums"}
        running.send(end)
        running.wait(timeout=60)
        assert (inspect.listed("sandboxes") == []) == (end is signal.SIGINT)
    assert inspect.start("inspect", "sandbox", "cleanup", "oncebox", name="cleanup").wait(timeout=60) == 0
    assert inspect.listed("sandboxes") == []


async def test_a_killed_evaluation_that_is_repeated_with_its_key_finds_its_work(inspect: Evaluations) -> None:
    options = ("-T", "key=mine", "-T", "wait=sleep 3; echo >>waited; wc -l <waited; wc -l <setups")
    running = inspect.eval("logs-1", *options)
    await eventually(
        lambda: any("echo >>waited" in job["command"] for job in inspect.listed("exec-jobs?state=running")), timeout=90
    )
    [first] = inspect.listed("sandboxes")
    running.kill()
    running.wait(timeout=60)
    assert inspect.eval("logs-2", *options).wait(timeout=120) == 0
    [sample] = inspect.log("logs-2")["samples"]
    said = [message["content"] for message in sample["messages"] if message["role"] == "tool"]
    assert said[-1].split() == ["1", "1"], "each command ran once, and the setup script too"
    assert {job["sandbox_id"] for job in inspect.listed("exec-jobs")} == {first["sandbox_id"]}
    assert inspect.listed("sandboxes") == []
