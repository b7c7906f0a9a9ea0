"""The rig on the engine that the environment names; without one, these tests are skipped."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.real_engine.engine_rig import RealEngine, RealRig
from tests.support.processes import Spawner


@pytest.fixture
async def real(_redis_is_there: None, spawn: Spawner, tmp_path: Path) -> AsyncIterator[RealRig]:
    """`await real.start_on(...)`; its sandboxes are deleted at the end of the test."""
    engine = RealEngine.named()
    if engine is None:
        pytest.skip("ONCEBOX_TEST_ENGINE_URL names no real engine")
    async with RealRig(spawn, tmp_path, engine) as rig:
        yield rig
        await rig.clear()


@pytest.fixture
def _volume() -> None:
    """For tests of workspaces."""
    engine = RealEngine.named()
    if engine is not None and engine.volume is None:
        pytest.skip("ONCEBOX_TEST_VOLUME names no volume that the engine may mount")


@pytest.fixture
def _docker() -> None:
    """For tests that restart containers."""
    engine = RealEngine.named()
    if engine is not None and engine.docker is None:
        pytest.skip("ONCEBOX_TEST_DOCKER names no Docker daemon")
