"""What is read before an attempt, where more than one thing fails."""

from __future__ import annotations

import asyncio
import gc
from typing import Any, cast

import pytest

from service.core.fence.client import Fences, Surroundings
from service.core.jobs import prepare
from service.core.jobs.prepare import Preparation
from service.core.jobs.restore import Restorer
from service.ports.engine import Engine, SandboxInfo, SandboxMissing, Unclear
from tests.unit.core.jobs.scene import ID, body


class _Both:
    """A sandbox that is silent until the engine is asked about it, and then fails as the engine does."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def surroundings(self, sandbox_id: str) -> Surroundings:
        await self.asked.wait()
        raise Unclear("no answer")

    async def get_sandbox(self, sandbox_id: str) -> SandboxInfo:
        self.asked.set()
        for _ in range(3):
            await asyncio.sleep(0)
        raise SandboxMissing("gone")


async def test_a_read_that_fails_while_the_engine_is_asked_is_no_lost_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "SLOW_SANDBOX", 0.0)
    lost: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
    both = _Both()
    preparation = Preparation(cast(Engine, both), cast(Fences, both), cast(Restorer, None))

    told = [type(each) for each in await asyncio.gather(_prepare(preparation), return_exceptions=True)]

    await asyncio.sleep(0)  # what the event loop still holds of it goes
    gc.collect()
    assert told == [SandboxMissing]
    assert lost == []


async def _prepare(preparation: Preparation) -> None:
    await preparation.prepare(ID, 1, body(), None, first=True)
