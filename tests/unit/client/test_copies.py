"""Handles and clients are copied within a process, and say clearly that they don't travel between two."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from service.client import MapResult, SandboxNotFound
from tests.unit.client.fake_service import answer
from tests.unit.client.scripted import Scripted, done, job, read, sandbox


def handles(*, asynchronous: bool) -> list[Any]:
    network = Scripted()
    client: Any = network.async_client() if asynchronous else network.client()
    return [client, client.sandbox("sb-1"), client.job("cmd_1")]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_pickling_says_what_to_send_instead(asynchronous: bool) -> None:
    client, box, job = handles(asynchronous=asynchronous)
    kind = type(client).__name__.removesuffix("Client")

    for thing, said in (
        (client, f"an? {kind}Client can't be pickled: make one in each process"),
        (box, rf"an? {kind}Sandbox can't be pickled: send its id, and take client\.sandbox\(id\) there"),
        (job, rf"an? {kind}Job can't be pickled: send its id, and take client\.job\(id\) there"),
    ):
        with pytest.raises(TypeError, match=said):
            pickle.dumps(thing)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_is_a_handle_of_the_same_client(asynchronous: bool, copied: Any) -> None:
    client, box, job = handles(asynchronous=asynchronous)

    again = copied({"client": client, "box": box, "job": job})

    assert again["client"] is client
    for name, handle in (("box", box), ("job", job)):
        assert (type(again[name]), again[name].id) == (type(handle), handle.id)


def test_what_a_deep_copy_knows_changes_alone() -> None:
    network = Scripted(answer(202, job("pending")), read("running", cursor="c1"), answer(200, sandbox()))
    handle = network.client().sandbox("sb-1").submit("make", idempotency_key="k")
    before = copy.deepcopy(handle)
    handle.status()

    assert (before.state, handle.state) == ("pending", "running")
    assert before.idempotency_key == "k"
    network.replies = [done("out")]
    assert before.result().output == "out"


def test_a_handle_may_stand_in_a_dataclass() -> None:
    @dataclasses.dataclass
    class Task:
        box: Any

    client = Scripted().client()
    assert dataclasses.asdict(Task(client.sandbox("sb-1")))["box"].id == "sb-1"


def test_results_travel() -> None:
    network = Scripted(done("out"))
    result = network.client().job("cmd_1").result()
    failed = MapResult(sandbox_id="sb-1", idempotency_key="k", error=SandboxNotFound("no", sandbox_id="sb-1"))

    assert pickle.loads(pickle.dumps(result)) == result
    assert isinstance(pickle.loads(pickle.dumps(failed)).error, SandboxNotFound)
