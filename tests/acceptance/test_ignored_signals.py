"""What a script's `&` and `nohup` do to whatever they start: signals are ignored, and that is inherited."""

import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.acceptance.http_rig import Replica
from tests.support.processes import ManagedProcess, Spawner, not_taken
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.acceptance

IN_THE_BACKGROUND = ["sh", "-c", "trap '' INT QUIT HUP; exec \"$@\"", "sh"]
"""Starts what follows as a script's `nohup ... &` does."""


class Background(Spawner):
    """Starts processes there."""

    def __init__(self, spawn: Spawner) -> None:
        self._spawn = spawn

    def __call__(self, argv: list[str | Path], **more: object) -> ManagedProcess:  # type: ignore[override]
        return self._spawn([*IN_THE_BACKGROUND, *argv], **more)  # type: ignore[arg-type]


@pytest.fixture
def replica(spawn: Spawner) -> Replica:
    return Replica(Background(spawn))


def test_a_service_minds_ctrl_c_all_the_same_and_not_a_terminal_that_goes_away(replica: Replica) -> None:
    """Who starts one in a script, and interrupts the script, wants no service that is left over."""
    replica.submit(replica.sandbox(), "sleep 600")
    below = psutil.Process(replica.process.pid).children(recursive=True)
    replica.process.send(signal.SIGHUP)
    assert replica.ask("GET", "/healthz").status == 200
    replica.process.send(signal.SIGINT)
    assert replica.process.wait() == 0
    _, left = psutil.wait_procs(below, timeout=PATIENCE)
    assert not left


def test_commands_take_signals_as_in_a_new_container(replica: Replica) -> None:
    command = {"sandbox_id": replica.sandbox(), "command": "cat /proc/self/status"}
    said = replica.ask("POST", "/v1/exec", command).json()["stdout"]
    assert not_taken(said) == {"SigBlk": set(), "SigIgn": set()}


def test_a_command_that_is_to_run_in_the_background_is_not_interrupted(spawn: Spawner) -> None:
    words = [sys.executable, "-m", "service.cli", "run", "--", "sh", "-c", "echo begun; sleep 2; exit 3"]
    process = spawn([*IN_THE_BACKGROUND, *words], env={"ONCEBOX_URL": None})
    process.wait_for_line("begun")
    process.send(signal.SIGINT)
    process.send(signal.SIGHUP)
    assert process.wait(timeout=60) == 3
