"""Rates, on each kind of Redis: exactly as many pass as may, however many ask at once, and the rest are told when."""

import asyncio

from service.ports.store import Admission
from service.store import keys
from tests.contract.store_rig import StoreRig
from tests.support.waiting import PATIENCE


async def test_no_more_pass_at_once_than_the_burst(rig: StoreRig) -> None:
    said = await asyncio.gather(*(rig.store.admit("r", interval=600, burst=5) for _ in range(50)))
    assert sorted((each.let_through, each.left) for each in said) == [
        *[(False, 0)] * 45, (True, 0), (True, 1), (True, 2), (True, 3), (True, 4),
    ]  # fmt: skip


async def test_a_refused_request_is_told_when_to_come_again_and_costs_nothing(rig: StoreRig) -> None:
    await rig.store.admit("r", interval=1000, burst=2)
    last = await rig.store.admit("r", interval=1000, burst=2)
    assert last.let_through
    assert 2000 - PATIENCE < last.reset <= 2000
    for _ in range(3):
        refused = await rig.store.admit("r", interval=1000, burst=2)
        assert (refused.let_through, refused.left) == (False, 0)
        assert 1000 - PATIENCE < refused.wait <= 1000
        assert 2000 - PATIENCE < refused.reset <= 2000


async def test_a_rate_refills_steadily(rig: StoreRig) -> None:
    interval = 0.04
    assert await rig.store.admit("r", interval=interval, burst=1) == Admission(True, 0, interval, interval)
    refused = await rig.store.admit("r", interval=interval, burst=1)
    if not refused.let_through:  # else this machine was slow
        assert 0 < refused.wait <= interval
    async with asyncio.timeout(60):
        while not (await rig.store.admit("r", interval=interval, burst=1)).let_through:
            await asyncio.sleep(0.005)


async def test_rates_above_a_thousand_a_second_are_kept_too(rig: StoreRig) -> None:
    said = await asyncio.gather(*(rig.store.admit("r", interval=0.0001, burst=10_000) for _ in range(200)))
    assert all(each.let_through for each in said)
    assert min(each.left for each in said) >= 9_800


async def test_two_names_have_nothing_to_do_with_each_other(rig: StoreRig) -> None:
    assert (await rig.store.admit("r", interval=60, burst=1)).let_through
    assert not (await rig.store.admit("r", interval=60, burst=1)).let_through
    assert (await rig.store.admit("other", interval=60, burst=1)).let_through


async def test_what_is_kept_ends_by_itself(rig: StoreRig) -> None:
    await rig.store.admit("r", interval=500, burst=2)
    left = await rig.command("PTTL", keys.rate("r"))
    assert 500 - PATIENCE < left / 1000 <= 500


async def test_a_clock_that_was_set_back_shuts_nobody_out(rig: StoreRig) -> None:
    now = await rig.store.now()
    await rig.command("SET", keys.rate("r"), f"{now + 1e9:.3f}")
    refused = await rig.store.admit("r", interval=1000, burst=3)
    assert not refused.let_through
    assert 1000 - PATIENCE < refused.wait <= 1000
