"""The subscription to changes through restarts, cuts and silence."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from service.store import changes, open_store
from tests.contract.store_rig import JOB, LEASE, RECORD_OUTPUT, RETENTION, StoreRig
from tests.support.redis_server import RedisServer
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.integration

WITHIN = PATIENCE
"""Seconds."""


@pytest.fixture
async def network(redis_server: RedisServer) -> AsyncIterator[TcpProxy]:
    """A network between the subscription and Redis."""
    async with TcpProxy(redis_server.host, redis_server.port) as proxy:
        yield proxy


@pytest.fixture
async def rig(redis_server: RedisServer, network: TcpProxy) -> AsyncIterator[StoreRig]:
    """A store behind the network."""
    store = open_store(f"redis://{network.host}:{network.port}", retention=RETENTION, record_output=RECORD_OUTPUT)
    yield StoreRig(store)
    await store.close()


@pytest.fixture
async def heard(rig: StoreRig) -> AsyncIterator[list[str | None]]:
    """What the subscription said so far."""
    said: list[str | None] = []

    async def listen() -> None:
        async for id in rig.store.changes():
            said.append(id)  # noqa: PERF401

    task = asyncio.create_task(listen())
    await eventually(lambda: said == [None])
    yield said
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_silence_is_noticed_within_ten_seconds() -> None:
    # Silence is looked at when a ping is due.
    assert changes.SILENCE + changes.PING_EVERY <= 10.0


async def test_a_cut_is_told_and_mended(rig: StoreRig, network: TcpProxy, heard: list[str | None]) -> None:
    assert network.cut() == 1
    await eventually(lambda: heard == [None, None], timeout=WITHIN)
    await rig.claimed()
    await eventually(lambda: heard == [None, None, JOB])


async def test_a_restart_is_told_and_mended(rig: StoreRig, redis_server: RedisServer, heard: list[str | None]) -> None:
    redis_server.kill()
    await asyncio.to_thread(redis_server.start)
    await eventually(lambda: heard == [None, None], timeout=WITHIN)
    await rig.claimed()
    await eventually(lambda: heard == [None, None, JOB])


async def test_a_connection_that_died_in_silence_is_told_and_replaced(
    redis_server: RedisServer, network: TcpProxy, rig: StoreRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "PING_EVERY", 0.05)
    monkeypatch.setattr(changes, "SILENCE", 0.2)
    stream = rig.store.changes()
    assert await anext(stream) is None

    # Given nothing to say, it stays: pings are answered
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.wait([waiting], timeout=0.6)
    assert not waiting.done()
    assert len(network.connections) == 1

    network.plan.hold_reply = True
    await eventually(lambda: len(network.connections) > 1)
    network.plan.hold_reply = False
    assert await waiting is None
    await rig.store.claim(JOB, token="t", owner="r", lease=LEASE, body=b"")
    while await anext(stream) != JOB:
        pass
    await stream.aclose()  # type: ignore[attr-defined]
