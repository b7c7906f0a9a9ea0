"""A submission is claimed before anything is sent, answered by whoever did the work, and never by another's run.

The store is the real one, within the process; what is read of the sandbox and what is sent are as each case has them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from service import errors
from service.core import records
from service.core.claims.once import Claims
from service.core.claims.ownership import Ownership
from service.core.claims.tasks import Tasks
from service.core.claims.watches import Board, Watches
from service.core.fence.client import Surroundings
from service.core.fence.protocol import Boot
from service.core.jobs import decisions, submit
from service.core.jobs.foreground import Listener
from service.core.jobs.ledger import Ledger
from service.core.jobs.orders import Order, Submission
from service.core.jobs.prepare import Prepared
from service.core.jobs.submit import Submitter
from service.core.limits.admission import Admission
from service.core.limits.quotas import Quotas
from service.core.model.policy import OneTenant, Quota
from service.core.model.states import ClaimState
from service.core.records import JobBody, SandboxRecord
from service.core.telemetry import Telemetry
from service.messages import Reason
from service.ports.engine import EngineError, Unclear
from service.ports.store import Record, Store
from service.store import open_store
from tests.unit.core.jobs.scene import ID, body, record

S = ClaimState
MARKED = Prepared(around=Surroundings(Boot("a 7", 7)))
UNMARKED = Prepared(around=Surroundings(None))
ANOTHERS = Prepared(around=Surroundings(Boot("a 7", 7)), earlier=body(fingerprint="g"))
FRESH = body(dispatched_at=None, engine_id=None, boot=None)


class OneJob(OneTenant):
    def quota(self, tenant: str) -> Quota:
        return Quota(jobs=1)


class World:
    """A submitter, whose attempts come to what a case says."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.prepared: Prepared | EngineError = MARKED
        self.comes_to: S | None = S.ACCEPTED
        self.can_feed = True
        self.sent: list[tuple[S, int, bool]] = []
        """As each attempt began: the claim's state and attempt, and whether what it needs had been read."""
        self.asked: list[str] = []
        self.tasks, telemetry, board, quotas = Tasks(), Telemetry(), Board(), Quotas(store, OneJob())
        fake: Any = self
        ownership = Ownership(store, board, self.tasks, owner="me", lease=15.0)
        self.ledger = Ledger(store, ownership, quotas, fake, telemetry, retention=60.0)
        claims = Claims(store, ownership, Watches(board, store, self.tasks, self.on_read), self.tasks, telemetry)
        self.ownership = ownership
        self.submitter = Submitter(
            store,
            ownership,
            claims,
            self.ledger,
            fake,
            fake,
            quotas,
            Admission(),
            self.tasks,
            telemetry,
            claim_wait=5.0,
        )

    async def prepare(self, id: str, attempt: int, what: JobBody, user: str | None, *, first: bool) -> Prepared:
        self.asked.append("prepare, first" if first else "prepare")
        if isinstance(self.prepared, EngineError):
            raise self.prepared
        return self.prepared

    async def feed(self, what: JobBody, submission: Submission, stdin: bytes | None) -> JobBody:
        self.asked.append("feed")
        return msgspec.structs.replace(what, stdin="/tmp/in") if self.can_feed else what

    async def attempt(
        self, mine: Record, submission: Submission, listener: Listener, *, reading: Any, sent: list[Record], **_: Any
    ) -> Record | None:
        self.sent.append((mine.state, mine.attempt, reading is not None))
        sent.append(mine)
        if mine.state is S.CLAIMED and self.comes_to is not S.REFUSED:
            await self.ownership.dispatch(mine, mine.body)
        if self.comes_to is None:
            return None
        what = decisions.unavailable(records.job_body(mine), Reason.ENGINE_UNAVAILABLE, "It was not there.")
        return await self.ledger.settle(mine, self.comes_to, what)

    async def carry_on(self, seen: Record) -> Record:
        self.asked.append("carry on")
        return (await self.ledger.abandon(seen))[1]

    def job_ended(self, sandbox_id: str) -> None:
        pass

    @staticmethod
    async def on_read(_: Record) -> float:
        return 1.0

    async def submit(self, order: Order) -> tuple[S, bool]:
        found, replayed = await self.submitter.submit(order, Listener.nobody())
        return found.state, replayed


