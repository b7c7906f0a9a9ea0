"""Finds where HTTP/1.1 requests begin and end in the bytes that a client sends."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

HEAD_END = b"\r\n\r\n"

LONGEST_HEAD = 65_536
"""Bytes after which the search for a head's end is given up: this is not HTTP."""

_FIRST_LINE = re.compile(rb"[A-Z]+ \S+ HTTP/1\.[01]\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r]*chunked", re.IGNORECASE)


@dataclass(frozen=True)
class Part:
    """A piece of one request: its whole head, or bytes of its body."""

    content: bytes
    head: bool = False
    last: bool = False


class RequestSplitter:
    """Splits a stream of requests into parts. Once it has met what is not HTTP/1.1, it finds nothing more."""

    def __init__(self) -> None:
        self._buffer = b""
        self._body_left = 0
        self._chunked = False
        self._lost = False

    def feed(self, content: bytes) -> Iterator[Part]:
        """Takes the next bytes and yields the parts that they complete."""
        self._buffer += content
        while self._buffer and not self._lost:
            part = self._next_part()
            if part is None:
                return
            yield part

    def _next_part(self) -> Part | None:
        if self._body_left:
            return self._take_body()
        if self._chunked:
            return self._take_chunk()
        return self._take_head()

    def _take_head(self) -> Part | None:
        end = self._buffer.find(HEAD_END)
        if end < 0:
            self._lost = len(self._buffer) > LONGEST_HEAD
            return None
        head = self._take(end + len(HEAD_END))
        if not _FIRST_LINE.match(head):
            self._lost = True
            return None
        length = _LENGTH.search(head)
        self._chunked = bool(_CHUNKED.search(head))
        self._body_left = int(length[1]) if length and not self._chunked else 0
        return Part(head, head=True, last=not self._chunked and not self._body_left)

    def _take_body(self) -> Part:
        content = self._take(min(self._body_left, len(self._buffer)))
        self._body_left -= len(content)
        return Part(content, last=not self._body_left)

    def _take_chunk(self) -> Part | None:
        """A whole chunk with its frame; the last one has size 0 (and, as clients send it, no trailers)."""
        line_end = self._buffer.find(b"\r\n")
        if line_end < 0:
            return None
        size = int(self._buffer[:line_end].partition(b";")[0], 16)
        whole = line_end + 2 + size + 2
        if len(self._buffer) < whole:
            return None
        self._chunked = size > 0
        return Part(self._take(whole), last=not self._chunked)

    def _take(self, count: int) -> bytes:
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken
