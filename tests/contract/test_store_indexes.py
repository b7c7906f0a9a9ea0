"""Lists of jobs, their next looks, leases and small values."""

import asyncio
from base64 import urlsafe_b64encode
from collections import Counter

import pytest

from service.core.model.identity import command_id
from service.core.model.states import ClaimState
from service.ports.store import JobRow
from service.store import keys
from tests.contract.store_rig import JOB, LEASE, RETENTION, TTL, StoreRig, new_token

TENANT = "acme"
SANDBOX = "sandbox-1"


def job(n: int, sandbox_id: str = SANDBOX) -> str:
    """The id of a job, in the order of ``n``."""
    return command_id(sandbox_id, urlsafe_b64encode(n.to_bytes(16, "big")).decode().rstrip("="))


A, B, C = job(1), job(2), job(3, "other")


async def _list_jobs(rig: StoreRig, *ids: str) -> None:
    """Active jobs, due at once."""
    for id in ids:
        await rig.store.restore(id, ClaimState.RUNNING, attempt=1, token=new_token(), body=b"", tenant=TENANT)


async def _list(rig: StoreRig, *, page: int, sandbox_id: str | None = None) -> list[JobRow]:
    rows: list[JobRow] = []
    while True:
        before = rows[-1] if rows else None
        found = await rig.store.jobs(tenant=TENANT, sandbox_id=sandbox_id, before=before, limit=page)
        rows += found
        if not found:
            return rows


async def test_jobs_are_listed_newest_first_by_tenant_and_sandbox(rig: StoreRig) -> None:
    await _list_jobs(rig, A, B, C)
    rows = await _list(rig, page=2)
    assert [row.command_id for row in sorted(rows, key=lambda row: (row.at, row.command_id))][::-1] == [
        row.command_id for row in rows
    ]
    assert {row.command_id for row in rows} == {A, B, C}
    assert {row.command_id for row in await _list(rig, page=9, sandbox_id=SANDBOX)} == {A, B}
    assert await rig.store.jobs(tenant="nobody", sandbox_id=None, before=None, limit=5) == []


@pytest.mark.parametrize("page", [1, 2, 3, 7, 100])
async def test_pages_neither_repeat_nor_skip_where_times_are_equal_and_jobs_come_and_go(
    rig: StoreRig, page: int
) -> None:
    now = (await rig.claimed()).now
    expected = sorted((at, job(at * 10 + n, f"box-{n % 4}")) for at in (now - 2, now - 1, now) for n in range(6))
    for at, id in expected:
        await rig.command("ZADD", keys.lists(TENANT, id)[0], at, id)

    rows: list[JobRow] = []
    for turn in range(100):
        before = rows[-1] if rows else None
        found = await rig.store.jobs(tenant=TENANT, sandbox_id=None, before=before, limit=page)
        rows += found
        if not found:
            break
        # Newer ones come in between, and the one that the next page begins behind goes.
        await rig.command("ZADD", keys.lists(TENANT, job(turn))[0], now + 5 + turn, job(turn))
        last = rows[-1].command_id
        await rig.command("ZREM", keys.lists(TENANT, last)[0], last)
    assert [row.command_id for row in rows] == [id for _, id in reversed(expected)]


async def test_a_job_listed_again_keeps_its_place(rig: StoreRig) -> None:
    await rig.command("ZADD", keys.lists(TENANT, A)[0], (await rig.claimed()).now - 5000, A)
    first = (await _list(rig, page=9))[0]
    await _list_jobs(rig, A)
    assert await _list(rig, page=9) == [first]


async def test_entries_without_a_record_are_pruned_when_others_come(rig: StoreRig) -> None:
    for key in keys.lists(TENANT, A):
        await rig.command("ZADD", key, 5, B)
    await _list_jobs(rig, A)
    for key in keys.lists(TENANT, A):
        assert await rig.command("ZRANGE", key, 0, -1) == [A.encode()]
        assert await rig.command("PTTL", key) > (RETENTION + 14_400) * 1000


async def test_an_unlisted_job_is_in_no_list_of_its_tenant(rig: StoreRig) -> None:
    await _list_jobs(rig, A)
    await rig.store.unlist_job(A, tenant=TENANT)
    assert await _list(rig, page=9) == []
    assert await _list(rig, page=9, sandbox_id=SANDBOX) == []


async def test_a_finished_job_is_listed_but_not_active(rig: StoreRig) -> None:
    await _list_jobs(rig, A, B)
    assert await rig.store.active_of(SANDBOX) == sorted([A, B])
    assert (await rig.follow(await rig.record(A), ClaimState.CLOSED))[0]
    assert await rig.store.active_of(SANDBOX) == [B]
    assert await rig.store.due(limit=9, lease=1.0) == [B]
    assert len(await _list(rig, page=9)) == 2