@pytest.fixture
async def world() -> AsyncIterator[World]:
    store = open_store("memory://", retention=60.0, record_output=100)
    made = World(store)
    yield made
    await made.tasks.cancel_all()
    await store.close()


def order(*, keyed: bool = True, known: bool = True, seen: Record | None = None, fingerprint: str = "f") -> Order:
    return Order(
        command_id=ID, key="key", keyed=keyed, submission=Submission(command="x"), stdin=None, seen=seen,
        body=msgspec.structs.replace(FRESH, fingerprint=fingerprint), sandbox=SandboxRecord(tenant="t"),
        all_is_known=known,
    )  # fmt: skip


BEGUN: dict[str, tuple[Order, Prepared | EngineError, tuple[S, int, bool], str]] = {
    "where there is a mark, the claim is made dispatched": (order(), MARKED, (S.DISPATCHED, 1, True), "prepare, first"),
    "where there is none, it is not": (order(), UNMARKED, (S.CLAIMED, 1, True), "prepare, first"),
    "where it can't be read, it is claimed all the same": (
        order(), Unclear("silent"), (S.CLAIMED, 1, True), "prepare, first",
    ),
    "where another's run stands, nothing is dispatched": (
        order(known=False), ANOTHERS, (S.CLAIMED, 1, True), "prepare",
    ),
    "a key made for the request is the first": (
        order(keyed=False, known=False), MARKED, (S.DISPATCHED, 1, True), "prepare, first",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BEGUN)
async def test_how_a_claim_is_made(world: World, case: str) -> None:
    asked, world.prepared, began, read = BEGUN[case]
    await world.submit(asked)
    assert world.sent == [began]
    assert world.asked == [read, "feed"] if began[0] is S.DISPATCHED else [read]
    found = await world.store.get(ID)
    assert found is not None
    assert records.job_body(found).boot == ("a 7" if began[0] is S.DISPATCHED else None)


@pytest.mark.parametrize(("can_feed", "state"), [(True, S.DISPATCHED), (False, S.CLAIMED)])
async def test_a_claim_says_dispatched_only_where_what_the_command_reads_is_there(
    world: World, can_feed: bool, state: S
) -> None:
    world.can_feed = can_feed
    asked = order()
    asked = msgspec.structs.replace(asked, submission=msgspec.structs.replace(asked.submission, stdin_hash="00"))
    await world.submit(asked)
    assert [began for began, *_ in world.sent] == [state]


@pytest.mark.parametrize("state", [S.ACCEPTED, S.REFUSED, S.UNKNOWN])
async def test_a_submission_is_answered_by_what_its_attempt_came_to(world: World, state: S) -> None:
    world.comes_to = state
    assert await world.submit(order()) == (state, False)


async def made(world: World, state: S, **more: Any) -> Record:
    """A claim that another request left so."""
    world.comes_to = state
    await world.submit(order(**more))
    world.sent.clear()
    world.asked.clear()
    found = await world.store.get(ID)
    assert found is not None
    world.comes_to = S.ACCEPTED
    return found


@pytest.mark.parametrize("state", [S.ACCEPTED, S.UNKNOWN])
async def test_a_replay_sends_nothing_and_asks_the_engine_for_nothing(world: World, state: S) -> None:
    seen = await made(world, state)
    assert await world.submit(order(seen=seen)) == (state, True)
    assert not world.sent
    assert not world.asked


async def test_what_failed_is_tried_again_under_the_same_attempt(world: World) -> None:
    seen = await made(world, S.REFUSED)
    assert await world.submit(order(seen=seen)) == (S.ACCEPTED, False)
    assert world.sent == [(S.CLAIMED, 1, False)], "what it must know is read anew, by its owner"


async def test_what_was_read_for_a_claim_that_was_another_s_is_read_anew(world: World) -> None:
    await made(world, S.REFUSED)
    assert await world.submit(order()) == (S.ACCEPTED, False)
    assert world.asked[0] == "prepare, first", "the other's claim was not known when this was read"
    assert world.sent == [(S.CLAIMED, 1, False)]


async def test_two_at_once_send_once_and_have_one_answer(world: World) -> None:
    answers = await asyncio.gather(*(world.submit(order()) for _ in range(5)))
    assert len(world.sent) == 1
    assert sorted(replayed for _, replayed in answers) == [False] + [True] * 4
    assert {state for state, _ in answers} == {S.ACCEPTED}


async def test_over_quota_nothing_is_written(world: World) -> None:
    await world.store.reserve("jobs:t", "another", limit=1, ttl=20.0)
    with pytest.raises(errors.QuotaExceeded):
        await world.submit(order())
    assert await world.store.get(ID) is None
    assert not world.sent


async def test_of_what_a_replica_left_before_it_sent_anything_the_work_is_taken_over(world: World) -> None:
    left = (await world.store.claim(ID, token="x", owner="gone", lease=0.0, body=records.encode(FRESH))).record
    assert await world.submit(order(seen=left)) == (S.ACCEPTED, False)
    assert world.sent == [(S.CLAIMED, 1, False)]


async def test_of_what_it_left_after_that_it_is_found_out_what_became(world: World) -> None:
    what = records.encode(body(engine_id=None))
    left = (await world.store.claim(ID, token="x", owner="gone", lease=0.0, body=what, dispatched=True)).record
    assert await world.submit(order(seen=left)) == (S.UNKNOWN, True)
    assert (world.asked, world.sent) == (["carry on"], [])


# -- whose run it is

ANSWERS = [
    (S.REFUSED, "g", True, "where nothing ran there is nothing to tell apart"),
    (S.RUNNING, "f", True, "a confirmed run of this request"),
    (S.RUNNING, "", True, "a damaged fence does not tell whose run it is"),
    (S.ACCEPTED, "f", False, "until the first poll it may be another's"),
    (S.ACCEPTED, "g", False, "and a differing fingerprint proves nothing yet"),
    (S.UNKNOWN, "g", False, "nor does it of what nobody knows"),
]


def as_it_stands(state: S, fingerprint: str) -> Record:
    return record(state, body(fingerprint=fingerprint))


@pytest.mark.parametrize(("state", "fingerprint", "answers", "why"), ANSWERS)
async def test_whether_a_record_answers(world: World, state: S, fingerprint: str, answers: bool, why: str) -> None:
    assert world.submitter.answers(as_it_stands(state, fingerprint), order()) is answers, why


@pytest.mark.parametrize("state", [S.RUNNING, S.ENDED, S.CLOSED])
async def test_a_confirmed_run_of_another_request_is_refused(world: World, state: S) -> None:
    with pytest.raises(errors.IdempotencyKeyReused):
        world.submitter.answers(as_it_stands(state, "g"), order())


SANDBOX = records.encode(SandboxRecord(tenant="t"))


@pytest.mark.parametrize(
    ("keyed", "sandbox", "answers", "why"),
    [
        (False, None, True, "the key was made for it"),
        (True, SANDBOX, True, "this Redis has all that ever happened in the sandbox"),
        (True, None, False, "this Redis may have forgotten an earlier request"),
    ],
)
async def test_whether_an_accepted_command_answers_at_once(
    world: World, keyed: bool, sandbox: bytes | None, answers: bool, why: str
) -> None:
    if sandbox is not None:
        await world.store.put_sandbox("s", sandbox, ttl=60.0)
    mine = order(keyed=keyed)
    found, _ = await world.submitter.submit(mine, Listener.nobody())
    assert world.submitter.answers(found, mine) is answers, why
    assert not world.submitter.answers(found, order(keyed=keyed)), "nor any other request, which made no claim"


async def test_what_can_t_be_found_out_in_time_is_said_to_be_unknown(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "UNKNOWN_WAIT", 0.01)
    seen = await made(world, S.UNKNOWN)
    for keyed in (True, False):
        with pytest.raises(errors.OutcomeUnknown) as told:
            await world.submitter.found_out(seen, order(keyed=keyed))
        assert told.value.retryable is keyed, "without a key a retry would be another command"


async def test_a_failure_is_raised_as_it_was_kept(world: World) -> None:
    with pytest.raises(errors.EngineUnavailable, match="It was not there"):
        await world.submitter.found_out(await made(world, S.REFUSED), order())
