"""A job runs once, and what is said of it is true, in every interleaving; and each rule is needed for that.

The parties' steps and the claim's moves are in `job_protocol`; `service.core.model.states.SCRIPTS` is their table.
"""

from dataclasses import replace

import pytest

from service.core.model.states import SCRIPTS, ClaimState
from tests.unit.core.jobs.job_protocol import (
    ANOTHERS,
    ANOTHERS_INPUT,
    FOREVER,
    NO_INPUT,
    NOT_NOTHING,
    RAN_ALL_THE_SAME,
    TWICE,
    explore,
)
from tests.unit.core.jobs.job_world import Budget, World

WORLDS = {
    "Redis is emptied": World(Budget(calls=3, flushes=1, crashes=0)),
    "Redis is emptied, a message is doubled": World(Budget(copies=1, flushes=1)),
    "Redis falls back": World(Budget(copies=1, rollbacks=1, crashes=0)),
    "the file system is replaced": World(Budget(copies=1, swaps=1)),
    "the container is restarted": World(Budget(copies=1, restarts=1, swaps=1, crashes=0)),
    "a job wipes the directory": World(Budget(copies=1, wipes=1, restarts=1, crashes=0), fine=True, marked=True),
    "a job wipes the directory of a container that stays": World(Budget(copies=1, wipes=1), fine=True, marked=True),
    "the disk is full, and some die half-way": World(Budget(copies=1, full=1, deaths=1, crashes=0), marked=True),
    "a caller cancels": World(Budget(copies=1, cancels=1), blind=True),
    "the mark can't be read, and Redis is emptied": World(Budget(calls=3, flushes=1, crashes=0), blind=True),
    "the mark can't be read, and the file system is replaced": World(Budget(calls=3, swaps=1, crashes=0), blind=True),
    "fences are cleaned away": World(Budget(copies=1, cleans=1, flushes=1)),
    "a job wipes the directory and prints a marker": World(Budget(copies=1, forgeries=1, crashes=0), marked=True),
    "a job removes its fence and prints a marker": World(Budget(removals=1), marked=True),
    "a mark is made meanwhile": World(Budget(full=1, marks=1)),
    "another request has the key": World(Budget(calls=3, flushes=1, crashes=0), others=True, attempts=2),
    "another request has the key, and one stops": World(Budget(calls=2, flushes=1), others=True, attempts=2),
    "another request has the key, and one tries again": World(
        Budget(calls=2, flushes=1, crashes=0), others=True, attempts=2, again=True
    ),
    "no fence can be made": World(Budget(copies=1, flushes=1), fences=False),
    "commands read, and Redis is emptied": World(Budget(calls=3, flushes=1, crashes=0), reads=True, attempts=2),
    "commands read, and the file system is replaced": World(
        Budget(copies=1, swaps=1, crashes=0), reads=True, attempts=2
    ),
    "commands read, and inputs and fences are cleaned away": World(
        Budget(copies=1, cleans=1, crashes=0), reads=True, attempts=2
    ),
    "commands read, another request has the key, and an upload is late": World(
        Budget(calls=2, flushes=1, crashes=0, uploads=1), others=True, reads=True, attempts=2
    ),
    "a job removes what others are to read": World(
        Budget(copies=1, unlinks=1, crashes=0), reads=True, attempts=2, marked=True
    ),
}

Move = tuple[str, ClaimState | None, ClaimState]

STILL_RUNS = "lost, but it still runs"

