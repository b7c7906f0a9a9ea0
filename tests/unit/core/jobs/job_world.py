"""What the model of a job's submission is about: who takes part, what can go wrong, and what stands where.

Two replicas and callers that retry one key. Messages to execd come late, doubled or never, replies are lost, a
replica stops at any step and goes on later, Redis is emptied or falls back to an older state, the container comes
back with another file system or with the same, a job wipes the fence directory, or removes its own fence, and prints
what a wrapper prints that ran nothing, or removes what it was to read, another job makes the mark, an upload of what a
command is to read comes late, the disk is full for a while, a wrapper or a void
dies half-way, callers cancel, old fences are cleaned away, and another request comes with the same key.

The claim moves only as `service.core.model.states.SCRIPTS` allows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from service.core.model.states import SCRIPTS, ClaimState

C, D, U = ClaimState.CLAIMED, ClaimState.DISPATCHED, ClaimState.UNKNOWN
REFUSED, VOIDED, ACCEPTED = ClaimState.REFUSED, ClaimState.VOIDED, ClaimState.ACCEPTED
RUNNING, ENDED, CLOSED = ClaimState.RUNNING, ClaimState.ENDED, ClaimState.CLOSED

OWN, FOUND = "own", "found"

MAX_ATTEMPT = 3
"""Attempts that are looked at, unless a world says fewer."""


class Claim(NamedTuple):
    """The record.

    `met`: what the engine command that it follows met, or "says" what its output says it met; `why`: how it was
    closed; `request`: whose fingerprint it has.
    """

    state: ClaimState
    attempt: int
    token: int
    boot: int = 0
    cancel: bool = False
    met: str = ""
    why: str = ""
    request: int = 1
    epoch: int = 1
    input: int = 0


class Owner(NamedTuple):
    """What a replica is at. `token` is the claim's, random: no two tries have the same."""

    attempt: int
    token: int
    phase: str
    boot: int = 0
    request: int = 1
    epoch: int = 1
    first: bool = False
    """The sandbox's record was this Redis's own when the request came."""
    earlier: int = 0
    """Whose run the fence names."""
    own: bool = False
    """No other request can have had the key."""
    input: int = 0
    """The file with what the command is to read; 0: none."""


class Message(NamedTuple):
    """A submission on its way to execd. `copies` more may arrive."""

    attempt: int
    token: int
    boot: int
    request: int = 1
    input: int = 0


class Wrapper(NamedTuple):
    """A wrapper that has begun: it has `compared` the mark, or `made` its fence."""

    message: Message
    phase: str


class Budget(NamedTuple):
    """How often each trouble may still happen."""

    calls: int = 2
    copies: int = 0
    flushes: int = 0
    swaps: int = 0
    restarts: int = 0
    wipes: int = 0
    full: int = 0
    deaths: int = 0
    cancels: int = 0
    cleans: int = 0
    rollbacks: int = 0
    crashes: int = 1
    forgeries: int = 0
    removals: int = 0
    marks: int = 0
    losses: int = 0
    expiries: int = 0
    uploads: int = 0
    unlinks: int = 0


class State(NamedTuple):
    """All of it at one moment. Marks and starts are numbers; mark 0 is none at all."""

    left: Budget
    claim: Claim | None = None
    saved: Claim | None = None
    owners: tuple[Owner | None, Owner | None] = (None, None)
    messages: tuple[Message, ...] = ()
    wrappers: tuple[Wrapper, ...] = ()
    replies: frozenset[tuple[int, str]] = frozenset()
    fences: frozenset[tuple[int, str]] = frozenset()
    mark: int = 0
    starts: tuple[int, ...] = ()
    """Of each mark, when the first process started at that time."""
    start: int = 1
    full: bool = False
    alive: frozenset[int] = frozenset()
    ran: frozenset[int] = frozenset()
    runs: int = 0
    tokens: int = 0
    sandbox: str = OWN
    """What is remembered of the sandbox: made under this Redis, found at the engine, or nothing."""
    names: frozenset[tuple[int, int]] = frozenset()
    """Of each run's fence, whose request it names."""
    ran_for: frozenset[int] = frozenset()
    """Requests whose commands ran."""
    told: frozenset[tuple[int, str]] = frozenset()
    """Requests and their answers."""
    refused_on_their_way: frozenset[int] = frozenset()
    """Tokens of messages whose caller was told that they run nothing."""
    inputs: frozenset[tuple[int, int]] = frozenset()
    """Files that commands are to read, and whose request's content is in them."""
    uploads: frozenset[tuple[int, int]] = frozenset()
    """Copies of uploads that are still under way."""
    fault: str = ""


@dataclass(frozen=True)
class World:
    """What may go wrong, and the rules that are left out."""

    budget: Budget
    left_out: frozenset[str] = frozenset()
    fences: bool = True
    """Whether the sandbox can hold a mark at all."""
    fine: bool = False
    """Wrappers take their steps one by one; needed only where something can happen in between."""
    blind: bool = False
    """A replica may fail to read the mark, or to hear of its own dispatch."""
    others: bool = False
    """A second request with the same key comes too."""
    at_once: bool = True
    """An accepted command is an answer at once where no other request can have had the key."""
    again: bool = False
    """Who lost a reply tries again under the same token."""
    attempts: int = MAX_ATTEMPT
    reads: bool = False
    """Commands have an input."""
    marked: bool = False
    """The mark was made when the sandbox became ready."""
    moves: set[tuple[str, ClaimState | None, ClaimState]] = field(default_factory=set)
    """The moves of the claim that were made."""

    def without(self, *rules: str) -> World:
        """The same world with rules left out."""
        return replace(self, left_out=frozenset(rules))

    def has(self, rule: str) -> bool:
        return rule not in self.left_out

    def write(self, script: str, s: State, to: ClaimState, **change: Any) -> State:
        """The claim after a script, which the real table must allow."""
        source = s.claim.state if s.claim else None
        if script != "take_over" or self.has("a dispatched claim is not taken over"):
            assert to in SCRIPTS[script].get(source, ()), f"{script}: {source} -> {to} is not in the table"
        self.moves.add((script, source, to))
        claim = s.claim
        if claim is None:
            return s._replace(claim=Claim(to, **change))
        if to.failed:  # the key is free; who was told 202 hears of it by the next poll
            s = s._replace(told=s.told - {(claim.request, "202")})
        return s._replace(claim=claim._replace(state=to, **change))

    def follow(self, s: State, to: ClaimState, **change: Any) -> State:
        """What a poller writes: what it saw, or the end."""
        return self.write("advance" if to.active else "finish", s, to, **change)


Step = tuple[str, State]


def spend(s: State, what: str) -> State:
    return s._replace(left=s.left._replace(**{what: getattr(s.left, what) - 1}))


def kind_of(s: State, attempt: int) -> str | None:
    """What the fence of an attempt is."""
    return next((kind for number, kind in s.fences if number == attempt), None)
