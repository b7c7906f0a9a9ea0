"""The pure pieces of the local engine's wire formats."""

import json
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.local_engine import wire


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (1_795_966_531_684_678_300, "2026-11-29T15:35:31.6846783Z"),
        (1_795_966_531_000_000_000, "2026-11-29T15:35:31Z"),
        (1_795_966_531_000_000_001, "2026-11-29T15:35:31.000000001Z"),
    ],
)
def test_a_time_has_up_to_nine_digits_and_no_zeros_at_the_end(nanoseconds: int, text: str) -> None:
    assert wire.go_time(nanoseconds) == text


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (0, (0, "")),
        (7 << 8, (7, "exit status 7")),
        (137 << 8, (137, "exit status 137")),
        (signal.SIGKILL, (-1, "signal: killed")),
        (signal.SIGSEGV | 0x80, (-1, "signal: segmentation fault (core dumped)")),
        (40, (-1, "signal: signal 40")),
    ],
)
def test_an_end_is_worded_as_execd_words_it(status: int, expected: tuple[int, str]) -> None:
    assert wire.exit_of(status) == expected


def test_json_is_escaped_as_go_escapes_it() -> None:
    assert wire.go_json({"a": "<&>\u2028é"}) == '{"a":"\\u003c\\u0026\\u003e\\u2028é"}'.encode()


@given(st.binary())
def test_every_byte_that_is_not_utf8_is_one_replacement_character(data: bytes) -> None:
    text = wire.text_of(data)
    assert text.replace("\ufffd", "") == data.decode("utf-8", "ignore").replace("\ufffd", "")
    json.dumps(text).encode()


def test_half_a_character_is_as_many_replacements_as_it_has_bytes() -> None:
    assert wire.text_of(b"a\xe2\x82b\xff") == "a\ufffd\ufffdb\ufffd"


def test_fields_that_are_empty_are_left_out_of_a_frame() -> None:
    assert (
        wire.frame("execution_complete", now=5, execution_time=0) == b'{"type":"execution_complete","timestamp":5}\n\n'
    )
    assert wire.frame("init", now=5, text="x") == b'{"type":"init","text":"x","timestamp":5}\n\n'


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\rb\n", ["a", "b"]),
        (b"a\r\nb", ["a", "b"]),
        (b"\n\n", ["\n", "\n"]),
        (b"a\n\n\nb", ["a", "\n", "\n", "b"]),
        (b"a\r\n\r\nb\n", ["a", "\n", "b"]),
        (b"\r\n", ["\n"]),
        (b"tail", ["tail"]),
        (b"", []),
    ],
)
def test_output_is_cut_into_lines(data: bytes, lines: list[str]) -> None:
    assert wire.Lines().feed(data, last=True) == lines


@given(st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\r\n", b"\xc3\xa9"])), st.integers(1, 5))
def test_lines_do_not_depend_on_how_the_output_came(pieces: list[bytes], size: int) -> None:
    data = b"".join(pieces)
    reader = wire.Lines()
    found = [line for start in range(0, len(data), size) for line in reader.feed(data[start : start + size])]
    assert found + reader.feed(b"", last=True) == wire.Lines().feed(data, last=True)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-3", (0, 4)),
        ("bytes=5-", (5, 5)),
        ("bytes=-3", (7, 3)),
        ("bytes=-100", (0, 10)),
        ("bytes=8-100", (8, 2)),
        ("bytes= 1 - 2 ", (1, 2)),
        ("bytes=20-30,0-1", (0, 2)),
        ("bytes=0-1,4-5", (0, 2)),
        ("bytes=10-", None),
        ("bytes=", None),
        ("bytes=-0", None),
    ],
)
def test_the_first_range_that_overlaps_is_used(header: str, expected: tuple[int, int] | None) -> None:
    assert wire.first_range(header, 10) == expected


@pytest.mark.parametrize(
    "header", ["items=0-1", "bytes=3-1", "bytes=a-b", "bytes=1", "bytes=-", "bytes=--1", "bytes=0-1,x"]
)
def test_a_range_that_can_not_be_read_is_refused(header: str) -> None:
    with pytest.raises(wire.BadRange):
        wire.first_range(header, 10)


@pytest.mark.parametrize(
    ("header", "size", "status"),
    [
        ("", 10, 200),
        ("bytes=", 10, 200),
        ("bytes=10-", 10, 416),
        ("bytes=0-3", 0, 200),
        ("bytes=-0", 10, 206),
        ("bytes=-3", 0, 206),
    ],
)
def test_without_a_usable_range_the_file_server_decides(header: str, size: int, status: int) -> None:
    assert wire.fallback_status(header, size) == status


def test_paths_are_expanded_like_execd_expands_them() -> None:
    env = {"HOME": "/root", "A": "/a", "B": "b"}
    assert wire.expand_path("$A/${B}/x", env) == "/a/b/x"
    assert wire.expand_path("~", env) == "/root"
    assert wire.expand_path("~/x", env) == "/root/x"
    assert wire.expand_path("/~", env) == "/~"
    with pytest.raises(wire.UndefinedVariables, match="undefined environment variables: C,D"):
        wire.expand_path("$D/$C", env)
