"""Chunks put together: exact characters, exact bytes, whatever the pieces."""

from __future__ import annotations

import base64
import codecs
import io
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.client.output import Joined, Piece, ToCallback, Unsaid, sink_for
from service.messages import Encoding

cuts = st.lists(st.integers(0, 400), max_size=12)
contents = st.one_of(st.text(max_size=200).map(str.encode), st.binary(max_size=200))


def pieces(data: bytes, at: list[int], *, encoding: Encoding, replace: bool = False) -> list[Piece]:
    """``data`` as a service would hand it out: cut anywhere, but never inside of a character."""
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in at)})
    blocks = [data[start:end] for start, end in pairwise(places)] or [b""]
    if encoding is Encoding.BASE64:
        texts = [base64.b64encode(block).decode() for block in blocks]
    else:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        texts = [decoder.decode(block, number == len(blocks)) for number, block in enumerate(blocks, start=1)]
    return [Piece((text,), encoding, replace=replace and number == 0) for number, text in enumerate(texts)]


def unsaid_text(*runs: list[Piece]) -> str:
    unsaid: Unsaid[str] = Unsaid()
    said = [unsaid.beyond(piece.text(), replaces=piece.replace) for run in runs for piece in run]
    return "".join(said) + (unsaid.rest() or "")


def unsaid_data(*runs: list[Piece]) -> bytes:
    unsaid: Unsaid[bytes] = Unsaid()
    said = [unsaid.beyond(piece.data(), replaces=piece.replace) for run in runs for piece in run]
    return b"".join(said) + (unsaid.rest() or b"")


@given(contents, cuts)
def test_joined_chunks_are_the_text(data: bytes, at: list[int]) -> None:
    joined = Joined()
    for piece in pieces(data, at, encoding=Encoding.UTF8):
        joined.take(piece)

    assert joined.text == data.decode("utf-8", "replace")


@given(contents, contents, cuts, cuts)
def test_a_replacement_takes_the_place_of_all_before(old: bytes, new: bytes, at: list[int], then: list[int]) -> None:
    joined = Joined()
    for piece in pieces(old, at, encoding=Encoding.UTF8) + pieces(new, then, encoding=Encoding.UTF8, replace=True):
        joined.take(piece)

    assert joined.text == new.decode("utf-8", "replace")


@given(contents, cuts)
def test_a_stream_of_bytes_is_the_bytes(data: bytes, at: list[int]) -> None:
    assert unsaid_data(pieces(data, at, encoding=Encoding.BASE64)) == data


@example(old="", more="00\U0008a84000\x80\x80\x80\x80¡", at=[], then=[], once_more=[36, 42, 81])
@given(st.text(max_size=200), st.text(max_size=200), cuts, cuts, cuts)
def test_a_replacement_that_begins_alike_repeats_nothing(
    old: str, more: str, at: list[int], then: list[int], once_more: list[int]
) -> None:
    first = pieces(old.encode(), at, encoding=Encoding.UTF8)
    again = pieces((old + more).encode(), then, encoding=Encoding.UTF8, replace=True)
    third = pieces((old + more).encode(), once_more, encoding=Encoding.UTF8, replace=True)

    assert unsaid_text(first, again) == old + more
    assert unsaid_text(first, again, third) == old + more


@given(st.binary(min_size=1, max_size=200), st.binary(max_size=200), cuts, cuts)
def test_a_replacement_that_begins_otherwise_is_given_whole(
    old: bytes, new: bytes, at: list[int], then: list[int]
) -> None:
    first = pieces(old, at, encoding=Encoding.BASE64)
    again = pieces(new, then, encoding=Encoding.BASE64, replace=True)

    expected = new if new.startswith(old) else old + new
    assert unsaid_data(first, again) == expected


@given(contents, contents, cuts, cuts)
def test_a_file_that_can_seek_is_right_even_then(old: bytes, new: bytes, at: list[int], then: list[int]) -> None:
    file = io.BytesIO(b"before ")
    file.seek(0, io.SEEK_END)
    sink = sink_for(file)
    for piece in pieces(old, at, encoding=Encoding.BASE64) + pieces(new, then, encoding=Encoding.BASE64, replace=True):
        sink.take(piece)
    sink.end()

    assert file.getvalue() == b"before " + new


def test_a_replacement_shorter_than_what_was_given_is_given_at_the_end() -> None:
    got: list[str] = []
    sink = ToCallback(got.append, text=True)
    sink.take(Piece(("long text",), Encoding.UTF8))
    sink.take(Piece(("long",), Encoding.UTF8, replace=True))
    sink.end()

    assert got == ["long text", "long"]


def test_a_text_file_gets_text_and_a_binary_one_bytes() -> None:
    text, binary = io.StringIO(), io.BytesIO()
    for file, encoding in ((text, Encoding.UTF8), (binary, Encoding.BASE64)):
        sink = sink_for(file)
        assert sink.encoding is encoding
        for piece in pieces("hé".encode(), [1], encoding=encoding):
            sink.take(piece)

    assert text.getvalue() == "hé"
    assert binary.getvalue() == "hé".encode()


def test_a_file_that_others_append_to_is_never_cut(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"somebody else's\n")
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    with os.fdopen(descriptor, "wb") as file:
        sink = sink_for(file)
        sink.take(Piece(("b2xk",), Encoding.BASE64))
        sink.take(Piece(("bmV3",), Encoding.BASE64, replace=True))
        sink.end()

    assert log.read_bytes() == b"somebody else's\noldnew"


def test_a_raw_file_that_takes_less_gets_the_rest() -> None:
    class Reluctant(io.RawIOBase):
        def __init__(self) -> None:
            self.got = b""

        def write(self, content: Any) -> int:
            self.got += bytes(content[:3])
            return min(3, len(content))

    file = Reluctant()
    sink_for(file).take(Piece(("MTIzNDU2Nzg=",), Encoding.BASE64))

    assert file.got == b"12345678"


def test_what_is_neither_a_file_nor_a_function_is_refused() -> None:
    with pytest.raises(TypeError):
        sink_for(7)