RULES: list[tuple[str, tuple[str, ...], str, str]] = [
    # Rule 1
    ("refusal", ("refusal keeps the attempt",), "Redis is emptied", TWICE),
    ("takeover", ("a takeover keeps the attempt",), "the mark can't be read, and Redis is emptied", TWICE),
    # Straight to dispatched
    (
        "the mark in that very write",
        ("the mark is in the write that dispatches",),
        "Redis is emptied",
        FOREVER,
    ),
    (
        "no takeover from dispatched",
        ("a dispatched claim is not taken over",),
        "the file system is replaced",
        TWICE,
    ),
    (
        "giving back what was not sent",
        ("who began to send does not give it back",),
        "the file system is replaced",
        TWICE,
    ),
    (
        "token and epoch",
        ("a write is known by its epoch too",),
        "the mark can't be read, and the file system is replaced",
        TWICE,
    ),
    # Rule 2
    (
        "the void's mark",
        ("a void counts under its mark alone",),
        "the file system is replaced",
        "voided, but it ran",
    ),
    (
        "a wiped directory",
        ("a wiped directory proves nothing", "the living are looked for"),
        "a job wipes the directory of a container that stays",
        STILL_RUNS,
    ),
    ("the living", ("the living are looked for",), "a job wipes the directory", STILL_RUNS),
    # Rule 3
    (
        "comparing first",
        ("the wrapper compares the mark first",),
        "the file system is replaced",
        TWICE,
    ),
    ("comparing again", ("the wrapper compares again",), "a job wipes the directory", TWICE),
    (
        "not sending again",
        ("what met another mark is not sent again",),
        "the file system is replaced",
        TWICE,
    ),
    # Rule 4
    (
        "an acknowledged claim",
        ("nothing is sent without an acknowledged claim",),
        "a caller cancels",
        "cancelled before it started, but it ran",
    ),
    ("sending once", ("nothing is sent twice",), "the file system is replaced", TWICE),
    # Rule 5
    (
        "a fence or no run",
        ("where there is a mark there is a fence or no run",),
        "the disk is full, and some die half-way",
        "voided, but it ran",
    ),
    # What is said of a command that execd took
    (
        "a marker is no proof: wiped",
        ("what is printed proves nothing",),
        "a job wipes the directory and prints a marker",
        TWICE,
    ),
    (
        "a marker is no proof: removed",
        ("what is printed proves nothing",),
        "a job removes its fence and prints a marker",
        "voided, but it ran",
    ),
    (
        "no void after a doubt",
        ("what may have run is not voided",),
        "a job removes its fence and prints a marker",
        "voided, but it ran",
    ),
    (
        "a marker behind a warning",
        ("a marker counts wherever it stands",),
        "the file system is replaced",
        "followed, but it never ran",
    ),
    (
        "a marker without a fence",
        ("a marker counts without a fence too",),
        "a mark is made meanwhile",
        "followed, but it never ran",
    ),
    # What callers are told after Redis was emptied
    (
        "202 after the first look",
        ("an accepted command is no answer yet",),
        "another request has the key",
        ANOTHERS,
    ),
    (
        "422 after the first look",
        ("a key is called used by a confirmed record alone",),
        "another request has the key",
        NOT_NOTHING,
    ),
    (
        "a failure of another request",
        ("a failure is told to its own request alone",),
        "another request has the key",
        NOT_NOTHING,
    ),
    # What proves that a key is new
    (
        "a sandbox made under this Redis",
        ("only a sandbox made under this Redis proves that a key is new",),
        "another request has the key",
        ANOTHERS,
    ),
    (
        "Redis is emptied between the read of the sandbox and the claim",
        ("that is seen in the claim's script",),
        "another request has the key",
        ANOTHERS,
    ),
    (
        "and the sandbox is found again",
        ("a record that was found again proves nothing",),
        "another request has the key",
        ANOTHERS,
    ),
    (
        "an old reading",
        ("an old reading is not written back as this Redis's own",),
        "another request has the key",
        ANOTHERS,
    ),
    # What a command reads
    (
        "an input before the dispatch",
        ("the input is written before the dispatch",),
        "commands read, and the file system is replaced",
        NO_INPUT,
    ),
    (
        "a name for each upload",
        ("each upload has a name of its own",),
        "commands read, another request has the key, and an upload is late",
        ANOTHERS_INPUT,
    ),
    (
        "the input before the fence",
        ("the input is opened before the fence is made",),
        "a job removes what others are to read",
        "followed, but it never ran",
    ),
    (
        "no input is no proof",
        ("who found no input looks for a fence",),
        "a job removes what others are to read",
        RAN_ALL_THE_SAME,
    ),
    (
        "keeping the input",
        ("an input is kept for as long as an attempt can follow",),
        "commands read, and inputs and fences are cleaned away",
        NO_INPUT,
    ),
    # What the texts are made of
    (
        "one step for a void",
        ("a void is made in one step",),
        "the disk is full, and some die half-way",
        "followed, but it never ran",
    ),
    (
        "cleaning late",
        ("cleaning waits for what is under way",),
        "fences are cleaned away",
        TWICE,
    ),
    ("cleaning after the claim", ("cleaning waits for the claim",), "fences are cleaned away", TWICE),
]

