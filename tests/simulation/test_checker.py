"""For each rule of the checker, histories that break it and histories that do not."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.simulation import checker, history
from tests.simulation.history import (
    AnyEvent,
    Begun,
    Call,
    ContainerRestarted,
    DaemonRestarted,
    EngineReads,
    Executed,
    Fault,
    FencesWiped,
    Inventory,
    Kept,
    Living,
    Quiet,
    Quota,
    SandboxEnded,
    SandboxMade,
    Seen,
    Step,
    StoreLost,
)

BEGUN = Begun(at=0.0, settled=60.0, retention=1000.0, interval=3.0, kept=2000.0, quotas=(Quota("red", 1),))


def submit(at: float, *, mark: str = "m", key: str | None = "k", id: str = "cmd1", **more: Any) -> Call:
    """Answered 202, pending, half a second later, unless told otherwise."""
    told: dict[str, Any] = {"status": 202, "seen": (Seen(id=id, state="pending"),)}
    if more.get("status", 202) >= 300 or more.get("status") == 0:
        told = {}
    return Call(
        **{
            "at": at,
            "until": at + 0.5,
            "caller": "c",
            "tenant": "red",
            "what": "submit",
            "sandbox": "s",
            "mark": mark,
            "key": key,
            **told,
            **more,
        }
    )


def create(at: float, *, id: str = "s", key: str = "k", **more: Any) -> Call:
    """Answered 201, a second later."""
    seen = (Seen(id=id, state="running"),)
    return Call(
        **{
            "at": at,
            "until": at + 1.0,
            "caller": "c",
            "tenant": "red",
            "what": "create",
            "status": 201,
            "key": key,
            "seen": seen,
            "body": "{}",
            **more,
        }
    )


def saw(at: float, state: str | None, *, id: str = "cmd1", call: dict[str, Any] | None = None, **more: Any) -> Call:
    """A status that was answered at once."""
    return Call(
        **{
            "at": at,
            "until": at + 0.01,
            "caller": "c",
            "tenant": "red",
            "what": "status",
            "of": id,
            "status": 200,
            "seen": (Seen(id=id, state=state, **more),),
            **(call or {}),
        }
    )


def not_found(at: float, id: str = "cmd1") -> Call:
    """A job that is not known."""
    return Call(at=at, until=at, caller="c", tenant="red", what="status", of=id, status=404, code="JOB_NOT_FOUND")


def ran(at: float, *, mark: str = "m", until: float | None = None, **more: Any) -> Executed:
    """It ran in a tenth of a second, printed its mark and exited with 0."""
    end = {"until": at + 0.1 if until is None else until, "exit_code": 0, "output": f"{mark}\n"}
    return Executed(**{"at": at, "sandbox": "s", "mark": mark, **end, **more})


def killed(at: float) -> Executed:
    """It was started, and nobody saw its end."""
    return Executed(at=at, sandbox="s", mark="m")


def exited(at: float, code: int = 0, **more: Any) -> Call:
    """The job's end, with all of its output."""
    return saw(at, "exited", exit_code=code, **{"over": True, "output": "m\n", "output_complete": True, **more})


EMPTIED = StoreLost(at=5.0)
FELL_BACK = StoreLost(at=5.0, everything=False, since=0.5)
NEW_FILES = ContainerRestarted(at=6.0, sandbox="s", new_files=True)
SAME_FILES = ContainerRestarted(at=6.0, sandbox="s", new_files=False)
GONE = SandboxEnded(at=6.0, sandbox="s")
LOOKUP = Fault(at=4.0, until=9.0, what=history.LOOKUP_FAILS)
FULL = Fault(at=1.0, until=3.0, what=history.DISK_FULL, who="s")
DEAF = Fault(at=4.0, until=9.0, what=history.SANDBOX_DEAF, who="s")
SENT_AWAY: dict[str, Any] = {"status": 502, "code": "OUTCOME_UNKNOWN", "told_id": "cmd1"}
REUSED: dict[str, Any] = {"status": 422, "code": "IDEMPOTENCY_KEY_REUSED"}
REFUSED: dict[str, Any] = {"status": 503, "code": "ENGINE_UNAVAILABLE"}
OVER_QUOTA: dict[str, Any] = {"status": 429, "code": "QUOTA_EXCEEDED"}


def steps(*pairs: tuple[str, int]) -> tuple[Step, ...]:
    """A job's life."""
    return tuple(Step(*pair) for pair in pairs)


