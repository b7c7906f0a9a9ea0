"""A sandbox of one key is created once: looked for before, looked for after an answer that was lost, never twice.

The store is the real one, within the process. The engine lists whatever it has, whatever it was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
import pytest

from service import errors
from service.core import records
from service.core.claims.once import Claims
from service.core.claims.ownership import Ownership
from service.core.claims.tasks import Tasks
from service.core.claims.watches import Board, Watches
from service.core.limits.quotas import Quotas
from service.core.model.identity import MadeKey
from service.core.model.policy import OneTenant, Quota
from service.core.model.states import ClaimState
from service.core.records import SandboxClaim
from service.core.sandboxes.create import Creator, Order
from service.core.sandboxes.liveness import Liveness
from service.core.sandboxes.records import SandboxRecords
from service.core.telemetry import Telemetry
from service.messages import CreateSandbox, SandboxState
from service.ports.engine import (
    EngineError,
    NotReached,
    SandboxInfo,
    SandboxListing,
    SandboxMissing,
    SandboxSpec,
    TakenBack,
    Unclear,
)
from service.ports.store import Record, Store
from service.settings import Settings
from service.store import open_store

S = ClaimState
LOST, TAKEN_BACK, REFUSED = Unclear("no answer"), TakenBack("it did not start"), NotReached("no connection")


class OneSandbox(OneTenant):
    def quota(self, tenant: str) -> Quota:
        return Quota(sandboxes=1)

    def may_use(self, tenant: str, owner: str) -> bool:
        return owner == "alice"


class Engine:
    """``answers``: what each create is answered with, whether it was made; then it is made and answered."""

    def __init__(self) -> None:
        self.there: list[SandboxInfo] = []
        self.answers: list[tuple[bool, EngineError | None]] = []
        self.deaf = False
        self.created = self.listed = 0

    def make(self, metadata: Mapping[str, str], *, at: float | None = None) -> SandboxInfo:
        number = len(self.there)
        made = SandboxInfo(
            id=f"box-{number}", state=SandboxState.RUNNING, metadata=dict(metadata), created_at=at or 1000.0 + number
        )
        self.there.append(made)
        return made

    async def create_sandbox(self, spec: SandboxSpec) -> SandboxInfo:
        self.created += 1
        await asyncio.sleep(0)
        made, error = self.answers.pop(0) if self.answers else (True, None)
        info = self.make(spec.metadata) if made else None
        if error is not None:
            raise error
        assert info is not None
        return info

    async def list_sandboxes(self, metadata: Mapping[str, str], *, page: int) -> SandboxListing:
        self.listed += 1
        if self.deaf:
            raise Unclear("no answer")
        return SandboxListing(items=self.there[page - 1 : page], has_next=page < len(self.there))

    async def get_sandbox(self, sandbox_id: str) -> SandboxInfo:
        for info in self.there:
            if info.id == sandbox_id:
                return info
        raise SandboxMissing(sandbox_id)


class World:
    """A creator over a store and an engine."""

    def __init__(self, store: Store) -> None:
        self.store, self.engine, self.tasks = store, Engine(), Tasks()
        board, telemetry, quotas, engine = Board(), Telemetry(), Quotas(store, OneSandbox()), self.engine
        ownership = Ownership(store, board, self.tasks, owner="me", lease=15.0)
        claims = Claims(store, ownership, Watches(board, store, self.tasks, self.on_read), self.tasks, telemetry)
        fake: Any = engine
        self.sandboxes = SandboxRecords(store, quotas, retention=60.0)
        self.liveness = Liveness(fake)
        self.creator = Creator(
            store, fake, ownership, claims, self.sandboxes, self.liveness, quotas, OneSandbox(), telemetry,
            Settings(volume="pvc:workspaces"), lookup_tries=(0.0, 0.0),
        )  # fmt: skip

    @staticmethod
    async def on_read(_: Record) -> float:
        return 1.0

    def order(self, key: str | None = "key", **request: Any) -> Order:
        return self.creator.order("t", CreateSandbox(**request), key)

    async def create(self, key: str | None = "key", **request: Any) -> tuple[str, str | None, bool]:
        """The claim's state, its sandbox, and whether other work answered."""
        record, replayed = await self.creator.settle(self.order(key, **request))
        return record.state.value, records.claim_body(record).sandbox_id, replayed

    async def claim(self) -> tuple[Record, SandboxClaim]:
        record = await self.store.get(self.order().digest)
        assert record is not None
        return record, records.claim_body(record)

    async def slots(self) -> int:
        return len(await self.store.holders("sandboxes:t"))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    store = open_store("memory://", retention=60.0, record_output=100)
    made = World(store)
    yield made
    await made.tasks.cancel_all()
    await store.close()


