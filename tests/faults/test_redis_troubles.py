"""Redis in trouble: nothing is run without a claim that it acknowledged, and all is well within 10 s of its return."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest
import redis as redis_client

from tests.faults.rig import OWNER, Rig
from tests.faults.tally import Tally, tries
from tests.faults.test_stops import Load
from tests.support.network_plan import Action, Fault
from tests.support.redis_server import Option

STANDSTILL = 20.0
"""Seconds for a machine that is slow, beyond what the service promises."""

DEADLINE = 12.0 + STANDSTILL
"""Seconds in which a submission is answered while Redis is in trouble."""

RECOVERY = 10.0 + STANDSTILL
"""Seconds after Redis's return within which a submission works."""

PADDING = 400
"""Keys that make a slow start of Redis take minutes, unless it is told to hurry."""


@pytest.fixture(autouse=True)
def _claims_that_nobody_knows_of_are_taken_over(rig: Rig) -> None:
    """A replica does not know of a claim that Redis did not answer to: who retries waits for the lease to end."""
    rig.lease, rig.claim_wait = 4.0, 12.0


Trouble = Callable[[Rig], AbstractAsyncContextManager[None]]


@contextlib.asynccontextmanager
async def killed(rig: Rig) -> AsyncIterator[None]:
    """Dead; back with what it had on disk."""
    rig.redis.kill()
    yield
    await asyncio.to_thread(rig.redis.start)


@contextlib.asynccontextmanager
async def frozen(rig: Rig) -> AsyncIterator[None]:
    """It accepts connections, and answers nothing."""
    rig.redis.pause()
    yield
    rig.redis.resume()


@contextlib.asynccontextmanager
async def slow(rig: Rig) -> AsyncIterator[None]:
    """Every answer takes 5 s."""
    rig.redis_net.plan.delay_reply = 5.0
    yield
    rig.redis_net.plan.delay_reply = 0.0


@contextlib.asynccontextmanager
async def unreachable(rig: Rig) -> AsyncIterator[None]:
    """Its port refuses, and connections that were there are reset."""
    await rig.redis_net.stop_listening()
    rig.redis_net.cut()
    yield
    await rig.redis_net.listen()


@contextlib.asynccontextmanager
async def deaf(rig: Rig) -> AsyncIterator[None]:
    """What is sent to it does not arrive, without a reset, on new connections too."""
    rig.redis_net.plan.hold_request = True
    yield
    rig.redis_net.plan.hold_request = False


@contextlib.asynccontextmanager
async def mute(rig: Rig) -> AsyncIterator[None]:
    """It does what it is told, and its answers do not arrive."""
    rig.redis_net.plan.hold_reply = True
    yield
    rig.redis_net.plan.hold_reply = False


@contextlib.asynccontextmanager
async def full(rig: Rig) -> AsyncIterator[None]:
    """Out of memory under noeviction."""
    with rig.redis.client() as client:
        client.config_set("maxmemory", "1mb")
        yield
        client.config_set("maxmemory", "0")


@contextlib.asynccontextmanager
async def read_only(rig: Rig) -> AsyncIterator[None]:
    """Made a replica of a master that is not there, as after a failover."""
    with rig.redis.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        yield
        client.execute_command("REPLICAOF", "NO", "ONE")


@contextlib.asynccontextmanager
async def loading(rig: Rig) -> AsyncIterator[None]:
    """Started anew, and it does not get done with loading its data."""
    with rig.redis.client() as client:
        for number in range(PADDING):
            client.set(f"padding:{number}", "x" * 1024)
        client.save()
    rig.redis.stop()
    starting = asyncio.create_task(asyncio.to_thread(rig.redis.start))
    while not _is_loading(rig):
        await asyncio.sleep(0.01)
    yield
    with rig.redis.client() as client:
        client.config_set("key-load-delay", 0)
    await starting


def _is_loading(rig: Rig) -> bool:
    with rig.redis.client() as client:
        try:
            client.get("x")
        except redis_client.BusyLoadingError:
            return True
        except redis_client.ConnectionError:
            return False
        raise AssertionError("Redis has started already")


async def check_nothing_runs_and_recovery(rig: Rig, trouble: Trouble, tally: Tally, marks: list[str]) -> None:
    """Submits while there is trouble, then counts, then retries when it is over."""
    sandbox_id = await rig.sandbox()
    primed = await rig.caller.submit(rig.urls[0], sandbox_id, rig.command("before"), key="before")
    assert primed.status == 202
    await rig.caller.ended(rig.urls[0], primed.command_id)
    async with trouble(rig):
        began = time.monotonic()
        answers = await asyncio.gather(
            *(rig.caller.submit(rig.urls[0], sandbox_id, rig.command(mark), key=mark) for mark in marks),
            rig.caller.create(rig.urls[0], key="k", workspace_owner=OWNER),
            rig.caller.job(rig.urls[0], primed.command_id),
        )
        assert time.monotonic() - began < DEADLINE
        for answer in answers[:-1]:
            assert (answer.status, answer.code) == (503, "STORE_UNAVAILABLE"), answer
        assert answers[-1].status in (200, 503)
        assert (await rig.caller.send("GET", f"{rig.urls[0]}/healthz")).status == 200
        assert set(rig.runs()) == {"before"}
        assert (await rig.engine_counts())["create"] == 1
    back = time.monotonic()
    answers = await asyncio.gather(
        *(
            rig.caller.submit_until_answered([rig.urls[0]], sandbox_id, rig.command(mark), key=mark, within=RECOVERY)
            for mark in marks
        ),
    )
    assert time.monotonic() - back < RECOVERY
    await rig.replicas[0].ready()
    jobs = {mark: a.command_id if a.status == 202 else None for mark, a in zip(marks, answers, strict=True)}
    await tally.audit(rig, rig.urls[0], jobs)


