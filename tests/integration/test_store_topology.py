"""Replicas, failovers and moving slots: what the store makes of a Redis of several servers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from msgspec import structs
from redis.crc import key_slot

from service.core.model.states import ClaimState
from service.errors import StoreUnavailable
from service.store import RedisStore, keys, open_store
from tests.conftest import RedisStarter
from tests.contract.store_rig import JOB, LEASE, RECORD_OUTPUT, RETENTION, StoreRig
from tests.support.redis_server import SERVICE_NAME, RedisCluster, RedisServer, SentinelProcess
from tests.support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.integration

S = ClaimState
Opener = Callable[..., RedisStore]
RECOVERY = PATIENCE
"""Seconds; the Sentinel takes one of them to see that its master is gone, and some to agree with itself."""
TILT = 30.0
"""Seconds for which a Sentinel that stood still changes nothing."""


@pytest.fixture
async def opened() -> AsyncIterator[Opener]:
    """Opens stores that are closed at the end."""
    stores: list[RedisStore] = []

    def opener(url: str, **options: Any) -> RedisStore:
        stores.append(open_store(url, retention=RETENTION, record_output=RECORD_OUTPUT, **options))
        return stores[-1]

    yield opener
    for store in stores:
        await store.close()


@pytest.fixture
async def pair(start_redis: RedisStarter) -> tuple[RedisServer, RedisServer]:
    """A master and a replica that follows it."""
    master = start_redis(repl_diskless_sync_delay=0)
    replica = start_redis(replicaof=f"{master.host} {master.port}", repl_diskless_sync_delay=0)
    with replica.client() as client:
        await eventually(lambda: client.info("replication")["master_link_status"] == "up")
    return master, replica


async def _claim(store: RedisStore, token: str, id: str = JOB) -> bool:
    done, _, _ = await store.claim(id, token=token, owner="replica", lease=LEASE, body=b"")
    return done


async def _claimed_within(store: RedisStore, token: str, id: str, seconds: float) -> bool:
    async with asyncio.timeout(seconds):
        while True:
            try:
                return await _claim(store, token, id)
            except StoreUnavailable:
                await asyncio.sleep(0.05)


async def test_a_new_owner_counts_once_replicas_have_acknowledged_it(
    pair: tuple[RedisServer, RedisServer], opened: Opener
) -> None:
    master, replica = pair
    store = opened(master.url, claim_replicas=1)
    assert await _claim(store, "a")
    record = await StoreRig(store).record(JOB)
    done, _ = await store.dispatch(record, lease=LEASE, body=b"")
    assert done
    with replica.client() as client:
        assert str(client.get(keys.claim(JOB))).startswith("1 dispatched ")

    replica.pause()
    with pytest.raises(StoreUnavailable, match="0 of 1"):
        await _claim(store, "b", "cmd_b")
    # Asked again, it is ours, but still nobody else has it.
    with pytest.raises(StoreUnavailable, match="0 of 1"):
        await _claim(store, "b", "cmd_b")
    replica.resume()
    assert await _claimed_within(store, "b", "cmd_b", RECOVERY)
    assert not await _claim(store, "c", "cmd_b")


async def test_a_cluster_without_replicas_acknowledges_nothing(redis_cluster: RedisCluster, opened: Opener) -> None:
    store = opened(redis_cluster.url, claim_replicas=1)
    with pytest.raises(StoreUnavailable, match="0 of 1"):
        await _claim(store, "a")
    # What needs no acknowledgement works.
    assert await store.get(JOB) is not None


async def test_a_master_that_died_is_followed_by_its_replica(
    pair: tuple[RedisServer, RedisServer], opened: Opener, tmp_path: Path
) -> None:
    master, replica = pair
    with SentinelProcess(tmp_path / "sentinel", master) as sentinel:
        await _knows_a_replica(sentinel)
        store = opened(f"redis+sentinel://{sentinel.address}/{SERVICE_NAME}/0", claim_replicas=1)
        assert await _claim(store, "a")
        stream = store.changes()
        assert await anext(stream) is None

        store._redis._replicas = 0
        master.kill()
        with pytest.raises(StoreUnavailable):
            await _claim(store, "b", "cmd_b")
        assert await _claimed_within(store, "b", "cmd_b", RECOVERY)
        assert not await _claim(store, "other", JOB)
        with replica.client() as client:
            assert client.exists(keys.claim("cmd_b"))

        # The subscription follows, and says that it may have missed something.
        assert await asyncio.wait_for(anext(stream), RECOVERY) is None
        await stream.aclose()  # type: ignore[attr-defined]


async def test_a_master_that_was_demoted_is_left(
    pair: tuple[RedisServer, RedisServer], opened: Opener, tmp_path: Path
) -> None:
    master, replica = pair
    with SentinelProcess(tmp_path / "sentinel", master) as sentinel:
        await _knows_a_replica(sentinel)
        store = opened(f"redis+sentinel://{sentinel.address}/{SERVICE_NAME}/0")
        await asyncio.gather(*(_claim(store, "a", f"cmd_{n}") for n in range(20)))
        with sentinel.client() as client:
            client.execute_command("SENTINEL", "FAILOVER", SERVICE_NAME)
        # Until the old master has heard of it, it takes writes that will be lost: only the fence helps there.
        await eventually(lambda: _role(master) == "slave", timeout=RECOVERY + TILT)
        assert await _claimed_within(store, "b", "cmd_b", RECOVERY)
        with replica.client() as client:
            assert client.exists(keys.claim("cmd_b"))
        assert master.alive


def _role(server: RedisServer) -> str | None:
    # A server that changes its role closes its connections.
    with contextlib.suppress(redis.ConnectionError), server.client() as client:
        return str(client.info("replication")["role"])
    return None


async def _knows_a_replica(sentinel: SentinelProcess) -> None:
    with sentinel.client() as client:
        await eventually(
            lambda: any(
                one["flags"] == "slave" and one["master-link-status"] == "ok"
                for one in map(_pairs, client.execute_command("SENTINEL", "REPLICAS", SERVICE_NAME))
            ),
            timeout=RECOVERY,
        )


def _pairs(flat: Any) -> dict[str, str]:
    return flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))


@pytest.mark.usefixtures("_redis_is_there")
async def test_a_slot_that_moved_is_followed(opened: Opener, tmp_path: Path) -> None:
    with RedisCluster(tmp_path) as cluster:
        rig = StoreRig(opened(cluster.url, max_connections=8))
        record = await rig.running(request=b"asked")
        slot = key_slot(keys.claim(JOB).encode())
        count = len(cluster.nodes)
        old = next(n for n in range(count) if 16_384 * n // count <= slot < 16_384 * (n + 1) // count)
        source, target = cluster.nodes[old], cluster.nodes[(old + 1) % count]
        with source.client() as here, target.client() as there:
            source_id, target_id = (one.execute_command("CLUSTER MYID") for one in (here, there))
            there.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", source_id)
            here.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", target_id)
            names = here.execute_command("CLUSTER GETKEYSINSLOT", slot, 100)
            assert len(names) == 4  # claim, request, and the two lists of active jobs
            here.execute_command("MIGRATE", target.host, target.port, "", 0, round(PATIENCE * 500), "KEYS", *names)

            # While a slot moves, Redis refuses what takes several of its keys (TRYAGAIN).
            for answer in await asyncio.gather(*(rig.store.get(JOB) for _ in range(20)), return_exceptions=True):
                assert isinstance(answer, StoreUnavailable) or answer == structs.replace(record, now=answer.now)  # type: ignore[union-attr]
            with pytest.raises(StoreUnavailable):
                await rig.store.advance(record, S.RUNNING, body=b"moving")

            for node in cluster.nodes:
                with node.client() as client:
                    client.execute_command("CLUSTER SETSLOT", slot, "NODE", target_id)
        answers = await asyncio.gather(*(rig.store.get(JOB) for _ in range(20)))
        assert {answer.revision for answer in answers if answer} == {record.revision}
        assert (await rig.store.finish(record, S.CLOSED, body=b"", ttl=9.0))[0]
        assert await rig.store.request(JOB) == b"asked"


async def test_a_node_that_is_gone_for_a_while_is_found_again(redis_cluster: RedisCluster, opened: Opener) -> None:
    store = opened(redis_cluster.url, max_connections=8)
    ids = [f"cmd_{n}" for n in range(30)]
    assert all(await asyncio.gather(*(_claim(store, "a", id) for id in ids)))
    redis_cluster.nodes[0].kill()
    answers = await asyncio.gather(*(store.get(id) for id in ids), return_exceptions=True)
    told = [answer for answer in answers if isinstance(answer, BaseException)]
    assert {type(answer) for answer in told} == {StoreUnavailable}

    await asyncio.to_thread(redis_cluster.nodes[0].start)
    assert await _claimed_within(store, "b", "cmd_other", RECOVERY)
    async with asyncio.timeout(RECOVERY):
        while True:
            answers = await asyncio.gather(*(store.get(id) for id in ids), return_exceptions=True)
            assert all(not isinstance(a, BaseException) or isinstance(a, StoreUnavailable) for a in answers)
            if not any(isinstance(answer, BaseException) for answer in answers):
                break


async def test_scripts_that_every_node_forgot_are_sent_again(redis_cluster: RedisCluster, opened: Opener) -> None:
    store = opened(redis_cluster.url)
    for round in range(2):
        assert all(await asyncio.gather(*(_claim(store, "a", f"cmd_{round}_{n}") for n in range(30))))
        for node in redis_cluster.nodes:
            with node.client() as client:
                client.script_flush()
