"""A key of the caller's is known to be new only while the store has all that ever happened in its sandbox."""

from __future__ import annotations

from typing import Any

import pytest

from service.core.jobs.orders import Orders
from service.core.model.identity import MadeKey
from service.core.records import CLOCKS, SandboxRecord
from service.messages import SubmitJob
from service.ports.store import Record
from tests.unit.core.jobs.scene import record

NOW, RETENTION = 100_000.0, 3600.0


class World:
    """A store with one record under the key, and what is remembered of the sandbox."""

    def __init__(self, sandbox: SandboxRecord, seen: Record | None) -> None:
        self.sandbox, self.seen = sandbox, seen

    async def now(self) -> int:
        return round(NOW * 1000)

    async def get(self, id: str) -> Record | None:
        return self.seen

    async def known(self, tenant: str, sandbox_id: str, *, deleted: bool) -> SandboxRecord:
        return self.sandbox


def made(ago: float | None, *, found: bool = False) -> SandboxRecord:
    return SandboxRecord(tenant="t", found=found, created_at=None if ago is None else NOW - ago)


CASES: dict[str, tuple[SandboxRecord, Record | None, str | None, bool]] = {
    "a sandbox of the store's own": (made(1.0), None, "key", True),
    "one that was found at the engine": (made(1.0, found=True), None, "key", False),
    "one that is older than records are kept: its fences may stand longer": (made(RETENTION), None, "key", False),
    "one that is nearly so, by another's clock": (made(RETENTION - CLOCKS), None, "key", False),
    "one whose start is not known": (made(None), None, "key", False),
    "a key that was used": (made(1.0), record(), "key", False),
    "a key made for the request": (made(RETENTION, found=True), None, MadeKey("made"), True),
    "no key": (made(RETENTION, found=True), None, None, True),
}


@pytest.mark.parametrize("case", CASES)
async def test_whether_a_request_is_the_first_of_its_key(case: str) -> None:
    sandbox, seen, key, first = CASES[case]
    world: Any = World(sandbox, seen)
    order = await Orders(world, world, retention=RETENTION).take("t", SubmitJob(sandbox_id="s", command="x"), key)
    assert order.first is first
