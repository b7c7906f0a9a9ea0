"""Turns, on each kind of Redis: one holds a right at a time, and the queue moves at its pace whoever asks."""

import asyncio

from service.store import keys
from tests.contract.store_rig import StoreRig
from tests.support.waiting import PATIENCE

LONG = 600.0


async def turn(
    rig: StoreRig, name: str, *, interval: float = 1000.0, burst: int = 0, most: float = 100_000.0, more: int = 0
) -> float | None:
    """A turn of the queue ``q``."""
    return await rig.store.poll_slot("q", name, lease=LONG, interval=interval, burst=burst, most=most, more=more)


async def test_of_many_who_ask_at_once_one_has_the_right(rig: StoreRig) -> None:
    waits = await asyncio.gather(*(turn(rig, "job") for _ in range(20)))
    assert [wait for wait in waits if wait is not None] == [0.0]


async def test_each_waits_for_those_before_it(rig: StoreRig) -> None:
    waits = [await turn(rig, f"job{number}") for number in range(4)]
    for number, wait in enumerate(waits):
        assert wait is not None
        assert max(0, number * 1000 - PATIENCE) <= wait <= number * 1000


async def test_a_right_that_was_not_had_takes_no_place(rig: StoreRig) -> None:
    await turn(rig, "job")
    for _ in range(5):
        assert await turn(rig, "job") is None
    wait = await turn(rig, "next")
    assert wait is not None
    assert wait <= 1000


async def test_a_burst_goes_at_once_after_a_quiet_time(rig: StoreRig) -> None:
    waits = [await turn(rig, f"job{number}", burst=3) for number in range(5)]
    assert waits[:4] == [0.0] * 4
    assert waits[4] is not None
    assert 1000 - PATIENCE <= waits[4] <= 1000


async def test_what_was_taken_without_asking_moves_the_queue_on(rig: StoreRig) -> None:
    await turn(rig, "job")
    assert await turn(rig, "job", more=2) is None
    wait = await turn(rig, "next")
    assert wait is not None
    assert 3000 - PATIENCE <= wait <= 3000


async def test_nobody_waits_longer_than_the_most(rig: StoreRig) -> None:
    for number in range(3):
        await turn(rig, f"job{number}", most=1200.0, more=100)
    wait = await turn(rig, "next", most=1200.0)
    assert wait is not None
    assert 1200 - PATIENCE <= wait <= 1200


async def test_the_right_begins_after_the_wait_and_ends_by_itself(rig: StoreRig) -> None:
    await turn(rig, "first")
    await turn(rig, "job")
    lease, queue = keys.poll_slot("q", "job")
    assert LONG + 1000 - PATIENCE <= await rig.command("PTTL", lease) / 1000 <= LONG + 1000
    assert 0 < await rig.command("PTTL", queue) <= 3_600_000


async def test_a_clock_that_was_set_back_stops_nobody(rig: StoreRig) -> None:
    now = await rig.store.now()
    await rig.command("SET", keys.poll_slot("q", "job")[1], f"{now + 1e9:.3f}")
    wait = await turn(rig, "job", most=3.0)
    assert wait is not None
    assert wait <= 3