async def test_a_replay_lists_nothing_again(rig: StoreRig) -> None:
    await _list_jobs(rig, A)
    await rig.follow(await rig.record(A), ClaimState.CLOSED)
    done, _, _ = await rig.store.claim(A, token=new_token(), owner="r", lease=LEASE, body=b"", tenant=TENANT)
    assert not done
    assert await rig.store.active_of(SANDBOX) == []
    assert await rig.store.active_count() == 0


async def test_a_retry_that_reopens_is_listed_whatever_an_earlier_owner_still_writes(rig: StoreRig) -> None:
    mine = await rig.claimed(A, tenant=TENANT)
    _, refused = await rig.store.settle(mine, ClaimState.REFUSED, body=b"", ttl=TTL)
    assert refused is not None
    assert await rig.store.active_of(SANDBOX) == []
    again = {"token": new_token(), "owner": "r", "lease": LEASE, "body": b"", "tenant": TENANT}
    assert (await rig.store.reopen(refused, next_attempt=False, **again))[0]  # type: ignore[arg-type]
    assert not (await rig.store.settle(mine, ClaimState.REFUSED, body=b"", ttl=TTL))[0]
    await rig.store.forget(A)
    assert await rig.store.active_of(SANDBOX) == [A]
    await rig.store.schedule(A, after=0.0)
    assert await rig.store.due(limit=9, lease=1.0) == [A]


async def test_whoever_meets_a_listed_job_whose_claim_is_gone_or_over_drops_it(rig: StoreRig) -> None:
    await _list_jobs(rig, A, B, C)
    await rig.command("DEL", keys.claim(A))
    await rig.put(B, ClaimState.CLOSED)
    for id in (A, B, C):
        await rig.store.forget(id)
    assert await rig.store.active_of(SANDBOX) == []
    assert await rig.store.due(limit=9, lease=1.0) == [C]


async def test_each_due_job_goes_to_one_replica(rig: StoreRig) -> None:
    ids = [job(n, f"box-{n % 7}") for n in range(60)]
    await _list_jobs(rig, *ids)
    answers = await asyncio.gather(*(rig.store.due(limit=7, lease=60.0) for _ in range(12)))
    found = Counter(id for answer in answers for id in answer)
    assert found == Counter(ids)
    assert all(len(answer) <= 7 for answer in answers)
    assert await rig.store.due(limit=7, lease=60.0) == []


async def test_a_job_whose_replica_died_comes_back_after_its_lease(rig: StoreRig) -> None:
    await _list_jobs(rig, JOB)
    assert await rig.store.due(limit=9, lease=0.001) == [JOB]
    while not await rig.store.due(limit=9, lease=60.0):
        await asyncio.sleep(0)
    assert await rig.store.due(limit=9, lease=60.0) == []


async def test_the_longest_overdue_of_a_shard_comes_first(rig: StoreRig) -> None:
    ids = [id for n in range(400) if keys.looks(id := job(n, f"box-{n}")) == keys.LOOKS[3]][:5]
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
    await rig.store.schedule(JOB, after=0.0)
    assert await rig.store.due(limit=9, lease=1.0) == []
    seen = await rig.running()
    await rig.store.advance(seen, ClaimState.RUNNING, body=b"", look_in=500.0)
    assert await rig.store.due(limit=9, lease=1.0) == []
    await rig.store.schedule(JOB, after=0.0)
    assert await rig.store.due(limit=9, lease=1.0) == [JOB]


async def test_what_a_lease_holds_is_looked_at_when_it_has_run_out(rig: StoreRig) -> None:
    mine = await rig.claimed(lease=60.0)
    assert await rig.store.due(limit=9, lease=60.0) == []
    assert (await rig.store.release(mine))[0]
    while not await rig.store.due(limit=9, lease=60.0):
        await asyncio.sleep(0.01)


async def test_active_jobs_are_counted(rig: StoreRig) -> None:
    await _list_jobs(rig, *(job(n, f"box-{n}") for n in range(40)))
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


async def test_a_follower_sets_the_next_look_with_what_it_writes(rig: StoreRig) -> None:
    seen = await rig.running()
    assert (await rig.store.advance(seen, ClaimState.RUNNING, body=b"", look_in=600.0))[0]
    assert await rig.store.due(limit=10, lease=60.0) == []
    await rig.store.schedule(seen.id, after=0.0)
    # One that lost its race leaves the look as it is: whoever was first has set it.
    assert not (await rig.store.advance(seen, ClaimState.RUNNING, body=b"", look_in=600.0))[0]
    assert await rig.store.due(limit=10, lease=60.0) == [seen.id]
