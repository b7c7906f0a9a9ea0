"""Lists of jobs, their next looks, leases and small values."""

import asyncio
from collections import Counter

import pytest

from service.core.states import ClaimState
from service.ports.store import JobRow
from service.store import keys
from tests.contract.store_rig import JOB, RETENTION, StoreRig

TENANT = "acme"
SANDBOX = "sandbox-1"


async def _index(rig: StoreRig, *ids: str, sandbox_id: str = SANDBOX, look_in: float = 0.0) -> None:
    for id in ids:
        await rig.store.index_job(id, tenant=TENANT, sandbox_id=sandbox_id, look_in=look_in)


async def _list(rig: StoreRig, *, page: int, sandbox_id: str | None = None) -> list[JobRow]:
    rows: list[JobRow] = []
    while True:
        before = rows[-1] if rows else None
        found = await rig.store.jobs(tenant=TENANT, sandbox_id=sandbox_id, before=before, limit=page)
        rows += found
        if not found:
            return rows


async def test_jobs_are_listed_newest_first_by_tenant_and_sandbox(rig: StoreRig) -> None:
    await _index(rig, "cmd_a", "cmd_b")
    await _index(rig, "cmd_c", sandbox_id="other")
    rows = await _list(rig, page=2)
    assert [row.command_id for row in sorted(rows, key=lambda row: (row.at, row.command_id))][::-1] == [
        row.command_id for row in rows
    ]
    assert {row.command_id for row in rows} == {"cmd_a", "cmd_b", "cmd_c"}
    assert {row.command_id for row in await _list(rig, page=9, sandbox_id=SANDBOX)} == {"cmd_a", "cmd_b"}
    assert await rig.store.jobs(tenant="nobody", sandbox_id=None, before=None, limit=5) == []


@pytest.mark.parametrize("page", [1, 2, 3, 7, 100])
async def test_pages_neither_repeat_nor_skip_where_times_are_equal_and_jobs_come_and_go(
    rig: StoreRig, page: int
) -> None:
    key = keys.jobs(TENANT)
    now = (await rig.claimed()).now
    expected = [(at, f"cmd_{n}") for at in (now - 2, now - 1, now) for n in range(6)]
    for at, id in expected:
        await rig.command("ZADD", key, at, f"{id}_{at}")

    rows: list[JobRow] = []
    for turn in range(100):
        before = rows[-1] if rows else None
        found = await rig.store.jobs(tenant=TENANT, sandbox_id=None, before=before, limit=page)
        rows += found
        if not found:
            break
        # Newer ones come in between, and the one that the next page begins behind goes.
        await rig.command("ZADD", key, now + 5 + turn, f"cmd_new_{turn}")
        await rig.command("ZREM", key, rows[-1].command_id)
    assert [row.command_id for row in rows] == [f"{id}_{at}" for at, id in reversed(expected)]


async def test_a_job_listed_again_keeps_its_place(rig: StoreRig) -> None:
    await _index(rig, JOB)
    await rig.command("ZADD", keys.jobs(TENANT), 5, "cmd_old")
    first = (await _list(rig, page=9))[0]
    await _index(rig, JOB)
    assert (await _list(rig, page=9))[0] == first


async def test_entries_without_a_record_are_pruned_when_others_come(rig: StoreRig) -> None:
    await rig.command("ZADD", keys.jobs(TENANT), 5, "cmd_old")
    await _index(rig, JOB)
    assert [row.command_id for row in await _list(rig, page=9)] == [JOB]
    left = await rig.command("PTTL", keys.jobs(TENANT))
    assert left > (RETENTION + 14_400) * 1000


async def test_an_unlisted_job_is_nowhere(rig: StoreRig) -> None:
    await _index(rig, JOB)
    await rig.store.unindex_job(JOB, tenant=TENANT, sandbox_id=SANDBOX)
    assert await _list(rig, page=9) == []
    assert await _list(rig, page=9, sandbox_id=SANDBOX) == []
    assert await rig.store.active_of(SANDBOX) == []
    assert await rig.store.due(limit=9, lease=1.0) == []


async def test_a_finished_job_is_listed_but_not_active(rig: StoreRig) -> None:
    await _index(rig, JOB, "cmd_other")
    assert await rig.store.active_of(SANDBOX) == sorted([JOB, "cmd_other"])
    await rig.store.end_look(JOB, sandbox_id=SANDBOX)
    assert await rig.store.active_of(SANDBOX) == ["cmd_other"]
    assert await rig.store.due(limit=9, lease=1.0) == ["cmd_other"]
    assert len(await _list(rig, page=9)) == 2


async def test_each_due_job_goes_to_one_replica(rig: StoreRig) -> None:
    ids = [f"cmd_{n}" for n in range(60)]
    await _index(rig, *ids)
    answers = await asyncio.gather(*(rig.store.due(limit=7, lease=60.0) for _ in range(12)))
    found = Counter(id for answer in answers for id in answer)
    assert found == Counter(ids)
    assert all(len(answer) <= 7 for answer in answers)
    assert await rig.store.due(limit=7, lease=60.0) == []


