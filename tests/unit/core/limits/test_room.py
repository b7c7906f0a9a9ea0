"""Room for bytes in flight: bounded, fair, and given back."""

import asyncio
from pathlib import Path

import pytest

from service.core.limits import admission
from service.core.limits.room import CAPACITY, PATIENCE, Room, Share
from service.core.model.cursors import PIECE
from service.errors import RateLimited
from service.server.connections import TAKEN_SECONDS

TENANTS = ["a", "b", "c", "d"]


async def filled(room: Room, tenant: str, size: int) -> list[Share]:
    """Shares of ``size`` bytes, as many as the tenant gets."""
    shares = []
    while (share := room.share(tenant)).take(size):
        shares.append(share)
    return shares


async def test_a_tenant_leaves_as_much_as_it_has() -> None:
    room = Room(1000)
    assert len(await filled(room, "a", 10)) == 50
    assert len(await filled(room, "b", 10)) == 25
    assert room.used == 750


async def test_what_is_used_never_exceeds_the_capacity() -> None:
    room = Room(1000)
    for tenant in "abcdefghijklmnop":
        await filled(room, tenant, 30)
    assert room.used <= 1000


async def test_the_first_request_of_a_tenant_has_all_that_is_free() -> None:
    room = Room(1000)
    await filled(room, "a", 10)
    assert room.share("b").take(500)
    assert not room.share("c").take(1)


async def test_who_finds_no_room_is_told_so_and_holds_nothing() -> None:
    room = Room(100)
    held = await filled(room, "a", 10)
    late = room.share("a")
    with pytest.raises(RateLimited) as caught:
        await late.hold(10, patience=0.01)
    assert caught.value.retry_after
    assert (late.held, room.used) == (0, 50)
    held[0].close()
    await late.hold(10, patience=0.01)


async def test_who_waits_gets_what_is_given_back_in_the_order_of_coming() -> None:
    room = Room(100)
    held = await filled(room, "a", 10)
    came: list[int] = []

    async def wait(number: int) -> None:
        with room.share("a") as share:
            await share.hold(10)
            came.append(number)

    waiting = [asyncio.ensure_future(wait(number)) for number in range(5)]
    await asyncio.sleep(0)
    assert not came
    assert not room.share("a").take(1), "nobody goes past those who wait"
    held[0].close()
    await asyncio.gather(*waiting)
    assert came == [0, 1, 2, 3, 4]


async def test_who_waits_does_not_hold_up_another_tenant() -> None:
    room = Room(100)
    await filled(room, "a", 10)
    waiting = asyncio.ensure_future(room.share("a").hold(10, patience=None))
    await asyncio.sleep(0)
    await room.share("b").hold(10, patience=0.01)
    waiting.cancel()


@pytest.mark.parametrize("how", ["cancelled", "left"])
async def test_who_leaves_takes_nothing_and_holds_nobody_up(how: str) -> None:
    room = Room(100)
    held = await filled(room, "a", 50)
    gone = asyncio.Event()

    async def guard(room: asyncio.Future[None]) -> bool:
        await gone.wait()
        return False

    large = asyncio.ensure_future(room.share("a", guard).hold(50, patience=None))
    await asyncio.sleep(0)
    small = asyncio.ensure_future(room.share("b").hold(60, patience=None))
    behind = asyncio.ensure_future(room.share("a").hold(0, patience=None))
    await asyncio.sleep(0)
    if how == "cancelled":
        large.cancel()
    else:
        gone.set()
    await asyncio.gather(large, return_exceptions=True)
    await behind
    assert room.used == 50
    held[0].close()
    await small
    assert room.used == 60


async def test_less_is_given_back_at_once_and_all_of_it_at_the_end() -> None:
    room = Room(100)
    with room.share("a") as share:
        await share.hold(40)
        share.shrink(60)
        assert room.used == 40, "never more"
        share.shrink(10)
        assert room.used == 10
        await share.add(5)
        assert room.used == 15
    assert room.used == 0


async def test_tenants_take_turns() -> None:
    room = Room(100)
    first = room.share("x")
    await first.hold(100)
    came: list[str] = []

    async def wait(tenant: str) -> None:
        with room.share(tenant) as share:
            await share.hold(100)
            came.append(tenant)

    waiting = [asyncio.ensure_future(wait(tenant)) for tenant in ("a", "a", "a", "b")]
    await asyncio.sleep(0)
    first.close()
    await asyncio.gather(*waiting)
    assert came[:2] == ["a", "b"]


def test_the_figures_that_are_documented_are_those_that_hold() -> None:
    text = " ".join((Path(__file__).parents[4] / "docs" / "security.md").read_text().split())
    for words in (
        f"at most {CAPACITY // 2**20} MiB of a replica's memory",
        f"written {PIECE // 1024} KiB at a time",
        f"takes none of that for {TAKEN_SECONDS:g} s",
        f"no room within {PATIENCE:g} s",
        f"{admission.SUBMISSIONS} at a time, a half of them for one tenant",
        f"its turn within {admission.PATIENCE:g} s",
    ):
        assert words in text
