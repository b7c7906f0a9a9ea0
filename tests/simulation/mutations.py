"""Rules of the product, left out or turned one at a time: each must be found by the simulation.

``python -m tests.simulation.mutations [NAME...]`` runs worlds of one seed after the other with each mutation until a
rule of the checker is broken, and prints by which, within how many seeds. ``MUTATION_SEEDS``: how many are tried at
the most (40); ``MUTATION_FIRST``: the first (0).

A mutation is a piece of the source of one function, or of one Lua script, that is replaced by another while its block
lasts. What is replaced must be there exactly once, so that none of them becomes idle without a word.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import inspect
import os
import random
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec

from service.store.scripts import Script, scripts
from tests.simulation.judging import judged
from tests.simulation.plan import Fault, Plan, plan_of


class Edit(msgspec.Struct, frozen=True):
    """``where``: ``module:function``, ``module:Class.method``, or ``lua:script``; in it ``old`` becomes ``new``."""

    where: str
    old: str
    new: str


class Mutation(msgspec.Struct, frozen=True):
    """``rule``: what is left out or turned, for people."""

    name: str
    rule: str
    edits: tuple[Edit, ...]


def _mutation(name: str, rule: str, *edits: tuple[str, str, str]) -> Mutation:
    return Mutation(name, rule, tuple(Edit(*edit) for edit in edits))


_CLAIMS = "service.core.claims.ownership:Ownership"
_ONCE = "service.core.claims.once:Claims"
_SUBMIT = "service.core.jobs.submit:Submitter"
_DISPATCH = "service.core.jobs.dispatch:Dispatcher"
_RECONCILE = "service.core.jobs.reconcile:Reconciler"
_OBSERVE = "service.core.jobs.observe:Observer"
_POLLS = "service.core.jobs.polls:Polls"
_POLLER = "service.core.jobs.poller:Poller"
_LEDGER = "service.core.jobs.ledger:Ledger"
_PROOFS = "service.core.jobs.proofs"
_QUOTAS = "service.core.limits.quotas:Quotas"
_CREATE = "service.core.sandboxes.create:Creator"
_IDENTITY = "service.core.model.identity"

_TAKEN = "\n            return await self._ownership.take_over(record, token)\n        "
_SENT, _MADE = (f"ClaimState.{state} if record.lease_expired" for state in ("DISPATCHED", "CLAIMED"))

ALL: Mapping[str, Mutation] = {
    each.name: each
    for each in (
        # -- claims
        _mutation("claim_over_claim", "a claim is made only where there is none (SET NX)", (
            "lua:claim", "'SET', KEYS[1], raw, 'NX', unpack(stands))", "'SET', KEYS[1], raw, unpack(stands))")),
        _mutation("any_owner", "an owner's write is a compare-and-set of token, epoch and state", (
            "lua:dispatch", "(owned(claim) and claim.cancel == '0' and may(moves, claim.state, 'dispatched'))",
            "(claim.cancel == '0')"), (
            "lua:settle", "if not (owned(claim) and may(moves, claim.state, ARGV[4])) then", "if false then")),
        _mutation("any_revision", "a follower's write is a compare-and-set of what it saw", (
            "lua:advance", "if not (as_seen(claim) and may(moves, claim.state, ARGV[4])) then", "if false then"), (
            "lua:finish", "if not (as_seen(claim) and may(moves, claim.state, ARGV[4])) then", "if false then")),
        _mutation("takeover_in_spite_of_a_lease", "what is held by a lease is not taken over", (
            "lua:take_over", "or claim.lease > now", ""), (
            f"{_SUBMIT}._take", "case ClaimState.CLAIMED if record.lease_expired and", "case ClaimState.CLAIMED if"), (
            f"{_CREATE}._take", "case ClaimState.CLAIMED if record.lease_expired:", "case ClaimState.CLAIMED:")),
        _mutation("takeover_keeps_the_epoch", "a takeover makes the owner before it a stranger", (
            "lua:take_over", "claim.epoch = claim.epoch + 1\n  claim.token = ARGV[4]", "")),
        _mutation("takeover_of_what_was_sent", "what may have left is not sent again", (
            f"{_SUBMIT}._take", "case ClaimState.CLAIMED | ClaimState.DISPATCHED if record.lease_expired:",
            f"case {_SENT}:{_TAKEN}case {_MADE}:"), (
            "lua:take_over", 'local moves = { claimed = "claimed" }',
            'local moves = { claimed = "claimed", dispatched = "claimed" }'), (
            "lua:take_over", "claim.lease = now + tonumber(ARGV[6])",
            "claim.state = 'claimed'\nclaim.lease = now + tonumber(ARGV[6])")),
        _mutation("abandoned_counts_as_not_sent", "a dispatched claim that is abandoned is unknown", (
            "lua:abandon", 'dispatched = "unknown"', 'dispatched = "refused"'), (
            f"{_LEDGER}.abandon",
            "after = ClaimState.REFUSED if seen.state is ClaimState.CLAIMED else ClaimState.UNKNOWN",
            "after = ClaimState.REFUSED")),
        _mutation("sent_before_the_claim_says_so", "nothing is sent without a claim that Redis acknowledged", (
            f"{_CLAIMS}.dispatch", "return sent, record", "return True, record")),
        _mutation("an_unknown_is_a_failure", "what counts as not executed is a closed list", (
            "service.core.problems:not_executed", "return isinstance(error, port.Refused | port.NotReached)",
            "return True")),
        _mutation("the_attempt_stays", "the attempt goes up past a void", (
            "lua:reopen", "if from == 'voided' or from == 'accepted' or", "if")),
        _mutation("the_attempt_goes_up_past_a_refusal", "the attempt goes up only past a void", (
            "lua:reopen", "if from == 'voided' or from == 'accepted' or",
            "if from == 'refused' or from == 'voided' or from == 'accepted' or"), (
            f"{_LEDGER}.reopen", "again = seen.state is not ClaimState.REFUSED", "again = True")),
        _mutation("the_claim_ends", "what is not over has no TTL", (
            "lua:prelude", "if ttl > 0 then", "ttl = ttl > 0 and ttl or 3000\n  if ttl > 0 then")),
        _mutation("the_record_stays", "a claim that is over has a TTL", (
            "lua:prelude", "if ttl > 0 then", "ttl = 0\n  if ttl > 0 then")),
        _mutation("listed_for_ever", "a job stands in the lists exactly while it is active", (
            "lua:prelude", "redis.call('ZREM', KEYS[5], ARGV[1])\n    redis.call('SREM', KEYS[6], ARGV[1])", "")),
        _mutation("never_listed", "an active job stands in the lists", (
            "lua:prelude", "redis.call('ZADD', KEYS[5], at, ARGV[1])", "")),
        _mutation("any_request", "the same key with another request is 422", (
            f"{_SUBMIT}.answers", "if _prints_match(record, order):", "if True:")),
        # -- the fence
        _mutation("no_fence_is_made", "a submission that comes twice runs once", (
            "service.core.fence.protocol:_script", "(scripts.MAKE + ", "(")),
        _mutation("another_file_system", "the wrapper compares the boot mark first", (
            "service.core.fence.protocol:_script", "scripts.MAKE + scripts.COMPARE +", "scripts.MAKE +"), (
            "service.core.fence.protocol:_script", "{scripts.BEGIN}{scripts.COMPARE}", "{scripts.BEGIN}")),
        _mutation("no_void_is_made", "an unknown is settled by a void that stands there", (
            f"{_RECONCILE}.settle", "await self._fences.void(body.sandbox_id, records.token(record), body.boot)",
            "Voided(outcome='voided')")),
        _mutation("a_void_of_any_file_system", "a void counts only in the file system of the dispatch", (
            f"{_RECONCILE}._voided", 'case "boot":\n            return await self._replaced(record, body, voided)',
            'case "boot":\n            return _never_started(record, body)')),
        _mutation("one_token", "the attempt names the fence", (
            f"{_IDENTITY}:fence_token", "str(attempt)", '"1"')),
        _mutation("a_new_id_each_time", "the same key gives the same id", (
            f"{_IDENTITY}:job_ref", '_hash("ref", digest)', '_hash("ref", random_token())')),
        # -- reconciler
        _mutation("a_run_is_a_void", "a run that the fence names is adopted", (
            f"{_RECONCILE}._voided", "return await self._adopt(record, body, voided.fence)",
            "return _never_started(record, body)")),
        _mutation("unknown_for_ever", "an unknown is settled", (
            f"{_OBSERVE}.observe", "return await self._reconciler.settle(record, body)", "return None")),
        _mutation("another_reason", "a container that was restarted is the reason", (
            f"{_PROOFS}:of_replaced", "reason=Reason.CONTAINER_RESTARTED", "reason=Reason.FENCE_WIPED"), (
            f"{_OBSERVE}._by_fence", "lost(Reason.CONTAINER_RESTARTED)", "lost(Reason.FENCE_WIPED)")),
        _mutation("nobody_asks_the_fence", "what execd took is confirmed by its fence", (
            f"{_RECONCILE}.confirm", "if not body.fenced:", "if True:"), (
            f"{_OBSERVE}._may_have_run_nothing", "return await", "return False and await")),
        # -- observer, poller, output
        _mutation("nobody_polls", "jobs that nobody asks for are followed too", (
            f"{_POLLER}.run", "for id in due:", "for id in []:")),
        _mutation("not_known_is_over", "execd may not know an id that it has announced", (
            f"{_OBSERVE}._state", "if record.now / 1000 -",
            "return outcome.lost(Reason.EXECD_RESTARTED), body\n            if 0 *")),
        _mutation("the_code_of_the_fence", "the fence's exit code is the command's", (
            "service.core.jobs.outcome:by_fence", "return Ending(JobState.EXITED, code)",
            "return Ending(JobState.EXITED, 0)")),
        _mutation("a_read_that_lost_its_place", "output is neither doubled nor missed", (
            "lua:advance", "if tonumber(base) + length == offset then",
            "if tonumber(base) + length == offset then\n      data = data .. string.sub(data, 1, 1)")),
        _mutation("the_end_comes_at_once", "a record is closed after a read that brought nothing new", (
            f"{_OBSERVE}._drain", "if all(each.drained or each.lost for each in read) or", "if True or")),
        _mutation("gone_without_certainty", "only the engine's certain word says that a sandbox is gone", (
            "service.core.sandboxes.liveness:Liveness.asked_if_gone", "return False, None", "return True, None")),
        # -- sandboxes
        _mutation("no_look_before_a_create", "a sandbox that Redis forgot is found by its metadata", (
            f"{_CREATE}._make", "if not (order.new_key and mine.epoch == 1):", "if False:")),
        _mutation("no_late_look", "a create that was not answered is looked for", (
            f"{_CREATE}._make", "made = await self._find_late(order.digest, claim)", "made = None"), (
            f"{_CREATE}._make", "if not (order.new_key and mine.epoch == 1):", "if False:")),
        _mutation("the_newest", "among several sandboxes everybody takes the oldest", (
            "service.core.records:oldest", "min(", "max(")),
        _mutation("swept", "a sandbox that may be in use is not swept", (
            "service.core.sweep:Sweeper.given_up",
            "if not records.never_handed_out(claim, sandbox_id=info.id, generation=generation, attempt=attempt):",
            "if False:"), ("service.core.sweep:Sweeper.given_up", "> grace", "> 1.0")),
        # -- tenants and keys
        _mutation("any_tenant", "a job of another tenant does not exist", (
            "service.core.jobs.restore:Restorer.find",
            "if record is None or records.job_body(record).tenant != tenant:", "if record is None:"), (
            "service.core.jobs.restore:Restorer.find", "if records.job_body(record).tenant != tenant:", "if False:")),
        _mutation("one_scope", "the keys of two tenants never meet", (
            f"{_IDENTITY}:sandbox_digest", '_hash("sandbox", tenant,', '_hash("sandbox",')),
        # -- quotas and pace
        _mutation("no_quota", "a tenant has no more jobs than its quota", (
            "lua:reserve", ">= tonumber(ARGV[2]) then return 0 end", ">= tonumber(ARGV[2]) * 100 then return 0 end")),
        _mutation("a_slot_leaks", "a job that is over gives its slot back", (
            f"{_QUOTAS}.free_job", "is not None:", "is None:"), (
            f"{_QUOTAS}.take_job", "if await self._freed(tenant) and", "if False and")),
        _mutation("no_pace", "the engine is asked at a pace", (
            "service.core.jobs.pacing:Pace.seconds", "return min(", "return 0.02 * min("), (
            "service.core.jobs.pacing:Pace.poll_slot", "return await", "return 0.0\n    await")),
    )
}  # fmt: skip


@contextlib.contextmanager
def applied(mutation: Mutation) -> Iterator[None]:
    """The product without this rule, while the block lasts. Raises ``LookupError`` where a piece is not there once."""
    with contextlib.ExitStack() as stack:
        for edit in mutation.edits:
            kind, _, name = edit.where.partition(":")
            stack.enter_context(_lua(name, edit) if kind == "lua" else _python(kind, name, edit))
        yield


@contextlib.contextmanager
def _lua(name: str, edit: Edit) -> Iterator[None]:
    known = cast(dict[str, Script], scripts())
    before = dict(known)
    # The prelude stands before every script.
    for script in list(known.values()) if name == "prelude" else [known[name]]:
        text = _replaced(script.text.decode(), edit).encode()
        known[script.name] = Script(script.name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest())
    try:
        yield
    finally:
        known.update(before)


@contextlib.contextmanager
def _python(module: str, name: str, edit: Edit) -> Iterator[None]:
    owner: Any = importlib.import_module(module)
    globals_ = vars(owner)
    *classes, function = name.split(".")
    for each in classes:
        owner = getattr(owner, each)
    before = inspect.unwrap(getattr(owner, function))
    source = getattr(before, "__mutated__", None) or textwrap.dedent(inspect.getsource(before))
    changed = _replaced(source, edit)
    made: dict[str, Any] = {}
    code = compile(changed, f"<{module}.{name}, mutated>", "exec", flags=annotations.compiler_flag)
    exec(code, globals_, made)
    made[function].__mutated__ = changed
    users = (
        [] if classes else [m for m in list(sys.modules.values()) if vars(m).get(function) is getattr(owner, function)]
    )
    original = owner.__dict__[function] if classes else before
    for target in [owner, *users]:
        setattr(target, function, made[function])
    try:
        yield
    finally:
        for target in [owner, *users]:
            setattr(target, function, original)


def _replaced(text: str, edit: Edit) -> str:
    if text.count(edit.old) != 1:
        raise LookupError(f"{edit.where}: {edit.old!r} is there {text.count(edit.old)} times")
    return text.replace(edit.old, edit.new)


class Found(msgspec.Struct, frozen=True):
    """``seeds``: how many worlds it took; ``rules``: which the last one broke, none where it was not found."""

    seeds: int
    rules: frozenset[str]


@functools.cache
def _kinds() -> tuple[str, ...]:
    """Every kind of fault that worlds have."""
    return tuple(sorted({fault.kind for seed in range(500) for fault in plan_of(seed).faults}))


def rough(seed: int) -> Plan:
    """The world of a seed with few callers and much trouble: what there is to find, is found sooner in it."""
    rng = random.Random(f"rough {seed}")
    mild = plan_of(seed)
    callers = tuple(msgspec.structs.replace(each, jobs=min(each.jobs, 4), at=each.at / 3) for each in mild.callers[:8])
    # Messages that are lost, late and doubled, and replicas that die in the middle, are always among it.
    kinds = ("weather", "weather", "kill_at_step", "freeze", *rng.sample(_kinds(), 4))
    faults = tuple(
        Fault(at, rng.choice(kinds), rng.choice((0.5, 2.0, 8.0)), rng.randrange(60), rng.random())
        for at in sorted(rng.uniform(1, 20) for _ in range(16))
    )
    return msgspec.structs.replace(mild, seconds=20.0, callers=callers, faults=faults)


def hunted(mutation: Mutation, *, first: int, most: int) -> Found:
    """Run worlds with a mutation until one of them fails that the product itself comes through."""
    for number in range(most):
        plan = rough(first + number)
        with applied(mutation):
            kinds = judged(plan).kinds
        if kinds and (new := kinds - judged(plan).kinds):
            return Found(number + 1, frozenset(new))
    return Found(most, frozenset())


def main(names: list[str]) -> int:
    """0: each was found."""
    first, most = int(os.environ.get("MUTATION_FIRST") or 0), int(os.environ.get("MUTATION_SEEDS") or 40)
    missed = 0
    for name in names or list(ALL):
        found = hunted(ALL[name], first=first, most=most)
        missed += not found.rules
        told = (
            f"{found.seeds:3} seeds  {', '.join(sorted(found.rules))}" if found.rules else f"NOT FOUND in {most} seeds"
        )
        print(f"{name:36} {told}", flush=True)
    print(f"{len(names or ALL) - missed} of {len(names or ALL)} found")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