def reads(each_second: int, active: int, *, seconds: int = 30) -> list[AnyEvent]:
    """The engine is asked as often in every second."""
    return [
        EngineReads(at=20.0 + second, states=each_second * second, outputs=0, active=active)
        for second in range(seconds)
    ]


def kept(**what: Any) -> Inventory:
    """One thing is still there at the end."""
    return Inventory(at=900.0, kept=(Kept(**{"name": "n", "ends": 10.0, **what}),))


def stays(kind: str) -> list[AnyEvent]:
    """One thing that never ends."""
    return [kept(kind=kind, ends=None)]


def lost_for(reason: str) -> list[AnyEvent]:
    """A job that is lost although nothing befell its sandbox."""
    return [submit(1), ran(2), saw(9, "lost", reason=reason)]


def living(*sandboxes: str, digest: str = "d") -> Inventory:
    """What lives at the end."""
    return Inventory(at=900.0, living=tuple(Living(sandbox=each, digest=digest) for each in sandboxes))


BROKEN: Sequence[tuple[str, str, list[AnyEvent]]] = [
    ("at_most_once", "twice", [submit(1), ran(2), ran(8)]),
    ("at_most_once", "twice after Redis was emptied", [submit(1), ran(2), EMPTIED, ran(8)]),
    ("at_most_once", "twice after a new file system", [submit(1), ran(2), NEW_FILES, ran(8, files=2)]),
    ("at_most_once", "both lost, twice in the new files", [
        submit(1), EMPTIED, NEW_FILES, ran(7, files=2), ran(8, files=2)]),
    ("at_most_once", "both lost, but before the request", [EMPTIED, NEW_FILES, submit(7), ran(8), ran(9)]),
    ("at_most_once", "fences wiped, Redis as it was", [
        submit(1), ran(2), FencesWiped(at=3, sandbox="s"), ran(8)]),
    ("at_most_once", "no key, one request", [submit(1, key=None), ran(2), ran(3)]),
    ("only_what_was_asked", "nobody asked", [ran(2)]),
    ("only_what_was_asked", "too early", [ran(0.5), submit(1)]),
    ("only_what_was_asked", "elsewhere", [submit(1), ran(2, sandbox="other")]),
    ("not_after_its_end", "ran, and failed", [submit(1), ran(2), saw(3, "failed", reason="never_started")]),
    ("not_after_its_end", "failed, then ran", [submit(1), saw(3, "failed", reason="never_started"), ran(4)]),
    ("not_after_its_end", "cancelled before its start, and ran", [
        submit(1), saw(2, None, call={"what": "cancel"}), ran(2),
        saw(3, "cancelled", reason="cancelled_before_start")]),
    ("a_refusal_ran_nothing", "told that nothing was run", [submit(1, **REFUSED), ran(1.2)]),
    ("acknowledged_is_executed", "exited without a run", [submit(1), saw(2, "exited", exit_code=0), Quiet(at=9)]),
    ("acknowledged_is_executed", "running without a run", [
        submit(1), saw(2, "running"), saw(8, "running"), Quiet(at=9)]),
    ("a_state_means_what_it_says", "a strange reason", [submit(1), ran(2), saw(3, "lost", reason="never_started")]),
    ("a_state_means_what_it_says", "lost without a reason", [submit(1), ran(2), saw(3, "lost")]),
    ("a_state_means_what_it_says", "a code of what runs", [submit(1), ran(2), saw(3, "running", exit_code=0)]),
    ("a_state_means_what_it_says", "exited without a code", [submit(1), ran(2), saw(3, "exited")]),
    ("a_state_means_what_it_says", "timed out with another code", [
        submit(1), ran(2), saw(3, "timed_out", exit_code=0)]),
    ("an_end_is_the_commands_own", "another code", [submit(1), ran(2), exited(3, 7)]),
    ("an_end_is_the_commands_own", "no run yet", [submit(1), exited(2), ran(3)]),
    ("output_is_the_commands_own", "doubled", [submit(1), ran(2), exited(3, output="m\nm\n")]),
    ("output_is_the_commands_own", "cut off", [submit(1), ran(2), exited(3, output="m")]),
    ("output_is_the_commands_own", "not complete for no reason", [
        submit(1), ran(2), exited(3, output="m", output_complete=False)]),
    ("output_is_the_commands_own", "another's, of a lost one", [
        submit(1), ran(2), GONE, saw(7, "lost", reason="sandbox_gone", over=True, output="x")]),
    *(("lost_is_honest", reason, lost_for(reason))
      for reason in sorted(filter(None, checker.REASONS["lost"]))),
    ("lost_is_honest", "restarted before it was asked for", [
        SAME_FILES, submit(7), ran(8), saw(9, "lost", reason="container_restarted")]),
    ("lost_is_honest", "another sandbox is gone", [
        SandboxEnded(at=2, sandbox="other"), submit(1), ran(2), saw(9, "lost", reason="sandbox_gone")]),
    ("cancelled_was_asked_for", "nobody did", [submit(1), ran(2), saw(3, "cancelled")]),
    ("a_result_stays", "another code", [submit(1), ran(2), exited(3), exited(4, 1)]),
    ("a_result_stays", "back to running", [submit(1), ran(2), exited(3), saw(4, "running")]),
    ("a_result_stays", "other output", [submit(1), ran(2), exited(3), exited(4, output="")]),
    ("a_result_stays", "another code after Redis was emptied", [submit(1), ran(2), exited(3), EMPTIED, exited(8, 1)]),
    ("a_result_stays", "lost for another reason", [
        submit(1), ran(2), NEW_FILES, GONE, saw(7, "lost", reason="sandbox_gone"),
        saw(8, "lost", reason="container_restarted")]),
    ("a_result_stays", "another observer's", [
        submit(1), ran(2), exited(3), saw(4, "timed_out", exit_code=137, call={"caller": "other"})]),
    ("failed_is_left_by_a_retry", "nobody retried", [
        submit(1), saw(3, "failed", reason="never_started"), saw(4, "running")]),
    ("steps_along_the_table", "no such way", [
        submit(1), saw(3, "running", steps=steps(("closed", 1), ("running", 1)))]),
    ("steps_along_the_table", "an attempt without a void", [
        submit(1), saw(3, "pending", steps=steps(("refused", 1), ("claimed", 2)))]),
    ("steps_along_the_table", "the voided attempt again", [
        submit(1), saw(3, "pending", steps=steps(("voided", 1), ("claimed", 1)))]),
    ("states_along_the_table", "back to pending", [
        submit(1), saw(3, "running"), saw(4, "pending", steps=steps(("dispatched", 1)))]),
    ("one_key_one_job", "two ids", [submit(1), submit(2, id="cmd2")]),
    ("one_key_one_job", "another id by a problem", [submit(1, id="cmd2"), submit(2, **SENT_AWAY)]),
    ("one_key_one_job", "one id for two keys", [submit(1), submit(2, key="other", mark="n")]),
    ("one_key_one_job", "one id for two requests without a key", [submit(1, key=None), submit(2, key=None)]),
    ("one_key_one_job", "one id for two sandboxes", [submit(1), submit(2, sandbox="other", mark="n")]),
    ("one_key_one_sandbox", "two living ones", [create(1), create(8, id="t")]),
    ("one_key_one_sandbox", "Redis emptied alone", [create(1), EMPTIED, create(8, id="t")]),
    ("one_key_one_sandbox", "the lookup failed alone", [create(1), LOOKUP, create(8, id="t")]),
    ("one_key_one_sandbox", "gone only later", [create(1), create(3, id="t"), GONE]),
    ("one_key_one_sandbox", "one for two owners", [create(1, owner="a"), create(2, owner="b")]),
    ("one_key_one_sandbox", "one for two bodies", [create(1), create(2, body="{1}")]),
    ("a_request_gets_its_own_run", "another's", [submit(1), ran(2), submit(7, mark="n")]),
    ("a_request_gets_its_own_run", "another's after Redis was emptied", [
        submit(1), ran(2), EMPTIED, submit(7, mark="n")]),
    ("a_request_gets_its_own_run", "422 for the only request", [submit(1), submit(2, **REUSED)]),
    ("tenants_apart", "another's job", [submit(1), saw(2, "pending", call={"tenant": "blue"})]),
    ("tenants_apart", "another's sandbox", [create(1), create(2, tenant="blue", key="other")]),
    ("tenants_apart", "in a list", [submit(1), saw(2, "pending", call={"tenant": "blue", "what": "list", "of": ""})]),
    ("tenants_apart", "another's cancel is taken", [
        submit(1), saw(2, None, call={"tenant": "blue", "what": "cancel", "seen": ()})]),
    ("what_was_known_stays_known", "forgotten", [submit(1), ran(2), not_found(8)]),
    ("what_was_known_stays_known", "forgotten with its fence there", [submit(1), ran(2), EMPTIED, not_found(8)]),
    ("everything_settles", "unknown", [submit(1), ran(2), Quiet(at=9), saw(70, "unknown", reason="outcome_unknown")]),
    ("everything_settles", "pending", [submit(1), Quiet(at=9), saw(70, "pending")]),
    ("everything_settles", "running without a process", [submit(1), ran(2), Quiet(at=9), saw(70, "running")]),
    ("everything_settles", "no answer", [Quiet(at=9), submit(70, status=0)]),
    ("everything_settles", "an answer that asks for patience", [Quiet(at=9), submit(70, **SENT_AWAY)]),
    ("nothing_stays_for_ever", "an active claim", [kept(kind="claim", state="running", of="cmd_1")]),
    ("nothing_stays_for_ever", "a claim without an end", [kept(kind="claim", state="closed", ends=None)]),
    ("nothing_stays_for_ever", "an entry of a list", [kept(kind="list")]),
    *(("nothing_stays_for_ever", f"a {kind}", stays(kind))
      for kind in ("lease", "slot", "fence", "key")),
    ("nothing_stays_for_ever", "a fence for too long", [kept(kind="fence", ends=3000.0)]),
    ("one_living_sandbox_a_key", "two", [living("s", "t")]),
    ("nobodys_sandbox_is_swept", "given, and deleted", [create(1), SandboxEnded(at=6.0, sandbox="s", why="deleted")]),
    ("the_engine_is_asked_at_a_pace", "one job, ten times a second", reads(10, 1)),
    ("the_engine_is_asked_at_a_pace", "500 jobs, twice a second each", reads(1000, 500)),
    ("the_engine_is_asked_at_a_pace", "1000 jobs, as if there were 500 more", reads(1500, 1000)),
    ("quotas_hold", "two at once", [
        submit(1), submit(1, mark="n", key="l", id="cmd2"), ran(2, until=9), ran(3, mark="n", until=9)]),
    ("quotas_hold", "told without a job", [submit(1, **OVER_QUOTA)]),
    ("quotas_hold", "told when all is over", [
        submit(1), ran(2), exited(3), submit(4, mark="n", key="l", **OVER_QUOTA)]),
]  # fmt: skip

