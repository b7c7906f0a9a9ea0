"""How a job's claim (Redis) and its fence (the sandbox) work together: every step that any of the parties can take.

What can happen, and how often, is a `World` of `job_world`. `explore` finds the shortest way to each fault.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from service.core.model.states import ClaimState
from tests.unit.core.jobs.job_world import (
    ACCEPTED,
    CLOSED,
    ENDED,
    FOUND,
    MAX_ATTEMPT,
    OWN,
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
    """What the two can do; which is which does not matter."""
    for owner, other in dict.fromkeys((s.owners, s.owners[::-1])):
        who = f"owner {owner.token}" if owner and owner.token else "a replica"
        steps = idle(w, s) if owner is None else working(w, s, owner)
        for name, new, after in steps:
            yield f"{who} {name}", new._replace(owners=pair(after, other))
        if owner is not None and s.left.crashes:
            yield f"{who} stops for good", spend(s, "crashes")._replace(owners=pair(None, other))


def pair(one: Owner | None, other: Owner | None) -> tuple[Owner | None, Owner | None]:
    """In one order."""
    if one is None or (other is not None and other > one):
        one, other = other, one
    return one, other


OwnStep = tuple[str, State, Owner | None]


def idle(w: World, s: State) -> Iterator[OwnStep]:
    """A request comes, or the follower goes on with a submission that met a void."""
    resumes = s.claim is not None and s.claim.state is ACCEPTED and met_a_void(w, s, s.claim)
    if resumes and s.claim is not None:
        kept = s.claim.input if w.reads else 0
        yield from taken(w, s, "reopen", at(s) + 1, s.claim.request, cancel=s.claim.cancel, kept=kept)
    if not s.left.calls:
        return
    for request in (1, 2) if w.others and s.tokens else (1,):
        yield from asked(w, spend(s, "calls"), request)


def asked(w: World, s: State, request: int) -> Iterator[OwnStep]:
    match s.claim.state if s.claim else None:
        case None:
            yield from prepared(w, s, request)
        case ClaimState.REFUSED:
            yield from taken(w, s, "reopen", at(s) + (not w.has("refusal keeps the attempt")), request)
        case ClaimState.VOIDED:
            yield from taken(w, s, "reopen", at(s) + 1, request)
        case ClaimState.CLAIMED if s.claim is not None and s.claim.request == request:
            attempt = at(s) + (not w.has("a takeover keeps the attempt"))
            yield from taken(w, s, "take_over", attempt, request)
        case ClaimState.DISPATCHED if not w.has("a dispatched claim is not taken over"):
            yield from taken(w, s, "take_over", at(s), request)
        case _ if w.others and (heard := hears(w, s, request)) != s:
            yield f"request {request} asks", heard, None


def prepared(w: World, s: State, request: int) -> Iterator[OwnStep]:
    """What the attempt must know is read before the claim is made; the fence of an earlier request only where the
    sandbox was found at the engine: else this one is the first of its key.
    """
    found = s._replace(sandbox=s.sandbox or FOUND)
    new, boot = marked(w, found)
    owner = Owner(1, 0, "prepared", boot, request, first=w.others and found.sandbox == OWN)
    look = not owner.first and w.has("an earlier run is looked for where the key may not be new")
    earlier = names(s, 1) if look else 0
    yield f"reads the mark {boot} for {request}", new, owner._replace(earlier=earlier)
    if w.blind:
        yield f"reads nothing for {request}", found, owner._replace(phase="failed", boot=0)


def claiming(w: World, s: State, owner: Owner) -> Iterator[OwnStep]:
    """The claim is made: dispatched by that very write, where the mark is known; else as claimed."""
    if s.claim is not None:
        yield from asked(w, s, owner.request)
        yield "finds the claim made", s, None
        return
    own = proves_first(w, s, owner)
    token = s.tokens + 1
    s, owner = uploaded(w, s._replace(tokens=token), owner._replace(token=token, own=own))
    change: dict[str, Any] = {"attempt": 1, "token": token, "request": owner.request}
    anothers = owner.earlier not in (0, owner.request)
    if owner.boot and not anothers:
        boot = owner.boot if w.has("the mark is in the write that dispatches") else 0
        claimed = w.write("claim", s, D, boot=boot, input=owner.input, **change)
        yield "claims and dispatches attempt 1", claimed, owner._replace(phase="sending")
    else:
        phase = "failed" if owner.phase == "failed" else "earlier" if anothers else "ready"
        yield "claims attempt 1", w.write("claim", s, C, **change), owner._replace(phase=phase)


def uploaded(w: World, s: State, owner: Owner) -> tuple[State, Owner]:
    """What the command is to read is written before anything that lets it be sent; by the next attempt of a follower
    not again: it has the file that the claim names.
    """
    if not w.reads or owner.input:
        return s, owner
    own_name = w.has("each upload has a name of its own")
    file = 10 * owner.epoch + owner.token if own_name else 1
    owner = owner._replace(input=file)
    if s.left.uploads:
        s = spend(s, "uploads")._replace(uploads=s.uploads | {(file, owner.request)})
    return (written(s, file, owner.request) if w.has("the input is written before the dispatch") else s), owner


def written(s: State, file: int, request: int) -> State:
    return s._replace(inputs=frozenset(each for each in s.inputs if each[0] != file) | {(file, request)})


def proves_first(w: World, s: State, owner: Owner) -> bool:
    """Whether no other request can have had the key, by what the claim's script finds."""
    if not w.at_once:
        return False
    if not w.has("only a sandbox made under this Redis proves that a key is new"):
        return True
    if not w.has("that is seen in the claim's script"):
        return owner.first
    if not w.has("a record that was found again proves nothing"):
        return owner.first and s.sandbox != ""
    return owner.first and s.sandbox == OWN


