"""SWE-ReX's own tests, and ours, with a deployment of Oncebox, in the adapter's own environment."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.adapters import FILES, Adapter
from tests.support.processes import Spawner

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

SESSIONS_REFUSED = "Oncebox has no interactive sessions: use execute(), which runs each command by itself."
PASSED = {
    "test_server_alive",
    "test_read_write_file",
    "test_read_non_existent_file",
    "test_execute_command",
    "test_execute_command_with_empty_string",
    "test_execute_command_with_leading_space_output",
    "test_execute_command_with_echon",
    "test_execute_command_shell_false",
    "test_write_to_non_existent_directory",
    "test_read_large_file",
    "test_empty_command",
    "test_execute_merge_output_streams_true",
    "test_execute_merge_output_streams_false",
    "test_upload_file",
    "test_upload_directory",
}
"""Of SWE-ReX's tests of a runtime those that need no session."""
LEFT_OUT = ("test_server_dead", "test_execute_command_timeout")
"""One is about the client of SWE-ReX's own server; the other is one of ours, with a longer sleep."""


def test_its_own_tests_pass_or_are_refused_a_session_and_so_does_the_program_of_the_page(
    spawn: Spawner, tmp_path: Path
) -> None:
    adapter = Adapter("swe-rex", spawn, tmp_path)
    own = adapter.environment / "source" / "tests" / "test_execution.py"
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "__init__.py").touch()
    shutil.copy(own, suite)
    shutil.copy(FILES / "swe_rex_fixtures.py", suite / "conftest.py")
    shutil.copy(FILES / "swe_rex_deployment.py", suite / "test_deployment.py")
    words: list[str | Path] = [
        "-m",
        "pytest",
        "-q",
        "-c",
        os.devnull,
        "--rootdir",
        suite,
        "-p",
        "no:cacheprovider",
        "-o",
    ]
    words += ["asyncio_mode=auto", f"--junitxml={tmp_path / 'report.xml'}", "-o", "junit_logging=no"]
    words += ["-k", " and ".join(f"not {name}" for name in LEFT_OUT)]
    check = adapter.start("python", *words, suite, name="suite")
    check.wait(timeout=200)
    failures: dict[str, str] = {}
    passed: dict[str, set[str]] = {"test_execution": set(), "test_deployment": set()}
    for case in ElementTree.parse(tmp_path / "report.xml").iter("testcase"):
        name, module = str(case.get("name")), str(case.get("classname")).rpartition(".")[2]
        ends = {end.tag: end.text or "" for end in case}
        if not ends:
            passed[module].add(name)
        elif "skipped" not in ends and (module == "test_deployment" or SESSIONS_REFUSED not in ends.get("failure", "")):
            failures[name] = str(ends)
    assert not failures
    assert passed["test_execution"] == PASSED, check.stdout
    assert len(passed["test_deployment"]) == 7
    adapter.run_page("howto/swe-rex.md", {"SWE_REX_LOG_STREAM_LEVEL": "ERROR"})
    assert adapter.listed("sandboxes") == []
