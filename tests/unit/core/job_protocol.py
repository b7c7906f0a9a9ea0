"""How a job's claim (Redis) and its fence (the sandbox) work together: every step that any of the parties can take.

What can happen, and how often, is a `World` of `job_world`. `explore` finds the shortest way to each fault.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from service.core.states import ClaimState
from tests.unit.core.job_world import (
    ACCEPTED,
    CLOSED,
    ENDED,
    MAX_ATTEMPT,
    REFUSED,
    RUNNING,
    VOIDED,
    C,
    Claim,
    D,
    Message,
    Owner,
    State,
    Step,
    U,
    World,
    Wrapper,
    kind_of,
    spend,
)

# -- the replicas


def replicas(w: World, s: State) -> Iterator[Step]:
    for r in (0, 1):
        owner = s.owners[r]
        steps = idle(w, s) if owner is None else working(w, s, owner)
        for name, new, after in steps:
            owners = (after, s.owners[1]) if r == 0 else (s.owners[0], after)
            yield f"r{r} {name}", new._replace(owners=owners)
        if owner is not None and s.left.crashes:
            owners = (None, s.owners[1]) if r == 0 else (s.owners[0], None)
            yield f"r{r} stops for good", spend(s, "crashes")._replace(owners=owners)


OwnStep = tuple[str, State, Owner | None]


def idle(w: World, s: State) -> Iterator[OwnStep]:
    """A request comes, or the follower goes on with a submission that met a void."""
    resumes = s.claim is not None and s.claim.state is ACCEPTED and met_a_void(w, s, s.claim)
    if resumes and s.claim is not None:
        yield from taken(w, s, "reopen", at(s) + 1, s.claim.request, cancel=s.claim.cancel)
    if not s.left.calls:
        return
    for request in (1, 2) if w.others and s.tokens else (1,):
        yield from asked(w, spend(s, "calls"), request)


def asked(w: World, s: State, request: int) -> Iterator[OwnStep]:
    match s.claim.state if s.claim else None:
        case None:
            yield from taken(w, s, "claim", 1, request)
        case ClaimState.REFUSED:
            yield from taken(w, s, "reopen", at(s) + (not w.has("refusal keeps the attempt")), request)
        case ClaimState.VOIDED:
            yield from taken(w, s, "reopen", at(s) + 1, request)
        case ClaimState.CLAIMED if s.claim is not None and s.claim.request == request:
            attempt = at(s) + (not w.has("a takeover keeps the attempt"))
            yield from taken(w, s, "take_over", attempt, request)
        case _ if w.others and (heard := hears(w, s, request)) != s:
            yield f"request {request} asks", heard, None


def taken(w: World, s: State, script: str, attempt: int, request: int, *, cancel: bool = False) -> Iterator[OwnStep]:
    if attempt > w.attempts:
        return
    token = s.tokens + 1
    new = s._replace(tokens=token)
    new = w.write(script, new, C, attempt=attempt, token=token, cancel=cancel, met="", boot=0, request=request)
    yield f"{script}s attempt {attempt} for {request}", new, Owner(attempt, token, "claimed", request=request)


# -- what callers are told


def hears(w: World, s: State, request: int) -> State:
    """The answer by the record as it stands, if that is one; else the caller waits."""
    claim = s.claim
    if not w.others or claim is None or claim.state in (C, D, U, REFUSED, VOIDED):
        early = claim is not None and claim.state in (C, D, U) and claim.request != request
        if w.others and early and not w.has("a key is called used by a confirmed record alone"):
            return told(s, request, "422")
        return s
    confirmed = claim.state is not ACCEPTED
    if claim.request != request:
        if confirmed or not w.has("a key is called used by a confirmed record alone"):
            return told(s, request, "422")
        return s
    return told(s, request, "202") if confirmed or not w.has("an accepted command is no answer yet") else s


def told(s: State, request: int, answer: str) -> State:
    if answer != "202":
        under_way = {m.token for m in (*s.messages, *(x.message for x in s.wrappers)) if m.request == request}
        s = s._replace(refused_on_their_way=s.refused_on_their_way | under_way)
        if request in s.ran_for:
            s = s._replace(fault=NOT_NOTHING)
    return s._replace(told=s.told | {(request, answer)})


NOT_NOTHING = "told that nothing ran, but it ran"


def names(s: State, attempt: int) -> int:
    """Whose request the fence of a run names; 0: none."""
    return next((request for number, request in s.names if number == attempt), 0)


def followed(w: World, s: State, claim: Claim) -> State:
    """The run that the fence names is followed, and who waited for the first look hears of it."""
    new = w.write("advance", s, RUNNING, request=names(s, claim.attempt) or claim.request)
    return hears(w, new, claim.request)


def at(s: State) -> int:
    assert s.claim is not None
    return s.claim.attempt


def working(w: World, s: State, owner: Owner) -> Iterator[OwnStep]:
    mine = s.claim is not None and s.claim.token == owner.token
    match owner.phase:
        case "claimed":
            if mine and s.claim is not None and s.claim.state is C:
                yield "finds the daemon dead", w.write("settle", s, REFUSED), None
                other = names(s, owner.attempt)
                if other not in (0, owner.request):
                    found = w.write("settle", s, RUNNING, request=other)
                    yield "finds the run of another request", hears(w, found, owner.request), None
                    return
            can = w.fences and not s.full
            new = s
            if not s.mark and can:
                new = s._replace(mark=len(s.starts) + 1, starts=(*s.starts, s.start))
            yield f"reads the mark {new.mark}", new, owner._replace(phase="ready", boot=new.mark)
        case "ready":
            yield from dispatch(w, s, owner, mine)
        case "sending":
            if mine and s.claim is not None and s.claim.state is D:
                yield "is refused", w.write("settle", s, REFUSED), None
            message = Message(owner.attempt, owner.token, owner.boot, owner.request)
            yield "sends", s._replace(messages=(*s.messages, message)), owner._replace(phase="waiting")
        case "waiting":
            yield from answered(w, s, owner, mine)


def dispatch(w: World, s: State, owner: Owner, mine: bool) -> Iterator[OwnStep]:
    sending = owner._replace(phase="sending")
    if not (mine and s.claim is not None and s.claim.state is C):
        if not w.has("nothing is sent without an acknowledged claim"):
            yield "sends without a claim", s, sending
        yield "is stale", hears(w, s, owner.request), None
    elif s.claim.cancel:
        yield "does not start what is cancelled", w.write("settle", s, CLOSED, why="cancelled"), None
    else:
        yield "dispatches", w.write("dispatch", s, D, boot=owner.boot), sending


def answered(w: World, s: State, owner: Owner, mine: bool) -> Iterator[OwnStep]:
    state = s.claim.state if s.claim else None
    if mine and state in (D, U):
        for token, met in s.replies:
            if token == owner.token:
                new = w.write("settle", s, ACCEPTED, met=met)
                yield f"hears of a command that met {met}", hears(w, new, owner.request), None
    elif not mine and w.others and any(token == owner.token for token, _ in s.replies):
        failed = state in (REFUSED, VOIDED) and not w.has("a failure is told to its own request alone")
        new = told(s, owner.request, "failed") if failed else hears(w, s, owner.request)
        yield "hears of its command, and is stale", new, None
    lost = w.write("settle", s, U) if mine and state is D else s
    yield "loses the reply", lost, None
    if not w.has("nothing is sent twice") and mine:
        again = Message(owner.attempt, owner.token, s.mark, owner.request)
        yield "loses the reply, sends again", lost._replace(messages=(*lost.messages, again)), None


# -- whoever follows


def followers(w: World, s: State) -> Iterator[Step]:
    claim = s.claim
    if claim is None:
        if s.left.flushes == 0:
            yield from restored(w, s)
        return
    match claim.state:
        case ClaimState.CLAIMED:
            if not any(o and o.token == claim.token for o in s.owners):
                yield "its lease ran out", w.write("abandon", s, REFUSED)
        case ClaimState.DISPATCHED:
            yield "its lease ran out", w.write("abandon", s, U)
        case ClaimState.ACCEPTED:
            yield from confirmed(w, s, claim)
        case ClaimState.UNKNOWN if claim.met and w.has("what may have run is not voided"):
            yield from doubted(w, s, claim)
        case ClaimState.UNKNOWN if claim.boot:
            yield from reconciled(w, s, claim)
        case ClaimState.RUNNING:
            if claim.attempt not in s.alive:
                yield "it ended", w.write("advance", s, ENDED)
        case ClaimState.ENDED:
            yield "it is recorded", w.write("advance", s, CLOSED, why="recorded")


def restored(w: World, s: State) -> Iterator[Step]:
    """A GET by an old command_id, after Redis lost its data: the walk goes past voids."""
    for attempt in range(1, MAX_ATTEMPT + 1):
        kind = kind_of(s, attempt)
        if kind == "void":
            continue
        if kind == "run":
            token = s.tokens + 1
            new = s._replace(tokens=token)
            new = w.write("restore", new, RUNNING, attempt=attempt, token=token, request=names(s, attempt) or 1)
            yield "found by its fence", new
        return


def met_a_void(w: World, s: State, claim: Claim) -> bool:
    """The fence is a void of the dispatch's mark. (A wiped directory has no voids: the mark's are all there are.)"""
    if kind_of(s, claim.attempt) == "void" and s.mark == claim.boot:
        return True
    return "void" in claim.met and not w.has("what is printed proves nothing")


def confirmed(w: World, s: State, claim: Claim) -> Iterator[Step]:
    """The first look at a command that execd took: the fence first, then what it printed."""
    met = claim.met
    if not w.has("what is printed proves nothing"):
        met = met.removeprefix("says ")
    if met in ("run", "void", "boot") and not w.has("a marker counts wherever it stands"):
        met = "nothing"
    if not claim.boot and not w.has("a marker counts without a fence too"):
        met = "nothing"
    match met:
        case "nothing":
            yield "it runs", followed(w, s, claim)
        case "empty":
            yield from emptied(w, s, claim)
        case "died":
            yield "its wrapper died", w.write("advance", s, CLOSED, why="lost")
        case "void" if met_a_void(w, s, claim):
            yield "it met a void", w.write("advance", s, VOIDED)
        case "none":
            yield "there was no fence to be had", w.write("advance", s, REFUSED)
        case "boot" if not w.has("what met another mark is not sent again"):
            yield "it met another mark: sent again", w.write("advance", s, REFUSED)
        case _:
            yield from doubted(w, s, claim)


def doubted(w: World, s: State, claim: Claim) -> Iterator[Step]:
    """It is over, and may have run nothing: the fence tells, and the living; never a void that is made now."""
    if kind_of(s, claim.attempt) == "run":
        yield "the run that its fence names is followed", followed(w, s, claim)
    elif met_a_void(w, s, claim):
        yield "its fence is a void", w.write("advance", s, VOIDED)
    elif kind_of(s, claim.attempt) == "empty":
        yield from emptied(w, s, claim)
    else:
        yield from replaced(w, s, claim)
    if claim.state is ACCEPTED:
        yield "nothing proves that it ran", w.write("advance", s, U)


def reconciled(w: World, s: State, claim: Claim) -> Iterator[Step]:
    """`void`, and what follows from what it says."""
    if s.mark != claim.boot and w.has("a void counts under its mark alone"):
        yield from replaced(w, s, claim)
        return
    kind = kind_of(s, claim.attempt)
    if kind == "run":
        yield "the run is adopted", followed(w, s, claim)
    elif kind == "empty":
        yield from emptied(w, s, claim)
    elif kind == "half" and not w.has("a void is made in one step"):
        yield "half a void is taken for a run", w.write("advance", s, RUNNING)
    else:
        made = s._replace(fences=s.fences | {(claim.attempt, "void")})
        if kind == "void" or not s.full:
            if claim.cancel:
                yield "voided, cancelled", w.write("advance", made, CLOSED, why="cancelled")
            else:
                yield "voided", w.write("advance", made, VOIDED)
        if kind is None and not s.full:
            if s.left.deaths and w.has("a void is made in one step"):
                yield "a void dies half-way", spend(s, "deaths")
                yield "voided, but nobody hears of it", spend(made, "deaths")
            elif s.left.deaths:
                half = s._replace(fences=s.fences | {(claim.attempt, "half")})
                yield "a void dies half-way", spend(half, "deaths")


def emptied(w: World, s: State, claim: Claim) -> Iterator[Step]:
    """An empty fence: details to come, or a wrapper that died."""
    begun = any(x.message.attempt == claim.attempt for x in s.wrappers)
    kind = kind_of(s, claim.attempt)
    if kind == "run":
        yield "details came", followed(w, s, claim)
    elif kind is None:
        yield from replaced(w, s, claim)
    elif claim.attempt not in s.alive and not begun:
        yield "its wrapper died", w.write("advance", s, CLOSED, why="lost")
    elif claim.attempt in s.alive:
        yield "it runs, without details", w.write("advance", s, RUNNING)


def replaced(w: World, s: State, claim: Claim) -> Iterator[Step]:
    """Another mark than at dispatch: another file system, or a job wiped the directory."""
    if kind_of(s, claim.attempt) == "run":
        yield "its fence is found", followed(w, s, claim)
    elif claim.attempt in s.alive and w.has("the living are looked for"):
        yield "it is found alive", w.write("advance", s, RUNNING)
    elif not claim.boot:
        yield "it was not started without a fence", w.write("advance", s, CLOSED, why="lost")
    elif s.starts[claim.boot - 1] != s.start or s.mark == claim.boot:
        yield "the container was replaced", w.write("advance", s, CLOSED, why="lost")
    elif not w.has("a wiped directory proves nothing"):
        yield "taken for a new container", w.write("advance", s, CLOSED, why="lost")
    elif claim.attempt not in s.alive and not any(x.message.attempt == claim.attempt for x in s.wrappers):
        yield "its deadline passed", w.write("advance", s, CLOSED, why="lost")


# -- execd and the sandbox


def execd(w: World, s: State) -> Iterator[Step]:
    for message in set(s.messages):
        rest = list(s.messages)
        rest.remove(message)
        gone = s._replace(messages=tuple(rest))
        yield f"attempt {message.attempt}'s message is lost", gone
        yield from compared(w, gone, message, "")
        if s.left.copies:
            yield from compared(w, spend(s, "copies"), message, ", and a copy is still under way")
    for wrapper in set(s.wrappers):
        others = list(s.wrappers)
        others.remove(wrapper)
        yield from continued(w, s._replace(wrappers=tuple(others)), wrapper)
    for attempt in s.alive:
        yield f"attempt {attempt} ends", s._replace(alive=s.alive - {attempt})


def replied(s: State, message: Message, met: str) -> State:
    return s._replace(replies=s.replies | {(message.token, met)})


def compared(w: World, s: State, message: Message, more: str) -> Iterator[Step]:
    name = f"execd starts attempt {message.attempt}{more}"
    if s.mark != message.boot and w.has("the wrapper compares the mark first"):
        yield f"{name}: another mark", replied(s, message, "boot")
    elif w.fine:
        yield name, s._replace(wrappers=(*s.wrappers, Wrapper(message, "compared")))
    else:
        for then, new in made(w, s, message):
            yield f"{name}: {then}", new


def continued(w: World, s: State, wrapper: Wrapper) -> Iterator[Step]:
    name = f"attempt {wrapper.message.attempt}'s wrapper"
    steps = made if wrapper.phase == "compared" else begun
    for then, new in steps(w, s, wrapper.message):
        yield f"{name}: {then}", new


def made(w: World, s: State, message: Message) -> Iterator[Step]:
    """The fence, made empty."""
    if not message.boot:
        yield from begun(w, s, message)
        return
    kind = kind_of(s, message.attempt)
    if kind is not None:
        yield f"meets {kind}", replied(s, message, "run" if kind == "half" else kind)
        return
    if s.full and w.has("where there is a mark there is a fence or no run"):
        yield "no fence to be had", replied(s, message, "none")
    elif s.full:
        yield from begun(w, s, message)
        return
    fenced = s._replace(fences=s.fences | {(message.attempt, "empty")})
    if s.left.deaths:
        yield "dies with an empty fence", replied(spend(fenced, "deaths"), message, "died")
    if w.fine:
        yield "makes its fence", fenced._replace(wrappers=(*fenced.wrappers, Wrapper(message, "made")))
    else:
        yield from begun(w, fenced, message)


def begun(w: World, s: State, message: Message) -> Iterator[Step]:
    """Compares once more, fills the fence, and starts the caller's command."""
    compares = w.has("the wrapper compares again") and w.has("the wrapper compares the mark first")
    if message.boot and s.mark != message.boot and compares:
        yield "another mark by now", replied(s, message, "boot")
        return
    fault = s.fault
    claim = s.claim
    if claim and claim.state is CLOSED and claim.attempt == message.attempt and claim.why != "recorded":
        fault = fault or f"it ran after it was {claim.why}"
    if message.token in s.refused_on_their_way:
        fault = fault or NOT_NOTHING
    details = "empty" if s.full else "run"
    fences = s.fences
    if message.boot and (message.attempt, "empty") in fences:
        fences = fences - {(message.attempt, "empty")} | {(message.attempt, details)}
    ran = s._replace(
        fences=fences,
        alive=s.alive | {message.attempt},
        ran=s.ran | {message.attempt},
        ran_for=s.ran_for | {message.request},
        names=s.names | {(message.attempt, message.request)} if message.boot and details == "run" else s.names,
        runs=s.runs + 1,
        fault=fault,
    )
    yield "RUNS", replied(ran, message, "nothing")


