"""The engine's replies as the port's types: tolerant of form, never of meaning."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine import wire
from service.messages import SandboxState
from service.ports.engine import CommandStatus, Unclear

TIMES = [
    ("2026-11-29T15:35:06Z", 1795966506.0),
    ("2026-11-29T15:35:06.304564128Z", 1795966506.304564128),
    ("2026-11-29T15:41:13.167065Z", 1795966873.167065),
    ("2026-11-29T15:35:06.3Z", 1795966506.3),
    ("2026-11-29T16:35:06+01:00", 1795966506.0),
    ("2026-11-29T10:05:06-0530", 1795966506.0),
    ("2026-11-29t15:35:06z", 1795966506.0),
    ("2026-11-29 15:35:06", 1795966506.0),
    ("0001-01-01T00:00:00Z", None),
    ("", None),
    (None, None),
]


@pytest.mark.parametrize(("text", "seconds"), TIMES)
def test_a_time_is_unix_seconds_to_the_microsecond(text: str | None, seconds: float | None) -> None:
    found = wire.unix_time(text)
    if seconds is None:
        assert found is None
    else:
        assert found == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize(
    "text",
    ["now", "2026-13-29T15:35:06Z", "2026-11-29", "2026-11-29T25:00:00Z", "2026-11-29T15:35:06+99:99", "1795966506"],
)
def test_what_is_no_time_is_unclear(text: str) -> None:
    try:
        assert wire.unix_time(text) == pytest.approx(1795966506 - 99 * 3600 - 99 * 60)
    except Unclear:
        return


def test_a_time_goes_out_with_its_zone_and_comes_back() -> None:
    assert wire.rfc3339(1795966506.3045) == "2026-11-29T15:35:06.304Z"
    assert wire.unix_time(wire.rfc3339(1795966506.25)) == 1795966506.25


SANDBOX: dict[str, Any] = {
    "id": "705e1d76-0337-46e7-9248-103fc219a351",
    "image": {"uri": "sandbox-base:1"},
    "status": {"state": "Running", "reason": "CONTAINER_RUNNING", "message": "Running.", "lastTransitionAt": "x"},
    "metadata": {"team": "a"},
    "entrypoint": ["sleep", "infinity"],
    "expiresAt": "2026-11-29T15:51:13.167065Z",
    "createdAt": "2026-11-29T15:41:13.221201Z",
    "news": [1],
}


def body(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_a_sandbox_is_read_whole() -> None:
    info = wire.sandbox(body(SANDBOX))
    assert info.id == SANDBOX["id"]
    assert info.state is SandboxState.RUNNING
    assert info.image == "sandbox-base:1"
    assert info.metadata == {"team": "a"}
    assert info.reason is None
    assert info.expires_at is not None
    assert info.created_at is not None
    assert info.expires_at - info.created_at == pytest.approx(599.945864, abs=1e-5)


def test_a_sandbox_that_failed_says_why() -> None:
    failed = {**SANDBOX, "status": {"state": "Failed", "reason": "OOM", "message": "out of\nmemory"}}
    assert wire.sandbox(body(failed)).reason == "OOM: out of memory"


def test_absent_fields_are_none() -> None:
    info = wire.sandbox(body({"id": "a", "status": {"state": "Pending"}, "metadata": None, "expiresAt": None}))
    assert (info.metadata, info.image, info.created_at, info.expires_at) == ({}, None, None, None)


@pytest.mark.parametrize(
    ("text", "state"),
    [("Running", SandboxState.RUNNING), ("PAUSED", SandboxState.PAUSED), ("Hibernating", SandboxState.UNKNOWN)],
)
def test_a_state_that_is_new_is_unknown(text: str, state: SandboxState) -> None:
    assert wire.sandbox_state(text) is state


@pytest.mark.parametrize(
    "change",
    [
        {"id": 5},
        {"id": ""},
        {"id": "../x"},
        {"id": "a/b"},
        {"status": None},
        {"status": {"state": 1}},
        {"metadata": {"a": 1}},
        {"metadata": []},
        {"expiresAt": 5},
        {"createdAt": "soon"},
        {"image": "x"},
    ],
)
def test_a_sandbox_of_another_shape_is_unclear(change: dict[str, Any]) -> None:
    with pytest.raises(Unclear):
        wire.sandbox(body({**SANDBOX, **change}))


@pytest.mark.parametrize("change", [{"pagination": None}, {"items": None}, {"pagination": {"hasNextPage": "no"}}])
def test_a_list_of_another_shape_is_unclear(change: dict[str, Any]) -> None:
    listing = {"items": [SANDBOX], "pagination": {"hasNextPage": True}}
    assert wire.listing(body(listing)).has_next
    with pytest.raises(Unclear):
        wire.listing(body({**listing, **change}))


@pytest.mark.parametrize("bad", [{**SANDBOX, "createdAt": "soon"}, {**SANDBOX, "id": "../x"}, {}, 5, None, "x"])
def test_a_sandbox_that_can_not_be_read_is_left_out_of_the_list__and_counted(bad: Any) -> None:
    found = wire.listing(body({"items": [SANDBOX, bad, SANDBOX], "pagination": {"hasNextPage": False}}))
    assert [each.id for each in found.items] == [SANDBOX["id"]] * 2
    assert found.left_out == 1


STATUS: dict[str, Any] = {
    "id": "4fd54a591ce746189c68d295401b0c0d",
    "content": "echo a; kill -9 $$",
    "running": False,
    "exit_code": -1,
    "error": "signal: killed",
    "started_at": "2026-11-29T15:35:33.413609252Z",
    "finished_at": "2026-11-29T15:35:33.416654645Z",
    "news": {},
}


def status(**change: Any) -> CommandStatus:
    return wire.command_status(body({**STATUS, **change}), STATUS["id"])


def test_a_killed_command_says_by_which_signal() -> None:
    found = status()
    assert (found.exit_code, found.signal, found.running) == (-1, 9, False)
    assert found.started_at is not None
    assert found.finished_at is not None
    assert found.finished_at - found.started_at == pytest.approx(0.003045393, abs=1e-6)


@pytest.mark.parametrize(
    ("error", "signal"),
    [
        ("signal: killed", 9),
        ("signal: terminated", 15),
        ("signal: segmentation fault", 11),
        ("signal: segmentation fault (core dumped)", 11),
        ("signal: aborted (core dumped)", 6),
        ("signal: hangup", 1),
        ("signal: interrupt", 2),
        ("signal: quit", 3),
        ("signal: user defined signal 1", 10),
        ("signal: user defined signal 2", 12),
        ("signal: broken pipe", 13),
        ("signal: stopped (signal)", 19),
        ("signal: signal 34", 34),
        ("signal: signal 99", None),
        ("signal: nonsense", None),
        ("exit status 9", None),
        ("", None),
        (None, None),
    ],
)
def test_gos_name_of_a_signal_is_its_number(error: str | None, signal: int | None) -> None:
    assert wire.signal_number(error) == signal
    assert status(error=error).signal == signal


def test_a_signal_is_only_looked_for_where_the_exit_code_says_so() -> None:
    assert status(exit_code=137).signal is None
    assert status(exit_code=0, error="signal: killed").signal is None


def test_the_repeated_command_is_cut() -> None:
    assert len(status(content="x" * 200_000).content) == wire.MAX_CONTENT


@pytest.mark.parametrize(
    "change",
    [
        {"id": "other"},
        {"id": None},
        {"running": "false"},
        {"running": None},
        {"exit_code": "0"},
        {"exit_code": True},
        {"exit_code": 1.5},
        {"exit_code": 10**12},
        {"content": 5},
        {"error": []},
        {"started_at": 1795966506},
        {"finished_at": "yesterday"},
    ],
)
def test_a_status_of_another_shape_is_unclear(change: dict[str, Any]) -> None:
    with pytest.raises(Unclear):
        status(**change)


def test_a_range_is_what_was_asked_for() -> None:
    assert wire.content_range("bytes 2-4/10", 2, 3) == (3, 10)
    assert wire.content_range("bytes 2-3/10", 2, 3) == (2, 10)
    assert wire.content_range("bytes 2-3/4", 2, 300) == (2, 4)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "bytes 2-4/*",
        "bytes */10",
        "bytes 0-2/10",
        "bytes 2-5/10",
        "bytes 2-4/4",
        "bytes 4-2/10",
        "lines 2-4/10",
        "bytes 2-4/10, 5-6/10",
        "bytes -2-4/10",
        "bytes \u0662-\u0664/10",
    ],
)
def test_another_range_is_unclear(text: str | None) -> None:
    with pytest.raises(Unclear):
        wire.content_range(text, 2, 3)


def test_past_the_end_the_size_is_the_answer() -> None:
    assert wire.unsatisfied_range("bytes */6", 100) == 6
    assert wire.unsatisfied_range("bytes */6", 6) == 6
    for text in (None, "bytes 0-1/6", "bytes */*", "bytes */101"):
        with pytest.raises(Unclear):
            wire.unsatisfied_range(text, 100)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
JSONS = st.recursive(
    SCALARS,
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=5), each, max_size=3),
    max_leaves=4,
)
PARSERS = [
    wire.sandbox,
    wire.listing,
    wire.renewed,
    lambda data: wire.command_status(data, STATUS["id"]),
    lambda data: wire.decode(data, wire.WireEndpoint, "endpoint"),
]


@given(data=st.binary(max_size=200) | JSONS.map(body), parser=st.sampled_from(PARSERS))
@settings(max_examples=300)
def test_random_answers_are_unclear_and_never_crash(data: bytes, parser: Any) -> None:
    with pytest.raises(Unclear):
        parser(data)


@given(
    changes=st.dictionaries(st.sampled_from([*STATUS, *SANDBOX]), JSONS),
    cut=st.integers(0, 400),
    parser=st.sampled_from(PARSERS),
    whole=st.sampled_from([STATUS, SANDBOX]),
)
@settings(max_examples=300)
def test_answers_that_are_nearly_right_never_crash(
    changes: dict[str, Any], cut: int, parser: Any, whole: dict[str, Any]
) -> None:
    for data in (body({**whole, **changes}), body({**whole, **changes})[:cut]):
        try:
            parser(data)
        except Unclear:
            continue


@given(text=st.text(max_size=40), offset=st.integers(0, 10**6), length=st.integers(1, 10**6))
def test_random_headers_never_crash(text: str, offset: int, length: int) -> None:
    for parse in (lambda: wire.content_range(text, offset, length), lambda: wire.unsatisfied_range(text, offset)):
        with pytest.raises(Unclear):
            parse()


def test_deep_nesting_is_unclear() -> None:
    for data in (b"[" * 100_000, b'{"a":' * 100_000):
        with pytest.raises(Unclear):
            wire.sandbox(data)
