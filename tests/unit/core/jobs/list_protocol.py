"""A job's claim, its place in the lists of active jobs, and the chore that cleans its fence: each script by itself.

Two requests with one key, and a poller that asks about what is listed and nothing else; each may stop for good at any
step. A rule that is left out makes two scripts of one, or lets a script act where its compare-and-set failed.
The claim moves as `service.core.model.states.SCRIPTS` allows. `explore` finds the shortest way to each fault.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from service.core.model.states import SCRIPTS, ClaimState

C, D, ACCEPTED = ClaimState.CLAIMED, ClaimState.DISPATCHED, ClaimState.ACCEPTED
RUNNING, REFUSED, CLOSED, UNKNOWN = ClaimState.RUNNING, ClaimState.REFUSED, ClaimState.CLOSED, ClaimState.UNKNOWN

UNFOLLOWED = "active, but in no list"
ORPHANED = "pending without its owner, and in no list"
LEFTOVER = "over, but listed as active"
UNCLEANED = "recorded, but its fence is never cleaned away"
NO_OUTPUT = "recorded without its output"


class Party(NamedTuple):
    """A request, or the follower, at work. `token` and `revision`: of the claim as it saw it."""

    phase: str
    token: int = 0
    revision: int = 0


class State(NamedTuple):
    """All of it at one moment."""

    calls: int = 3
    crashes: int = 1
    flushes: int = 0
    claim: ClaimState | None = None
    token: int = 0
    revision: int = 0
    listed: bool = False
    chore: bool = False
    output: bool = False
    parties: tuple[Party | None, Party | None] = (None, None)
    follower: Party | None = None


@dataclass(frozen=True)
class World:
    """Rules that are left out, and how much can happen."""

    left_out: frozenset[str] = frozenset()
    calls: int = 3
    crashes: int = 1
    flushes: int = 0
    moves: set[tuple[str, ClaimState | None, ClaimState]] = field(default_factory=set)

    def has(self, rule: str) -> bool:
        return rule not in self.left_out

    def write(self, script: str, s: State, to: ClaimState, *, token: int | None = None, lists: bool = True) -> State:
        """The claim after a script, and the lists, which the same script keeps."""
        assert to in SCRIPTS[script].get(s.claim, ()), f"{script}: {s.claim} -> {to} is not in the table"
        self.moves.add((script, s.claim, to))
        new = s._replace(claim=to, revision=s.revision + 1, token=s.token if token is None else token)
        return new._replace(listed=to.active) if lists else new


Step = tuple[str, State]


def requests(w: World, s: State) -> Iterator[Step]:
    for party, other in dict.fromkeys((s.parties, s.parties[::-1])):
        steps = asked(w, s) if party is None else working(w, s, party)
        for name, new, after in steps:
            yield f"a request {name}", new._replace(parties=pair(after, other))
        if party is not None and s.crashes:
            yield "its replica stops for good", s._replace(crashes=s.crashes - 1, parties=pair(None, other))


def pair(one: Party | None, other: Party | None) -> tuple[Party | None, Party | None]:
    return (other, one) if one is None or (other is not None and other > one) else (one, other)


OwnStep = tuple[str, State, Party | None]


def asked(w: World, s: State) -> Iterator[OwnStep]:
    if not s.calls:
        return
    s = s._replace(calls=s.calls - 1)
    match s.claim:
        case None:
            yield "finds no claim", s, Party("claim")
        case ClaimState.REFUSED:
            yield "finds that it failed", s, Party("reopen", s.token, s.revision)
        case _ if not w.has("a replay lists nothing"):
            yield "is answered, and lists the job", s._replace(listed=True), None
        case _:
            yield "is answered", s, None


def working(w: World, s: State, p: Party) -> Iterator[OwnStep]:
    mine = s.claim is not None and s.token == p.token
    match p.phase:
        case "claim" if s.claim is None:
            yield from made(w, s, "claim", D, "send")
            yield from made(w, s, "claim", C, "dispatch")
        case "reopen" if s.claim is REFUSED and s.revision == p.revision and mine:
            yield from made(w, s, "reopen", C, "dispatch")
        case "claim" | "reopen":
            yield "finds that others were quicker", s, None
        case "list":
            yield "lists the job", s._replace(listed=True), Party("send" if s.claim is D else "dispatch", p.token)
        case "dispatch" if mine and s.claim is C:
            yield "dispatches", w.write("dispatch", s, D), p._replace(phase="send")
        case "send" if mine and s.claim is D:
            yield "sends, and it is accepted", w.write("settle", s, ACCEPTED), None
            yield from ended(w, s, "settle", REFUSED, p)
            yield "gets no answer", w.write("settle", s, UNKNOWN), None
        case "dispatch" | "send":
            yield "lost its race", s, None
        case _:
            yield from late(s, p)


def made(w: World, s: State, script: str, to: ClaimState, phase: str) -> Iterator[OwnStep]:
    token = s.token + 1
    lists = w.has(f"{script} lists in its own script")
    new = w.write(script, s, to, token=token, lists=lists)._replace(output=False)
    yield f"{script}s", new, Party(phase if lists else "list", token)


def ended(w: World, s: State, script: str, to: ClaimState, p: Party) -> Iterator[OwnStep]:
    """The end is written: lists, output and chore by the same script."""
    if w.has("the end is one script"):
        new = w.write(script, s, to)
        yield f"writes the end ({to.value})", new._replace(output=to is CLOSED, chore=s.chore or to is CLOSED), None
    else:
        yield (
            f"writes the end ({to.value})",
            w.write(script, s, to, lists=False),
            p._replace(phase=f"unlist {to.value}"),
        )


def late(s: State, p: Party) -> Iterator[OwnStep]:
    """What is left of an end that is written by several scripts, or that lost its race."""
    if p.phase.startswith("unlist"):
        recorded = p.phase == f"unlist {CLOSED.value}"
        yield "unlists the job", s._replace(listed=False), p._replace(phase="output") if recorded else None
    elif p.phase == "output":
        yield "writes the output", s._replace(output=True), p._replace(phase="chore")
    elif p.phase == "chore":
        yield "notes the chore", s._replace(chore=True), None


def followers(w: World, s: State) -> Iterator[Step]:
    """It sees what is listed; owners' leases run out at any time."""
    p = s.follower
    if p is None:
        if s.listed:
            yield "the follower reads the list", s._replace(follower=Party("listed"))
        return
    if s.crashes:
        yield "the follower stops, and another begins", s._replace(crashes=s.crashes - 1, follower=None)
    for name, new, after in following(w, s, p):
        yield f"the follower {name}", new._replace(follower=after)


