"""Cursors and text: joined chunks equal the whole, however they are cut."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.model import cursors
from service.core.model.cursors import Cursor
from service.errors import InvalidRequest
from service.messages import Encoding, JobState

pieces = st.binary(max_size=6) | st.text(max_size=4).map(lambda s: s.encode("utf-8", "replace"))
logs = st.lists(pieces, max_size=30).map(b"".join)


@given(logs, st.lists(st.integers(1, 7), min_size=1, max_size=200))
def test_joined_chunks_show_what_the_whole_log_shows(log: bytes, sizes: list[int]) -> None:
    shown, offset, step = "", 0, 0
    while offset < len(log):
        size = sizes[step % len(sizes)] + 3 * (step // len(sizes) > 3)
        step += 1
        data = log[offset : offset + max(size, 4)]
        text, used = cursors.text_of(data, Encoding.UTF8, final=offset + len(data) == len(log))
        shown, offset = shown + text, offset + used
    assert shown == log.decode("utf-8", "replace")


@given(logs, st.booleans(), st.integers(1, 9), st.sampled_from(Encoding))
def test_text_made_in_pieces_is_the_text_of_the_whole(log: bytes, final: bool, piece: int, encoding: Encoding) -> None:
    text, used = cursors.text_of(log, encoding, final=final)
    assert cursors.whole_characters(log, encoding, final=final) == used
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cursors, "_TEXT_PIECE", 3 * piece)
        made = list(cursors.texts_of(log[:used], encoding))
    assert "".join(made) == text
    assert all(len(each) <= 4 * piece for each in made)


@given(logs)
def test_base64_gives_the_bytes_as_they_are(log: bytes) -> None:
    text, used = cursors.text_of(log, Encoding.BASE64, final=False)
    assert (base64.b64decode(text), used) == (log, len(log))


@given(st.integers(0, 10**17), st.sampled_from([*[s.value for s in JobState], cursors.END]))
def test_a_cursor_comes_back_as_it_was(offset: int, seen: str) -> None:
    cursor = Cursor(offset, seen)
    assert cursors.parse(cursor.encode()) == cursor


@pytest.mark.parametrize(
    "text", ["", "0", "abc", "MS4wLg", "é", "MS4wLnJ1bm5pbmc=", "MS4wMC5ydW5uaW5n", "x" * 500, "\n"]
)
def test_what_is_no_cursor_of_ours_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        cursors.parse(text)
    assert refused.value.errors[0].field == "cursor"


@given(st.text())
def test_any_text_is_a_cursor_or_is_refused(text: str) -> None:
    try:
        cursor = cursors.parse(text)
    except InvalidRequest:
        return
    assert cursor is not None
    assert cursor.encode() == text