def marked(w: World, s: State) -> tuple[State, int]:
    """The boot mark, made where there is none and one can be made."""
    if not s.mark and w.fences and not s.full:
        s = s._replace(mark=len(s.starts) + 1, starts=(*s.starts, s.start))
    return s, s.mark


def taken(
    w: World,
    s: State,
    script: str,
    attempt: int,
    request: int,
    *,
    cancel: bool = False,
    own: bool = False,
    kept: int = 0,
) -> Iterator[OwnStep]:
    if attempt > w.attempts or s.claim is None:
        return
    again = script == "take_over"
    epoch, token = s.claim.epoch + 1, s.claim.token if again else s.tokens + 1
    new = s if again else s._replace(tokens=token)
    change = {"attempt": attempt, "token": token, "epoch": epoch, "request": request}
    new = w.write(script, new, C, cancel=cancel, met="", boot=0, **change)
    owner = Owner(attempt, token, "claimed", request=request, epoch=epoch, own=own, input=kept)
    yield f"{script}s attempt {attempt} for {request}", new, owner


# -- what callers are told


def hears(w: World, s: State, request: int, *, own: bool = False) -> State:
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
    return told(s, request, "202") if confirmed or own or not w.has("an accepted command is no answer yet") else s


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
    new = w.follow(s, RUNNING, request=names(s, claim.attempt) or claim.request)
    return hears(w, new, claim.request)


def at(s: State) -> int:
    assert s.claim is not None
    return s.claim.attempt


def working(w: World, s: State, owner: Owner) -> Iterator[OwnStep]:
    mine = s.claim is not None and owns(w, owner, s.claim)
    match owner.phase:
        case "claimed":
            if mine and s.claim is not None and s.claim.state is C:
                yield "finds the daemon dead", w.write("settle", s, REFUSED), None
                other = names(s, owner.attempt)
                if other not in (0, owner.request):
                    found = w.write("settle", s, RUNNING, request=other)
                    yield "finds the run of another request", hears(w, found, owner.request), None
                    return
            new, boot = marked(w, s)
            yield f"reads the mark {boot}", new, owner._replace(phase="ready", boot=boot)
        case "ready":
            yield from dispatch(w, s, owner, mine)
        case "sending":
            if mine and s.claim is not None and s.claim.state is D:
                yield "is refused, or gives it back unsent", w.write("settle", s, REFUSED), None
            message = Message(owner.attempt, owner.token, owner.boot, owner.request, owner.input)
            yield "sends", s._replace(messages=(*s.messages, message)), owner._replace(phase="waiting")
        case "waiting":
            yield from answered(w, s, owner, mine)
        case "again":
            yield from trying_again(w, s, owner)
        case _:
            yield from beginning(w, s, owner, mine)


def beginning(w: World, s: State, owner: Owner, mine: bool) -> Iterator[OwnStep]:
    """Before anything can be sent: the claim is made, or ends as it is."""
    claimed = mine and s.claim is not None and s.claim.state is C
    match owner.phase:
        case "failed" if mine:
            yield "is refused", w.write("settle", s, REFUSED) if claimed else s, None
        case "prepared" | "failed":
            yield from claiming(w, s, owner)
        case "earlier":
            new = w.write("settle", s, RUNNING, request=owner.earlier) if claimed else s
            yield "finds the run of another request", hears(w, new, owner.request), None


