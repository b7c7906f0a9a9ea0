"""A job is in the lists of active ones exactly while its claim is active, and its end leaves nothing behind; and each
rule is needed for that. The steps are in `list_protocol`.
"""

import pytest

from tests.unit.core.jobs.list_protocol import LEFTOVER, ORPHANED, UNCLEANED, UNFOLLOWED, World, explore

WORLDS = {
    "three requests, and one who works stops": World(),
    "Redis is emptied": World(calls=2, flushes=1, crashes=0),
}

RULES = [
    ("claim lists in its own script", ORPHANED),
    ("reopen lists in its own script", ORPHANED),
    ("restore lists in its own script", UNFOLLOWED),
    ("a replay lists nothing", LEFTOVER),
    ("the end is one script", UNFOLLOWED),
    ("the end is one script", UNCLEANED),
    ("the end acts only where its compare-and-set succeeds", UNFOLLOWED),
    ("an entry is dropped by the script that sees its claim over", UNFOLLOWED),
]


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_a_job_is_listed_exactly_while_it_is_active(world: World) -> None:
    found = explore(world)
    assert found.faults == {}
    assert found.states > 1_000


@pytest.mark.parametrize(("rule", "fault"), RULES)
def test_without_the_rule_it_is_not(rule: str, fault: str) -> None:
    left_out = frozenset({rule})
    faults = set[str]()
    for world in WORLDS.values():
        faults |= explore(World(left_out, world.calls, world.crashes, world.flushes)).faults.keys()
    assert fault in faults
