"""Redis that is slow, gone, full, read-only or half dead: each is `StoreUnavailable`, and ends by itself."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from service.core.model.states import ClaimState
from service.errors import StoreUnavailable
from service.ports.store import Appended
from service.store import RedisStore, open_store, urls
from tests.conftest import RedisStarter
from tests.contract.store_rig import JOB, LEASE, RECORD_OUTPUT, RETENTION, StoreRig
from tests.support.redis_server import RedisServer
from tests.support.tcp_proxy import Action, Fault, Plan, Side, TcpProxy
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.integration

S = ClaimState
Opener = Callable[..., RedisStore]
RECOVERY = PATIENCE
"""Seconds within which everything works again once Redis is back, on whatever machine."""


@pytest.fixture
async def opened() -> AsyncIterator[Opener]:
    """Opens stores that are closed at the end."""
    stores: list[RedisStore] = []

    def opener(where: RedisServer | TcpProxy, **options: Any) -> RedisStore:
        url = where.url if isinstance(where, RedisServer) else f"redis://{where.host}:{where.port}"
        stores.append(open_store(url, retention=RETENTION, record_output=RECORD_OUTPUT, **options))
        return stores[-1]

    yield opener
    for store in stores:
        await store.close()


@pytest.fixture
async def network(redis_server: RedisServer) -> AsyncIterator[TcpProxy]:
    """A network between the store and Redis."""
    async with TcpProxy(redis_server.host, redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timeouts of a fraction of the real ones."""
    monkeypatch.setattr(urls, "REPLY_TIMEOUT", 0.3)
    monkeypatch.setattr("service.store.redis_client.DEADLINE", 0.5)


async def _recovered(store: RedisStore) -> None:
    """Returns as soon as the store works."""
    async with asyncio.timeout(RECOVERY):
        while True:
            try:
                await store.get(JOB)
            except StoreUnavailable:
                await asyncio.sleep(0.01)
            else:
                return


async def _claim(store: RedisStore, token: str, id: str = JOB) -> bool:
    done, _, _ = await store.claim(id, token=token, owner="replica", lease=LEASE, body=b"")
    return done


@pytest.mark.parametrize("action", [Action.RESET, Action.CLOSE])
async def test_a_claim_whose_reply_was_lost_is_sent_once_and_known_as_ours_afterwards(
    redis_server: RedisServer, network: TcpProxy, opened: Opener, action: Action
) -> None:
    store = opened(network)
    await _claim(store, "t", "cmd_other")
    with redis_server.client() as client:
        client.config_resetstat()
        network.plan.reply = Fault(action, when=b"our-token", side=Side.CLIENT)
        with pytest.raises(StoreUnavailable):
            await _claim(store, "our-token")
        assert network.plan.reply.hits == 1

        # Then it stands, and was sent once.
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 1
        record = await opened(redis_server).get(JOB)
        assert record is not None
        assert (record.token, record.revision) == ("our-token", 1)

    assert await _claim(store, "our-token")
    assert not await _claim(store, "another")


async def test_a_dispatch_whose_reply_was_lost_is_not_done_twice(network: TcpProxy, opened: Opener) -> None:
    store = opened(network)
    await StoreRig(store).running("cmd_other")
    _, mine, _ = await store.claim(JOB, token="t", owner="r", lease=LEASE, body=b"")
    network.plan.reply = Fault(Action.RESET, when=b"on-its-way", side=Side.CLIENT)
    with pytest.raises(StoreUnavailable):
        await store.dispatch(mine, lease=LEASE, body=b"on-its-way")
    done, record = await store.dispatch(mine, lease=LEASE, body=b"on-its-way")
    assert not done
    assert record is not None
    assert record.state is S.DISPATCHED


async def test_a_slow_redis_is_waited_for_within_the_deadline(network: TcpProxy, opened: Opener) -> None:
    store = opened(network)
    await _recovered(store)
    network.plan.delay_reply = 1.0
    await _recovered(store)

    network.plan.delay_reply = 3600.0
    with pytest.raises(StoreUnavailable, match="in time"):
        await _claim(store, "t")

    network.plan.delay_reply = 0.0
    await _recovered(store)


async def test_a_redis_that_is_gone_is_told_at_once_and_found_again_without_its_data(
    redis_server: RedisServer, opened: Opener
) -> None:
    store = opened(redis_server)
    assert await _claim(store, "a")
    redis_server.kill()
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="can't be reached"):
            await store.get(JOB)

    await asyncio.to_thread(redis_server.start)
    await _recovered(store)
    assert await store.get(JOB) is None
    assert await _claim(store, "b")


async def test_a_redis_that_keeps_its_data_has_it_after_kill(start_redis: RedisStarter, opened: Opener) -> None:
    server = start_redis(appendonly=True, appendfsync="always")
    rig = StoreRig(opened(server))
    record = await rig.running(request=b"asked")
    await rig.store.advance(record, S.RUNNING, body=b"seen", append=Appended(0, b"output"))
    server.kill()
    with pytest.raises(StoreUnavailable):
        await rig.store.get(JOB)
    await asyncio.to_thread(server.start)
    await _recovered(rig.store)

    again = await rig.record(JOB)
    assert (again.state, again.body, again.token) == (S.RUNNING, b"seen", record.token)
    assert await rig.store.output(JOB, 0, 99) == Appended(0, b"output")
    assert await rig.store.request(JOB) == b"asked"


async def test_a_full_redis_takes_all_of_a_step_or_nothing(start_redis: RedisStarter, opened: Opener) -> None:
    server = start_redis(maxmemory_policy="noeviction")
    rig = StoreRig(opened(server))
    record = await rig.running()
    _, record_now = await rig.store.advance(record, S.RUNNING, body=b"", append=Appended(0, b"kept"))
    assert record_now is not None
    with server.client() as client:
        client.config_set("maxmemory", 1)
    for work in (
        _claim(rig.store, "t", "cmd_other"),
        rig.store.advance(record_now, S.RUNNING, body=b"big", append=Appended(4, b"more")),
        rig.store.finish(record_now, S.CLOSED, body=b"big", ttl=9.0),
        rig.store.request_cancel(JOB),
    ):
        with pytest.raises(StoreUnavailable, match="out of memory"):
            await work

    # What is there can be read.
    assert (await rig.record(JOB)).revision == record_now.revision
    assert await rig.store.output(JOB, 0, 99) == Appended(0, b"kept")

    with server.client() as client:
        client.config_set("maxmemory", 0)
    assert await _claim(rig.store, "t", "cmd_other")


async def test_a_replica_is_not_written_to_and_left_as_soon_as_it_is_seen(
    start_redis: RedisStarter, opened: Opener
) -> None:
    server = start_redis()
    store = opened(server)
    assert await _claim(store, "t")
    with server.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", 1)
        with pytest.raises(StoreUnavailable, match="replica"):
            await _claim(store, "t", "cmd_other")
        client.execute_command("REPLICAOF", "NO", "ONE")
    assert await _claim(store, "t", "cmd_other")


async def test_a_redis_that_is_loading_is_waited_for(start_redis: RedisStarter, opened: Opener) -> None:
    server = start_redis(
        appendonly=True, key_load_delay=100_000, loading_process_events_interval_bytes=1024, rdbcompression=False
    )
    store = opened(server)
    with server.client() as client:
        client.mset({f"filler{n}": "x" * 1000 for n in range(4000)})
        client.bgrewriteaof()
        while client.info("persistence")["aof_rewrite_in_progress"]:
            await asyncio.sleep(0.01)
    assert await _claim(store, "t")
    server.kill()

    starting = asyncio.create_task(asyncio.to_thread(server.start))
    told = set()
    while not starting.done():
        try:
            await store.get(JOB)
        except StoreUnavailable as error:
            told.add(error.detail)
        if "Redis is still loading its data." in told:
            with server.client() as client:
                client.config_set("key-load-delay", 0)
            break
        await asyncio.sleep(0.01)
    await starting
    assert "Redis is still loading its data." in told
    await _recovered(store)
    assert not await _claim(store, "other")


async def test_scripts_that_redis_forgot_are_sent_again(redis_server: RedisServer, opened: Opener) -> None:
    rig = StoreRig(opened(redis_server))
    record = await rig.running()
    with redis_server.client() as client:
        client.script_flush()
        done, _ = await rig.store.advance(record, S.RUNNING, body=b"")
        assert done
        client.script_flush()
    found = await rig.store.get_many([JOB, "cmd_none"] * 40)
    assert [one is not None for one in found] == [True, False] * 40


async def test_a_connection_that_died_in_silence_is_replaced(
    network: TcpProxy, opened: Opener, impatient: None
) -> None:
    network.next_plans.append(Plan(reply=Fault(Action.HOLD, when=b"cmd_last_words")))
    store = opened(network, max_connections=1)
    await _recovered(store)
    before = len(network.connections)
    with pytest.raises(StoreUnavailable, match="in time"):
        await store.get("cmd_last_words")
    await _recovered(store)
    assert len(network.connections) > before


async def test_one_connection_serves_a_hundred(redis_server: RedisServer, opened: Opener) -> None:
    store = opened(redis_server, max_connections=1)
    answers = await asyncio.gather(*(_claim(store, f"t{n}", f"cmd_{n % 10}") for n in range(100)))
    assert sum(answers) == 10
    with redis_server.client() as client:
        clients = [one for one in client.client_list() if one["name"] == "oncebox"]
    assert len(clients) == 1