def trying_again(w: World, s: State, owner: Owner) -> Iterator[OwnStep]:
    """Who lost a reply goes on under the same token where that came to nothing."""
    if s.claim is None or not s.claim.state.failed:
        yield "gives up", s, None
        return
    own = not w.has("a claim that is reopened proves nothing")
    yield from taken(w, s, "reopen", at(s) + (s.claim.state is VOIDED), owner.request, own=own)


def owns(w: World, owner: Owner, claim: Claim) -> bool:
    """One's own write: by token and epoch, since a claim that one takes over oneself keeps its token."""
    by_epoch = w.has("a write is known by its epoch too")
    return owner.token == claim.token and (owner.epoch == claim.epoch or not by_epoch)


def dispatch(w: World, s: State, owner: Owner, mine: bool) -> Iterator[OwnStep]:
    sending = owner._replace(phase="sending")
    if mine and s.claim is not None and s.claim.state is D:
        yield "finds its write done", s, sending
    elif not (mine and s.claim is not None and s.claim.state is C):
        if not w.has("nothing is sent without an acknowledged claim"):
            yield "sends without a claim", s, sending
        yield "is stale", hears(w, s, owner.request), None
    elif s.claim.cancel:
        yield "does not start what is cancelled", w.write("settle", s, CLOSED, why="cancelled"), None
    else:
        s, sending = uploaded(w, s, sending)
        sent = w.write("dispatch", s, D, boot=owner.boot, input=sending.input)
        yield "dispatches", sent, sending
        if w.blind:
            yield "dispatches, and the answer is lost", sent, owner._replace(input=sending.input)


def answered(w: World, s: State, owner: Owner, mine: bool) -> Iterator[OwnStep]:
    if owner.input and not w.has("the input is written before the dispatch") and not read(s, owner.input):
        yield "writes its input", written(s, owner.input, owner.request), owner
    state = s.claim.state if s.claim else None
    if mine and state in (D, U):
        for token, met in s.replies:
            if token == owner.token:
                new = w.write("settle", s, ACCEPTED, met=met)
                yield f"hears of a command that met {met}", hears(w, new, owner.request, own=owner.own), None
    elif not mine and w.others and any(token == owner.token for token, _ in s.replies):
        failed = state in (REFUSED, VOIDED) and not w.has("a failure is told to its own request alone")
        new = told(s, owner.request, "failed") if failed else hears(w, s, owner.request)
        yield "hears of its command, and is stale", new, None
    lost = w.write("settle", s, U) if mine and state is D else s
    if mine and state is D and not w.has("who began to send does not give it back"):
        yield "gives it back", w.write("settle", s, REFUSED), None
    again = owner._replace(phase="again") if owner.own and w.again else None
    yield "loses the reply", lost, again
    if not w.has("nothing is sent twice") and mine:
        second = Message(owner.attempt, owner.token, s.mark, owner.request)
        yield "loses the reply, sends again", lost._replace(messages=(*lost.messages, second)), None


# -- whoever follows


def followers(w: World, s: State) -> Iterator[Step]:
    claim = s.claim
    if claim is None:
        if s.left.flushes == 0:
            yield from restored(w, s)
        return
    match claim.state:
        case ClaimState.CLAIMED:
            if not any(o and owns(w, o, claim) for o in s.owners):
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
                yield "it ended", w.follow(s, ENDED)
        case ClaimState.ENDED:
            yield "it is recorded", w.follow(s, CLOSED, why="recorded")


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
            yield "its wrapper died", w.follow(s, CLOSED, why="lost")
        case "void" if met_a_void(w, s, claim):
            yield "it met a void", w.follow(s, VOIDED)
        case "none":
            yield "there was no fence to be had", w.follow(s, REFUSED)
        case "input" if not w.has("who found no input looks for a fence"):
            yield "it found no input", w.follow(s, REFUSED)
        case "input" if s.mark == claim.boot and kind_of(s, claim.attempt) is None:
            made = s._replace(fences=s.fences | {(claim.attempt, "void")})
            yield "it found no input: voided", w.follow(made, VOIDED)
        case "boot" if not w.has("what met another mark is not sent again"):
            yield "it met another mark: sent again", w.follow(s, REFUSED)
        case _:
            yield from doubted(w, s, claim)


