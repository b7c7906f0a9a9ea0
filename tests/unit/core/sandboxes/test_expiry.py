"""The expiry of a sandbox under jobs that begin and end and a caller who renews, in any order of their steps."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import msgspec
import pytest

from service.core import records
from service.core.claims.tasks import Tasks
from service.core.model.states import ClaimState
from service.core.records import JobBody, SandboxRecord
from service.core.sandboxes import expiry
from service.core.sandboxes.expiry import MARGIN, STEP, Expiry
from service.core.sandboxes.records import SandboxRecords
from service.ports.engine import Engine, Unclear
from service.ports.store import Record, Store

NOW = 1_000_000.0
CREATED = NOW + 600
"""The caller's own expiry."""
BOX = "box"


class World:
    """A store and an engine of one sandbox. Every step of either takes a turn of the loop, or several."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.raw = records.encode(SandboxRecord(tenant="t", expires_at=CREATED, asked_until=CREATED))
        self.engine = CREATED
        self.jobs: dict[str, float] = {}
        """Active jobs: when each is over."""
        self.told = 0
        self.loses = False
        self.fails = 0
        """Of the next calls at the engine, how many are carried out and not answered."""
        records_ = SandboxRecords(cast(Store, self), cast(Any, self), retention=0)
        self.expiry = Expiry(cast(Store, self), cast(Engine, self), records_, Tasks())

    async def turn(self) -> None:
        for _ in range(self.random.choice((0, 0, 1, 2, 25))):
            await asyncio.sleep(0)

    # -- the store

    async def get_sandbox(self, sandbox_id: str) -> bytes:
        await self.turn()
        raw = self.raw
        await self.turn()
        return raw

    async def swap_sandbox(self, sandbox_id: str, seen: bytes | None, body: bytes, *, ttl: float) -> bool:
        await self.turn()
        done, self.raw = self.raw == seen, body if self.raw == seen else self.raw
        await self.turn()
        return done

    async def active_of(self, sandbox_id: str) -> list[str]:
        await self.turn()
        return sorted(self.jobs)

    async def get_many(self, ids: list[str]) -> list[Record | None]:
        await self.turn()
        return [_job(id, self.jobs[id]) if id in self.jobs else None for id in ids]

    async def now(self) -> int:
        return int(NOW * 1000)

    async def hold_sandbox(self, tenant: str, digest: str, seconds: float) -> None:
        raise AssertionError("no quota here")

    # -- the engine

    async def renew_sandbox(self, sandbox_id: str, expires_at: float) -> float:
        await self.turn()
        self.told += 1
        self.engine = float(int(expires_at))
        await self.turn()
        if self.loses and expires_at == NOW + MARGIN + STEP:
            raise Unclear("the answer was lost")
        if self.fails:
            self.fails -= 1
            raise Unclear("the answer was lost")
        return self.engine

    # -- what happens

    async def later(self) -> None:
        """Any number of turns into what others do."""
        for _ in range(self.random.randrange(60)):
            await asyncio.sleep(0)

    async def begins(self, id: str, deadline: float) -> None:
        await self.later()
        self.jobs[id] = deadline
        await self.expiry.keep(records.job_body(_job(id, deadline)))

    async def ends(self, id: str) -> None:
        await self.later()
        del self.jobs[id]
        self.expiry.job_ended(BOX)

    async def renews(self, until: float) -> None:
        await self.later()
        while True:
            raw = await self.get_sandbox(BOX)
            changed = msgspec.structs.replace(records.sandbox_record(raw), asked_until=until)
            if await self.swap_sandbox(BOX, raw, records.encode(changed), ttl=0):
                break
        await self.expiry.settle(BOX, tell=True)

    async def transfers(self, *, loses: bool) -> None:
        """``loses``: the answer to its renewal."""
        await self.later()
        self.loses = loses
        if await self.expiry.keep_for_transfer(BOX, None):
            assert self.engine >= NOW + MARGIN
            self.expiry.job_ended(BOX)

    async def quiet(self) -> None:
        while self.expiry._tasks._running:
            await asyncio.sleep(0)

    @property
    def record(self) -> SandboxRecord:
        return records.sandbox_record(self.raw)


def _job(id: str, deadline: float) -> Record:
    body = JobBody(
        tenant="t",
        sandbox_id=BOX,
        fingerprint="",
        command="",
        timeout=100,
        submitted_at=0,
        dispatched_at=deadline - 100,
    )
    return Record(
        id=id, state=ClaimState.RUNNING, epoch=1, attempt=1, revision=1, lease_until=0, token="", owner="",
        cancel=False, body=records.encode(body), now=0,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "TOGETHER", 0.0)


@pytest.mark.parametrize("first", range(0, 600, 100))
async def test_two_jobs_and_a_renewal_in_any_order_leave_what_the_active_ones_need_and_the_caller_asked(
    first: int,
) -> None:
    for seed in range(first, first + 100):
        world = World(seed)
        await world.begins("old", NOW + 3600)
        await asyncio.gather(world.ends("old"), world.begins("new", NOW + 1800), world.renews(NOW + 900))
        await world.quiet()
        assert NOW + 1800 + MARGIN - 1 <= world.engine <= NOW + 1800 + MARGIN + STEP, seed
        assert abs((world.record.expires_at or 0) - world.engine) <= 1, seed
        await asyncio.gather(world.ends("new"), world.renews(NOW + 1200))
        await world.quiet()
        assert world.engine == world.record.expires_at == NOW + 1200, seed


async def test_an_answer_that_is_lost_never_leaves_a_record_that_promises_more_than_the_engine_keeps() -> None:
    for seed in range(200):
        world = World(seed)
        await world.begins("old", NOW + 3600)
        world.fails = 1
        await asyncio.gather(world.ends("old"), world.begins("new", NOW + 1800))
        await world.quiet()
        await world.begins("new", NOW + 1800)  # whoever follows it asks again now and then
        await world.quiet()
        assert world.engine >= NOW + 1800 + MARGIN - 1, seed
        assert (world.record.expires_at or 0) <= world.engine + 1, seed


@pytest.mark.parametrize("trouble", ["none", "an answer is lost", "cancelled"])
async def test_a_transfer_keeps_its_sandbox_and_takes_nothing_of_what_a_caller_asked_for(trouble: str) -> None:
    for seed in range(300):
        world = World(seed)
        short = msgspec.structs.replace(world.record, expires_at=NOW + 60, asked_until=NOW + 60)
        world.raw, world.engine = records.encode(short), NOW + 60
        transfer = asyncio.create_task(world.transfers(loses=trouble == "an answer is lost"))
        renewal = asyncio.create_task(world.renews(NOW + 3600))
        if trouble == "cancelled":
            await world.later()
            await world.later()
            transfer.cancel()
        await asyncio.gather(transfer, renewal, return_exceptions=True)
        await world.quiet()
        assert world.engine == NOW + 3600, seed
        assert world.record.expires_at == NOW + 3600, seed


async def test_jobs_that_end_within_what_the_caller_asked_for_cost_the_engine_nothing() -> None:
    world = World(0)
    for number in range(5):
        await world.begins(f"job {number}", NOW + 300)
        await world.ends(f"job {number}")
        await world.quiet()
    assert (world.told, world.engine) == (0, CREATED)


async def test_what_a_job_being_submitted_needs_is_not_known_so_nothing_is_taken_away() -> None:
    world = World(0)
    await world.begins("old", NOW + 3600)
    kept = world.engine
    world.get_many = _nothing  # type: ignore[method-assign]
    world.jobs["claimed"] = 0.0
    await world.ends("old")
    await world.quiet()
    assert world.engine == kept


async def _nothing(ids: list[str]) -> list[Record | None]:
    return [None for _ in ids]
