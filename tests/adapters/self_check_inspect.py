"""Inspect's own checks of a sandbox provider. Run in an environment that has Inspect, by ``test_inspect.py``."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest_asyncio
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from service.adapters.inspect import OnceboxConfig
from service.adapters.inspect.sandbox import OnceboxSandboxEnvironment as Provider
from tests.adapters.inspect_config import OPENED


@pytest_asyncio.fixture
async def sandbox_env() -> AsyncIterator[Provider]:
    config = OnceboxConfig(user=os.environ.get("SELF_CHECK_USER"))
    await Provider.task_init("self-check", config)
    made = await Provider.sample_init("self-check", config, {})
    provider = made["default"].as_type(Provider)
    if config.user:
        await provider.sandbox.run(OPENED)
    yield provider
    await Provider.sample_cleanup("self-check", config, made, False)
    await Provider.task_cleanup("self-check", config, True)
