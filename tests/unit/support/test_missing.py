"""In CI nothing is skipped for want of a program that `make test` brings."""

import sys
from pathlib import Path

import pytest

from tests.support.processes import Spawner

ROOT = Path(__file__).parents[3]
BROWSER = "tests/acceptance/test_browser_events.py"


@pytest.mark.parametrize(("ci", "found"), [("true", "2 errors"), (None, "2 skipped")])
@pytest.mark.parametrize("lacks", ["ONCEBOX_TEST_REDIS_SERVER", "ONCEBOX_TEST_CHROMIUM"])
def test_without_a_program_tests_fail_in_ci_and_are_skipped_elsewhere(
    spawn: Spawner, tmp_path: Path, lacks: str, ci: str | None, found: str
) -> None:
    (tmp_path / "redis-server").write_text("#!/bin/sh\necho v=7.0.0\n")
    (tmp_path / "redis-server").chmod(0o755)
    env: dict[str, str | None] = {
        "PATH": str(tmp_path),
        "CI": ci,
        "ONCEBOX_TEST_REDIS_SERVER": "redis-server",
        lacks: "",
    }
    if lacks == "ONCEBOX_TEST_REDIS_SERVER":
        (tmp_path / "redis-server").unlink()
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", BROWSER]
    process = spawn(words, env=env, cwd=ROOT)
    process.wait()
    assert found in process.stdout.splitlines()[-1], process.report()