RIGHT: Sequence[tuple[str, str, list[AnyEvent]]] = [
    ("at_most_once", "once", [submit(1), submit(3), ran(2)]),
    ("at_most_once", "Redis emptied and another file system", [submit(1), ran(2), EMPTIED, NEW_FILES, ran(8, files=2)]),
    ("at_most_once", "Redis fallen back and new files", [
        submit(1), ran(2), FELL_BACK, NEW_FILES, submit(7), ran(8, files=2)]),
    ("at_most_once", "fences wiped and Redis emptied", [
        submit(1), ran(2), FencesWiped(at=3, sandbox="s"), EMPTIED, ran(8)]),
    ("at_most_once", "without fences", [submit(1), ran(2, fenced=False), ran(3, fenced=False)]),
    ("at_most_once", "past the retention", [submit(1), ran(2), ran(2000)]),
    ("at_most_once", "two requests without a key", [submit(1, key=None), submit(2, key=None, id="x"), ran(3), ran(4)]),
    ("at_most_once", "one key in two sandboxes", [
        submit(1), submit(2, sandbox="t", id="x"), ran(3), ran(4, sandbox="t")]),
    ("not_after_its_end", "retried", [submit(1), saw(3, "failed", reason="never_started"), submit(4), ran(5)]),
    ("not_after_its_end", "both lost", [
        submit(1), ran(2), EMPTIED, NEW_FILES, saw(7, "failed", reason="never_started")]),
    ("a_refusal_ran_nothing", "a retry ran", [submit(1, **REFUSED), submit(2), ran(2.2)]),
    ("a_refusal_ran_nothing", "another request ran it", [submit(1, **REFUSED), submit(1.1), ran(1.2)]),
    ("acknowledged_is_executed", "exited", [submit(1), ran(2), exited(3), Quiet(at=9)]),
    ("acknowledged_is_executed", "failed", [submit(1), saw(3, "failed", reason="never_started"), Quiet(at=9)]),
    ("acknowledged_is_executed", "Redis emptied before it was sent", [
        submit(1), saw(2, "pending"), EMPTIED, not_found(8), Quiet(at=9)]),
    ("a_state_means_what_it_says", "all right", [
        submit(1), ran(2), saw(2, "unknown", reason="outcome_unknown"), exited(3)]),
    ("output_is_the_commands_own", "not complete, its sandbox gone", [
        submit(1), ran(2), GONE, exited(7, output="m", output_complete=False)]),
    ("lost_is_honest", "gone", [submit(1), ran(2), GONE, saw(9, "lost", reason="sandbox_gone")]),
    ("lost_is_honest", "restarted", [submit(1), ran(2), SAME_FILES, saw(9, "lost", reason="container_restarted")]),
    ("lost_is_honest", "daemon", [
        submit(1), ran(2), DaemonRestarted(at=3, sandbox="s"), saw(9, "lost", reason="execd_restarted")]),
    ("lost_is_honest", "deaf", [submit(1), ran(2), DEAF, saw(9, "lost", reason="engine_unreachable")]),
    ("lost_is_honest", "wiped", [
        submit(1), ran(2), FencesWiped(at=3, sandbox="s"), saw(9, "lost", reason="fence_wiped")]),
    ("lost_is_honest", "full", [
        submit(1), FULL, saw(9, "lost", reason="start_not_confirmed")]),
    ("cancelled_was_asked_for", "asked", [
        submit(1), ran(2), saw(2.5, None, call={"what": "cancel"}), saw(3, "cancelled", exit_code=143)]),
    ("a_result_stays", "told twice", [submit(1), ran(2), exited(3), exited(4)]),
    ("a_result_stays", "an older answer comes later", [
        submit(1), ran(2), exited(3), saw(2.9, "running", call={"until": 4})]),
    ("a_result_stays", "found again by its fence", [
        submit(1), ran(2), exited(3), EMPTIED, saw(7, "running"), exited(8)]),
    ("a_result_stays", "cancelled, and found by its fence", [
        submit(1), ran(2, exit_code=143), saw(2, None, call={"what": "cancel"}), saw(3, "cancelled", exit_code=143),
        EMPTIED, saw(8, "exited", exit_code=143)]),
    ("failed_is_left_by_a_retry", "retried", [
        submit(1), saw(3, "failed", reason="never_started"), submit(3.5), ran(4), exited(5)]),
    ("steps_along_the_table", "a whole life", [
        submit(1), ran(2), exited(3, steps=steps(
            ("dispatched", 1), ("unknown", 1), ("voided", 1), ("claimed", 2), ("dispatched", 2), ("accepted", 2),
            ("claimed", 3), ("dispatched", 3), ("accepted", 3), ("running", 3), ("ended", 3), ("closed", 3)))]),
    ("states_along_the_table", "the next attempt", [
        submit(1), saw(3, "running"),
        saw(4, "pending", steps=steps(("accepted", 1), ("claimed", 2), ("dispatched", 2)))]),
    ("one_key_one_job", "always the same", [submit(1), submit(2, **SENT_AWAY), submit(3, status=0), submit(4)]),
    ("one_key_one_job", "two tenants", [submit(1), submit(2, tenant="blue", sandbox="t", mark="n", id="cmd2")]),
    ("one_key_one_sandbox", "gone meanwhile", [create(1), GONE, create(8, id="t")]),
    ("one_key_one_sandbox", "the named exception", [create(1), EMPTIED, LOOKUP, create(8, id="t")]),
    ("one_key_one_sandbox", "owners apart", [create(1, owner="a"), create(2, owner="b", id="t")]),
    ("a_request_gets_its_own_run", "422", [submit(1), ran(2), submit(7, mark="n", **REUSED)]),
    ("a_request_gets_its_own_run", "the one before failed", [
        submit(1, **REFUSED), submit(3, mark="n"), ran(4, mark="n")]),
    ("a_request_gets_its_own_run", "Redis fell back", [submit(1), ran(2), FELL_BACK, submit(7, mark="n")]),
    ("a_request_gets_its_own_run", "its fence deleted and Redis emptied", [
        submit(1), ran(2), FencesWiped(at=3, sandbox="s"), EMPTIED, submit(7, mark="n")]),
    ("a_request_gets_its_own_run", "both lost", [
        submit(1), ran(2), EMPTIED, NEW_FILES, submit(7, mark="n"), ran(8, mark="n", files=2)]),
    ("tenants_apart", "not found", [
        submit(1), ran(2), saw(3, None, call={"tenant": "blue", "seen": (), "status": 404, "code": "JOB_NOT_FOUND"})]),
    ("what_was_known_stays_known", "both gone", [submit(1), ran(2), EMPTIED, NEW_FILES, not_found(8)]),
    ("what_was_known_stays_known", "past the retention", [submit(1), ran(2), exited(3), not_found(2000)]),
    ("everything_settles", "over", [submit(1), ran(2), Quiet(at=9), exited(70)]),
    ("everything_settles", "a long command", [submit(1), ran(2, until=200.0), Quiet(at=9), saw(70, "running")]),
    ("everything_settles", "not yet", [submit(1), ran(2), Quiet(at=9), saw(60, "unknown", reason="outcome_unknown")]),
    ("nothing_stays_for_ever", "what ends by itself", [
        kept(kind="claim", state="closed"), kept(kind="claim", state="dispatched", of="digest of a sandbox's key"),
        kept(kind="fence"), kept(kind="key")]),
    ("one_living_sandbox_a_key", "one", [SandboxMade(at=1, sandbox="s", digest="d"), living("s")]),
    ("one_living_sandbox_a_key", "one request, doubled", [
        Inventory(at=900.0, living=tuple(Living(sandbox=each, digest="d", request="g 1") for each in "st"))]),
    ("one_living_sandbox_a_key", "without keys", [living("s", "t", digest="")]),
    ("one_living_sandbox_a_key", "another generation", [EMPTIED, living("s", "t")]),
    ("nobodys_sandbox_is_swept", "never given", [SandboxEnded(at=6.0, sandbox="s", why="deleted")]),
    ("nobodys_sandbox_is_swept", "its caller deletes it", [
        create(1), saw(5, None, id="s", call={"what": "delete", "seen": (), "status": 204}),
        SandboxEnded(at=6.0, sandbox="s", why="deleted")]),
    ("the_engine_is_asked_at_a_pace", "one job", reads(2, 1)),
    ("the_engine_is_asked_at_a_pace", "500 jobs", reads(166, 500)),
    ("the_engine_is_asked_at_a_pace", "1000 jobs", reads(333, 1000)),
    ("quotas_hold", "one after the other", [
        submit(1), ran(2), exited(3), submit(4, mark="n", key="l", id="cmd2"), ran(5, mark="n")]),
    ("quotas_hold", "told while one runs", [submit(1), ran(2, until=9), submit(4, mark="n", key="l", **OVER_QUOTA)]),
    ("quotas_hold", "the other one was killed, nobody saw when", [
        submit(1), submit(1, mark="n", key="l", id="cmd2"), killed(2),
        ran(3, mark="n", until=9)]),
    ("quotas_hold", "the store was emptied", [
        submit(1), submit(6, mark="n", key="l", id="cmd2"), ran(2, until=9), EMPTIED, ran(7, mark="n", until=9)]),
]  # fmt: skip


