"""execd's stream of events, however it is cut, framed or broken."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine.events import MAX_EVENT, CommandStream
from service.ports.engine import CommandEvent, EngineError, StartFailed, Unclear

ID = "4526c4a1b2a544a3bf60e3ab0baec150"
INIT = {"type": "init", "text": ID, "timestamp": 1795966486068}
PING = {"type": "ping", "text": "pong", "timestamp": 1795966486068}
OUT = {"type": "stdout", "text": "a}{b\u2028é", "timestamp": 1}
COMPLETE = {"type": "execution_complete", "execution_time": 5, "timestamp": 1}
EXIT_3 = {
    "type": "error",
    "timestamp": 1,
    "error": {"ename": "CommandExecError", "evalue": "3", "traceback": ["exit status 3"]},
}
KILLED = {"type": "error", "error": {"ename": "x", "evalue": "-1", "traceback": ["signal: killed"]}}
NO_START = {"type": "error", "error": {"ename": "x", "evalue": "fork/exec /usr/bin/bash: argument list too long"}}
RAN = {"type": "error", "error": {"ename": "x", "evalue": "context deadline exceeded"}}
APPENDED = {"code": "RUNTIME_ERROR", "message": "failed to start commands: fork/exec /usr/bin/bash: x"}

Frames = list[dict[str, Any]]


def bare(frames: Frames) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n\n" for each in frames)


def sse(frames: Frames) -> bytes:
    return b"".join(b"event: x\r\nid: 1\r\ndata: " + json.dumps(each).encode() + b"\r\n\r\n" for each in frames)


def multiline_sse(frames: Frames) -> bytes:
    def lines(frame: dict[str, Any]) -> bytes:
        return b"".join(b"data:" + line.encode() + b"\n" for line in json.dumps(frame, indent=1).split("\n"))

    return b": hello\n\n" + b"".join(lines(each) + b"\n" for each in frames)


def run_together(frames: Frames) -> bytes:
    return b"".join(json.dumps(each).encode() for each in frames)


def one_line_each(frames: Frames) -> bytes:
    return b"\xef\xbb\xbf" + b"\n".join(json.dumps(each, ensure_ascii=False).encode() for each in frames)


FRAMINGS = [bare, sse, multiline_sse, run_together, one_line_each]


def read(data: bytes, cuts: list[int] | None = None) -> tuple[list[CommandEvent], CommandStream]:
    stream, events, at = CommandStream(), [], 0
    for cut in [*sorted(min(each, len(data)) for each in cuts or []), len(data)]:
        events += stream.feed(data[at:cut])
        at = cut
    if not stream.over and stream.failure is None:
        events += stream.finish()
    return events, stream


@pytest.mark.parametrize("framing", FRAMINGS)
@given(cuts=st.lists(st.integers(0, 700), max_size=30))
@settings(max_examples=60)
def test_the_events_are_the_same_however_they_are_framed_and_cut(framing: Any, cuts: list[int]) -> None:
    events, stream = read(framing([INIT, PING, OUT, {"type": "status", "text": "x"}, EXIT_3]), cuts)
    assert events == [
        CommandEvent(type="init", text=ID, at=1795966486.068),
        CommandEvent(type="ping"),
        CommandEvent(type="stdout", text="a}{b\u2028é"),
        CommandEvent(type="exit", text="exit status 3", exit_code=3, at=0.001),
    ]
    assert stream.over
    assert stream.failure is None
    assert stream.command == ID


@pytest.mark.parametrize("timestamp", [None, "1795966486068", -1, 0, 1 << 60, 1.5, [], {}])
def test_a_time_that_is_none_is_not_told_and_harms_nothing(timestamp: Any) -> None:
    events, stream = read(bare([{**INIT, "timestamp": timestamp}, {**COMPLETE, "timestamp": timestamp}]))
    assert [(each.type, each.at) for each in events] == [("init", None), ("complete", None)]
    assert stream.over


ENDINGS: list[tuple[str, Frames, int | type[EngineError]]] = [
    ("complete", [INIT, OUT, COMPLETE], 0),
    ("exit", [INIT, EXIT_3], 3),
    ("killed", [INIT, KILLED], -1),
    ("a ping after the terminal event", [INIT, EXIT_3, PING], 3),
    ("a second terminal event", [INIT, EXIT_3, COMPLETE], 3),
    ("an error after the terminal event", [INIT, COMPLETE, NO_START, APPENDED], 0),
    ("output before the id", [OUT, INIT, COMPLETE], 0),
    ("a type from the future", [INIT, {"type": "news", "text": 5, "error": []}, COMPLETE], 0),
    ("a second id", [INIT, {**INIT, "text": "f" * 32}, COMPLETE], 0),
    ("never started", [INIT, NO_START], StartFailed),
    ("never started, ping in between", [INIT, PING, NO_START], StartFailed),
    ("an object appended", [INIT, PING, APPENDED], StartFailed),
    ("ended before the id", [PING], Unclear),
    ("empty", [], Unclear),
    ("ended without a terminal event", [INIT, OUT], Unclear),
    ("the end of a command without an id", [COMPLETE], Unclear),
    ("the exit of a command without an id", [EXIT_3], Unclear),
    ("no start, but no id", [NO_START], Unclear),
    ("an object instead of everything", [APPENDED], Unclear),
    ("no start, but it printed", [INIT, OUT, NO_START], Unclear),
    ("an object appended, but it printed", [INIT, OUT, APPENDED], Unclear),
    ("an object of the proxy's", [INIT, {"code": "BACKEND_RESPONSE_FAILED", "message": "x"}], Unclear),
    ("a command that ran into its timeout as it ended", [INIT, RAN], Unclear),
    ("an error without a value", [INIT, {"type": "error"}], Unclear),
    ("an id that is a path", [{**INIT, "text": "../../etc"}], Unclear),
    ("an id that is empty", [{**INIT, "text": ""}], Unclear),
    ("an id that is no text", [{**INIT, "text": 5}], Unclear),
    ("a known type of another shape", [INIT, {"type": "error", "error": "x"}], Unclear),
    ("an object of no kind", [INIT, {"hello": 1}], Unclear),
]


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize(("name", "frames", "end"), ENDINGS, ids=[each[0] for each in ENDINGS])
def test_a_stream_comes_to(framing: Any, name: str, frames: Frames, end: int | type[EngineError]) -> None:
    events, stream = read(framing(frames))
    if isinstance(end, int):
        assert stream.over, name
        assert stream.failure is None
        assert events[-1].exit_code == end
        assert stream.command == ID
    else:
        assert type(stream.failure) is end
        assert not stream.over


def test_the_id_is_known_when_the_stream_breaks_after_it() -> None:
    events, stream = read(bare([INIT, OUT]) + b'{"type":"execution_comp')
    assert stream.command == ID
    assert [each.type for each in events] == ["init", "stdout"]
    assert type(stream.failure) is Unclear


@pytest.mark.parametrize("data", [b"<html>502</html>\n", b"\x00\xff\n", b"[1]\n", b"null\n", b'"x"\n', b"{\n"])
def test_what_is_no_event_makes_the_stream_unclear(data: bytes) -> None:
    _, stream = read(bare([INIT]) + data)
    assert type(stream.failure) is Unclear


def test_events_before_a_failure_are_delivered() -> None:
    events, stream = read(bare([INIT, OUT]) + b"garbage\n" + bare([COMPLETE]))
    assert [each.type for each in events] == ["init", "stdout"]
    assert type(stream.failure) is Unclear


@pytest.mark.parametrize("prefix", [b"", b"data: "])
def test_an_event_without_an_end_takes_no_more_memory_than_the_bound(prefix: bytes) -> None:
    stream = CommandStream()
    stream.feed(bare([INIT]) + prefix + b'{"type":"stdout","text":"')
    for _ in range(MAX_EVENT // 65536 + 2):
        stream.feed(b"x" * 65536)
    assert type(stream.failure) is Unclear
    assert stream.command == ID
    assert stream._frames._rest == b""


@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=10), after=st.booleans())
def test_random_bytes_never_crash_and_never_say_not_executed(data: bytes, cuts: list[int], after: bool) -> None:
    _, stream = read((bare([INIT]) if after else b"") + data, cuts)
    assert type(stream.failure) is Unclear


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
JSONS = st.recursive(
    SCALARS,
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=5), each, max_size=3),
    max_leaves=4,
)
EVENTS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["init", "ping", "stdout", "error", "execution_complete", "x"]) | JSONS,
        "text": st.just(ID) | JSONS,
        "error": st.fixed_dictionaries({}, optional={"evalue": JSONS | st.just("3"), "traceback": JSONS}) | JSONS,
        "code": st.just("RUNTIME_ERROR") | JSONS,
        "message": JSONS,
    },
)


@given(
    frames=st.lists(EVENTS, max_size=4),
    framing=st.sampled_from(FRAMINGS),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
@settings(max_examples=300)
def test_events_of_any_shape_never_crash_and_not_executed_needs_its_proof(
    frames: Frames, framing: Any, cuts: list[int]
) -> None:
    _, stream = read(framing(frames), cuts)
    assert stream.over != (stream.failure is not None)
    if isinstance(stream.failure, StartFailed):
        assert stream.command is not None
        assert any(each.get("code") == "RUNTIME_ERROR" for each in frames)


@given(
    frames=st.sampled_from([each[1] for each in ENDINGS]), cut=st.integers(0, 600), framing=st.sampled_from(FRAMINGS)
)
@settings(max_examples=300)
def test_a_stream_cut_off_anywhere_says_what_the_whole_one_says_or_nothing(
    frames: Frames, cut: int, framing: Any
) -> None:
    _, whole = read(framing(frames))
    _, part = read(framing(frames)[:cut])
    if part.over:
        assert whole.over
    elif type(part.failure) is not Unclear:
        assert type(part.failure) is type(whole.failure)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "latin-1", "utf-8-sig"])
def test_another_encoding_is_unclear_or_right(encoding: str) -> None:
    text = "".join(json.dumps(each, ensure_ascii=False) + "\n\n" for each in ([INIT, PING, EXIT_3]))
    _, stream = read(text.encode(encoding))
    assert stream.over or type(stream.failure) is Unclear


def test_many_objects_on_one_line_are_read_in_linear_time() -> None:
    events, stream = read(run_together([INIT, *[PING] * 12_000, COMPLETE]))
    assert len(events) == 12_002
    assert stream.over
