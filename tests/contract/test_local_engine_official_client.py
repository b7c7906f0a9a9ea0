"""The engine's own Python client against the local engine: create, list, run, status, logs, interrupt, kill."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.contract.local_engine_rig import KEY, RunningEngine
from tests.support.processes import Spawner

pytest.importorskip("opensandbox", reason="the engine's own client is not installed")

from opensandbox import Sandbox, SandboxManager
from opensandbox.config import ConnectionConfig
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.sandboxes import SandboxFilter


@pytest.fixture
def engine(spawn: Spawner, tmp_path: Path) -> RunningEngine:
    return RunningEngine(spawn, root=tmp_path / "engine")


@pytest.fixture(params=[False, True], ids=["direct", "proxy"])
def config(engine: RunningEngine, request: pytest.FixtureRequest) -> ConnectionConfig:
    return ConnectionConfig(
        domain=engine.url.removeprefix("http://"), api_key=KEY, protocol="http", use_server_proxy=request.param
    )


@pytest.fixture
async def sandbox(config: ConnectionConfig) -> AsyncIterator[Sandbox]:
    made = await Sandbox.create(
        "python:3.12",
        timeout=timedelta(minutes=5),
        entrypoint=["sleep", "infinity"],
        metadata={"team": "a"},
        connection_config=config,
    )
    yield made
    await made.close()


async def test_it_creates_finds_and_kills_a_sandbox(config: ConnectionConfig, sandbox: Sandbox) -> None:
    async with await SandboxManager.create(connection_config=config) as manager:
        found = await manager.list_sandbox_infos(SandboxFilter(metadata={"team": "a"}))
        none = await manager.list_sandbox_infos(SandboxFilter(metadata={"team": "b"}))
        assert [info.id for info in found.sandbox_infos] == [sandbox.id]
        assert none.sandbox_infos == []
        assert await sandbox.is_healthy()
        await sandbox.kill()
        gone = await manager.list_sandbox_infos(SandboxFilter(metadata={"team": "a"}))
        assert gone.sandbox_infos == []


async def test_it_runs_a_command_in_the_foreground(sandbox: Sandbox) -> None:
    execution = await sandbox.commands.run("echo out; echo err >&2; exit 3")
    assert [message.text.strip() for message in execution.logs.stdout] == ["out"]
    assert [message.text.strip() for message in execution.logs.stderr] == ["err"]
    assert execution.error is not None
    assert execution.error.value == "3"


async def test_it_follows_a_background_command(sandbox: Sandbox) -> None:
    execution = await sandbox.commands.run("echo one; sleep 0.3; echo two", opts=RunCommandOpts(background=True))
    assert execution.id is not None
    while True:
        status = await sandbox.commands.get_command_status(execution.id)
        if not status.running:
            break
        await asyncio.sleep(0.05)
    assert status.exit_code == 0
    logs = await sandbox.commands.get_background_command_logs(execution.id)
    assert logs.content == "one\ntwo\n"
    assert logs.cursor == 8
    rest = await sandbox.commands.get_background_command_logs(execution.id, cursor=4)
    assert rest.content == "two\n"


async def test_it_interrupts_a_command(sandbox: Sandbox) -> None:
    execution = await sandbox.commands.run("sleep 60", opts=RunCommandOpts(background=True))
    assert execution.id is not None
    await sandbox.commands.interrupt(execution.id)
    status = await sandbox.commands.get_command_status(execution.id)
    assert (status.running, status.exit_code, status.error) == (False, -1, "signal: terminated")


async def test_it_writes_and_reads_files(sandbox: Sandbox) -> None:
    await sandbox.files.write_file("/workspace/sub/note.txt", "grüße")
    assert await sandbox.files.read_file("/workspace/sub/note.txt") == "grüße"
    await sandbox.files.delete_files(["/workspace/sub/note.txt"])
    with pytest.raises(Exception, match=r"not found|404|FILE_NOT_FOUND"):
        await sandbox.files.read_file("/workspace/sub/note.txt")