# -- what goes wrong


def troubles(w: World, s: State) -> Iterator[Step]:
    left = s.left
    emptied_sandbox: dict[str, Any] = {"alive": frozenset(), "wrappers": (), "start": s.start + 1}
    if left.flushes:
        yield "Redis is emptied", spend(s, "flushes")._replace(claim=None, saved=None)
    if left.rollbacks and s.saved is None and s.claim is not None:
        yield "a replica of Redis falls behind here", s._replace(saved=s.claim)
    if left.rollbacks and s.saved is not None and s.saved != s.claim:
        yield "Redis falls back", spend(s, "rollbacks")._replace(claim=s.saved, saved=None)
    if left.swaps:
        new = spend(s, "swaps")._replace(**WIPED, **emptied_sandbox)
        yield "the container comes back with a new file system", new
    if left.restarts:
        yield "the container comes back with its file system", spend(s, "restarts")._replace(**emptied_sandbox)
    if left.wipes and s.alive:
        yield "the job wipes the directory", spend(s, "wipes")._replace(**WIPED)
    yield from forged(s)
    if left.marks and not s.mark and not s.full:
        made = s._replace(mark=len(s.starts) + 1, starts=(*s.starts, s.start))
        yield "another job makes the mark", spend(made, "marks")
    if s.full:
        yield "there is room again", s._replace(full=False)
    elif left.full:
        yield "the disk is full", spend(s, "full")._replace(full=True)
    if left.cancels and s.claim and s.claim.state.active and not s.claim.cancel:
        yield "a cancel is wished", w.write("wish", spend(s, "cancels"), s.claim.state, cancel=True)
    if left.cleans and s.claim and s.claim.state is CLOSED and not s.alive:
        yield from cleaned(w, s)