NOT_EXPLORED: dict[str, set[Move]] = {
    "a lease that is renewed or given back changes nothing here": {
        ("renew", ClaimState.CLAIMED, ClaimState.CLAIMED),
        ("renew", ClaimState.DISPATCHED, ClaimState.DISPATCHED),
        ("release", ClaimState.CLAIMED, ClaimState.CLAIMED),
    },
    "a poller that has nothing new": {
        ("advance", state, state)
        for state in (ClaimState.UNKNOWN, ClaimState.ACCEPTED, ClaimState.RUNNING, ClaimState.ENDED)
    },
    "the question of the first look, asked at the end of a command whose fence was not seen": {
        ("advance", ClaimState.RUNNING, ClaimState.UNKNOWN),
    },
    "two moves of the model in one": {
        ("advance", ClaimState.UNKNOWN, ClaimState.ACCEPTED),
        ("finish", ClaimState.UNKNOWN, ClaimState.REFUSED),
        ("advance", ClaimState.ACCEPTED, ClaimState.ENDED),
        ("finish", ClaimState.RUNNING, ClaimState.CLOSED),
        ("restore", None, ClaimState.ENDED),
    },
    "sandboxes only, as the script itself holds": {
        ("reopen", ClaimState.UNKNOWN, ClaimState.CLAIMED),
    },
}
"""Why -> moves of a job that are in the table and not in the model."""


FALLS_BACK = {
    "loses the claim alone": Budget(calls=2, losses=1, crashes=0),
    "falls back to an older state of the claim": Budget(calls=2, rollbacks=1, crashes=0),
    "forgets the claim, whose retention is over, before the fence is cleaned away": Budget(
        calls=2, expiries=1, crashes=0
    ),
}
"""What an answer at once does not survive: Redis forgets a claim and still knows its sandbox."""


@pytest.mark.parametrize("name", WORLDS)
def test_the_protocol_holds(name: str) -> None:
    found = explore(WORLDS[name])
    assert found.faults == {}
    assert found.states > 500


@pytest.mark.parametrize(("rules", "world", "fault"), [rule[1:] for rule in RULES], ids=[rule[0] for rule in RULES])
def test_without_the_rule_it_does_not_hold(rules: tuple[str, ...], world: str, fault: str) -> None:
    found = explore(WORLDS[world].without(*rules), until=fault)
    assert found.faults.get(fault), found.faults


def test_what_stays_is_redis_emptied_and_the_file_system_replaced_both_at_once() -> None:
    found = explore(World(Budget(flushes=1, swaps=1, crashes=0)), until=TWICE)
    assert {"Redis is emptied", "the container comes back with a new file system"} <= set(found.faults[TWICE])


@pytest.mark.parametrize("budget", FALLS_BACK.values(), ids=FALLS_BACK)
def test_what_stays_is_another_requests_result_where_redis_forgets_a_claim_and_knows_its_sandbox(
    budget: Budget,
) -> None:
    world = World(budget, others=True, attempts=2)
    assert set(explore(world).faults) == {ANOTHERS}, "answers alone: nothing runs twice"
    assert explore(replace(world, at_once=False)).faults == {}


def test_an_earlier_run_need_not_be_looked_for_where_the_first_look_is_waited_for() -> None:
    world = WORLDS["another request has the key, and one stops"]
    assert explore(world.without("an earlier run is looked for where the key may not be new")).faults == {}


def test_every_move_of_a_job_that_the_table_allows_is_explored() -> None:
    made: set[Move] = set()
    for world in (
        World(Budget(flushes=1, swaps=1, crashes=0), marked=True),
        World(Budget(copies=1, crashes=0), marked=True),
        World(Budget(cancels=1), marked=True),
        World(Budget(copies=1, full=1, deaths=1, crashes=0), marked=True),
        WORLDS["another request has the key, and one stops"],
    ):
        explore(world)
        made |= world.moves
    allowed = {
        (script, source, to)
        for script, moves in SCRIPTS.items()
        for source, targets in moves.items()
        for to in targets
        if ClaimState.DONE not in (source, to)  # sandboxes
    }
    assert made | set[Move]().union(*NOT_EXPLORED.values()) == allowed
