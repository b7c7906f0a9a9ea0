"""For SWE-ReX's own tests: its runtime is Oncebox's. Put beside them by ``test_swerex.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from swerex.deployment import get_deployment
from swerex.runtime.abstract import BashAction, Command

from service.adapters.swerex import OnceboxDeploymentConfig, OnceboxRuntime


class _Action(BashAction):
    timeout: float | None = 60


class _Command(Command):
    timeout: float | None = 60


@pytest.fixture(scope="session")
def remote_runtime() -> Iterator[OnceboxRuntime]:
    deployment = get_deployment(OnceboxDeploymentConfig())
    asyncio.run(deployment.start())
    yield deployment.runtime
    asyncio.run(deployment.stop())


@pytest.fixture
def runtime_with_default_session(remote_runtime: OnceboxRuntime) -> OnceboxRuntime:
    """It has no session: those of its tests that need none pass all the same."""
    return remote_runtime