WIPED: dict[str, Any] = {"fences": frozenset(), "names": frozenset(), "mark": 0}


def forged(s: State) -> Iterator[Step]:
    """A job prints what a wrapper prints that ran nothing, and takes the proof away that it is the run itself.

    One that removes its own fence alone, before anybody heard of it, always loses the fence's protection.
    """
    heard = s.claim is not None and s.claim.state is ACCEPTED and s.claim.met == "nothing"
    for attempt in s.alive:
        for met in ("run", "void", "boot", "none"):
            ended = s._replace(alive=s.alive - {attempt}, replies=frozenset(said(each, met) for each in s.replies))
            if heard and s.claim is not None and s.claim.attempt == attempt:
                ended = ended._replace(claim=s.claim._replace(met=f"says {met}"))
            if s.left.forgeries:
                yield f"the job wipes the directory and says {met}", spend(ended, "forgeries")._replace(**WIPED)
            if s.left.removals and heard:
                bare = ended._replace(
                    fences=frozenset(each for each in s.fences if each[0] != attempt),
                    names=frozenset(each for each in s.names if each[0] != attempt),
                )
                yield f"the job removes its fence and says {met}", spend(bare, "removals")


def said(reply: tuple[int, str], met: str) -> tuple[int, str]:
    token, truly = reply
    return (token, f"says {met}") if truly == "nothing" else reply


