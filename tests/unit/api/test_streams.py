"""Server-sent events and raw output: bounded, resumable, honest when cut off."""

import asyncio
import dataclasses

import msgspec
import pytest

from service.api import sse
from service.api.ranges import wanted_range
from service.core.model.answers import Event, RawOutput
from service.errors import EngineUnavailable, JobNotFound, RangeNotSatisfiable, SandboxNotFound
from service.messages import Encoding
from tests.support.waiting import PATIENCE
from tests.unit.api.fakes import EXEC_EVENTS, JOB, Connection, FakeCore, ask, chunks, output_event, post

EVENTS = "/v1/exec-jobs/cmd_x/events"
OUTPUT = "/v1/exec-jobs/cmd_x/output"
EXEC = {"sandbox_id": "sb", "command": "echo hi"}
ACCEPT = [("Accept", "text/event-stream")]


async def test_events_carry_their_names_cursors_and_data() -> None:
    core = FakeCore(events_script=[Event("state", "c1", JOB), output_event("a\nb\r\n", "c2"), Event("end", "c3", JOB)])
    got = await ask(core.app(), "GET", f"{EVENTS}?encoding=base64")
    assert got.status == 200
    assert got.headers["content-type"] == "text/event-stream"
    assert got.headers["cache-control"] == "no-store"
    state, output, end = got.body.decode().removesuffix("\n\n").split("\n\n")
    assert state.startswith('event: state\nid: c1\ndata: {"command_id":"cmd_c2I_0"')
    event, id, data = output.split("\n")
    assert (event, id) == ("event: output", "id: c2")
    assert msgspec.json.decode(data.removeprefix("data: ")) == {
        "output": "a\nb\r\n", "encoding": "utf8", "replace": False, "skipped_bytes": 0, "stream": None,
    }  # fmt: skip
    assert end.startswith("event: end\nid: c3\n")
    assert core.asked["encoding"] is Encoding.BASE64
    assert core.events_closed


async def test_last_event_id_wins_over_the_cursor() -> None:
    core = FakeCore()
    await ask(core.app(), "GET", f"{EVENTS}?cursor=old", headers=[("Last-Event-ID", "new")])
    assert core.asked["cursor"] == "new"
    await ask(core.app(), "GET", f"{EVENTS}?cursor=old", headers=[("Last-Event-ID", "")])
    assert core.asked["cursor"] == "old"


async def test_who_has_seen_the_end_gets_204() -> None:
    got = await ask(FakeCore().app(), "GET", EVENTS, headers=[("Last-Event-ID", "the-end")])
    assert (got.status, got.body) == (204, b"")


async def test_an_unknown_job_is_a_problem_not_a_stream() -> None:
    got = await ask(FakeCore(error=JobNotFound()).app(), "GET", EVENTS)
    assert (got.status, got.json["code"]) == (404, "JOB_NOT_FOUND")


async def test_a_quiet_stream_begins_and_shows_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "OPENING_SECONDS", 0.01)
    monkeypatch.setattr(sse, "HEARTBEAT_SECONDS", 0.01)
    more = asyncio.Event()
    core = FakeCore(events_script=[more, Event("end", "c", JOB)])
    sent = Connection(core.app(), "GET", EVENTS)
    async with asyncio.timeout(PATIENCE):
        while sent.got.parts.count(b": alive\n\n") < 2:
            await asyncio.sleep(0.001)
    more.set()
    got = await sent.answer()
    assert got.parts[-2].startswith(b"event: end\n")


async def test_a_reader_that_leaves_ends_the_reading() -> None:
    core = FakeCore(events_script=[output_event("a", "1"), asyncio.Event()])
    sent = Connection(core.app(), "GET", EVENTS)
    async with asyncio.timeout(PATIENCE):
        while not sent.got.parts:
            await asyncio.sleep(0)
        sent.disconnect()
        await sent.answer()
    assert core.events_closed
    assert not sent.got.finished