def following(w: World, s: State, p: Party) -> Iterator[OwnStep]:
    as_seen = s.claim is not None and (s.token, s.revision) == (p.token, p.revision)
    match p.phase:
        case "listed":
            yield "reads the claim", s, Party("end" if active(s) else "forget", s.token, s.revision)
        case "forget" if w.has("an entry is dropped by the script that sees its claim over") and active(s):
            yield "finds it active again", s, None
        case "forget":
            yield "drops the entry", s._replace(listed=False), None
        case "end" if not as_seen and not w.has("the end acts only where its compare-and-set succeeds"):
            yield "lost its race, and unlists the job", s._replace(listed=False), None
        case "end" if not as_seen:
            yield "lost its race", s, None
        case "end" if s.claim is C:
            yield from ended(w, s, "abandon", REFUSED, p)
        case "end" if s.claim is D:
            yield "abandons it", w.write("abandon", s, UNKNOWN), None
        case "end" if s.claim is ACCEPTED:
            yield "confirms it", w.write("advance", s, RUNNING), None
            yield from ended(w, s, "finish", REFUSED, p)
        case "end" if s.claim is UNKNOWN:
            yield "adopts it", w.write("advance", s, RUNNING), None
            yield from ended(w, s, "finish", REFUSED, p)
        case "end" if s.claim is RUNNING:
            yield from ended(w, s, "finish", CLOSED, p)
        case _:
            yield from late(s, p)


def active(s: State) -> bool:
    return s.claim is not None and s.claim.active


def troubles(w: World, s: State) -> Iterator[Step]:
    if s.flushes:
        empty = s._replace(flushes=s.flushes - 1, claim=None, listed=False, chore=False, output=False)
        yield "Redis is emptied", empty
    if s.claim is None and s.token and s.flushes < w.flushes:
        token = s.token + 1
        if w.has("restore lists in its own script"):
            yield "a GET finds it by its fence", w.write("restore", s, RUNNING, token=token)
        else:
            yield "a GET finds it by its fence, and stops", w.write("restore", s, RUNNING, token=token, lists=False)


def fault_of(s: State) -> str:
    """What is wrong where nobody is left to mend it; "" for nothing."""
    owned = any(p and p.token == s.token and p.phase in ("list", "dispatch", "send") for p in s.parties)
    ending = any(p and p.phase.startswith("unlist") for p in (*s.parties, s.follower))
    at_work = s.follower is not None or any(s.parties)
    if active(s) and not s.listed:
        if not s.claim or not s.claim.pending:
            return UNFOLLOWED
        return "" if owned else ORPHANED
    if s.listed and not active(s) and not ending:
        return LEFTOVER
    if s.claim is CLOSED and not at_work and not s.listed:
        return "" if s.chore and s.output else UNCLEANED if not s.chore else NO_OUTPUT
    return ""


@dataclass(frozen=True)
class Found:
    """What an exploration found: the number of states, and the shortest trace to each fault."""

    states: int
    faults: dict[str, list[str]]


def explore(world: World) -> Found:
    """Every interleaving."""
    first = State(calls=world.calls, crashes=world.crashes, flushes=world.flushes)
    came: dict[State, tuple[State, str] | None] = {first: None}
    queue, faults = deque([first]), dict[str, list[str]]()
    while queue:
        s = queue.popleft()
        for steps in (requests, followers, troubles):
            for name, t in steps(world, s):
                if t in came:
                    continue
                came[t] = (s, name)
                if fault := fault_of(t):
                    faults.setdefault(fault, trace(came, t))
                    continue
                queue.append(t)
    return Found(len(came), faults)


def trace(came: dict[State, tuple[State, str] | None], s: State) -> list[str]:
    """The steps that led to a state."""
    names = []
    while (before := came[s]) is not None:
        s, name = before
        names.append(name)
    return names[::-1]
