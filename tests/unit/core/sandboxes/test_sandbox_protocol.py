"""Every interleaving, within bounds, of the rules that create a sandbox once; each rule is needed.

Two replicas and callers that retry one key; creates arrive late or never, replies are lost, a replica stops at any
step and goes on later, Redis is emptied, a lookup fails, a sandbox ends, a claim that nobody finishes ends by
itself. States and moves are those of `service.core.model.states.SCRIPTS`; the choice among several, and what may be
swept, are the product's own functions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from service.core import records
from service.core.model.states import SCRIPTS, ClaimState
from service.core.records import SandboxClaim
from service.messages import SandboxState
from service.ports.engine import SandboxInfo

C, D, U, K = ClaimState.CLAIMED, ClaimState.DISPATCHED, ClaimState.UNKNOWN, ClaimState.DONE
MAX_ATTEMPT = 3


@dataclass(frozen=True, order=True)
class Box:
    id: int
    generation: int
    attempt: int


@dataclass(frozen=True)
class Claim:
    state: ClaimState
    generation: int
    epoch: int
    attempt: int
    box: int | None = None
    given_up: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Owner:
    generation: int
    epoch: int
    attempt: int
    phase: str
    box: int | None = None


@dataclass(frozen=True)
class World:
    calls: int = 3
    flushes: int = 0
    bad_lookups: int = 0
    ends: int = 0
    expiries: int = 0
    claim: Claim | None = None
    boxes: tuple[Box, ...] = ()
    creates: tuple[tuple[int, int, int], ...] = ()
    owners: tuple[Owner | None, Owner | None] = (None, None)
    handed: frozenset[int] = frozenset()
    ended: frozenset[int] = frozenset()
    swept: frozenset[int] = frozenset()
    two_alive: bool = False
    generations: int = 0
    epochs: int = 0
    made: int = 0


@dataclass(frozen=True)
class Rules:
    """Each is left out by one test."""

    oldest: bool = True
    relook: bool = True
    given_up: bool = True
    epoch: bool = True
    liveness: bool = True


def moved(claim: Claim | None, script: str, to: ClaimState, **changes: object) -> Claim:
    """The claim after a script; only where the product's own table allows the step."""
    before = claim.state if claim is not None else None
    assert to in SCRIPTS[script].get(before, frozenset()), (script, before, to)
    base = claim or Claim(to, 0, 0, 0)
    return replace(base, state=to, **changes)  # type: ignore[arg-type]


def choose(world: World, rules: Rules) -> int | None:
    alive = [box for box in world.boxes if box.id not in world.ended]
    if not rules.oldest:
        return max(alive, key=lambda box: (box.attempt, box.id)).id if alive else None
    infos = [SandboxInfo(id=f"{box.id:03}", state=SandboxState.RUNNING, created_at=float(box.id)) for box in alive]
    found = records.oldest(infos)
    return int(found.id) if found is not None else None


def hand_out(world: World, box: int) -> World:
    others = {other for other in world.handed if other != box and other not in world.ended}
    return replace(world, handed=world.handed | {box}, two_alive=world.two_alive or bool(others))


def begin(world: World, r: int, rules: Rules) -> Iterator[World]:
    """A caller's request reaches replica r."""
    claim, epoch = world.claim, world.epochs + 1
    called = replace(world, calls=world.calls - 1)

    def own(claim: Claim, **changes: object) -> World:
        owner = Owner(claim.generation, claim.epoch, claim.attempt, "look")
        return replace(with_owner(called, r, owner), claim=claim, epochs=epoch, **changes)  # type: ignore[arg-type]

    if claim is None:
        made = moved(None, "claim", C, generation=world.generations + 1, epoch=epoch, attempt=1)
        yield own(made, generations=world.generations + 1)
    elif claim.state is K and claim.box is not None:
        gone = claim.box in world.ended and rules.liveness
        if not gone:
            yield hand_out(called, claim.box)
        elif claim.attempt < MAX_ATTEMPT:
            yield own(moved(claim, "reopen", C, epoch=epoch, attempt=claim.attempt + 1, box=None))
    elif claim.state is C:
        yield own(moved(claim, "take_over", C, epoch=epoch))
    elif claim.state is U and claim.attempt < MAX_ATTEMPT:
        given_up = claim.given_up | {claim.attempt}
        yield own(moved(claim, "reopen", C, epoch=epoch, attempt=claim.attempt + 1, given_up=given_up))


def with_owner(world: World, r: int, owner: Owner | None) -> World:
    owners = (owner, world.owners[1]) if r == 0 else (world.owners[0], owner)
    return replace(world, owners=owners)


def work(world: World, r: int, owner: Owner, rules: Rules) -> Iterator[World]:
    """The next step of replica r's work."""
    claim = world.claim
    mine = claim is not None and (claim.generation, claim.epoch) == (owner.generation, owner.epoch)
    idle = with_owner(world, r, None)
    yield idle  # crashes, or stops for good
    if owner.phase == "look":
        found = choose(world, rules)
        if found is not None:
            settled = replace(idle, claim=moved(claim, "settle", K, box=found)) if mine and claim else idle
            yield hand_out(settled, found) if mine else settled
        if found is None or world.bad_lookups:
            tried = replace(world, bad_lookups=world.bad_lookups - (found is not None))
            if mine:
                tried = replace(tried, claim=moved(claim, "dispatch", D))
                yield with_owner(tried, r, replace(owner, phase="send"))
            else:
                yield with_owner(tried, r, None)
    elif owner.phase == "send":
        sent = tuple(sorted((*world.creates, (owner.generation, owner.attempt, r))))
        yield with_owner(replace(world, creates=sent), r, replace(owner, phase="wait"))
    else:
        yield from answered(world, r, owner, rules, mine=mine)
        if mine and claim is not None and claim.state is D:
            yield replace(idle, claim=moved(claim, "settle", U))


