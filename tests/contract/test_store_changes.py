"""Messages of changes: from every replica, over one subscription."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from service.core.model.states import ClaimState
from service.store import open_store
from tests.contract.store_rig import JOB, RECORD_OUTPUT, RETENTION, TTL, StoreRig

S = ClaimState


@pytest.fixture
async def changes(rig: StoreRig) -> AsyncIterator[AsyncIterator[str | None]]:
    """A subscription that stands."""
    stream = rig.store.changes()
    assert await anext(stream) is None
    yield stream
    await stream.aclose()  # type: ignore[attr-defined]


async def test_each_change_is_announced(rig: StoreRig, changes: AsyncIterator[str | None]) -> None:
    record = await rig.claimed()
    record = await rig.walk(record, S.DISPATCHED, S.ACCEPTED, S.RUNNING)
    await rig.store.request_cancel(JOB)
    record = await rig.record(JOB)
    await rig.walk(record, S.ENDED, S.CLOSED)
    assert [await anext(changes) for _ in range(7)] == [JOB] * 7
    # Nodes of a cluster announce in no common order, so the last one waits for the others.
    await rig.claimed("cmd_last")
    assert await anext(changes) == "cmd_last"


async def test_what_nobody_waits_for_is_not_announced(rig: StoreRig, changes: AsyncIterator[str | None]) -> None:
    record = await rig.running()
    assert [await anext(changes) for _ in range(4)] == [JOB] * 4

    done, record_now = await rig.store.advance(record, S.RUNNING, body=b"", notify=False)
    assert done
    assert not (await rig.follow(record, S.CLOSED, body=b"", ttl=TTL))[0]
    waiting = await rig.claimed("cmd_waiting")
    await rig.store.renew(waiting, lease=9.0)
    await rig.claimed("cmd_last")
    assert {await anext(changes), await anext(changes)} == {"cmd_waiting", "cmd_last"}
    assert record_now is not None


async def test_another_replica_hears_of_it(store_url: str, rig: StoreRig) -> None:
    if store_url in ("memory://", "simulated://"):
        pytest.skip("one process")
    other = open_store(store_url, retention=RETENTION, record_output=RECORD_OUTPUT)
    stream = other.changes()
    assert await anext(stream) is None
    await rig.claimed()
    assert await anext(stream) == JOB
    await stream.aclose()  # type: ignore[attr-defined]
    await other.close()


async def test_a_cancelled_reader_ends(rig: StoreRig) -> None:
    heard = asyncio.Event()

    async def read() -> None:
        async for _ in rig.store.changes():
            heard.set()

    task = asyncio.create_task(read())
    await heard.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
