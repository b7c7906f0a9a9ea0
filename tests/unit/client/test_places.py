"""The place in a stream: nothing is given twice, nothing is left out, at the end as anywhere."""

from __future__ import annotations

from typing import Any

import pytest

from service.client import AsyncClient, Client, JobNotFound, JobState
from tests.unit.client.fake_service import FakeService, Script, problem
from tests.unit.client.scripted import Scripted, done, read
from tests.unit.client.virtual import Clock, Undisturbed, hooks

OUTPUT = b"one\ntwo\n\xff\xfe three\n" * 20
STEPS = tuple((at * 5.0, OUTPUT[at * 60 : at * 60 + 60]) for at in range(6))


def served(script: Script) -> tuple[Clock, Client, AsyncClient]:
    service, clock = FakeService({"make": script}), Clock()
    network = Undisturbed(service, clock)
    return (
        clock,
        Client("http://fake", _hooks=hooks(network, clock)),
        AsyncClient("http://fake", _hooks=hooks(network, clock, 1)),
    )


SCRIPTS = [
    Script(blocks=STEPS, ends=40.0),
    # Over before anybody has looked.
    Script(blocks=((0.0, OUTPUT),), ends=0.0),
    # Nothing at all.
    Script(ends=3.0),
    # The last output comes after the end.
    Script(blocks=((0.0, b"a"), (9.0, b"late")), ends=4.0),
]


@pytest.mark.parametrize("first", [0.0, 100.0])
@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("method", ["stream", "stream_bytes"])
def test_looks_in_a_loop_give_each_byte_once(script: Script, method: str, first: float) -> None:
    clock, client, _ = served(script)
    job = client.create_sandbox().submit("make")
    clock.now += first
    seen: list[Any] = []
    for _ in range(60):
        seen += getattr(job, method)(cursor=job.cursor, follow=False)
        clock.now += 2.0

    assert as_bytes(seen) == expected(script, method)
    assert list(getattr(job, method)(cursor=job.cursor)) == []


@pytest.mark.parametrize("first", [0.0, 100.0])
@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("method", ["stream", "stream_bytes"])
async def test_asynchronous_looks_give_each_byte_once(script: Script, method: str, first: float) -> None:
    clock, _, client = served(script)
    job = await (await client.create_sandbox()).submit("make")
    clock.now += first
    seen: list[Any] = []
    for _ in range(60):
        seen += [chunk async for chunk in getattr(job, method)(cursor=job.cursor, follow=False)]
        clock.now += 2.0

    assert as_bytes(seen) == expected(script, method)
    assert [chunk async for chunk in getattr(job, method)(cursor=job.cursor)] == []


def as_bytes(seen: list[Any]) -> bytes:
    return b"".join(chunk.encode() if isinstance(chunk, str) else chunk for chunk in seen)


def expected(script: Script, method: str) -> bytes:
    return script.output if method == "stream_bytes" else script.output.decode("utf-8", "replace").encode()


def test_the_end_is_a_place_for_another_process_too() -> None:
    _, client, _ = served(SCRIPTS[0])
    job = client.create_sandbox().submit("make")
    list(job.stream())

    assert isinstance(job.cursor, str)
    again = client.job(job.id)
    assert list(again.stream(cursor=job.cursor)) == []
    assert again.state is JobState.EXITED
    assert again.cursor == job.cursor
    assert as_bytes(list(again.stream_bytes())) == SCRIPTS[0].output


def test_the_end_of_a_job_that_is_gone_is_an_error_like_any_other() -> None:
    network = Scripted(done("all"), problem(404, "JOB_NOT_FOUND"))
    job = network.client().job("cmd_1")
    list(job.stream())

    with pytest.raises(JobNotFound):
        list(job.stream(cursor=job.cursor))


def test_a_job_that_never_started_may_be_tried_again_so_its_end_is_its_start() -> None:
    network = Scripted(read("failed", "", None, reason="engine_unavailable"), done("this time"))
    job = network.client().job("cmd_1")

    assert list(job.stream()) == []
    assert list(job.stream(cursor=job.cursor)) == ["this time"]


def test_an_exec_is_given_once() -> None:
    _, client, _ = served(Script(blocks=((0.0, b"out"),)))
    box = client.create_sandbox()
    job = client.job(box.exec("make").command_id)

    assert list(job.stream(cursor=job.cursor, follow=False)) == ["out"]
    assert list(job.stream(cursor=job.cursor, follow=False)) == []
