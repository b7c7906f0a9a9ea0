"""The rig of the fault tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.faults.rig import Rig
from tests.support.processes import Spawner


@pytest.fixture
async def rig(_redis_is_there: None, spawn: Spawner, tmp_path: Path) -> AsyncIterator[Rig]:
    """Processes and networks of the test's own: `await rig.start(...)`."""
    async with Rig(spawn, tmp_path) as rig:
        yield rig