def found(events: list[AnyEvent]) -> set[str]:
    """The rules that a history breaks."""
    return {violation.rule for violation in checker.check([BEGUN, *events])}


@pytest.mark.parametrize(("rule", "events"), [pytest.param(r, e, id=f"{r}: {name}") for r, name, e in BROKEN])
def test_a_history_that_breaks_a_rule_is_found(rule: str, events: list[AnyEvent]) -> None:
    assert rule in found(events)


@pytest.mark.parametrize("events", [pytest.param(e, id=f"{r}: {name}") for r, name, e in RIGHT])
def test_a_history_that_keeps_the_rules_is_right(events: list[AnyEvent]) -> None:
    assert not found(events)


def test_every_rule_has_a_history_that_breaks_it_and_says_where_it_comes_from() -> None:
    rules = {rule.__name__: rule.__doc__ or "" for rule in checker.RULES}

    assert {rule for rule, _, _ in BROKEN} == set(rules)
    assert all("README" in text or ".md" in text for text in rules.values())


def test_a_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    events = [BEGUN, *(event for _, _, some in [*BROKEN, *RIGHT] for event in some)]
    file = tmp_path / "history.jsonl"

    history.write(file, events)

    assert history.read(file) == sorted(events, key=lambda event: event.at)


def test_the_page_names_every_rule() -> None:
    page = Path(__file__).parents[2].joinpath("docs/chaos.md").read_text()
    table = page.split("| rule | in short |")[1].split("\n\n")[0]

    assert {name for name in re.findall(r"`(\w+)`", table) if name in vars(checker)} == {
        rule.__name__ for rule in checker.RULES
    }