def answered(world: World, r: int, owner: Owner, rules: Rules, *, mine: bool) -> Iterator[World]:
    claim, box = world.claim, owner.box
    if box is None:
        return
    idle = with_owner(world, r, None)
    pick = choose(world, rules) if owner.attempt > 1 and rules.relook else box
    pick = box if pick is None else pick
    if mine and claim is not None and claim.state in (D, U):
        given_up = claim.given_up | ({owner.attempt} if pick != box else frozenset())
        yield hand_out(replace(idle, claim=moved(claim, "settle", K, box=pick, given_up=given_up)), pick)
    elif not rules.epoch:
        yield hand_out(idle, pick)
    else:
        yield idle


def elsewhere(world: World, rules: Rules) -> Iterator[World]:
    """What happens besides the replicas' own steps."""
    claim = world.claim
    if claim is not None and claim.state is D:
        yield replace(world, claim=moved(claim, "abandon", U))
    for create in set(world.creates):
        rest = list(world.creates)
        rest.remove(create)
        generation, attempt, r = create
        box = Box(world.made + 1, generation, attempt)
        arrived = replace(world, creates=tuple(rest), boxes=(*world.boxes, box), made=box.id)
        owner = world.owners[r]
        if owner and owner.phase == "wait" and (owner.generation, owner.attempt) == (generation, attempt):
            arrived = with_owner(arrived, r, replace(owner, box=box.id))
        yield arrived
        yield replace(world, creates=tuple(rest))
    if claim is not None and claim.state is K:
        for box in world.boxes:
            if box.id not in world.ended and may_sweep(claim, box, rules):
                yield replace(world, swept=world.swept | {box.id}, ended=world.ended | {box.id})
    if world.expiries and claim is not None and claim.state in (C, D, U) and not world.creates:
        # Its owner has stopped long ago, or goes on later; by now every create has arrived, or never will.
        yield replace(world, claim=None, expiries=world.expiries - 1)
    if world.flushes:
        yield replace(world, claim=None, flushes=world.flushes - 1)
    if world.ends:
        for box in world.boxes:
            if box.id not in world.ended:
                yield replace(world, ended=world.ended | {box.id}, ends=world.ends - 1)


def may_sweep(claim: Claim, box: Box, rules: Rules) -> bool:
    if not rules.given_up:
        return box.id != claim.box
    body = SandboxClaim(
        tenant="t",
        fingerprint="f",
        generation=str(claim.generation),
        given_up=sorted(claim.given_up),
        sandbox_id=str(claim.box),
    )
    return records.never_handed_out(body, sandbox_id=str(box.id), generation=str(box.generation), attempt=box.attempt)


def explore(start: World, rules: Rules) -> tuple[int, set[str]]:
    """How many states there are, and which faults."""
    seen, queue, faults = {start}, deque([start]), set()
    while queue:
        world = queue.popleft()
        steps = [*elsewhere(world, rules)]
        for r in (0, 1):
            owner = world.owners[r]
            if owner is not None:
                steps += work(world, r, owner, rules)
            elif world.calls:
                steps += begin(world, r, rules)
        for step in steps:
            if step in seen:
                continue
            seen.add(step)
            queue.append(step)
            if step.two_alive:
                faults.add(TWO)
            if step.handed & step.swept:
                faults.add(SWEPT)
    return len(seen), faults


@pytest.mark.parametrize(
    "start",
    [World(), World(flushes=1), World(bad_lookups=1), World(ends=1), World(expiries=2)],
    ids=["calm", "redis emptied", "a lookup fails", "a sandbox ends", "claims end by themselves"],
)
def test_all_answers_to_a_key_name_one_sandbox_that_lives(start: World) -> None:
    states, faults = explore(start, Rules())
    assert states > 1000
    assert not faults


TWO, SWEPT = "two sandboxes that live were handed out", "a sandbox that was handed out was swept"


@pytest.mark.parametrize(
    ("rules", "start", "fault"),
    [
        (Rules(oldest=False), World(calls=4, flushes=1), TWO),
        (Rules(relook=False), World(calls=4, flushes=1), TWO),
        (Rules(given_up=False), World(flushes=1, bad_lookups=1), SWEPT),
        (Rules(epoch=False), World(calls=4), TWO),
    ],
    ids=["oldest", "second look", "given up", "epoch"],
)
def test_each_rule_is_needed(rules: Rules, start: World, fault: str) -> None:
    _, faults = explore(start, rules)
    assert fault in faults


def test_redis_emptied_and_a_failing_lookup_together_can_give_a_second_sandbox() -> None:
    """What stays, as documented: one sandbox too many is the lesser evil."""
    _, faults = explore(World(flushes=1, bad_lookups=1), Rules())
    assert faults == {TWO}


def test_without_the_check_that_it_lives_a_dead_sandbox_is_replayed() -> None:
    with_check, _ = explore(World(ends=1), Rules())
    without, _ = explore(World(ends=1), Rules(liveness=False))
    assert with_check > without