async def test_a_hundred_that_wait_for_a_dead_redis_are_told_so_in_time(
    redis_server: RedisServer, opened: Opener, impatient: None
) -> None:
    store = opened(redis_server, max_connections=1)
    await _recovered(store)
    redis_server.pause()
    answers = await asyncio.gather(*(_claim(store, f"t{n}", f"cmd_{n}") for n in range(100)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {StoreUnavailable}
    redis_server.resume()
    await _recovered(store)


async def test_what_nobody_waits_for_any_more_is_not_sent(
    redis_server: RedisServer, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urls, "REPLY_TIMEOUT", PATIENCE)
    monkeypatch.setattr("service.store.redis_client.DEADLINE", PATIENCE)
    store = opened(redis_server, max_connections=1)
    await store.get(JOB)
    redis_server.pause()
    first = asyncio.create_task(store.get(JOB))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    monkeypatch.setattr("service.store.redis_client.DEADLINE", 0.1)
    with pytest.raises(StoreUnavailable):
        await _claim(store, "late", "cmd_late")
    redis_server.resume()
    await first
    assert await store.get("cmd_late") is None


async def test_a_call_that_is_broken_off_never_leaves_its_reply_to_another(network: TcpProxy, opened: Opener) -> None:
    rig = StoreRig(opened(network, max_connections=3))
    ids = [f"cmd_{n}" for n in range(20)]
    for id in ids:
        await rig.claimed(id, body=id.encode())
    network.plan.delay_reply = 0.002
    chance = random.Random(7)

    async def read(id: str) -> None:
        record = await rig.store.get(id)
        assert record is not None
        assert record.body == id.encode()

    for _ in range(40):
        tasks = [asyncio.create_task(read(chance.choice(ids))) for _ in range(10)]
        for task in chance.sample(tasks, 5):
            await asyncio.sleep(chance.random() * 0.004)
            task.cancel()
        for answer in await asyncio.gather(*tasks, return_exceptions=True):
            assert answer is None or isinstance(answer, asyncio.CancelledError)


async def test_cuts_at_any_byte_are_either_right_or_unavailable(network: TcpProxy, opened: Opener) -> None:
    rig = StoreRig(opened(network, max_connections=4))
    chance = random.Random(11)
    claimed: dict[str, str] = {}
    for n in range(150):
        action = chance.choice([Action.RESET, Action.CLOSE])
        network.plan.reply = Fault(action, after=chance.randrange(400), side=chance.choice(list(Side)))
        network.plan.request = Fault(action, after=chance.randrange(1500))
        works = [_claim(rig.store, f"t{n}", f"cmd_{n % 60}_{part}") for part in range(4)]
        for part, answer in enumerate(await asyncio.gather(*works, return_exceptions=True)):
            id = f"cmd_{n % 60}_{part}"
            if answer is True:
                assert claimed.setdefault(id, f"t{n}") == f"t{n}", "one claim for two"
            else:
                assert answer is False or isinstance(answer, StoreUnavailable)
    network.plan.reply = network.plan.request = None
    await _recovered(rig.store)
    for id, token in claimed.items():
        assert (await rig.record(id)).token == token


async def test_wrong_credentials_are_named_as_such(start_redis: RedisStarter, opened: Opener) -> None:
    server = start_redis(requirepass="secret")
    assert await opened(server).get(JOB) is None
    server.password = None
    with pytest.raises(StoreUnavailable, match="wants a password"):
        await opened(server).get(JOB)
    server.password = "wrong"
    with pytest.raises(StoreUnavailable, match="credentials"):
        await opened(server).health()


async def test_health_says_what_an_operator_must_know(start_redis: RedisStarter, opened: Opener) -> None:
    server = start_redis(appendonly=True, maxmemory_policy="allkeys-lru")
    store = opened(server)
    health = await store.health()
    assert health.version
    assert (health.maxmemory_policy, health.persistence, health.role) == ("allkeys-lru", "aof", "master")
    with server.client() as client:
        client.config_set("appendonly", "no")
        assert (await store.health()).persistence == "none"
        client.config_set("save", "60 1")
        assert (await store.health()).persistence == "rdb"
    server.kill()
    with pytest.raises(StoreUnavailable):
        await store.health()


async def test_closing_tells_whoever_waits(redis_server: RedisServer, opened: Opener, impatient: None) -> None:
    store = opened(redis_server, max_connections=1)
    await store.get(JOB)
    redis_server.pause()
    works = [asyncio.create_task(_claim(store, "t", f"cmd_{n}")) for n in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    works.append(asyncio.create_task(_claim(store, "t", "cmd_late")))
    await asyncio.sleep(0)
    await store.close()
    answers = await asyncio.gather(*works, return_exceptions=True)
    assert {type(answer) for answer in answers} == {StoreUnavailable}
    redis_server.resume()


async def test_a_closed_store_says_so(redis_server: RedisServer, opened: Opener) -> None:
    store = opened(redis_server)
    await store.get(JOB)
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.get(JOB)
