"""Cursors into a job's output, and cutting bytes into text. Pure.

A cursor holds the place in the output and the state that its holder has seen, so that a long poll returns as
soon as either differs. To callers it is opaque; one that is not of our making is refused.
"""

from __future__ import annotations

import base64
import codecs
import functools
import re
from collections.abc import Iterator

import msgspec

from service.core.model import tokens
from service.errors import InvalidRequest
from service.messages import Encoding, JobState, Stream

_FORM = re.compile(r"1\.([0-9]{1,18})\.([a-z_]{1,12})(?:\.(?:(stdout|stderr)|([0-9]{1,18})))?")
END = "end"
"""Stands for the state where everything was handed out."""
PIECE = 64 * 1024
"""Bytes of the log that are turned into text and written at once."""
_LONGEST_CHARACTER = 4
"""Bytes in UTF-8."""
_TEXT_PIECE = PIECE // 3 * 3
"""Bytes; base64 turns three into four characters."""


class Cursor(msgspec.Struct, frozen=True):
    """``offset``: bytes of the log before the place. ``seen``: the state last seen, or ``END``.

    Where a job's streams are apart, a cursor is of one of them (``stream``), or, of events, of both (``stderr``: the
    place in that one).
    """

    offset: int = 0
    seen: str = ""
    stream: Stream | None = None
    stderr: int | None = None

    def encode(self) -> str:
        """The text that callers get."""
        more = self.stream if self.stderr is None else self.stderr
        return tokens.pack(f"1.{self.offset}.{self.seen}" + ("" if more is None else f".{more}"))

    def place(self, stream: Stream) -> int:
        """Where it is in a stream."""
        return (self.stderr or 0) if stream == "stderr" else self.offset

    def moved(self, stream: Stream, offset: int) -> Cursor:
        """The same of events, with another place in a stream."""
        change = {"stderr": offset} if stream == "stderr" else {"offset": offset}
        return msgspec.structs.replace(self, **change)

    def saw(self, state: JobState) -> bool:
        """The holder knows this state."""
        return self.seen == state.value


@functools.lru_cache(maxsize=4096)  # polls come with the same one again and again
def parse(text: str | None, *, field: str = "cursor") -> Cursor | None:
    """The cursor behind ``text``; None for None. Raises ``InvalidRequest`` for what is no cursor of ours."""
    if text is None:
        return None
    match = tokens.unpack(text, _FORM)
    if match is not None:
        stream: Stream | None = "stdout" if match[3] == "stdout" else "stderr" if match[3] else None
        cursor = Cursor(int(match[1]), match[2], stream, None if match[4] is None else int(match[4]))
        known = cursor.seen == END or cursor.seen in {state.value for state in JobState}
        if known and cursor.encode() == text:
            return cursor
    raise InvalidRequest.of(field, "is no cursor that this service made")


def text_of(data: bytes, encoding: Encoding, *, final: bool) -> tuple[str, int]:
    """``data`` as it is shown, and how many of its bytes that took.

    In UTF-8 a character that is cut at the end is left for the next time, unless ``final``; bytes that are not
    UTF-8 are U+FFFD, the same ones however the output is cut.
    """
    if encoding is Encoding.BASE64:
        return base64.b64encode(data).decode("ascii"), len(data)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final)
    pending = b"" if final else decoder.getstate()[0]
    return text, len(data) - len(pending)


def whole_characters(data: bytes, encoding: Encoding, *, final: bool) -> int:
    """How many bytes of ``data`` are shown (``text_of``)."""
    if encoding is Encoding.BASE64 or final:
        return len(data)
    _, shown = text_of(end := data[-_LONGEST_CHARACTER:], encoding, final=False)
    return len(data) - len(end) + shown


def texts_of(data: bytes, encoding: Encoding) -> Iterator[str]:
    """All of ``data`` as it is shown, a piece at a time."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for start in range(0, len(data), _TEXT_PIECE):
        piece = data[start : start + _TEXT_PIECE]
        if encoding is Encoding.BASE64:
            yield base64.b64encode(piece).decode("ascii")
        else:
            yield decoder.decode(piece, start + _TEXT_PIECE >= len(data))