def cleaned(w: World, s: State) -> Iterator[Step]:
    """Old fences go. By then the claim's own TTL ran out (no more calls are looked at: the key is free again)."""
    under_way = bool(s.messages or s.wrappers)
    if under_way and w.has("cleaning waits for what is under way"):
        return
    new = spend(s, "cleans")._replace(fences=frozenset(), names=frozenset())
    if w.has("cleaning waits for the claim"):
        new = new._replace(claim=None, left=new.left._replace(calls=0), owners=(None, None))
    yield "old fences are cleaned away", new


# -- what must not be

ANOTHERS = "told 202, but another request's run is followed"


def fault_of(w: World, s: State) -> str:
    claim = s.claim
    if s.fault:
        return s.fault
    if s.runs > 1 and w.fences:
        return "the command ran twice"
    if claim is None:
        return ""
    if claim.state in (RUNNING, ENDED):
        for request, answer in s.told:
            if answer == "202" and request != claim.request and request not in s.ran_for:
                return ANOTHERS
    if claim.state is VOIDED and claim.attempt in s.ran:
        return "voided, but it ran"
    if claim.state is CLOSED and claim.why == "cancelled" and claim.attempt in s.ran:
        return "cancelled before it started, but it ran"
    if claim.state in (RUNNING, ENDED) and claim.attempt not in s.ran:
        return "followed, but it never ran"
    if claim.state is CLOSED and claim.why == "lost" and claim.attempt in s.alive:
        return "lost, but it still runs"
    waits = s.full or s.wrappers or claim.attempt in s.alive
    if claim.state is U and claim.boot and not waits and not any(followers(w, s)):
        return "unknown for ever"
    return ""


