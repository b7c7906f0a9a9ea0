"""What a config and Inspect's limits do to a sandbox. Run in an environment with Inspect, by ``test_inspect.py``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from inspect_ai.util import OutputLimitExceededError
from inspect_ai.util._sandbox.limits import override_max_exec_output_size, override_max_read_file_size

from service.adapters.inspect import OnceboxConfig
from service.adapters.inspect.sandbox import OnceboxSandboxEnvironment as Provider

OPENED = "chmod 777 .; chmod a+x ../../../../.."
"""Opens the sandbox's directory to all users; where sandboxes are plain processes, the engine's own around it too."""


@asynccontextmanager
async def sample(config: OnceboxConfig) -> AsyncIterator[Provider]:
    made = await Provider.sample_init("config", config, {})
    yield made["default"].as_type(Provider)
    await Provider.sample_cleanup("config", config, made, False)
    await Provider.task_cleanup("config", config, True)


async def test_commands_and_files_are_the_users_of_the_config() -> None:
    async with sample(OnceboxConfig(user="nobody")) as provider:
        await provider.sandbox.run(OPENED)
        await provider.write_file("written", "")
        assert (await provider.exec(["stat", "-c", "%U", "written"])).stdout == "nobody\n"
        assert (await provider.exec(["id", "-un"])).stdout == "nobody\n"
        assert (await provider.exec(["id", "-un"], user="root")).stdout == "root\n"


async def test_a_command_without_a_timeout_has_that_of_the_config() -> None:
    async with sample(OnceboxConfig(command_timeout=1)) as provider:
        with pytest.raises(TimeoutError):
            await provider.exec(["sleep", "1000"])
        assert (await provider.exec(["true"], timeout=60)).success


async def test_what_is_too_large_is_left() -> None:
    async with sample(OnceboxConfig()) as provider:
        with override_max_exec_output_size(1000):
            for stream in ("1", "2"):
                whole = await provider.exec(["sh", "-c", f"printf %1000s >&{stream}"])
                assert len(whole.stdout + whole.stderr) == 1000
                with pytest.raises(OutputLimitExceededError):
                    await provider.exec(["sh", "-c", f"printf %1001s >&{stream}"])
            with pytest.raises(OutputLimitExceededError):
                await provider.exec(["sh", "-c", "printf %5000s; sleep 1000"])
        with override_max_read_file_size(1000):
            await provider.write_file("file", "x" * 1000)
            assert len(await provider.read_file("file")) == 1000
            await provider.write_file("file", "x" * 1001)
            with pytest.raises(OutputLimitExceededError):
                await provider.read_file("file")
