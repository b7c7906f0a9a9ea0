"""Our own small commands don't pile up in a sandbox's daemon."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from service.core.fence.client import AT_ONCE, Fences
from service.ports.engine import Engine, ShortResult


class SlowDaemons:
    """Counts what is under way in each sandbox."""

    def __init__(self) -> None:
        self.under_way: dict[str, int] = {}
        self.most: dict[str, int] = {}

    async def run_short(self, sandbox_id: str, command: str, *, timeout: float, env: Mapping[str, str]) -> ShortResult:
        now = self.under_way[sandbox_id] = self.under_way.get(sandbox_id, 0) + 1
        self.most[sandbox_id] = max(now, self.most.get(sandbox_id, 0))
        for _ in range(5):
            await asyncio.sleep(0)
        self.under_way[sandbox_id] -= 1
        return ShortResult(0, "")

    async def read_lines(self, sandbox_id: str, path: str, limit: int) -> bytes:
        return b""


async def test_a_sandbox_gets_few_at_once_and_others_do_not_wait_for_it() -> None:
    daemons = SlowDaemons()
    fences = Fences(cast(Engine, cast(Any, daemons)), "/tmp/.oncebox")
    await asyncio.gather(*(fences.look(sandbox, "0" * 32) for sandbox in ("a", "b") for _ in range(50)))
    assert daemons.most == {"a": AT_ONCE, "b": AT_ONCE}
    assert not fences._turns, "nothing is kept of sandboxes that nobody asks"
