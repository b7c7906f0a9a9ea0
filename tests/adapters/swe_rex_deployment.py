"""What SWE-ReX's own tests leave out. Run with them, in an environment that has SWE-ReX, by ``test_swerex.py``."""

from __future__ import annotations

from pathlib import Path

import pytest
from swerex.deployment import get_deployment
from swerex.exceptions import (
    CommandTimeoutError,
    DeploymentNotStartedError,
    DeploymentStartupError,
    NonZeroExitCodeError,
)
from swerex.runtime.abstract import Command, IsAliveResponse, ReadFileRequest, WriteFileRequest

from service.adapters.swerex import OnceboxDeployment, OnceboxDeploymentConfig, OnceboxRuntime
from service.client import AsyncClient


async def test_a_deployment_lives_from_start_to_stop() -> None:
    told: list[str] = []

    class Hook:
        on_custom_step = told.append

    deployment = get_deployment(OnceboxDeploymentConfig(deployment_timeout=600))
    deployment.add_hook(Hook())
    assert not await deployment.is_alive()
    with pytest.raises(DeploymentNotStartedError):
        _ = deployment.runtime
    await deployment.start()
    assert told == ["Starting sandbox"]
    assert await deployment.is_alive(timeout=60)
    runtime = deployment.runtime
    await deployment.stop()
    assert not await deployment.is_alive()
    assert not await runtime.is_alive()
    await deployment.stop()


async def test_a_program_that_comes_again_with_its_key_finds_its_sandbox_and_its_commands() -> None:
    ask = Command(command="echo >>ran; wc -l <ran; cat /proc/sys/kernel/random/uuid", shell=True)
    first, again = (OnceboxDeployment(key="mine") for _ in range(2))
    await first.start()
    said = await first.runtime.execute(ask)
    sandbox_id = first.runtime.sandbox.id
    del first
    await again.start()
    assert again.runtime.sandbox.id == sandbox_id
    assert await again.runtime.execute(ask) == said
    other = await again.runtime.execute(ask)
    assert other.stdout.split()[0] == "2", "what it did not ask for before is run"
    await again.stop()


async def test_a_sandbox_that_does_not_answer_at_the_start_stays_for_who_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def dead(*_: object, **__: object) -> IsAliveResponse:
        return IsAliveResponse(is_alive=False, message="not now")

    first, again = (OnceboxDeployment(key="paused") for _ in range(2))
    await first.start()
    sandbox_id = first.runtime.sandbox.id
    with monkeypatch.context() as patched:
        patched.setattr(OnceboxRuntime, "is_alive", dead)
        with pytest.raises(DeploymentStartupError, match="not now"):
            await again.start()
    await again.start()
    assert again.runtime.sandbox.id == sandbox_id
    await again.stop()


async def test_a_sandbox_that_cannot_be_made_is_a_failed_start() -> None:
    with pytest.raises(DeploymentStartupError, match="image"):
        await OnceboxDeployment(image="").start()


async def test_a_command_has_its_directory_and_its_variables(remote_runtime: OnceboxRuntime) -> None:
    ask = Command(command='echo "$GIVEN"; pwd; exit 3', shell=True, cwd="/usr", env={"GIVEN": "a b"})
    said = await remote_runtime.execute(ask)
    assert (said.stdout, said.stderr, said.exit_code) == ("a b\n/usr\n", "", 3)
    with pytest.raises(NonZeroExitCodeError, match=r"(?s)^Oh: .*exit code 3.*a b"):
        await remote_runtime.execute(ask.model_copy(update={"check": True, "error_msg": "Oh"}))


async def test_a_command_is_killed_at_its_timeout(remote_runtime: OnceboxRuntime) -> None:
    with pytest.raises(CommandTimeoutError, match="1s"):
        await remote_runtime.execute(Command(command=["sleep", "1000"], timeout=0.1))
    async with AsyncClient() as client:
        running = [job async for job in client.jobs(sandbox_id=remote_runtime.sandbox.id, state="running")]
    assert running == []


async def test_a_file_is_read_as_python_reads_one(remote_runtime: OnceboxRuntime, tmp_path: Path) -> None:
    path = str(tmp_path / "text")
    await remote_runtime.sandbox.files.write(path, b"\xe9\r\nb\n")
    read = await remote_runtime.read_file(ReadFileRequest(path=path, encoding="latin-1"))
    assert read.content == "\xe9\nb\n"
    with pytest.raises(UnicodeDecodeError):
        await remote_runtime.read_file(ReadFileRequest(path=path))
    assert (await remote_runtime.read_file(ReadFileRequest(path=path, errors="ignore"))).content == "\nb\n"
    with pytest.raises(IsADirectoryError):
        await remote_runtime.write_file(WriteFileRequest(path=str(tmp_path), content=""))