CREATED: dict[str, tuple[list[tuple[bool, EngineError | None]], tuple[str, str | None], int]] = {
    "it is made": ([], ("done", "box-0"), 1),
    "it is made, and its answer lost: it is found": ([(True, LOST)], ("done", "box-0"), 1),
    "it is not made, and nobody knows": ([(False, LOST)], ("unknown", None), 1),
    "it is refused": ([(False, REFUSED)], ("refused", None), 0),
    "it was made and taken back": ([(False, TAKEN_BACK)], ("refused", None), 0),
    "it was said to be taken back, and is there": ([(True, TAKEN_BACK)], ("done", "box-0"), 1),
}


@pytest.mark.parametrize("case", CREATED)
async def test_what_a_create_comes_to_and_whether_it_holds_a_slot(world: World, case: str) -> None:
    world.engine.answers, settled, slots = CREATED[case]
    world.engine.answers = list(world.engine.answers)
    assert await world.create() == (*settled, False)
    assert world.engine.created == 1
    assert await world.slots() == slots


@pytest.mark.parametrize("key", [None, MadeKey("made")])
async def test_of_a_key_made_for_the_request_nothing_is_looked_for(world: World, key: str | None) -> None:
    await world.create(key)
    assert world.engine.listed == 0


async def test_a_sandbox_that_this_redis_forgot_is_found_and_not_made_again(world: World) -> None:
    await world.create()
    _, claim = await world.claim()
    forgetful = open_store("memory://", retention=60.0, record_output=100)
    other = World(forgetful)
    other.engine.there = world.engine.there
    assert await other.create() == ("done", "box-0", False)
    assert other.engine.created == 0
    found = await other.sandboxes.get("box-0")
    assert found is not None
    assert found.found, "what happened in it before is not known here"
    assert claim.sandbox_id == "box-0"
    await other.tasks.cancel_all()
    await forgetful.close()


@pytest.mark.parametrize("change", ["tenant", "idem-owner", "idem", "signature"])
async def test_what_another_label_tells_apart_is_not_taken(world: World, change: str) -> None:
    await world.create("another")
    labels = {**world.engine.there[0].metadata, "oncebox.io/idem": world.order().digest}
    world.engine.make({**labels, f"oncebox.io/{change}": "x"})
    assert (await world.create())[0] == "refused", "the tenant has its one sandbox, and this is not its key's"


async def test_a_create_that_nobody_answered_is_looked_for_before_it_is_tried_again(world: World) -> None:
    world.engine.answers = [(False, LOST)]
    await world.create()
    first = world.engine.listed
    world.engine.deaf = True
    state, _, _ = await world.create()
    assert state == "done"
    assert world.engine.listed > first
    record, claim = await world.claim()
    assert (record.attempt, claim.given_up) == (2, [1]), "so a sandbox of the first may be swept"


async def test_of_a_late_first_and_a_second_everybody_takes_the_oldest(world: World) -> None:
    world.engine.answers = [(False, LOST)]
    await world.create()
    _, claim = await world.claim()

    create = world.engine.create_sandbox

    async def both(spec: SandboxSpec) -> SandboxInfo:
        """The first arrives while the second is made."""
        world.engine.make({**spec.metadata, "oncebox.io/attempt": "1"}, at=1.0)
        return await create(spec)

    world.engine.create_sandbox = both  # type: ignore[method-assign]
    assert await world.create() == ("done", "box-0", False)
    _, claim = await world.claim()
    assert claim.given_up == [1, 2], "the second was never handed out"


async def test_two_at_once_make_one_and_a_replay_none(world: World) -> None:
    answers = await asyncio.gather(*(world.create() for _ in range(5)))
    assert {(state, box) for state, box, _ in answers} == {("done", "box-0")}
    assert sorted(replayed for *_, replayed in answers) == [False] + [True] * 4
    assert world.engine.created == 1


async def test_a_key_whose_sandbox_is_gone_makes_another(world: World) -> None:
    await world.create()
    world.engine.there[0] = msgspec.structs.replace(world.engine.there[0], state=SandboxState.TERMINATED)
    assert await world.create() == ("done", "box-1", False)


async def test_a_key_of_another_request_is_refused(world: World) -> None:
    await world.create(workspace_owner="alice")
    with pytest.raises(errors.IdempotencyKeyReused):
        await world.create(workspace_owner="alice", timeout=77)


async def test_over_quota_nothing_is_created_and_the_key_is_free(world: World) -> None:
    await world.store.reserve("sandboxes:t", "another", limit=1, ttl=60.0)
    assert await world.create() == ("refused", None, False)
    assert world.engine.created == 0
    await world.store.vacate("sandboxes:t", "another")
    assert await world.create() == ("done", "box-0", False)


async def test_an_owner_s_directories_are_for_those_who_may_use_them(world: World) -> None:
    mounts = world.order(workspace_owner="alice").spec.volumes
    assert {mount.claim for mount in mounts} == {"workspaces"}
    assert all(mount.sub_path.startswith("alice/") for mount in mounts)
    with pytest.raises(errors.Forbidden):
        world.order(workspace_owner="bob")