async def test_a_job_whose_replica_died_comes_back_after_its_lease(rig: StoreRig) -> None:
    await _index(rig, JOB)
    assert await rig.store.due(limit=9, lease=0.001) == [JOB]
    while not await rig.store.due(limit=9, lease=60.0):
        await asyncio.sleep(0)
    assert await rig.store.due(limit=9, lease=60.0) == []


async def test_the_longest_overdue_of_a_shard_comes_first(rig: StoreRig) -> None:
    ids = [id for n in range(400) if keys.looks(id := f"cmd_{n}") == keys.LOOKS[3]][:5]
    for score, id in enumerate(ids):
        await rig.command("ZADD", keys.LOOKS[3], 100 - score, id)
    for id in reversed(ids):
        assert await rig.store.due(limit=1, lease=60.0) == [id]


async def test_no_shard_starves(rig: StoreRig) -> None:
    """With more due than anybody takes, every shard has its turn."""
    for shard, key in enumerate(keys.LOOKS):
        for n in range(20):
            await rig.command("ZADD", key, n, f"cmd_{shard}_{n}")
    met = set()
    for _ in range(300):
        met |= {id.split("_")[1] for id in await rig.store.due(limit=1, lease=-100.0)}
    assert met == {str(shard) for shard in range(len(keys.LOOKS))}


async def test_the_next_look_is_set_for_active_jobs_alone(rig: StoreRig) -> None:
    await rig.store.next_look(JOB, after=0.0)
    assert await rig.store.due(limit=9, lease=1.0) == []
    await _index(rig, JOB, look_in=500.0)
    assert await rig.store.due(limit=9, lease=1.0) == []
    await rig.store.next_look(JOB, after=0.0)
    assert await rig.store.due(limit=9, lease=1.0) == [JOB]


async def test_listing_again_never_puts_a_look_off(rig: StoreRig) -> None:
    await _index(rig, JOB, look_in=0.0)
    await _index(rig, JOB, look_in=500.0)
    assert await rig.store.due(limit=9, lease=500.0) == [JOB]
    await _index(rig, JOB, look_in=0.0)
    assert await rig.store.due(limit=9, lease=500.0) == [JOB]


async def test_active_jobs_are_counted(rig: StoreRig) -> None:
    await _index(rig, *(f"cmd_{n}" for n in range(40)))
    assert await rig.store.active_count() == 40


async def test_the_time_is_the_servers(rig: StoreRig) -> None:
    before = await rig.store.now()
    record = await rig.claimed()
    assert before <= record.now <= await rig.store.now()


async def test_a_lease_is_held_by_one_and_ends_by_itself(rig: StoreRig) -> None:
    taken = await asyncio.gather(*(rig.store.lease("sweep", 60.0) for _ in range(10)))
    assert sum(taken) == 1
    assert await rig.store.lease("other", 0.001)
    while not await rig.store.lease("other", 60.0):
        await asyncio.sleep(0)


async def test_small_values_and_sandboxes_are_remembered(rig: StoreRig) -> None:
    assert await rig.store.recall("a") is None
    assert await rig.store.get_sandbox("a") is None
    await rig.store.remember("a", b"\xff1", ttl=60.0)
    await rig.store.put_sandbox("a", b"\xff2", ttl=60.0)
    assert await rig.store.recall("a") == b"\xff1"
    assert await rig.store.get_sandbox("a") == b"\xff2"
    assert 0 < await rig.command("PTTL", keys.sandbox("a")) <= 60_000
    await rig.store.put_sandbox("a", b"\xff3", ttl=600.0)
    assert not await rig.store.swap_sandbox("a", b"\xff2", b"stale", ttl=60.0)
    assert not await rig.store.swap_sandbox("a", None, b"stale", ttl=60.0)
    assert await rig.store.get_sandbox("a") == b"\xff3"
    assert await rig.store.swap_sandbox("a", b"\xff3", b"\xff4", ttl=60.0)
    assert await rig.store.get_sandbox("a") == b"\xff4"
    assert await rig.store.swap_sandbox("new", None, b"first", ttl=60.0)
    assert await rig.store.swap_sandbox("a", b"\xff4", b"\xff3", ttl=600.0)
    assert await rig.command("PTTL", keys.sandbox("a")) > 60_000


async def test_a_follower_sets_the_next_look_with_what_it_writes_whether_that_was_first_or_not(rig: StoreRig) -> None:
    seen = await rig.running()
    await _index(rig, seen.id)
    assert (await rig.store.advance(seen, ClaimState.RUNNING, body=b"", look_in=600.0))[0]
    assert await rig.store.due(limit=10, lease=60.0) == []
    await rig.store.next_look(seen.id, after=0.0)
    assert not (await rig.store.advance(seen, ClaimState.RUNNING, body=b"", look_in=600.0))[0]
    assert await rig.store.due(limit=10, lease=60.0) == []
    await rig.store.next_look(seen.id, after=0.0)
    assert not (await rig.store.advance(seen, ClaimState.RUNNING, body=b""))[0]
    assert await rig.store.due(limit=10, lease=60.0) == [seen.id]
