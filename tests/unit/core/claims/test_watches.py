"""A watch wakes who waits on it for what they have not been woken for, and for nothing else."""

import asyncio
from typing import Any

from service.core.claims.tasks import Tasks
from service.core.claims.watches import POLL, Board, Watch, Watches
from service.core.model.states import ClaimState
from service.ports.store import Record
from tests.support.waiting import PATIENCE


def record(revision: int, token: str = "a", *, epoch: int = 1, now: int | None = None) -> Record:
    return Record(
        id="cmd_1", state=ClaimState.RUNNING, epoch=epoch, attempt=1, revision=revision, lease_until=0, token=token,
        owner="me", cancel=False, body=b"", now=revision if now is None else now,
    )  # fmt: skip


async def woken(watch: Watch, new: Record | None, *, notify: bool = True) -> bool:
    waiter = asyncio.create_task(watch.change(0.02))
    await asyncio.sleep(0)
    watch.put(new, notify=notify)
    return await waiter


async def test_a_change_wakes_and_the_same_again_does_not() -> None:
    watch = Watch()
    assert await woken(watch, None), "the first reading, whatever it is"
    assert await woken(watch, record(1))
    assert not await woken(watch, record(1))
    assert await woken(watch, record(2))
    assert await woken(watch, record(1, token="b", now=9)), "made anew"


async def test_an_older_reading_changes_nothing() -> None:
    watch = Watch()
    watch.put(record(3))
    assert not await woken(watch, record(2))
    assert watch.record == record(3)


async def test_a_reading_from_before_a_retry_reopened_the_claim_does_not_take_its_place() -> None:
    watch = Watch()
    reopened = record(4, token="b", epoch=2)
    watch.put(reopened)
    assert not await woken(watch, record(3))
    assert watch.record == reopened


async def test_a_quiet_change_is_kept_and_wakes_nobody() -> None:
    watch = Watch()
    watch.put(record(1))
    assert not await woken(watch, record(2), notify=False)
    assert watch.record == record(2)
    assert not await woken(watch, record(2)), "nor when it is read again"


async def test_a_quiet_change_after_one_that_was_not_seen_wakes() -> None:
    watch = Watch()
    watch.put(record(1))
    assert await woken(watch, record(3), notify=False), "the second may have been news"
    assert await woken(watch, record(1, token="b", now=9), notify=False)


class Reads:
    """A store whose one record is as it stands."""

    def __init__(self) -> None:
        self.stands = record(1)
        self.count = 0

    async def get(self, id: str) -> Record:
        self.count += 1
        return self.stands


async def again(_: Record) -> float:
    return POLL


async def test_what_was_read_this_moment_is_not_read_again_until_it_changes() -> None:
    store: Any = Reads()
    tasks = Tasks()
    watches = Watches(Board(), store, tasks, again)
    async with watches.of("cmd_1", record(1)) as watch:
        assert watch.record == record(1)
        await asyncio.sleep(0.05)
        assert store.count == 0
        store.stands = record(2)
        watch.poked.set()  # as a message of the change does
        while watch.record != record(2):
            await watch.change(10)
        assert store.count == 1
    async with watches.of("cmd_1") as watch:
        assert await watch.change(10)
        assert store.count == 2
    await tasks.cancel_all()


async def test_who_is_cancelled_in_the_moment_of_a_change_waits_no_longer() -> None:
    watch = Watch()
    waiter = asyncio.create_task(watch.change(60.0))
    await asyncio.sleep(0)
    watch.wake()
    waiter.cancel()
    await asyncio.wait({waiter}, timeout=PATIENCE)
    assert waiter.cancelled(), "a poll would go on for as long as it may wait, though its caller has left"
