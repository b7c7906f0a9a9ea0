"""Random interleavings of owners, pollers and late answers, and what must hold whatever they do.

Each rule is one call by somebody who acts on what it saw some time ago: mostly just now, but at times several
versions back.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from service.core.model.states import ClaimState
from service.ports.store import Appended, Record
from service.store import open_store
from tests.contract.store_rig import BOX, JOB, LEASE, RECORD_OUTPUT, RETENTION, SANDBOX, TTL, StoreRig, new_token
from tests.support.redis_server import RedisServer

S = ClaimState
T = TypeVar("T")

ORDER = {
    S.CLAIMED: 0, S.DISPATCHED: 1, S.UNKNOWN: 2, S.REFUSED: 3, S.VOIDED: 3, S.ACCEPTED: 3, S.DONE: 3,
    S.RUNNING: 4, S.ENDED: 5, S.CLOSED: 6,
}  # fmt: skip
"""How far a state is; only reopening goes back."""

FOLLOWED = (S.UNKNOWN, S.ACCEPTED, S.RUNNING, S.VOIDED, S.REFUSED, S.ENDED, S.CLOSED)
AGES = st.just(0) | st.integers(0, 6)
"""How many versions ago somebody looked."""
SETTLED = (S.REFUSED, S.UNKNOWN, S.ACCEPTED, S.CLOSED, S.DONE)


class Claims(RuleBasedStateMachine):
    """One claim, and everybody who ever saw it."""

    id = JOB
    url = "memory://"

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.store = self.run(_opened(self.url))
        self.rig = StoreRig(self.store)
        self.run(self.rig.put(self.id, None))
        self.known: list[Record] = []
        """Every version of the record, the present one last."""
        self.lost = False
        """Whether Redis lost the last version."""
        self.dispatched: dict[int, int] = {}
        """The attempt that each epoch dispatched."""
        self.executed_at: set[int] = set()
        """Epochs whose dispatch is not known not to have been executed."""
        self.log = b""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def teardown(self) -> None:
        self.run(self.store.close())
        self.runner.close()

    @property
    def last(self) -> Record | None:
        """The record as it stands."""
        return self.known[-1] if self.known and not self.lost else None

    def old(self, age: int) -> Record:
        """The record as it was ``age`` versions ago, or as it was first."""
        return self.known[max(0, len(self.known) - 1 - age)]

    def did(self, how: str, seen: Record | None, answer: tuple[bool, Record | None]) -> None:
        """Check a step against the record before it, and what it tells of the dispatch."""
        done, now = answer
        before = self.last
        if now is None:
            assert not done
            assert before is None
            return
        if before is None or now.revision != before.revision:
            self.known.append(now)
            self.lost = False
        if not done or before is None:
            assert before is None or now.revision == before.revision, "refused, and yet written"
            return
        assert seen is None or seen.token == before.token or how in ("claim", "take_over", "reopen")
        assert before.state is not S.CLOSED
        assert now.revision == before.revision + (how != "request_cancel" or not before.cancel)
        doubted = how == "advance" and now.state is S.UNKNOWN  # over, and nothing proves that it ran
        if how != "reopen" and not doubted:
            assert ORDER[now.state] >= ORDER[before.state], f"{before.state} went back to {now.state}"
            assert now.attempt == before.attempt
        new_owner = how in ("take_over", "reopen")
        assert now.epoch == before.epoch + new_owner
        assert (now.token != before.token) == new_owner
        if now.state in (S.REFUSED, S.VOIDED):
            self.executed_at.discard(now.epoch)

    @rule(dispatched=st.booleans())
    def somebody_asks(self, dispatched: bool) -> None:
        token = new_token()
        tenant = "t" if self.id == JOB else None
        done, now, _ = self.run(
            self.store.claim(
                self.id, token=token, owner="r", lease=LEASE, body=b"", tenant=tenant, dispatched=dispatched
            )
        )
        assert done == (self.last is None)
        if done and dispatched:
            self.dispatched[now.epoch] = now.attempt
            self.executed_at.add(now.epoch)
        self.did("claim", None, (done, now))

    def the_lease_runs_out(self) -> None:
        if self.last is not None:
            self.run(self.rig.end_lease(self.id))

    @precondition(lambda self: bool(self.known))
    @rule(age=AGES, dead=st.booleans())
    def somebody_takes_over(self, age: int, dead: bool) -> None:
        if dead:
            self.the_lease_runs_out()
        old = self.old(age)
        answer = self.run(self.store.take_over(old, token=new_token(), owner="r", lease=LEASE))
        self.did("take_over", old, answer)

    @precondition(lambda self: bool(self.known))
    @rule(age=AGES)
    def the_owner_renews(self, age: int) -> None:
        mine = self.old(age)
        self.did("renew", mine, self.run(self.store.renew(mine, lease=LEASE)))

    @precondition(lambda self: bool(self.known))
    @rule(age=AGES)
    def the_owner_gives_back(self, age: int) -> None:
        mine = self.old(age)
        self.did("release", mine, self.run(self.store.release(mine)))

    @precondition(lambda self: bool(self.known))
    @rule(age=AGES)
    def the_owner_dispatches(self, age: int) -> None:
        mine = self.old(age)
        wished = self.last is not None and self.last.cancel
        done, now = self.run(self.store.dispatch(mine, lease=LEASE, body=b""))
        if done:
            assert now is not None
            assert not wished, "dispatched although a cancel is wished"
            assert mine.epoch not in self.dispatched, "an epoch dispatched twice"
            assert (mine.token, mine.epoch) == (now.token, now.epoch), "a stale owner dispatched"
            if self.id == JOB:
                assert not self.executed_at, "dispatched although an earlier one may have been executed"
            self.dispatched[now.epoch] = now.attempt
            self.executed_at.add(now.epoch)
        self.did("dispatch", mine, (done, now))

    @precondition(lambda self: bool(self.known))
    @rule(age=AGES, state=st.sampled_from(SETTLED))
    def the_owner_settles(self, age: int, state: S) -> None:
        mine = self.old(age)
        before = self.last
        done, now = self.run(self.store.settle(mine, state, body=b"", ttl=TTL))
        if done:
            assert before is not None
            assert (mine.token, mine.epoch) == (before.token, before.epoch), "a stale owner wrote"
        self.did("settle", mine, (done, now))

    @precondition(lambda self: bool(self.known))
    @rule(age=AGES, dead=st.booleans())
    def somebody_gives_up_an_owner(self, age: int, dead: bool) -> None:
        if dead:
            self.the_lease_runs_out()
        old = self.old(age)
        self.did("abandon", old, self.run(self.store.abandon(old, body=b"", ttl=TTL)))

    @precondition(lambda self: bool(self.known))
    @rule(age=AGES, following=st.booleans())
    def somebody_tries_again(self, age: int, following: bool) -> None:
        old = self.old(age)
        before = self.last
        done, now = self.run(
            self.store.reopen(old, token=new_token(), owner="r", lease=LEASE, next_attempt=following, body=b"")
        )
        if done:
            assert now is not None
            assert before is not None
            assert (old.token, old.revision) == (before.token, before.revision), "reopened on old news"
            voided = before.state in (S.VOIDED, S.ACCEPTED)
            if now.attempt != before.attempt:
                assert now.attempt == before.attempt + 1
                assert voided or (self.id == SANDBOX and before.state in (S.UNKNOWN, S.DONE))
            else:
                assert not voided
            if before.state is S.ACCEPTED:
                # Only who saw the marker of a void reopens an accepted job.
                self.executed_at.discard(before.epoch)
            self.log = b""
        self.did("reopen", old, (done, now))

    @precondition(lambda self: bool(self.known))
    @rule(age=AGES, state=st.sampled_from(FOLLOWED), more=st.binary(max_size=60))
    def a_follower_writes(self, age: int, state: S, more: bytes) -> None:
        old = self.old(age)
        before = self.last
        append = Appended(len(self.log), more) if more and state in (S.RUNNING, S.ENDED, S.CLOSED) else None
        more = more if append else b""
        if not state.active and self.id == SANDBOX:
            return
        done, now = self.run(self.rig.follow(old, state, append=append))
        if done:
            assert before is not None
            assert (old.token, old.revision) == (before.token, before.revision), "a stale poller wrote"
            self.log += more
        self.did("advance", old, (done, now))

    @precondition(lambda self: bool(self.known))
    @rule(really=st.integers(0, 4))
    def a_caller_cancels(self, really: int) -> None:
        # Seldom: a wish stays, and where it stands nothing is dispatched.
        if really < 4:
            return
        answer = self.run(self.store.request_cancel(self.id))
        self.did("request_cancel", None, answer)

    @precondition(lambda self: bool(self.known))
    @rule(really=st.integers(0, 7))
    def redis_loses_everything(self, really: int) -> None:
        # Seldom. What was executed is then known to the fence alone; whoever saw the record still acts on it.
        if really < 7:
            return
        self.run(self.rig.put(self.id, None))
        self.lost = True
        self.dispatched.clear()
        self.executed_at.clear()
        self.log = b""

    @invariant()
    def the_record_is_the_last_one_answered(self) -> None:
        now = self.run(self.store.get(self.id))
        assert (now is None) == (self.last is None)
        if now is not None and self.last is not None:
            assert (now.state, now.revision, now.epoch, now.token, now.cancel) == (
                self.last.state, self.last.revision, self.last.epoch, self.last.token, self.last.cancel,
            )  # fmt: skip

    @invariant()
    def the_output_is_the_end_of_the_log(self) -> None:
        kept = self.run(self.store.output(self.id, 0, 10**9))
        if kept is None:
            assert not self.log
        else:
            assert kept.offset + len(kept.data) == len(self.log)
            assert kept.data == self.log[kept.offset :]
            assert len(kept.data) >= min(len(self.log), RECORD_OUTPUT)

    @invariant()
    def a_job_is_listed_as_active_for_as_long_as_its_claim_is(self) -> None:
        if self.id == JOB:
            listed = self.last is not None and self.last.state.active
            assert self.run(self.store.active_of(BOX)) == ([JOB] if listed else [])
            self.run(self.store.schedule(JOB, after=-1.0))
            assert self.run(self.store.due(limit=9, lease=-1.0)) == ([JOB] if listed else [])

    @invariant()
    def only_what_is_over_ends_by_itself(self) -> None:
        if self.last is not None and self.id == JOB:  # a sandbox's ends long after any create
            ends = self.run(self.rig.ttls(self.id))["claim"] is not None
            assert not ends or self.last.state in (S.REFUSED, S.VOIDED, S.CLOSED, S.DONE)


async def _opened(url: str) -> Any:
    return open_store(url, retention=RETENTION, record_output=RECORD_OUTPUT)


def _run(url: str, id: str, examples: int) -> None:
    kind = type("Claims", (Claims,), {"url": url, "id": id})
    run_state_machine_as_test(
        kind,
        settings=settings(
            max_examples=examples, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


EXAMPLES = pytest.mark.parametrize(
    "examples", [20, pytest.param(1000, marks=[pytest.mark.faults_long, pytest.mark.timeout(3600)])]
)
"""Walks of 40 steps; the long form is part of `make faults`."""


@EXAMPLES
@pytest.mark.parametrize("id", [JOB, SANDBOX])
def test_no_interleaving_breaks_the_rules_in_the_process(id: str, examples: int) -> None:
    _run("memory://", id, examples)


@pytest.mark.integration
@EXAMPLES
@pytest.mark.parametrize("id", [JOB, SANDBOX])
def test_no_interleaving_breaks_the_rules_on_a_server(redis_server: RedisServer, id: str, examples: int) -> None:
    _run(redis_server.url, id, examples)
