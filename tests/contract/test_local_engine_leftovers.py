"""An engine that was killed with all of its processes, as by a container's end: the next one cleans up after it."""

import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.contract.local_engine_rig import RunningEngine
from tests.support.processes import ManagedProcess, Spawner
from tests.support.waiting import PATIENCE, eventually


def kill_all(engine: ManagedProcess) -> None:
    """The engine, its helper and every sandbox at once; nobody is left to remove anything."""
    parent = psutil.Process(engine.pid)
    everything = [parent, *parent.children(recursive=True)]
    for process in everything:
        process.suspend()
    for process in everything:
        process.send_signal(signal.SIGKILL)
    engine.wait()
    psutil.wait_procs(everything, timeout=PATIENCE)


def runs(root: Path) -> set[Path]:
    return set(root.glob("run-*"))


def test_the_next_engine_on_its_root_removes_what_it_left_and_keeps_volumes(spawn: Spawner, tmp_path: Path) -> None:
    root = tmp_path / "engine"
    crashed = RunningEngine(spawn, root=root)
    crashed.create()
    (root / "volumes" / "kept").mkdir()
    kill_all(crashed.process)
    left = runs(root)
    assert left
    following = RunningEngine(spawn, root=root)
    assert not left & runs(root)
    assert (root / "volumes" / "kept").is_dir()
    assert following.create().state() == "Running"
    assert following.process.terminate() == 0
    assert not runs(root)
    assert not list(root.glob(".*"))


async def test_an_engine_that_lives_loses_nothing_to_another_on_its_root(spawn: Spawner, tmp_path: Path) -> None:
    first = RunningEngine(spawn, root=tmp_path)
    sandbox = first.create()
    sandbox.write("/workspace/file", b"mine")
    second = RunningEngine(spawn, root=tmp_path)
    assert sandbox.read("/workspace/file").body == b"mine"
    first.process.kill()
    await eventually(lambda: len(runs(tmp_path)) == 1)
    assert second.create().state() == "Running"


@pytest.mark.parametrize("made", ["by an engine", "by somebody else"])
def test_temporary_roots_are_removed_too_if_an_engine_made_them(spawn: Spawner, tmp_path: Path, made: str) -> None:
    def start() -> ManagedProcess:
        process = spawn([sys.executable, "-m", "service.local_engine"], env={"TMPDIR": str(tmp_path)})
        process.wait_for_line('"url"')
        return process

    if made == "by an engine":
        kill_all(start())
    else:
        (tmp_path / "other").mkdir()
        (tmp_path / "local-engine-run-linked").symlink_to(tmp_path / "other")
    left = list(tmp_path.glob("local-engine-run-*"))
    assert len(left) == 1
    start()
    assert left[0].exists() == (made == "by somebody else")
    assert len(list(tmp_path.glob("local-engine-run-*"))) == (2 if made == "by somebody else" else 1)