async def test_a_slow_reader_holds_the_reading_up() -> None:
    script = [output_event(str(number), str(number)) for number in range(100)]
    core = FakeCore(events_script=[*script])
    taken = 0

    class Counted(list[object]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            nonlocal taken
            for item in script:
                taken += 1
                yield item

    core.events_script = Counted()  # type: ignore[assignment]
    sent = Connection(core.app(), "GET", EVENTS)
    sent.taken.clear()
    for _ in range(500):
        await asyncio.sleep(0)
    assert taken <= 2, "no more than what is being written, and the next one"
    sent.taken.set()
    got = await sent.answer()
    assert got.body.count(b"event: output") == 100


async def test_a_reader_that_is_cut_off_ends_the_reading_and_is_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    core = FakeCore(events_script=[output_event("a", "1"), output_event("b", "2"), asyncio.Event()])
    sent = Connection(core.app(), "GET", EVENTS)
    sent.taken.clear()
    await asyncio.sleep(0)
    sent.cut_off = True
    sent.taken.set()
    await sent.answer()
    assert core.events_closed
    assert "a bug" not in caplog.text


async def test_trouble_in_mid_stream_just_ends_it_so_that_its_reader_resumes() -> None:
    core = FakeCore(events_script=[output_event("a", "1"), EngineUnavailable()])
    got = await ask(core.app(), "GET", EVENTS)
    assert got.body.count(b"event:") == 1
    assert got.finished


async def test_head_of_events_does_not_follow() -> None:
    core = FakeCore(events_script=[output_event("a", "1"), asyncio.Event()])
    got = await ask(core.app(), "HEAD", EVENTS)
    assert (got.status, got.body, got.headers["content-type"]) == (200, b"", "text/event-stream")
    assert core.events_closed


# -- exec


async def test_exec_streams_where_that_is_asked_for() -> None:
    core = FakeCore(exec_script=[*EXEC_EVENTS])
    got = await post(core.app(), "/v1/exec", EXEC, headers=[*ACCEPT, ("Idempotency-Key", "k")])
    assert got.headers["content-type"] == "text/event-stream"
    assert got.headers["idempotency-key"] == "k"
    names = [line for line in got.body.decode().split("\n") if line.startswith("event: ")]
    assert names == ["event: start", "event: stdout", "event: result"]
    assert b"id:" not in got.body


async def test_a_replayed_exec_says_so_when_it_is_streamed_too() -> None:
    for replayed in (False, True):
        script = [dataclasses.replace(EXEC_EVENTS[0], replayed=replayed), *EXEC_EVENTS[1:]]
        got = await post(FakeCore(exec_script=[*script]).app(), "/v1/exec", EXEC, headers=ACCEPT)
        assert got.headers.get("idempotent-replayed") == ("true" if replayed else None)


async def test_exec_refused_before_it_began_is_a_problem() -> None:
    got = await post(FakeCore(exec_script=[SandboxNotFound()]).app(), "/v1/exec", EXEC, headers=ACCEPT)
    assert (got.status, got.json["code"]) == (404, "SANDBOX_NOT_FOUND")


@pytest.mark.parametrize(("error", "code"), [(EngineUnavailable("x"), "ENGINE_UNAVAILABLE"), (KeyError(), "INTERNAL")])
async def test_trouble_of_a_running_exec_is_its_last_event(error: Exception, code: str) -> None:
    core = FakeCore(exec_script=[EXEC_EVENTS[0], error])
    got = await post(core.app(), "/v1/exec", EXEC, headers=ACCEPT)
    last = got.body.decode().removesuffix("\n\n").split("\n\n")[-1]
    assert last.startswith("event: error\ndata: ")
    assert msgspec.json.decode(last.partition("data: ")[2])["code"] == code


@pytest.mark.parametrize("accept", ["application/json", "*/*", "text/html"])
async def test_exec_answers_json_otherwise(accept: str) -> None:
    got = await post(FakeCore().app(), "/v1/exec", EXEC, headers=[("Accept", accept)])
    assert got.headers["content-type"] == "application/json"


# -- raw output


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        (["bytes=0-0"], (0, 0)),
        (["bytes=5-9"], (5, 9)),
        (["bytes=5-"], (5, None)),
        (["bytes=-7"], (None, 7)),
        (["BYTES = 5-9 "], (5, 9)),
        ([], None),
        (["bytes=9-5"], None),
        (["bytes=1-2,4-5"], None),
        (["bytes=-"], None),
        (["bytes=a-b"], None),
        (["lines=1-2"], None),
        (["bytes=1-2", "bytes=3-4"], None),
        (["bytes=" + "9" * 30 + "-"], None),
        (["bytes=٣-"], None),
    ],
)
def test_one_range_is_honoured_and_anything_else_ignored(
    header: list[str], wanted: tuple[int | None, int | None] | None
) -> None:
    assert wanted_range(header) == wanted


