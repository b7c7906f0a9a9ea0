"""States, reasons and encodings are their words, wherever a caller meets one."""

from __future__ import annotations

import json
import pickle

import msgspec
import pytest

from service.client import Encoding, JobState, Reason, SandboxState
from tests.unit.client.fake_service import answer
from tests.unit.client.scripted import Scripted, job, read, sandbox


@pytest.mark.parametrize("kind", [JobState, SandboxState, Reason, Encoding])
def test_a_member_is_its_word(kind: type[JobState | SandboxState | Reason | Encoding]) -> None:
    for member in kind:
        assert member == member.value
        assert f"{member}" == str(member) == member.value
        assert {member: 1}[member.value] == 1  # type: ignore[index]
        assert json.loads(json.dumps(member)) == msgspec.json.decode(msgspec.json.encode(member)) == member.value
        assert pickle.loads(pickle.dumps(member)) is member


def test_what_handles_and_results_say_compares_equal_to_words() -> None:
    lost = read("lost", "", None, reason="sandbox_gone")
    network = Scripted(answer(200, sandbox(state="paused")), answer(202, job("running")), lost)
    box = network.client().sandbox("sb-1")

    assert box.refresh().state == "paused"
    handle = box.submit("make")
    assert handle.state == "running"
    assert handle.info is not None
    assert handle.info.state in ("pending", "running")
    result = handle.result()
    assert (result.state, result.reason) == ("lost", "sandbox_gone")


def test_a_list_takes_words_and_states_alike() -> None:
    page = answer(200, {"items": []})
    network = Scripted(page, page, page)
    client = network.client()

    list(client.jobs(state=JobState.LOST))
    list(client.jobs(state="lost"))
    list(client.jobs(state=["lost", JobState.EXITED]))

    queries = [request.path.partition("?")[2] for request in network.requests]
    assert queries == ["state=lost", "state=lost", "state=lost&state=exited"]
