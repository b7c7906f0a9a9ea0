"""What goes on behind the requests: jobs whose index was lost, sandboxes that can't be swept."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from service.core import records
from service.core.app import Core
from service.core.claims import background
from service.core.model import identity
from service.core.model.labels import RESERVED
from service.core.model.states import ClaimState
from service.core.records import SandboxClaim
from service.errors import StoreUnavailable
from service.messages import SandboxState
from service.ports.engine import NotReached, SandboxInfo, SandboxListing
from service.store import keys
from tests.integration.core_rig import Rig, eventually, follow, submit
from tests.support.redis_server import RedisServer
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.integration


async def test_a_job_whose_lists_were_lost_is_listed_again_by_whoever_looks(here: Rig) -> None:
    core = await here.replica()
    box = await here.sandbox(core)
    id = await submit(core, box, "sleep 60")
    await core.polls.poll(id)
    for name, command in ((keys.looks(id), "ZREM"), (keys.active(box), "SREM")):
        await core.store._redis.command(command, name, id)  # type: ignore[attr-defined]
    assert await core.store.active_of(box) == []

    async def listed() -> bool:
        """After a poll; one that was under way already may have written before."""
        await core.polls.poll(id)
        return await core.store.active_of(box) == [id]

    await eventually(listed)
    await core.jobs.cancel("default", id)


async def test_a_sandbox_that_can_not_be_swept_holds_up_no_other(here: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    core = await here.replica()
    digest = await claimed(core)
    tried = sweeping(core, monkeypatch, [duplicates(digest, name) for name in ("stuck", "b")], stuck="stuck")
    await core.sweeper.round()

    assert tried == ["stuck", "b"]


# -- ready


async def test_why_a_replica_is_not_ready_is_logged_once(
    core: Core, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        return [line.getMessage() for line in caplog.records if "ready" in line.getMessage()]

    assert await core.readiness() == []
    redis_server.kill()
    for _ in range(3):
        assert await core.readiness() == ["Redis can't be reached."]
    (line,) = told()
    assert line.startswith("not ready: Redis can't be reached. ")
    assert len(line) > len("not ready: Redis can't be reached. "), "and what the client saw"
    redis_server.start()

    async def ready() -> bool:
        return await core.readiness() == []

    await eventually(ready)
    assert told()[-1] == "ready again"


async def test_a_redis_that_takes_no_writes_is_none_to_work_with__and_says_why(
    core: Core, redis_server: RedisServer
) -> None:
    with redis_server.client() as client:
        client.replicaof("127.0.0.1", 1)
        assert await core.readiness() == ["This Redis server is a replica and takes no writes."]
        client.replicaof("no", "one")
        assert await core.readiness() == []
        client.config_set("maxmemory", 1)
        assert await core.readiness() == ["Redis is out of memory."]
        client.config_set("maxmemory", 0)
        client.config_set("min-replicas-to-write", 1)
        assert await core.readiness() == ["Too few Redis replicas are connected."]
        client.config_set("min-replicas-to-write", 0)
    assert await core.readiness() == []


# -- what runs all the time


async def test_a_loop_that_ends_is_started_again__and_where_it_goes_on_the_replica_says_so(
    core: Core, other: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "BACKOFF", (0.01, 0.05))
    counted: list[str] = []
    core.background._restarted = counted.append

    async def broken(*_: object, **__: object) -> list[str]:
        raise ValueError("no such shard")

    due = core.store.due
    monkeypatch.setattr(core.store, "due", broken)

    async def told() -> bool:
        return any("poller" in reason for reason in await core.readiness())

    await eventually(told)
    assert await other.readiness() == []
    assert set(counted) == {"poller"}
    monkeypatch.setattr(core.store, "due", due)
    monkeypatch.setattr(background, "STEADY", 0.5)

    async def well() -> bool:
        return await core.readiness() == []

    await eventually(well)


async def test_a_message_of_somebody_else_s_ends_no_subscription(
    core: Core, box: str, redis_server: RedisServer
) -> None:
    id = await submit(core, box, "sleep 60")
    async with core.watches.of(id) as watch:
        while watch.record is None:
            await watch.change(1.0)
        with redis_server.client() as client:
            client.publish("oncebox:changes", b"\xff\xfe")
        watch.poked.clear()
        await core.jobs.cancel("default", id)
        async with asyncio.timeout(PATIENCE):
            await watch.poked.wait()
    assert core.background.failing() == []
    assert core.background._failures == {}


async def test_an_entry_that_is_no_id_holds_up_no_other(core: Core, box: str, redis_server: RedisServer) -> None:
    foreign = b"\xff\xfe"
    shard = keys.shard(box)
    chores, jobs = keys.chores("fences", shard), keys.jobs("default", shard)
    with redis_server.client() as client:
        for key in [*keys.LOOKS, chores, jobs, keys.OUTPUTS[shard][0]]:
            client.zadd(key, {foreign: 1})
        client.zadd(jobs, {b"cmd_far": "inf"})
        client.zadd(chores, {f"{identity.command_id(box, 'A' * 22)} \u00b2": 1, "cmd_x": 1})
        client.sadd(keys.active(box), foreign)
        id = await submit(core, box, "echo said")
        page, text = await follow(core, id)
        assert (page.exit_code, text) == (0, "said\n")
        listed = await core.job_list.page("default", sandbox_id=None, page_size=10, page_token=None)
        assert [job.command_id for job in listed.items] == [id]
        await core.sweeper.round()
        assert client.zscore(chores, "cmd_x") is None, "what can never be done is dropped"
        await core.sandboxes.delete("default", box)
    assert core.background._failures == {}


# -- what can't be read


@pytest.mark.parametrize("raw", [b"2 running 1 1 1 0 0 t o\n{}", b"1 running 1 1 1 0 0 t o\n{not json", b"\xff"])
async def test_a_record_that_can_not_be_read_is_left_out_of_the_list__and_counted(
    core: Core, box: str, redis_server: RedisServer, raw: bytes
) -> None:
    counted: list[None] = []
    core.telemetry.unreadable = lambda: counted.append(None)  # type: ignore[method-assign]
    ids = [await submit(core, box, "true") for _ in range(3)]
    for id in ids:
        await follow(core, id)
    with redis_server.client() as client:
        client.set(keys.claim(ids[1]), raw)
    page = await core.job_list.page("default", sandbox_id=None, page_size=10, page_token=None)
    assert [job.command_id for job in page.items] == [ids[2], ids[0]]
    assert len(counted) == 1
    assert ids[1] in [row.command_id for row in await core.store.jobs(
        tenant="default", sandbox_id=None, before=None, limit=10
    )], "a newer replica will know what to do with it"  # fmt: skip


async def test_a_sandbox_whose_record_can_not_be_read_is_left_out_of_the_list(
    core: Core, here: Rig, box: str, redis_server: RedisServer
) -> None:
    another = await here.sandbox(core)
    with redis_server.client() as client:
        client.set(keys.sandbox(another), b"{")
    page = await core.sandbox_list.page("default", metadata={}, states=set(), page_size=200, page_token=None)
    found = [sandbox.sandbox_id for sandbox in page.items]
    assert box in found
    assert another not in found


@pytest.mark.parametrize("attempt", ["\u00b2", "1" * 5000, "\u0661", "-1", "", "1.0"])
async def test_a_label_that_somebody_wrote_at_the_engine_ends_no_sweep(
    core: Core, here: Rig, monkeypatch: pytest.MonkeyPatch, attempt: str
) -> None:
    given_up = duplicates(await claimed(core), "b")
    labelled = msgspec.structs.replace(given_up, id="a", metadata={**given_up.metadata, f"{RESERVED}attempt": attempt})
    tried = sweeping(core, monkeypatch, [labelled, given_up])
    await core.sweeper.round()
    assert tried == ["b"]


async def test_a_claim_that_can_not_be_read_holds_up_no_other_sandbox_s_sweep(
    core: Core, monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer
) -> None:
    given_up = duplicates(await claimed(core), "b")
    unreadable = msgspec.structs.replace(given_up, id="a", metadata={**given_up.metadata, f"{RESERVED}idem": "e" * 32})
    with redis_server.client() as client:
        client.set(keys.claim("e" * 32), b"9 newer")
    tried = sweeping(core, monkeypatch, [unreadable, given_up])
    await core.sweeper.round()
    assert tried == ["b"]


async def test_a_chore_that_can_not_be_done_holds_up_no_other(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    async def trim(_: int) -> int:
        raise StoreUnavailable

    monkeypatch.setattr(core.store, "trim_outputs", trim)
    tried = sweeping(core, monkeypatch, [duplicates(await claimed(core), "b")])
    await core.sweeper.round()
    assert tried == ["b"]


@pytest.mark.parametrize("state", SandboxState)
async def test_a_late_duplicate_is_deleted_whatever_its_state_unless_it_goes_by_itself(
    core: Core, monkeypatch: pytest.MonkeyPatch, state: SandboxState
) -> None:
    late = msgspec.structs.replace(duplicates(await claimed(core), "b"), state=state)
    tried = sweeping(core, monkeypatch, [late])
    await core.sweeper.round()
    assert tried == ([] if state in (SandboxState.STOPPING, SandboxState.TERMINATED) else ["b"])


async def claimed(core: Core) -> str:
    """The digest of a claim that gave its first attempt up."""
    digest = "d" * 32
    claim = SandboxClaim(tenant="t", fingerprint="f", generation="g", given_up=[1], sandbox_id="kept")
    _, mine, _ = await core.store.claim(digest, token="t", owner="o", lease=60, body=records.encode(claim))
    await core.store.settle(mine, ClaimState.DONE, body=records.encode(claim), ttl=60)
    return digest


def duplicates(digest: str, sandbox_id: str) -> SandboxInfo:
    """A late sandbox of that attempt."""
    labels = {
        f"{RESERVED}{k}": v for k, v in {"idem": digest, "tenant": "t", "generation": "g", "attempt": "1"}.items()
    }
    return SandboxInfo(id=sandbox_id, state=SandboxState.RUNNING, metadata=labels, created_at=1.0)


def sweeping(core: Core, monkeypatch: pytest.MonkeyPatch, late: list[SandboxInfo], stuck: str = "") -> list[str]:
    """The engine has ``late``; the ids that a sweep deletes there, one of which it can't."""
    tried: list[str] = []

    async def listed(*_: object, **__: object) -> SandboxListing:
        return SandboxListing(items=late, has_next=False)

    async def delete(sandbox_id: str) -> None:
        tried.append(sandbox_id)
        if sandbox_id == stuck:
            raise NotReached("no")

    monkeypatch.setattr(core.engine, "list_sandboxes", listed)
    monkeypatch.setattr(core.engine, "delete_sandbox", delete)
    return tried
