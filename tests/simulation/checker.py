"""What must be true of every history, whatever befell the world: one function a rule.

It knows nothing of the product's code: the rules, tables and lists below are written from README, `docs/` and the
design, so that a fault in the product can't hide itself here. A rule yields a `Violation` for each thing that must not
have happened. README's exceptions are recognised by what befell the world, each as exactly that: `facts.py` has them.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from tests.simulation.facts import FINAL, OVER, Facts, Job, Sighting, Violation
from tests.simulation.history import DELETED, DISK_FULL, SANDBOX_DEAF, STORE_AWAY, AnyEvent, Call, Executed, Seen, Step

Rule = Callable[[Facts], Iterator[Violation]]

RULES: list[Rule] = []


def check(history: Iterable[AnyEvent]) -> list[Violation]:
    """All that is wrong with a history, by rule."""
    facts = Facts(history)
    return [violation for rule in RULES for violation in rule(facts)]


def _rule(rule: Rule) -> Rule:
    RULES.append(rule)
    return rule


# -- what was executed


@_rule
def at_most_once(facts: Facts) -> Iterator[Violation]:
    """README: "A command runs once"; "executed again? no", but for "Redis lost its data and the file system was
    replaced", a command that deletes the fences of its own sandbox, and a key that is used after its retention.
    """
    for mark, runs in facts.executed.items():
        asked = facts.asked.get(mark, [])
        allowed = len({(call.tenant, call.sandbox, call.key) for call in asked if call.key is not None})
        allowed += sum(call.key is None for call in asked)
        first, *more = runs
        begun = min((call.at for call in asked), default=first.at)
        more = [run for run in more if not _may_run_again(facts, first, run, begun)]
        if len(more) + 1 > max(1, allowed):
            last = more[-1]
            times = ", ".join(f"{run.at:.3f} in {run.sandbox} (files {run.files})" for run in runs)
            yield Violation("at_most_once", last.at, f"{mark} was executed {len(runs)} times: {times}")


def _may_run_again(facts: Facts, first: Executed, run: Executed, asked: float) -> bool:
    if facts.store_and_files_lost(run.sandbox, asked, run.at) and run.files != first.files:
        return True
    wiped = facts.wiped(run.sandbox, first.at, run.at)
    if (wiped and facts.lost_store(asked, run.at)) or (not first.fenced and not run.fenced):
        return True
    return first.until is not None and run.at > first.until + facts.begun.retention


@_rule
def only_what_was_asked(facts: Facts) -> Iterator[Violation]:
    """README, "The parts": a command is executed in the sandbox that its request names, and not before the request."""
    for mark, runs in facts.executed.items():
        for run in runs:
            asked = [call.at for call in facts.asked.get(mark, ()) if call.sandbox == run.sandbox]
            if not asked or min(asked) > run.at:
                yield Violation("only_what_was_asked", run.at, f"{mark} was executed in {run.sandbox}: nobody asked")


@_rule
def not_after_its_end(facts: Facts) -> Iterator[Violation]:
    """docs/concepts/fence.md: a void "never started and never will"; results.md: `failed` "never started; the same key
    really tries again", `cancelled` before its start: "nothing was run".
    """
    for job, seen in _all_seen(facts):
        if seen.seen.state != "failed" and seen.seen.reason != "cancelled_before_start":
            continue
        said = f"{job.id} is {seen.seen.state} ({seen.seen.reason}) at {seen.call.until:.3f}"
        for run in facts.runs(job):
            excused = facts.store_and_files_lost(run.sandbox, facts.first_asked(job), seen.call.until)
            if run.at < seen.call.at and not excused:
                yield Violation("not_after_its_end", run.at, f"{said}, and {run.mark} had been executed")
            elif run.at > seen.call.until and not facts.retried(job, seen.call.at, run.at):
                yield Violation("not_after_its_end", run.at, f"{said}, and {run.mark} was executed later")


NOT_RUN = {"ENGINE_UNAVAILABLE", "ENGINE_REJECTED", "QUOTA_EXCEEDED", "RATE_LIMITED", "SANDBOX_NOT_RUNNING"}
"""README, "What each failure gives": problems of a submission that was not executed."""


@_rule
def a_refusal_ran_nothing(facts: Facts) -> Iterator[Violation]:
    """README, "What each failure gives": "the engine can't be reached: executed again? no": whoever is the first to ask
    for a command, and is told so, has not had it executed.
    """
    for mark, calls in facts.asked.items():
        first = min(calls, key=lambda call: call.at)
        others = min((call.at for call in calls if call is not first), default=facts.until)
        for run in facts.executed.get(mark, ()):
            if first.code in NOT_RUN and first.at <= run.at <= min(first.until, others):
                said = f"{mark} was executed, and its only request was told {first.code} at {first.until:.3f}"
                yield Violation("a_refusal_ran_nothing", run.at, said)


@_rule
def acknowledged_is_executed(facts: Facts) -> Iterator[Violation]:
    """README: "A command runs once, and its result outlives the connection": a job that was acknowledged has a run, or
    an end that says that there was none, and why.
    """
    for job in facts.jobs.values():
        acknowledged = [call for call in job.submits if call.good]
        if facts.quiet is None or not acknowledged or not job.sightings or facts.runs(job):
            continue
        last = job.sightings[-1].seen
        if last.state not in ("failed", "cancelled", "lost") and not facts.may_be_forgotten(job, facts.until):
            said = f"{job.id} was acknowledged, is {last.state} ({last.reason}), and was never executed"
            yield Violation("acknowledged_is_executed", acknowledged[0].until, said)


# -- what callers were told


REASONS: dict[str, set[str | None]] = {
    "failed": {
        "engine_unavailable", "engine_rejected", "start_failed", "quota_exceeded", "sandbox_not_running",
        "replica_lost", "never_started", "no_fence", "stdin_missing", "stderr_not_apart",
    },
    "cancelled": {None, "cancelled_before_start"},
    "unknown": {"outcome_unknown"},
    "lost": {
        "sandbox_gone", "container_restarted", "execd_restarted", "fence_wiped", "engine_unreachable",
        "start_not_confirmed",
    },
}  # fmt: skip
"""docs/reference/states.md, "Reasons of a job": which may stand beside which state; None beside all others."""


@_rule
def a_state_means_what_it_says(facts: Facts) -> Iterator[Violation]:
    """docs/concepts/results.md, "How a job can end", and docs/reference/states.md: which exit codes and reasons go with
    which state.
    """
    for job, seen in _all_seen(facts):
        wrong = _wrong_shape(seen.seen)
        if wrong:
            yield Violation("a_state_means_what_it_says", seen.call.until, f"{job.id}: {wrong}")


def _wrong_shape(seen: Seen) -> str:
    if seen.state is None:
        return ""
    if seen.reason not in REASONS.get(seen.state, {None}):
        return f"{seen.state} with the reason {seen.reason}"
    code = seen.exit_code
    if seen.state == "exited" and code is None:
        return "exited without an exit code"
    if seen.state == "timed_out" and code != 137:
        return f"timed_out with the exit code {code}"
    if seen.state in ("pending", "running", "unknown", "failed", "lost") and code is not None:
        return f"{seen.state} with the exit code {code}"
    return ""


@_rule
def an_end_is_the_commands_own(facts: Facts) -> Iterator[Violation]:
    """README: "whoever holds the id can fetch its state and output"; docs/faults.md, `lost`: "the result is not the
    command's own".
    """
    for job, seen in _all_seen(facts):
        if seen.seen.state not in ("exited", "timed_out"):
            continue
        runs = [run for run in facts.runs(job) if run.at <= seen.call.until]
        if job.marks and not runs:
            yield Violation("an_end_is_the_commands_own", seen.call.until, f"{job.id} is {seen.seen.state}: no run")
        codes = {run.exit_code for run in runs}
        if seen.seen.state == "exited" and runs and None not in codes and seen.seen.exit_code not in codes:
            said = f"exited {seen.seen.exit_code}, and the command {sorted(map(str, codes))}"
            yield Violation("an_end_is_the_commands_own", seen.call.until, f"{job.id} {said}")


@_rule
def output_is_the_commands_own(facts: Facts) -> Iterator[Violation]:
    """docs/concepts/output.md: nothing doubled, nothing missed; `output_complete: false` only where the rest can't be
    had any more.
    """
    for job, seen in _all_seen(facts):
        runs = facts.runs(job)
        if not seen.seen.over or seen.seen.output is None or not runs:
            continue
        if any(run.output is None for run in runs):
            continue
        whole = seen.seen.output_complete and seen.seen.state == "exited"
        printed = [run.output for run in runs]
        if seen.seen.output not in printed if whole else not _begins_one(seen.seen.output, printed):
            said = f"{seen.seen.output[-80:]!r}, and the command printed {printed}"
            yield Violation("output_is_the_commands_own", seen.call.until, f"{job.id}: {said}")
        elif seen.seen.state == "exited" and not whole and not _troubled_sandbox(facts, job, seen.call):
            said = "its output is not complete, and nothing befell its sandbox"
            yield Violation("output_is_the_commands_own", seen.call.until, f"{job.id}: {said}")


def _begins_one(output: str, printed: list[str | None]) -> bool:
    return any(text is not None and text.startswith(output) for text in printed)


def _troubled_sandbox(facts: Facts, job: Job, call: Call) -> bool:
    since = facts.first_asked(job)
    return any(
        facts.gone(sandbox, call.until)
        or facts.restarted(sandbox, since, call.until)
        or facts.daemon_restarted(sandbox, since, call.until)
        or facts.troubled(SANDBOX_DEAF, since, call.until, sandbox)
        or facts.troubled(DISK_FULL, since, call.until, sandbox)
        for sandbox in _sandboxes(job)
    )


@_rule
def lost_is_honest(facts: Facts) -> Iterator[Violation]:
    """docs/reference/states.md, reasons of `lost`: each says what befell the sandbox, and that did befall it."""
    for job, seen in _all_seen(facts):
        if seen.seen.state == "lost" and job.submits and not _true_reason(facts, job, seen):
            yield Violation(
                "lost_is_honest", seen.call.until, f"{job.id} is lost ({seen.seen.reason}): it did not happen"
            )


def _true_reason(facts: Facts, job: Job, seen: Sighting) -> bool:
    since, until = facts.first_asked(job), seen.call.until
    for sandbox in _sandboxes(job):
        died = facts.restarted(sandbox, since, until)
        execd = died or facts.daemon_restarted(sandbox, since, until)
        true = {
            "sandbox_gone": facts.gone(sandbox, until),
            "container_restarted": died,
            "execd_restarted": execd,
            "fence_wiped": facts.wiped(sandbox, 0.0, until) or facts.new_files(sandbox, since, until),
            "engine_unreachable": execd or facts.troubled(SANDBOX_DEAF, since, until, sandbox),
            "start_not_confirmed": execd or facts.troubled(DISK_FULL, since, until, sandbox),
        }
        if true.get(str(seen.seen.reason)):
            return True
    return False


@_rule
def cancelled_was_asked_for(facts: Facts) -> Iterator[Violation]:
    """docs/reference/states.md: `cancelled`: "because a caller cancelled it"."""
    cancels = defaultdict(list)
    for call in facts.calls:
        if call.what == "cancel":
            cancels[call.of].append(call.at)
    for job, seen in _all_seen(facts):
        if seen.seen.state == "cancelled" and not any(at <= seen.call.until for at in cancels[job.id]):
            yield Violation("cancelled_was_asked_for", seen.call.until, f"{job.id} is cancelled: nobody asked")


@_rule
def a_result_stays(facts: Facts) -> Iterator[Violation]:
    """docs/concepts/claims.md: closed, "nothing changes any more"; for every observer. What Redis forgot is found again
    by its fence, which knows the exit code and not the rest: `exited` stays, or becomes an honest `lost`.
    """
    for job in facts.jobs.values():
        first: Sighting | None = None
        for seen in job.sightings:
            if first is not None and seen.call.at > first.call.until and not _same_end(facts, first, seen):
                before, after = _end(first.seen), _end(seen.seen)
                yield Violation("a_result_stays", seen.call.until, f"{job.id} was {before}, and is {after}")
            if seen.final and (first is None or (seen.seen.over and not first.seen.over) or seen.seen.state == "lost"):
                first = seen


def _same_end(facts: Facts, first: Sighting, seen: Sighting) -> bool:
    one, other = first.seen, seen.seen
    if facts.lost_store(first.call.at, seen.call.until):
        if one.state != "exited" or other.state not in FINAL:
            return True
        return other.state == "lost" or (other.state, other.exit_code) == (one.state, one.exit_code)
    same = (one.state, one.exit_code, one.reason) == (other.state, other.exit_code, other.reason)
    if same and one.over and other.over and None not in (one.output, other.output):
        return one.output == other.output
    return same


@_rule
def failed_is_left_by_a_retry(facts: Facts) -> Iterator[Violation]:
    """docs/reference/states.md: `failed` "ends an attempt: a retry with the same key really tries again"."""
    for job in facts.jobs.values():
        failed: Sighting | None = None
        for seen in job.sightings:
            if failed is not None and seen.call.at > failed.call.until and seen.seen.state not in ("failed", None):
                retried = facts.retried(job, failed.call.at, seen.call.until)
                if not retried and not facts.lost_store(failed.call.at, seen.call.until):
                    said = f"{job.id} was failed, and is {seen.seen.state}: nobody retried"
                    yield Violation("failed_is_left_by_a_retry", seen.call.until, said)
            failed = seen if seen.seen.state == "failed" else None


STEPS: dict[str, set[str]] = {
    "claimed": {"claimed", "dispatched", "refused", "running", "closed"},
    "dispatched": {"refused", "unknown", "accepted"},
    "unknown": {"unknown", "accepted", "running", "voided", "refused", "closed"},
    "accepted": {"accepted", "unknown", "running", "ended", "claimed", "voided", "refused", "closed"},
    "running": {"running", "unknown", "ended", "closed"},
    "ended": {"ended", "closed"},
    "refused": {"claimed"},
    "voided": {"claimed"},
    "closed": set(),
}
"""docs/concepts/claims.md, "Every transition", for a job: from a state of its claim to the next."""
FIRST_STEPS, STEPS_KEPT = 4, 16
"""A longer history has a gap behind its first four."""


@_rule
def steps_along_the_table(facts: Facts) -> Iterator[Violation]:
    """docs/concepts/claims.md: a job's claim goes only along the table; fence.md, rule 1: "the attempt goes up only
    past a void".
    """
    for job, seen in _all_seen(facts):
        steps = seen.seen.steps
        for place, (before, after) in enumerate(itertools.pairwise(steps)):
            gap = len(steps) >= STEPS_KEPT and place == FIRST_STEPS - 1
            if not gap and not _step_is_right(before, after):
                said = f"{job.id} went from {before.state} ({before.attempt}) to {after.state} ({after.attempt})"
                yield Violation("steps_along_the_table", seen.call.until, said)
                break


def _step_is_right(before: Step, after: Step) -> bool:
    if after.state not in STEPS.get(before.state, ()):
        return False
    past_a_void = before.state in ("voided", "accepted") and after.state == "claimed"
    return after.attempt == before.attempt + past_a_void


@_rule
def states_along_the_table(facts: Facts) -> Iterator[Violation]:
    """docs/reference/states.md: "a job is over in every state but pending, running and unknown": what one caller sees
    of a job does not go back, but for a retry, and for Redis that lost its data.
    """
    for job in facts.jobs.values():
        by_caller: dict[str, Sighting] = {}
        for seen in job.sightings:
            before = by_caller.get(seen.call.caller)
            by_caller[seen.call.caller] = seen
            if before is None or seen.call.at < before.call.until or seen.seen.state is None:
                continue
            if before.seen.state == "running" and seen.seen.state == "pending":
                attempts = {step.attempt for step in seen.seen.steps}
                if len(attempts) > 1 or not seen.seen.steps or facts.lost_store(before.call.at, seen.call.until):
                    continue
                yield Violation("states_along_the_table", seen.call.until, f"{job.id} was running, and is pending")


# -- keys and tenants


@_rule
def one_key_one_job(facts: Facts) -> Iterator[Violation]:
    """README: a caller's connection drops, "retries with the key: same command_id"; claims.md, "What a key stands
    for": the keys of two tenants or of two sandboxes never meet, and two requests without a key are two jobs.
    """
    told: dict[tuple[object, ...], str] = {}
    scopes: dict[str, tuple[object, ...]] = {}
    for number, call in enumerate(facts.submits):
        scope: tuple[object, ...] = (call.tenant, call.sandbox, call.key or number)
        for id in [seen.id for seen in call.seen] + [call.told_id] * bool(call.told_id):
            if told.setdefault(scope, id) != id:
                said = f"{call.tenant}'s key {call.key} gave {told[scope]}, and gives {id}"
                yield Violation("one_key_one_job", call.until, said)
            if scopes.setdefault(id, scope) != scope:
                said = f"{id} is of {scopes[id]}, and was given to {scope}"
                yield Violation("one_key_one_job", call.until, said)


@_rule
def one_key_one_sandbox(facts: Facts) -> Iterator[Violation]:
    """README: "A sandbox is created once", "never gives one caller another caller's sandbox", unless the engine says
    that it is gone; but for "Redis emptied and the lookup at the engine failing, both at once".
    """
    told: dict[tuple[object, ...], list[tuple[Call, str]]] = defaultdict(list)
    scopes: dict[str, tuple[object, ...]] = {}
    for number, call in enumerate(facts.creates):
        if not call.good:
            continue
        within: object = call.owner if call.owner is not None else ("body", call.body)
        scope: tuple[object, ...] = (call.tenant, within, call.key or number)
        for seen in call.seen:
            for before, sandbox in told[scope]:
                if sandbox != seen.id and not _may_differ(facts, before, sandbox, call):
                    said = f"{call.tenant}'s key {call.key} gave {sandbox}, which lives, and gives {seen.id}"
                    yield Violation("one_key_one_sandbox", call.until, said)
            told[scope].append((call, seen.id))
            if scopes.setdefault(seen.id, scope) != scope:
                said = f"{seen.id} is of {scopes[seen.id]}, and was given to {scope}"
                yield Violation("one_key_one_sandbox", call.until, said)


def _may_differ(facts: Facts, before: Call, sandbox: str, call: Call) -> bool:
    return facts.gone(sandbox, call.until) or facts.store_lost_and_lookup_failed(before.at, call.until)


@_rule
def a_request_gets_its_own_run(facts: Facts) -> Iterator[Violation]:
    """README: "the same key with another request: 422 IDEMPOTENCY_KEY_REUSED"; no request is told of another's run,
    unless Redis fell back to an older state, or forgot a run whose fence is gone, by itself or with its file system.
    And 422 only where there was another request.
    """
    scopes: dict[tuple[object, ...], list[Call]] = defaultdict(list)
    for call in facts.submits:
        if call.key is not None:
            scopes[call.tenant, call.sandbox, call.key].append(call)
    for calls in scopes.values():
        marks = {call.mark for call in calls}
        for call in calls:
            others = [mark for mark in marks if mark != call.mark]
            if call.code == "IDEMPOTENCY_KEY_REUSED" and not any(
                other.at < call.until for mark in others for other in facts.asked[mark]
            ):
                said = f"{call.mark}: its key is said to be another request's"
                yield Violation("a_request_gets_its_own_run", call.until, said)
            ran = [run for mark in others for run in facts.executed.get(mark, ()) if run.at < call.at]
            if not call.good or not ran:
                continue
            first = min(run.at for run in ran)
            if facts.lost_store(first, call.until, everything=False):
                continue
            unfenced = facts.wiped(call.sandbox, first, call.until) and facts.lost_store(first, call.until)
            if not unfenced and not facts.store_and_files_lost(call.sandbox, first, call.until):
                said = f"{call.mark} was answered {call.status}, and its key had run {ran[0].mark}"
                yield Violation("a_request_gets_its_own_run", call.until, said)


@_rule
def tenants_apart(facts: Facts) -> Iterator[Violation]:
    """docs/security.md: what one tenant made does not exist for any other, in lists and by its id."""
    makers: dict[str, str] = {}
    for call in [*facts.creates, *facts.submits]:
        for seen in call.seen:
            if makers.setdefault(seen.id, call.tenant) != call.tenant:
                said = f"{seen.id} was made for {makers[seen.id]}, and given to {call.tenant}"
                yield Violation("tenants_apart", call.until, said)
    for call in facts.calls:
        ids = [seen.id for seen in call.seen] + ([call.of] if call.of and call.good else [])
        for id in ids:
            if makers.get(id, call.tenant) != call.tenant:
                yield Violation("tenants_apart", call.until, f"{call.tenant} saw {id}, which is {makers[id]}'s")
                break


@_rule
def what_was_known_stays_known(facts: Facts) -> Iterator[Violation]:
    """docs/concepts/results.md: recorded results are kept for the retention, and what Redis forgot is found by its
    fence "as long as the sandbox lives": JOB_NOT_FOUND only where both are gone, or nothing had run.
    """
    known: dict[str, Call] = {}
    for call in facts.calls:
        for seen in call.seen:
            known[seen.id] = call
        before = known.get(call.of)
        if call.code != "JOB_NOT_FOUND" or before is None or before.tenant != call.tenant or before.until > call.at:
            continue
        job = facts.jobs[call.of] if call.of in facts.jobs else Job(call.of)
        if call.at < before.until + facts.begun.retention and not facts.may_be_forgotten(job, call.until):
            said = f"{call.of} was known at {before.until:.3f}, and is not found"
            yield Violation("what_was_known_stays_known", call.until, said)


# -- once the world is quiet


@_rule
def everything_settles(facts: Facts) -> Iterator[Violation]:
    """docs/faults.md: `stuck`: "no answer to a caller who retries, or no end": every `unknown` and `pending` settles,
    and what runs is seen to end, within a bound once there is no trouble any more.
    """
    if facts.quiet is None:
        return
    bound = facts.quiet + facts.begun.settled
    for call in facts.calls:
        if call.at < bound:
            continue
        if call.status == 0 or call.status >= 500 or call.code == "IDEMPOTENCY_IN_PROGRESS":
            said = (
                f"{call.what} of {call.mark or call.of or call.key}: {call.status} {call.code}, long after all trouble"
            )
            yield Violation("everything_settles", call.until, said)
    for job, seen in _all_seen(facts):
        if seen.call.at < bound or seen.seen.state not in ("pending", "unknown", "running"):
            continue
        running = [
            run for run in facts.runs(job) if run.until is None or run.until + facts.begun.settled > seen.call.at
        ]
        if seen.seen.state != "running" or not running:
            said = f"{job.id} is {seen.seen.state} ({seen.seen.reason}), long after all trouble"
            yield Violation("everything_settles", seen.call.until, said)


ACTIVE = {"claimed", "dispatched", "unknown", "accepted", "running", "ended"}
"""docs/concepts/claims.md: states of a claim that is not over."""


@_rule
def nothing_stays_for_ever(facts: Facts) -> Iterator[Violation]:
    """docs/concepts/claims.md: a job stands in the lists exactly while it is active; the retention is set as the TTL
    when a claim is over; leases and slots end by themselves; fence.md: fences are cleaned away after the record.
    """
    for inventory in facts.inventories:
        for kept in inventory.kept:
            # A sandbox's claim that nobody finishes ends by itself; a job's stands until somebody does.
            active = kept.kind == "claim" and kept.state in ACTIVE and kept.of.startswith("cmd_")
            stays = kept.ends is None or kept.ends > facts.begun.kept
            if active or stays or kept.kind == "list":
                said = f"{kept.kind} {kept.name} {kept.state} of {kept.of}, ends: {kept.ends}"
                yield Violation("nothing_stays_for_ever", inventory.at, said)


@_rule
def one_living_sandbox_a_key(facts: Facts) -> Iterator[Violation]:
    """claims.md: late duplicates of a sandbox are deleted, but for what another generation of the claim made, after
    Redis lost its data: that may be in use, and is left to its expiry.
    """
    for inventory in facts.inventories:
        by_digest: dict[str, dict[str, str]] = defaultdict(dict)
        for living in inventory.living:
            # A request that the network doubled made two, of which one was given: the other one ends with its time.
            by_digest[living.digest][living.request or living.sandbox] = living.sandbox
        for digest, sandboxes in by_digest.items():
            if digest and len(sandboxes) > 1 and not facts.lost_store(0.0, inventory.at):
                said = f"{digest}: {', '.join(sorted(sandboxes.values()))}"
                yield Violation("one_living_sandbox_a_key", inventory.at, said)


@_rule
def nobodys_sandbox_is_swept(facts: Facts) -> Iterator[Violation]:
    """README: a create "gives the same sandbox however often it is retried": only late duplicates that were never
    handed out are deleted by themselves, after a grace.
    """
    given = {seen.id: call for call in reversed(facts.creates) if call.good for seen in call.seen}
    for end in facts.ends:
        if end.why != DELETED or end.sandbox not in given:
            continue
        if not any(call.what == "delete" and call.of == end.sandbox and call.at <= end.at for call in facts.calls):
            said = f"{end.sandbox} was given to {given[end.sandbox].tenant}, and is deleted: nobody asked"
            yield Violation("nobodys_sandbox_is_swept", end.at, said)


# -- limits


QUICKEST, JOBS_AT_INTERVAL, BURST, UNEVEN = 0.5, 500, 16, 1.02
"""docs/decisions/pace.md: seconds between two looks at a job, the jobs at which it is ``interval``, looks at once."""
BESIDES = 8
"""Reads of one job that no queue holds up: its first, and its last ones."""
WINDOW = 10.0
"""Seconds over which a rate is taken."""


@_rule
def the_engine_is_asked_at_a_pace(facts: Facts) -> Iterator[Violation]:
    """docs/decisions/pace.md: jobs are looked at every max(0.5 s, interval x active / 500), at most every interval,
    over all replicas: 170 reads a second of 500 jobs; of more, as many as they are, divided by the interval.
    """
    reads = facts.reads
    place = 0
    for later in reads:
        while reads[place].at < later.at - WINDOW and reads[place + 1].at <= later.at - WINDOW:
            place += 1
        earlier = reads[place]
        seconds = later.at - earlier.at
        if seconds < WINDOW:
            continue
        active = max(each.active for each in reads if earlier.at <= each.at <= later.at)
        begun = sum(earlier.at - WINDOW <= call.at <= later.at for call in facts.submits if call.good)
        pace = min(facts.begun.interval, max(QUICKEST, facts.begun.interval * active / JOBS_AT_INTERVAL))
        most = seconds * active / pace * UNEVEN + BURST + BESIDES * (begun + active)
        for name, asked in (("state", later.states - earlier.states), ("output", later.outputs - earlier.outputs)):
            if asked > most:
                said = f"{asked} {name} reads in {seconds:.1f} s of {active} jobs; {most:.0f} at the most"
                yield Violation("the_engine_is_asked_at_a_pace", later.at, said)
                return


@_rule
def quotas_hold(facts: Facts) -> Iterator[Violation]:
    """docs/decisions/quotas.md: a tenant has no more jobs at once than its quota, over all replicas, unless the store
    was away or emptied; and is told of a quota only where that many may be under way.
    """
    for tenant, limit in ((quota.tenant, quota.jobs) for quota in facts.begun.quotas):
        marks = {call.mark for call in facts.submits if call.tenant == tenant}
        runs = sorted((run for mark in marks for run in facts.executed.get(mark, ())), key=lambda run: run.at)
        for run in runs:
            # One whose end nobody saw may have been killed long ago.
            there = (each for each in runs if each.at <= run.at and each.until is not None and each.until > run.at)
            beside = [each for each in there if each is not run] + [run]
            since = min(each.at for each in beside)
            if len(beside) > limit and not _store_troubled(facts, since - 60.0, run.at):
                said = f"{len(beside)} commands of {tenant} run at once, of {limit}: {[each.mark for each in beside]}"
                yield Violation("quotas_hold", run.at, said)
        for call in facts.submits:
            if call.tenant == tenant and call.code == "QUOTA_EXCEEDED":
                perhaps = {mark for mark in marks if mark != call.mark and facts.may_be_active(mark, call)}
                if len(perhaps) < limit:
                    said = f"{tenant} is told of its quota with {len(perhaps)} jobs, of {limit}"
                    yield Violation("quotas_hold", call.until, said)


def _store_troubled(facts: Facts, since: float, until: float) -> bool:
    return facts.lost_store(since, until) or facts.troubled(STORE_AWAY, since, until)


# -- shared


def _sandboxes(job: Job) -> set[str]:
    return {call.sandbox for call in job.submits}


def _all_seen(facts: Facts) -> Iterator[tuple[Job, Sighting]]:
    return ((job, seen) for job in facts.jobs.values() for seen in job.sightings)


def _end(seen: Seen) -> str:
    text = "" if seen.output is None else f", output {seen.output[:80]!r}"
    return f"{seen.state} {seen.exit_code} ({seen.reason}){text}" if seen.state in OVER else str(seen.state)