DURABLE: dict[str, Option] = {"appendonly": True, "appendfsync": "always"}

TROUBLES: dict[str, tuple[Trouble, dict[str, Option]]] = {
    "killed, restarted with its data": (killed, DURABLE),
    "killed, restarted without its data": (killed, {}),
    "frozen": (frozen, {}),
    "every answer takes 5 s": (slow, {}),
    "connections refused and reset": (unreachable, {}),
    "requests vanish": (deaf, {}),
    "answers vanish": (mute, {}),
    "out of memory": (full, {}),
    "read-only": (read_only, {}),
    "loading": (
        loading,
        {"key-load-delay": 300_000, "loading-process-events-interval-bytes": 1024, "rdbcompression": False},
    ),
}


@pytest.mark.parametrize("name", TROUBLES)
@tries(short=3, long=50)
async def test_trouble_with_redis__503_and_nothing_runs_and_soon_well_again(rig: Rig, tries: int, name: str) -> None:
    trouble, options = TROUBLES[name]
    tally = Tally(f"Redis: {name}")
    await rig.start(replicas=1, networks=True, redis=options)
    await check_nothing_runs_and_recovery(rig, trouble, tally, [f"m{number}" for number in range(tries)])
    tally.check()


@pytest.mark.parametrize("direction", ["request", "reply"])
async def test_connections_that_are_silently_dead__are_replaced(rig: Rig, direction: str) -> None:
    """The connections that there are carry nothing more, and nobody says so; new ones are fine."""
    await rig.start(replicas=1, networks=True)
    sandbox_id = await rig.sandbox()
    for connection in rig.redis_net.live:
        getattr(connection, direction).held = True
    answers = await asyncio.gather(
        *(
            rig.caller.submit_until_answered(rig.urls, sandbox_id, rig.command(f"m{n}"), key=f"m{n}", within=RECOVERY)
            for n in range(10)
        )
    )
    tally = Tally("Redis: connections silently dead")
    await tally.audit(
        rig, rig.urls[0], {f"m{n}": a.command_id if a.status == 202 else None for n, a in enumerate(answers)}
    )
    tally.check()


async def test_scripts_that_redis_forgot__are_sent_again(rig: Rig) -> None:
    await rig.start(replicas=2)
    sandbox_id = await rig.sandbox()
    jobs: dict[str, str | None] = {}
    for number in range(6):
        with rig.redis.client() as client:
            client.script_flush()
        mark = f"m{number}"
        answer = await rig.caller.submit(rig.urls[number % 2], sandbox_id, rig.command(mark), key=mark)
        assert answer.status == 202, answer
        jobs[mark] = answer.command_id
    tally = Tally("Redis: SCRIPT FLUSH")
    await tally.audit(rig, rig.urls[0], jobs)
    tally.check()


async def test_an_evicting_redis_makes_the_replica_not_ready__with_the_reason(rig: Rig) -> None:
    await rig.start(replicas=1)
    with rig.redis.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        answer = await rig.caller.send("GET", f"{rig.urls[0]}/readyz")
        assert answer.status == 503
        assert "maxmemory_policy is allkeys-lru" in str(answer.body)
        client.config_set("maxmemory-policy", "noeviction")
    assert (await rig.caller.send("GET", f"{rig.urls[0]}/readyz")).status == 200


@tries(short=12, long=400)
async def test_a_connection_to_redis_cut_at_any_byte_of_an_answer(rig: Rig, tries: int) -> None:
    """The write was done and its answer lost: claims, dispatches and settlements alike."""
    tally = Tally("Redis: connections reset at a byte of its answers, each submission")
    await rig.start(replicas=2, networks=True)
    sandbox_id = await rig.sandbox()
    jobs: dict[str, str | None] = {}
    for number in range(tries):
        mark = f"m{number}"
        when = mark.encode()
        place = random.Random(number).randrange(4000)
        rig.redis_net.plan.reply = Fault(Action.RESET, after=place, when=when if number % 2 else None)
        answer = await rig.caller.submit_until_answered(rig.urls, sandbox_id, rig.command(mark), key=mark)
        jobs[mark] = answer.command_id if answer.status == 202 else None
    rig.redis_net.plan.reply = None
    await tally.audit(rig, rig.urls[0], jobs)
    tally.check()


@pytest.mark.parametrize("durability", ["always", "everysec", "none"])
@tries(short=1, long=20)
async def test_redis_killed_under_load__every_caller_is_answered_and_nothing_runs_twice(
    rig: Rig, tries: int, durability: str
) -> None:
    """`tries` is the number of kills; a submission whose claim was lost with Redis's last second meets its fence."""
    persistent: dict[str, Option] = {"appendonly": True, "appendfsync": durability}
    tally = Tally(
        f"Redis killed under load, {'no persistence' if durability == 'none' else f'appendfsync {durability}'}"
    )
    await rig.start(replicas=3, redis={} if durability == "none" else persistent)
    sandbox_id = await rig.sandbox()
    load = Load(rig, sandbox_id, callers=10, most=100_000)
    for _ in range(tries):
        done = len(load.jobs)
        while len(load.jobs) < done + 20:
            await asyncio.sleep(0.01)
        rig.redis.kill()
        await asyncio.to_thread(rig.redis.start)
    jobs = await load.stop()
    await tally.audit(rig, rig.urls[0], jobs)
    tally.check()