@dataclass(frozen=True)
class Found:
    """What an exploration found: the number of states, and the shortest trace to each fault."""

    states: int
    faults: dict[str, list[str]]


def explore(world: World, *, until: str = "", limit: int = 200_000) -> Found:
    """Every interleaving within the budgets, or those up to the shortest way to the fault `until`."""
    first = State(world.budget, mark=int(world.marked), starts=(1,) * world.marked)
    came: dict[State, tuple[State, str] | None] = {first: None}
    queue, faults = deque([first]), dict[str, list[str]]()
    while queue:
        s = queue.popleft()
        for steps in (replicas, followers, execd, troubles):
            for name, t in steps(world, s):
                if len(t.messages) > 1 or len(t.wrappers) > 1:
                    t = t._replace(messages=tuple(sorted(t.messages)), wrappers=tuple(sorted(t.wrappers)))
                if t in came:
                    continue
                came[t] = (s, name)
                if fault := fault_of(world, t):
                    faults.setdefault(fault, trace(came, t))
                    if fault == until:
                        return Found(len(came), faults)
                    continue
                queue.append(t)
        assert len(came) < limit, "the bounds of this world are too wide"
    return Found(len(came), faults)


def trace(came: dict[State, tuple[State, str] | None], s: State) -> list[str]:
    """The steps that led to a state."""
    names = []
    while (before := came[s]) is not None:
        s, name = before
        names.append(name)
    return names[::-1]
