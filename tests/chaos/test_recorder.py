"""What real processes did becomes a history: by the word of their commands, their callers and their Redis."""

import subprocess
import time
from pathlib import Path

import pytest

from tests.chaos import inventory
from tests.chaos.recorder import command, executions, printed, told_by
from tests.faults.caller import Answer
from tests.simulation.history import Kept, Seen, Step
from tests.support.redis_server import RedisServer

JOB = {
    "command_id": "cmd_1", "sandbox_id": "s", "state": "exited", "exit_code": 3, "reason": None, "fenced": True,
    "cursor": None, "output": "b\n", "replace": False, "output_complete": True,
    "history": [{"at": "", "state": "dispatched", "attempt": 1}, {"at": "", "state": "closed", "attempt": 1}],
}  # fmt: skip


def test_a_command_tells_of_its_start_and_of_its_end(tmp_path: Path) -> None:
    ledger = tmp_path / "it's a ledger"
    text = command("m", ledger=str(ledger), sandbox="s", lines=2, seconds=0.0, code=3, private=False)
    began = time.time()

    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=False)
    first, second = executions(ledger.read_text() * 2, began, {"m": 2}), executions(ledger.read_text(), began, {"m": 2})

    assert (done.returncode, done.stdout, done.stderr) == (3, printed("m", 2), "")
    assert first == second
    assert [(run.sandbox, run.mark, run.files, run.exit_code, run.output) for run in first] == [
        ("s", "m", 1, 3, "m 0\nm 1\n")
    ]
    assert 0 <= first[0].at <= (first[0].until or 0.0) <= time.time() - began


def test_each_run_counts_and_a_new_file_system_has_a_number_of_its_own() -> None:
    ledger = (
        "start m 10 s abc 101.0\nend m 10 0 102.0\nstart n 11 s xyz 103.0\nstart m 12 s xyz 104.0\nstart o 13 t abc 1"
    )

    found = executions(ledger, 100.0, {"m": 0, "n": 0, "o": 0})

    assert [(run.mark, run.sandbox, run.files, run.at, run.until) for run in found] == [
        ("o", "t", 1, -99.0, None),
        ("m", "s", 1, 1.0, 2.0),
        ("n", "s", 2, 3.0, None),
        ("m", "s", 2, 4.0, None),
    ]
    assert found[2].output is None


def test_an_answer_is_put_down_as_what_its_caller_knows_then() -> None:
    seen = Seen(
        id="cmd_1", state="exited", exit_code=3, over=True, output="a\nb\n", output_complete=True,
        steps=(Step("dispatched", 1), Step("closed", 1)),
    )  # fmt: skip
    unknown = {"code": "OUTCOME_UNKNOWN", "retryable": True, "command_id": "cmd_1"}

    assert told_by(Answer(200, JOB), "output", "a\n") == {"seen": (seen,)}
    assert told_by(Answer(200, {**JOB, "replace": True}), "output", "a\n")["seen"][0].output == "b\n"
    assert told_by(Answer(200, {**JOB, "cursor": "c"}), "output", "a\n")["seen"][0].output is None
    assert told_by(Answer(200, {"items": [JOB], "next_page_token": None}), "list")["seen"][0].state == "exited"
    assert told_by(Answer(502, unknown), "submit") == {
        "code": "OUTCOME_UNKNOWN", "retryable": True, "told_id": "cmd_1"
    }  # fmt: skip
    assert told_by(Answer(0, {}), "submit") == {"code": "", "retryable": False, "told_id": ""}


@pytest.mark.integration
def test_what_a_redis_holds_is_told_by_its_kind_and_its_end(redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        now = client.time()[0]
        client.set("oncebox:{1}:claim:cmd_1", "1 running 1 1 1 0 0 t o\n{}")
        client.set("oncebox:{1}:claim:cmd_2", "1 closed 1 1 1 0 0 t o\n{}", px=90_000)
        client.zadd("oncebox:{1}:looks", {"cmd_1": 5})
        client.sadd("oncebox:{1}:active:s", "cmd_1")
        client.zadd("oncebox:slots:jobs:red", {"cmd_1": (now + 60) * 1000})
        client.zadd("oncebox:{1}:chores:fences", {"cmd_2 1": (now + 60) * 1000})
        client.set("oncebox:lease:sweep", "x", px=90_000)
        client.set("oncebox:memo:x", "y")
        client.zadd("oncebox:{1}:outputs:times", {"cmd_2": 1})

    found = list(inventory.of_server(redis_server))

    assert {(kept.kind, kept.of, kept.state) for kept in found} == {
        ("claim", "cmd_1", "running"), ("claim", "cmd_2", "closed"), ("list", "cmd_1", ""), ("slot", "cmd_1", ""),
        ("fence", "cmd_2 1", ""), ("lease", "", ""), ("key", "", ""),
    }  # fmt: skip
    ends = {kept.name: kept.ends for kept in found}
    assert ends["oncebox:memo:x"] is ends["oncebox:{1}:claim:cmd_1"] is None
    assert 0 < (ends["oncebox:{1}:claim:cmd_2"] or 0) <= 90
    assert 0 < (ends["oncebox:slots:jobs:red"] or 0) <= 61
    assert all(isinstance(kept, Kept) for kept in found)