def doubted(w: World, s: State, claim: Claim) -> Iterator[Step]:
    """It is over, and may have run nothing: the fence tells, and the living; never a void that is made now."""
    if kind_of(s, claim.attempt) == "run":
        yield "the run that its fence names is followed", followed(w, s, claim)
    elif met_a_void(w, s, claim):
        yield "its fence is a void", w.follow(s, VOIDED)
    elif kind_of(s, claim.attempt) == "empty":
        yield from emptied(w, s, claim)
    else:
        yield from replaced(w, s, claim)
    if claim.state is ACCEPTED:
        yield "nothing proves that it ran", w.follow(s, U)


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
        yield "half a void is taken for a run", w.follow(s, RUNNING)
    else:
        made = s._replace(fences=s.fences | {(claim.attempt, "void")})
        if kind == "void" or not s.full:
            if claim.cancel:
                yield "voided, cancelled", w.follow(made, CLOSED, why="cancelled")
            else:
                yield "voided", w.follow(made, VOIDED)
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
        yield "its wrapper died", w.follow(s, CLOSED, why="lost")
    elif claim.attempt in s.alive:
        yield "it runs, without details", w.follow(s, RUNNING)


def replaced(w: World, s: State, claim: Claim) -> Iterator[Step]:
    """Another mark than at dispatch: another file system, or a job wiped the directory."""
    if kind_of(s, claim.attempt) == "run":
        yield "its fence is found", followed(w, s, claim)
    elif claim.attempt in s.alive and w.has("the living are looked for"):
        yield "it is found alive", w.follow(s, RUNNING)
    elif not claim.boot:
        yield "it was not started without a fence", w.follow(s, CLOSED, why="lost")
    elif s.starts[claim.boot - 1] != s.start or s.mark == claim.boot:
        yield "the container was replaced", w.follow(s, CLOSED, why="lost")
    elif not w.has("a wiped directory proves nothing"):
        yield "taken for a new container", w.follow(s, CLOSED, why="lost")
    elif claim.attempt not in s.alive and not any(x.message.attempt == claim.attempt for x in s.wrappers):
        yield "its deadline passed", w.follow(s, CLOSED, why="lost")


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
    for file, request in s.uploads:
        late = s._replace(uploads=s.uploads - {(file, request)})
        yield "a late copy of an upload arrives", written(late, file, request)


def replied(s: State, message: Message, met: str) -> State:
    return s._replace(replies=s.replies | {(message.token, met)})


def compared(w: World, s: State, message: Message, more: str) -> Iterator[Step]:
    name = f"execd starts attempt {message.attempt}{more}"
    if s.mark != message.boot and w.has("the wrapper compares the mark first"):
        yield f"{name}: another mark", replied(s, message, "boot")
    elif message.input and not read(s, message.input) and w.has("the input is opened before the fence is made"):
        yield f"{name}: no input", replied(missed(w, s), message, "input")
    elif w.fine:
        yield name, s._replace(wrappers=(*s.wrappers, Wrapper(message, "compared")))
    else:
        for then, new in made(w, s, message):
            yield f"{name}: {then}", new


def read(s: State, file: int) -> int:
    """Whose request's content is in a file; 0: it is not there."""
    return next((request for name, request in s.inputs if name == file), 0)


def missed(w: World, s: State) -> State:
    """An input is not there: only where a job removed it."""
    return s if w.budget.unlinks else s._replace(fault=s.fault or NO_INPUT)


NO_INPUT = "what it was to read was not there"
ANOTHERS_INPUT = "it read what another request sent"
RAN_ALL_THE_SAME = "failed for want of its input, but it ran"


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
    if message.input and not (content := read(s, message.input)):
        yield "ends without its input", replied(missed(w, s._replace(fences=fences)), message, "nothing")
        return
    if message.input and content != message.request:
        fault = fault or ANOTHERS_INPUT
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