def test_the_last_no_bytes_are_no_range() -> None:
    with pytest.raises(RangeNotSatisfiable):
        wanted_range(["bytes=-0"])


async def test_the_whole_output_is_streamed() -> None:
    raw = RawOutput(start=0, end=5, size=None, skipped=0, partial=False, chunks=chunks(b"he", b"\xffo\n"))
    got = await ask(FakeCore(raw_output=raw).app(), "GET", OUTPUT)
    assert (got.status, got.body) == (200, b"he\xffo\n")
    assert got.headers["content-type"] == "application/octet-stream"
    assert got.headers["content-length"] == "5"
    assert "oncebox-skipped-bytes" not in got.headers
    assert "content-range" not in got.headers


@pytest.mark.parametrize(("size", "shown"), [(100, "bytes 10-14/100"), (None, "bytes 10-14/*")])
async def test_a_range_of_the_output_says_where_it_lies(size: int | None, shown: str) -> None:
    raw = RawOutput(start=10, end=15, size=size, skipped=4, partial=True, chunks=chunks(b"hello"))
    core = FakeCore(raw_output=raw)
    got = await ask(core.app(), "GET", OUTPUT, headers=[("Range", "bytes=10-14")])
    assert (got.status, got.body) == (206, b"hello")
    assert got.headers["content-range"] == shown
    assert got.headers["oncebox-skipped-bytes"] == "4"
    assert core.asked["range"] == (10, 14)


async def test_a_range_that_is_not_there_is_416() -> None:
    error = RangeNotSatisfiable()
    got = await ask(FakeCore(error=error).app(), "GET", OUTPUT, headers=[("Range", "bytes=9-")])
    assert (got.status, got.json["code"]) == (416, "RANGE_NOT_SATISFIABLE")
    assert "content-range" not in got.headers
    error.size = 8
    got = await ask(FakeCore(error=error).app(), "GET", OUTPUT, headers=[("Range", "bytes=9-")])
    assert got.headers["content-range"] == "bytes */8"


async def test_output_that_breaks_off_is_seen_to_break_off() -> None:
    raw = RawOutput(
        start=0, end=9, size=9, skipped=0, partial=False, chunks=chunks(b"half", error=EngineUnavailable("gone"))
    )
    got = await ask(FakeCore(raw_output=raw).app(), "GET", OUTPUT)
    assert (got.status, got.body, got.finished) == (200, b"half", False)


async def test_head_of_output_reads_nothing() -> None:
    raw = RawOutput(start=0, end=9, size=9, skipped=0, partial=False, chunks=chunks(error=AssertionError("read")))
    got = await ask(FakeCore(raw_output=raw).app(), "HEAD", OUTPUT)
    assert (got.status, got.body, got.headers["content-length"], got.finished) == (200, b"", "9", True)
