"""A poll carries out what was observed, through the ledger; and when a job is polled is said in one place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from service.core.claims.tasks import Tasks
from service.core.jobs import polls as module
from service.core.jobs.decisions import Change, Decision, NextAttempt
from service.core.jobs.foreground import Listener
from service.core.jobs.orders import Submission
from service.core.jobs.poller import Poller
from service.core.jobs.polls import Polls
from service.core.model.states import ClaimState
from service.core.telemetry import Telemetry
from service.errors import StoreUnavailable
from service.ports.store import Record
from tests.support.waiting import eventually
from tests.unit.core.jobs.scene import BODY, ID, body, record

S = ClaimState
CHANGE = Change(state=S.RUNNING, body=BODY)
SUBMISSION = Submission(command="x")


class World:
    """What polls take: each answers as a case has it, and notes what it was asked."""

    def __init__(self) -> None:
        self.there: Record | None = record(S.RUNNING)
        self.away = False
        self.decision: Decision | None = CHANGE
        self.abandoned = (True, record(S.UNKNOWN))
        self.reopened: tuple[Record, Submission | None] = (record(S.CLAIMED), SUBMISSION)
        self.attempted: Record | None = record(S.ACCEPTED)
        self.drained = False
        self.slot: float | None = 0.0
        self.asked: list[str] = []
        self.gate: asyncio.Event | None = None
        self.tasks = Tasks()
        me: Any = self
        self.polls = Polls(me, me, me, me, me, me, self.tasks, Telemetry())
        self.poller = Poller(me, self.polls, me, me, self.tasks, Telemetry())

    def say(self, *words: object) -> None:
        self.asked.append(" ".join(str(word) for word in words))

    async def quiet(self) -> None:
        """Until nothing is under way."""
        while self.tasks._running:
            await asyncio.sleep(0)

    # -- the store

    async def get(self, id: str) -> Record | None:
        if self.away:
            raise StoreUnavailable
        self.say("get")
        return self.there

    async def forget(self, id: str) -> None:
        self.say("forget")

    async def schedule(self, id: str, *, after: float) -> None:
        self.say("list again in", after)

    # -- the ledger

    async def apply(self, seen: Record, change: Change) -> Record:
        self.say("apply", change.state.value)
        return msgspec.structs.replace(seen, state=change.state, revision=seen.revision + 1)

    async def abandon(self, seen: Record) -> tuple[bool, Record]:
        self.say("abandon")
        return self.abandoned

    # -- observer, dispatcher, ownership

    async def observe(self, seen: Record, *, thorough: bool = False) -> Decision | None:
        self.say("observe", seen.state.value)
        if self.gate is not None:
            await self.gate.wait()
        return self.decision

    async def reopen(self, seen: Record, what: Any) -> tuple[Record, Submission | None]:
        self.say("reopen")
        return self.reopened

    async def attempt(self, mine: Record, *_: Any, **__: Any) -> Record | None:
        self.say("attempt")
        return self.attempted

    async def take_up(self, mine: Record, work: Callable[[Record], Awaitable[Record | None]]) -> None:
        self.say("take up")
        self.tasks.start(work(mine), "work")  # type: ignore[arg-type]

    # -- the pace, and whether a sandbox is paused

    def charge(self, reads: int = 1) -> None:
        pass

    def seconds(self) -> float:
        return 0.5

    async def poll_slot(self, id: str) -> float | None:
        return self.slot

    async def asleep(self, sandbox_id: str) -> bool:
        return False


@pytest.fixture
async def world() -> World:
    return World()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_POLLS", "END_POLLS", "CANCEL_POLLS"):
        monkeypatch.setattr(module, name, (0.0, 0.0))


# -- what comes of a poll

HELD = 2_000_000
"""A lease's end, far away."""
CARRIED: dict[str, tuple[Record, dict[str, Any], list[str]]] = {
    "a replica is at it": (record(S.CLAIMED, lease_until=HELD), {}, []),
    "its replica ended before it sent anything": (
        record(S.CLAIMED), {"abandoned": (True, record(S.REFUSED))}, ["abandon"],
    ),
    "its replica ended after": (record(S.DISPATCHED), {}, ["abandon", "observe unknown", "apply running"]),
    "another replica wrote that down": (
        record(S.DISPATCHED), {"abandoned": (False, record(S.UNKNOWN))}, ["abandon"],
    ),
    "there is something to write": (record(S.RUNNING), {}, ["observe running", "apply running"]),
    "there is nothing to do": (record(S.RUNNING), {"decision": None}, ["observe running"]),
    "it met a void": (
        record(S.ACCEPTED), {"decision": NextAttempt(BODY), "attempted": None},
        ["observe accepted", "reopen", "take up", "attempt"],
    ),
    "it met a void, and somebody else sends the next attempt": (
        record(S.ACCEPTED), {"decision": NextAttempt(BODY), "reopened": (record(S.CLAIMED), None)},
        ["observe accepted", "reopen"],
    ),
    "it met a void, and this replica stops": (
        record(S.ACCEPTED), {"decision": NextAttempt(BODY), "drained": True}, ["observe accepted"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CARRIED)
async def test_what_was_observed_is_carried_out(world: World, case: str) -> None:
    seen, as_it_is, done = CARRIED[case]
    for name, value in as_it_is.items():
        setattr(world, name, value)
    await world.polls.carry_on(seen)
    await world.quiet()
    assert world.asked == done


async def test_all_who_ask_at_the_same_time_share_one_poll(world: World) -> None:
    world.gate = asyncio.Event()
    asking = [asyncio.create_task(world.polls.poll(ID)) for _ in range(3)]
    await eventually(lambda: "observe running" in world.asked)
    asking[0].cancel()
    world.gate.set()
    assert {found.revision for found in await asyncio.gather(*asking[1:]) if found} == {4}
    assert world.asked == ["get", "observe running", "apply running"], "nor did one who left end it for the others"


@pytest.mark.parametrize("there", [None, record(S.CLOSED)])
async def test_what_is_over_or_gone_is_taken_off_the_lists(world: World, there: Record | None) -> None:
    world.there = there
    assert await world.polls.poll(ID) == there
    assert world.asked == ["get", "forget"]


async def test_a_poll_without_a_store_comes_to_nothing(world: World) -> None:
    world.away = True
    assert await world.polls.poll(ID) is None


EXEC = body(kind="exec")
FOLLOWED = {
    "a job that was accepted is polled soon": (record(S.ACCEPTED), 1),
    "what may have been sent is polled at once": (record(S.UNKNOWN), 1),
    "an exec whose stream was lost is polled until it is over": (record(S.ACCEPTED, EXEC), 2),
    "what failed is not polled": (record(S.REFUSED), 0),
    "nor an exec that its stream closed": (record(S.CLOSED, EXEC), 0),
    "nor what somebody else is at": (record(S.CLAIMED), 0),
}


@pytest.mark.parametrize("case", FOLLOWED)
async def test_an_attempt_is_followed_at_once(world: World, case: str) -> None:
    world.attempted, polls = FOLLOWED[case]
    await world.polls.attempt(record(S.DISPATCHED), SUBMISSION, Listener.nobody())
    await world.quiet()
    assert sum(word.startswith("observe") for word in world.asked) == polls


async def test_a_sandbox_that_is_gone_closes_what_still_runs_in_it(world: World) -> None:
    world.decision = None

    async def active_of(_: str) -> list[str]:
        return [ID]

    world.active_of = active_of  # type: ignore[attr-defined]
    await world.polls.sandbox_ended("s")
    assert world.asked == ["get", "observe running", "get", "apply closed"]


# -- when


def polled(what: float, *, now: float = 1000.0, state: ClaimState = S.RUNNING, **more: Any) -> Record:
    """A record that was polled so many seconds ago."""
    return record(state, body(polled_at=now - what), now=now, **more)


DUE: dict[str, tuple[Record, float | None, list[str]]] = {
    "it is due": (polled(2.0), 0.0, ["get", "observe running", "apply running"]),
    "a watcher's came before it": (polled(0.25), 0.0, ["get", "list again in 0.5"]),
    "another replica is at it": (polled(2.0), None, ["get", "list again in 0.5"]),
    "nobody says yet what became of it": (
        polled(0.25, state=S.UNKNOWN), None, ["get", "observe unknown", "apply running"],
    ),
    "its replica is gone": (
        polled(0.25, state=S.DISPATCHED), None, ["get", "abandon", "observe unknown", "apply running"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DUE)
async def test_a_poll_that_is_due_begins_unless_another_came_before_it(world: World, case: str) -> None:
    world.there, world.slot, done = DUE[case]
    await world.poller._due(ID)
    await world.quiet()
    assert world.asked == done


ON_READ: dict[str, tuple[Record, float | None, float, bool]] = {
    "it is due": (polled(2.0), 0.25, 0.75, True),
    "it is not due yet": (polled(0.25), 0.0, 0.25, False),
    "another replica is at it": (polled(2.0), None, 0.25, False),
    "somebody owns it": (polled(2.0, state=S.CLAIMED, lease_until=HELD), 0.0, 1.0, False),
    "its owner is gone": (polled(2.0, state=S.CLAIMED), 0.0, 0.5, True),
    "it is over": (polled(2.0, state=S.CLOSED), 0.0, 10.0, False),
    "it is a sandbox": (msgspec.structs.replace(polled(2.0), id="0" * 32), 0.0, 1.0, False),
}


@pytest.mark.parametrize("case", ON_READ)
async def test_a_watched_job_is_polled_at_the_pace(world: World, case: str) -> None:
    seen, world.slot, again, polls = ON_READ[case]
    assert await world.poller.on_read(seen) == pytest.approx(again)
    assert (seen.id in world.polls.under_way) is polls
    await world.tasks.cancel_all()


async def test_who_asks_gets_the_record_as_the_poll_left_it(world: World) -> None:
    assert (await world.poller.refreshed(polled(2.0))).revision == 4
    assert (await world.poller.refreshed(polled(0.25))).revision == 3, "none was due"
    world.slot = None
    assert (await world.poller.refreshed(polled(2.0))).revision == 3, "somebody else is at it"
