import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.ports import LOOPBACK, free_port
from tests.support.processes import ManagedProcess, Spawner, not_taken
from tests.support.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[3]
INNER = """
import time

def test_it(spawn):
    spawn(["sleep", "600"])
    print("started", flush=True)
    time.sleep(600)
"""


def test_output_and_exit_code_are_kept(spawn: Spawner) -> None:
    process = spawn(["sh", "-c", "cat; echo oops >&2; echo $NAME; exit 7"], env={"NAME": "x"}, stdin=b"in\n")

    assert process.wait() == 7
    assert process.stdout == "in\nx\n"
    assert process.stderr == "oops\n"


def test_a_variable_can_be_unset(spawn: Spawner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEFT_OVER", "x")

    process = spawn(["sh", "-c", "echo ${LEFT_OVER-unset}"], env={"LEFT_OVER": None})

    process.wait()
    assert process.stdout == "unset\n"


def test_a_line_is_waited_for_on_both_outputs(spawn: Spawner) -> None:
    process = spawn(["sh", "-c", "sleep 0.1; echo listening on 12 >&2; exec sleep 60"])

    assert process.wait_for_line(r"listening on (\d+)")[1] == "12"
    assert process.alive


def test_waiting_for_a_line_ends_with_the_process_and_shows_its_output(spawn: Spawner) -> None:
    process = spawn(["sh", "-c", "echo no such file; exit 3"], name="server")

    with pytest.raises(AssertionError, match=r"(?s)server.*exit code 3.*no such file"):
        process.wait_for_line("ready")


def test_waiting_for_a_line_has_a_deadline(spawn: Spawner) -> None:
    process = spawn(["sleep", "60"])

    with pytest.raises(AssertionError, match="still running"):
        process.wait_for_line("ready", timeout=0.05)


def test_a_url_is_waited_for(spawn: Spawner, tmp_path: Path) -> None:
    port = free_port()
    process = spawn([sys.executable, "-m", "http.server", str(port), "-b", LOOPBACK], cwd=tmp_path)

    process.wait_for_url(f"http://{LOOPBACK}:{port}/")
    process.wait_for_url(f"http://{LOOPBACK}:{port}/none", status=404)


def test_terminate_lets_it_end_by_itself(spawn: Spawner) -> None:
    process = spawn(["sh", "-c", "trap 'echo bye; exit 4' TERM; echo ready; while :; do sleep 0.01; done"])
    process.wait_for_line("ready")

    assert process.terminate() == 4
    assert "bye" in process.stdout


def test_terminate_kills_what_does_not_end(spawn: Spawner) -> None:
    process = spawn(["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.01; done"])
    process.wait_for_line("ready")

    with pytest.raises(AssertionError, match="did not end"):
        process.terminate(timeout=0.1)
    assert process.exit_code == -signal.SIGKILL


async def test_kill_takes_the_children_along(tmp_path: Path) -> None:
    with ManagedProcess(["sh", "-c", "sleep 60 & echo $!; wait"], folder=tmp_path) as process:
        child = psutil.Process(int(process.wait_for_line(r"\d+")[0]))

    await eventually(lambda: _is_dead(child))


def _is_dead(process: psutil.Process) -> bool:
    try:
        # A zombie is dead too: whoever inherited it has only not looked yet.
        return process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


def test_a_failed_test_shows_the_output_of_its_processes(pytester: pytest.Pytester) -> None:
    root = Path(__file__).parents[3]
    pytester.makeconftest("from tests.conftest import *\nfrom tests.conftest import pytest_runtest_makereport")
    pytester.makepyfile(
        """
        def test_it(spawn):
            spawn(["sh", "-c", "echo the reason"], name="server").wait()
            raise AssertionError
        """
    )
    pytester.makeini(f"[pytest]\npythonpath = {root}\nasyncio_default_fixture_loop_scope = function")

    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Process server*", "*the reason*"])


def test_signals_are_taken_as_at_a_terminal_by_tests_and_by_what_they_start() -> None:
    """Also the other half of the next test."""
    started = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    assert not_taken(started) == {"SigBlk": set(), "SigIgn": set()}
    ours = not_taken(Path("/proc/self/status").read_text())
    assert ours == {"SigBlk": set(), "SigIgn": {signal.SIGPIPE, signal.SIGXFSZ}}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_so_they_are_where_the_run_was_started_in_a_script_s_background(spawn: Spawner) -> None:
    inner = f"{__file__}::{test_signals_are_taken_as_at_a_terminal_by_tests_and_by_what_they_start.__name__}"
    start = "trap '' INT QUIT HUP TERM USR1 PIPE; exec \"$@\""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n1", inner]
    process = spawn(["sh", "-c", start, "sh", *words], cwd=ROOT)
    assert process.wait() == 0, process.report()


@pytest.mark.integration
@pytest.mark.usefixtures("_redis_is_there")
def test_a_load_run_that_is_told_to_end_takes_its_stack_with_it(spawn: Spawner, tmp_path: Path) -> None:
    run = spawn(
        [sys.executable, "-m", "tests.load"], cwd=ROOT, env={"SANDBOXES": "5", "TMPDIR": str(tmp_path)}, name="load"
    )
    run.wait_for_line("The stack is up", timeout=90)
    stack = psutil.Process(run.pid).children(recursive=True)
    assert len(stack) > 5
    run.send(signal.SIGTERM)
    assert run.wait() != 0
    _, left = psutil.wait_procs(stack, timeout=PATIENCE)
    for process in left:
        process.kill()
    assert not left
    assert [place for place in tmp_path.iterdir() if place.name != "processes"] == []


def test_tests_that_are_told_to_end_take_what_they_started_with_them(spawn: Spawner, tmp_path: Path) -> None:
    inner = tmp_path / "test_inner.py"
    inner.write_text(INNER)
    words: list[str | Path] = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider"]
    run = spawn(
        [*words, "-c", ROOT / "pyproject.toml", "--rootdir", ROOT, "-p", "tests.conftest", inner],
        cwd=ROOT,
        name="pytest",
    )
    run.wait_for_line("started")
    (sleeping,) = psutil.Process(run.pid).children()
    run.send(signal.SIGTERM)
    assert run.wait() != 0
    sleeping.wait(timeout=PATIENCE)
