"""Slots and chores, on each kind of Redis: no more than the limit, none leaked, one replica at a time."""

import asyncio

from service.core.model.identity import command_id
from service.core.model.states import ClaimState
from tests.contract.store_rig import StoreRig


async def test_no_more_slots_than_the_limit_however_many_ask_at_once(rig: StoreRig) -> None:
    taken = await asyncio.gather(*(rig.store.reserve("q", f"m{n}", limit=5, ttl=60) for n in range(50)))
    assert sum(taken) == 5


async def test_who_has_a_slot_keeps_it_when_all_are_taken(rig: StoreRig) -> None:
    assert await rig.store.reserve("q", "a", limit=1, ttl=60)
    assert not await rig.store.reserve("q", "b", limit=1, ttl=60)
    assert await rig.store.reserve("q", "a", limit=1, ttl=60)
    assert await rig.store.reserve("q", "a", limit=0, ttl=60)


async def test_a_slot_that_is_asked_for_again_does_not_end_earlier(rig: StoreRig) -> None:
    await rig.store.reserve("q", "a", limit=1, ttl=600)
    await rig.store.reserve("q", "a", limit=1, ttl=30)
    assert (await rig.store.holders("q"))["a"] > 500, "another request with its key, while it runs"
    await rig.store.reserve("q", "a", limit=None, ttl=30)
    assert (await rig.store.holders("q"))["a"] <= 30


async def test_a_slot_given_back_is_free(rig: StoreRig) -> None:
    await rig.store.reserve("q", "a", limit=1, ttl=60)
    await rig.store.vacate("q", "a")
    await rig.store.vacate("q", "nobody")
    assert await rig.store.reserve("q", "b", limit=1, ttl=60)


async def test_a_slot_ends_by_itself_so_that_a_crash_leaks_none(rig: StoreRig) -> None:
    await rig.store.reserve("q", "crashed", limit=1, ttl=0.05)
    async with asyncio.timeout(60):
        while not await rig.store.reserve("q", "b", limit=1, ttl=60):
            await asyncio.sleep(0.01)


async def test_without_a_limit_a_slot_is_only_counted(rig: StoreRig) -> None:
    assert await rig.store.reserve("q", "a", limit=None, ttl=60)
    assert not await rig.store.reserve("q", "b", limit=1, ttl=60)


async def test_slots_of_two_names_have_nothing_to_do_with_each_other(rig: StoreRig) -> None:
    await rig.store.reserve("q", "a", limit=1, ttl=60)
    assert await rig.store.reserve("other", "b", limit=1, ttl=60)


async def test_a_chore_is_ripe_when_it_is_due_and_then_somebody_s(rig: StoreRig) -> None:
    ids = [command_id(f"box-{n}", "A" * 22) for n in range(40)]
    for id in ids:
        await rig.follow(await rig.running(id), ClaimState.CLOSED, clean_in=0.0)
    await rig.follow(await rig.running(), ClaimState.CLOSED, clean_in=3600.0)
    first = await rig.store.due_chores("fences", limit=30, lease=60)
    rest = await rig.store.due_chores("fences", limit=30, lease=60)
    assert (len(first), len(rest)) == (30, 10)
    assert {*first, *rest} == {f"{id} 1" for id in ids}
    for chore in (*first, *rest):
        await rig.store.complete("fences", chore)
    assert await rig.store.due_chores("fences", limit=30, lease=60) == []


async def test_an_end_that_lost_its_race_leaves_no_chore(rig: StoreRig) -> None:
    old = await rig.running()
    await rig.follow(old, ClaimState.RUNNING)
    assert not (await rig.follow(old, ClaimState.CLOSED, clean_in=0.0))[0]
    assert await rig.store.due_chores("fences", limit=30, lease=60) == []
