"""A program that maps over tasks, killed at random points and run again, until it is through."""

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.http_rig import Replica
from tests.conftest import RedisStarter
from tests.faults.tally import Tally, tries
from tests.support.processes import Spawner

TASKS, STEPS = 12, 3
PROGRAM = f"""
import json, sys
from oncebox import Client

def function(run):
    read = "cat /proc/sys/kernel/random/uuid; sleep 0.2"
    return [run.run(read, step=f"s{{n}}", check=True).output for n in range({STEPS})]

with Client(sys.argv[1]) as client:
    for each in client.map_tasks(function, range({TASKS}), key=sys.argv[2], concurrency=3, journal=sys.argv[3] or None):
        print(json.dumps([each.task, each.result, str(each.error)]), flush=True)
"""


@pytest.mark.timeout(300)
@tries(short=5, long=100)
@pytest.mark.parametrize("with_journal", [False, True], ids=["record", "journal"])
def test_killed_and_run_again_it_goes_on(
    spawn: Spawner, start_redis: RedisStarter, tries: int, with_journal: bool, tmp_path: Path
) -> None:
    """`tries`: kills, over as many maps as it takes."""
    name = "journal" if with_journal else "record"
    tally = Tally(f"a map over tasks killed at a random point and run again, ends from the {name}; each kill")
    replica, chance, maps = Replica(spawn, {"ONCEBOX_REDIS_URL": start_redis().url}), random.Random(tries), 0
    while tally.tries < tries:
        maps += 1
        key = f"map{maps}"
        words = [sys.executable, "-c", PROGRAM, replica.url, key, str(tmp_path / key) if with_journal else ""]
        seen: dict[int, Any] = {}
        for kill in range(8):
            child = spawn(words, name=f"{key}-{kill}")
            if kill < 7 and tally.tries < tries:
                time.sleep(chance.uniform(0.3, 2.5))
                child.kill()
                tally.tries += 1
            elif child.wait(timeout=120):
                tally.wrong("stuck", child.stderr[-300:])
            for line in child.stdout.splitlines():
                _note(tally, seen, line)
        if len(seen) < TASKS:
            tally.wrong("lost", f"{TASKS - len(seen)} tasks of {key}")
        jobs = _jobs(replica)
        if len(jobs) != maps * TASKS * (STEPS + 1):
            tally.wrong("duplicates", f"{len(jobs)} jobs of {maps} maps")
    left = replica.ask("GET", "/v1/sandboxes?state=running").json()["items"]
    for sandbox in left:
        tally.wrong("stuck", f"sandbox {sandbox['sandbox_id']} is left")
    tally.check()


def _note(tally: Tally, seen: dict[int, Any], line: str) -> None:
    if not line.endswith("]"):  # cut by the kill
        return
    task, result, error = json.loads(line)
    if error != "None":
        tally.wrong("lost", error)
    elif seen.setdefault(task, result) != result:
        tally.wrong("duplicates", f"task {task} was answered otherwise before")


def _jobs(replica: Replica) -> list[Any]:
    found: list[Any] = []
    page: Any = {"next_page_token": ""}
    while page["next_page_token"] is not None:
        token = page["next_page_token"]
        page = replica.ask("GET", f"/v1/exec-jobs?page_size=200{'&page_token=' + token if token else ''}").json()
        found += page["items"]
    return found
