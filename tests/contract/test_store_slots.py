"""Slots and chores, on each kind of Redis: no more than the limit, none leaked, one replica at a time."""

import asyncio

from tests.contract.store_rig import StoreRig


async def test_no_more_slots_than_the_limit_however_many_ask_at_once(rig: StoreRig) -> None:
    taken = await asyncio.gather(*(rig.store.reserve("q", f"m{n}", limit=5, ttl=60) for n in range(50)))
    assert sum(taken) == 5


async def test_who_has_a_slot_keeps_it_when_all_are_taken(rig: StoreRig) -> None:
    assert await rig.store.reserve("q", "a", limit=1, ttl=60)
    assert not await rig.store.reserve("q", "b", limit=1, ttl=60)
    assert await rig.store.reserve("q", "a", limit=1, ttl=60)
    assert await rig.store.reserve("q", "a", limit=0, ttl=60)


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
    await rig.store.put_off("clean", "later", after=3600)
    await rig.store.put_off("clean", "now", after=0)
    await rig.store.put_off("clean", "now", after=3600)
    assert await rig.store.ripe("clean", limit=10, lease=60) == ["now"]
    assert await rig.store.ripe("clean", limit=10, lease=60) == []
    await rig.store.done_with("clean", "now")
    await rig.store.put_off("clean", "now", after=0)
    assert await rig.store.ripe("clean", limit=10, lease=60) == ["now"]