def forgotten(w: World, s: State) -> Iterator[Step]:
    """What Redis loses."""
    left = s.left
    if left.flushes:
        yield "Redis is emptied", spend(s, "flushes")._replace(claim=None, saved=None, sandbox="" if w.others else OWN)
    if w.others and not s.sandbox:
        kept = w.has("an old reading is not written back as this Redis's own")
        yield "an old reading of the sandbox is changed and written", s._replace(sandbox=FOUND if kept else OWN)
    if left.losses and s.claim is not None:
        yield "Redis loses the claim alone", spend(s, "losses")._replace(claim=None, saved=None)
    if left.expiries and s.claim is not None and s.claim.state is CLOSED:
        yield "the retention is over", spend(s, "expiries")._replace(claim=None)
    if left.rollbacks and s.saved is None and s.claim is not None:
        yield "a replica of Redis falls behind here", s._replace(saved=s.claim)
    if left.rollbacks and s.saved is not None and s.saved != s.claim:
        yield "Redis falls back", spend(s, "rollbacks")._replace(claim=s.saved, saved=None)


def troubles(w: World, s: State) -> Iterator[Step]:
    left = s.left
    emptied_sandbox: dict[str, Any] = {"alive": frozenset(), "wrappers": (), "start": s.start + 1}
    yield from forgotten(w, s)
    if left.swaps:
        new = spend(s, "swaps")._replace(**WIPED, **emptied_sandbox)
        yield "the container comes back with a new file system", new
    if left.restarts:
        yield "the container comes back with its file system", spend(s, "restarts")._replace(**emptied_sandbox)
    if left.wipes and s.alive:
        yield "the job wipes the directory", spend(s, "wipes")._replace(**WIPED)
    yield from forged(s)
    if left.unlinks and s.inputs:
        yield "a job removes the inputs", spend(s, "unlinks")._replace(inputs=frozenset())
    if left.marks and not s.mark and not s.full:
        made = s._replace(mark=len(s.starts) + 1, starts=(*s.starts, s.start))
        yield "another job makes the mark", spend(made, "marks")
    if s.full:
        yield "there is room again", s._replace(full=False)
    elif left.full:
        yield "the disk is full", spend(s, "full")._replace(full=True)
    if left.cancels and s.claim and s.claim.state.active and not s.claim.cancel:
        yield "a cancel is wished", w.write("request_cancel", spend(s, "cancels"), s.claim.state, cancel=True)
    if left.cleans and s.claim and s.claim.state is CLOSED and not s.alive:
        yield from cleaned(w, s)
    elif left.cleans and s.inputs and not w.has("an input is kept for as long as an attempt can follow"):
        yield "inputs are cleaned away", spend(s, "cleans")._replace(inputs=frozenset())


WIPED: dict[str, Any] = {"fences": frozenset(), "names": frozenset(), "mark": 0, "inputs": frozenset()}


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
    new = spend(s, "cleans")._replace(fences=frozenset(), names=frozenset(), inputs=frozenset())
    if w.has("cleaning waits for the claim"):
        new = new._replace(claim=None, left=new.left._replace(calls=0), owners=(None, None))
    yield "old fences are cleaned away", new


# -- what must not be

TWICE = "the command ran twice"
FOREVER = "unknown for ever"
ANOTHERS = "told 202, but another request's run is followed"


def fault_of(w: World, s: State) -> str:
    """What is wrong; "" for nothing."""
    if s.fault:
        return s.fault
    if s.runs > 1 and w.fences:
        return TWICE
    return (said_wrongly(s, s.claim) or without_end(w, s, s.claim)) if s.claim else ""


def said_wrongly(s: State, claim: Claim) -> str:
    following = claim.state in (RUNNING, ENDED)
    for request, answer in s.told if following else ():
        if answer == "202" and request != claim.request and request not in s.ran_for:
            return ANOTHERS
    if claim.state is VOIDED and claim.attempt in s.ran:
        return "voided, but it ran"
    if claim.state is REFUSED and claim.met == "input" and claim.attempt in s.ran:
        return RAN_ALL_THE_SAME
    if claim.state is CLOSED and claim.why == "cancelled" and claim.attempt in s.ran:
        return "cancelled before it started, but it ran"
    if following and claim.attempt not in s.ran:
        return "followed, but it never ran"
    if claim.state is CLOSED and claim.why == "lost" and claim.attempt in s.alive:
        return "lost, but it still runs"
    return ""


def without_end(w: World, s: State, claim: Claim) -> str:
    if claim.state is not U:
        return ""
    named = names(s, claim.attempt) == claim.request
    if not claim.boot:  # what was sent without a fence waits for its sandbox's end; what has one must not
        return FOREVER if named and not any(s.owners) else ""
    waits = s.full or s.wrappers or claim.attempt in s.alive
    return FOREVER if not waits and not any(followers(w, s)) else ""


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
