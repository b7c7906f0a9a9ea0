"""The requests of one connection, in place of an ``h11.Connection``, which takes many times as long for the same.

A head is split into its lines here, and h11 builds the request of it, which looks at each part. A body in chunks is
parsed by llhttp (``httptools``). What this lets through, h11 does, too, but for sizes of chunks that begin with many
zeros: docs/decisions/http-parser.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import h11
from httptools import HttpParserError, HttpRequestParser

from service.server.framing import Framing

VERSIONS = (b"1.0", b"1.1")
_REQUEST_LINE = re.compile(rb"([^ ]+) ([^ ]+) HTTP/([0-9]\.[0-9])")
_BLANK_LINE = re.compile(rb"\n\r?\n")
_END_OF_CHUNKS = b"\r\n\r\n"
_CHUNKED_HEAD = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
_END = h11.EndOfMessage()
MAX_BARE = 64 * 1024
"""Bytes of chunks' own that may come without any of the body; also of a read that has none."""

Event = h11.Request | h11.Data | h11.EndOfMessage | type[h11.NEED_DATA] | type[h11.PAUSED]
State = type[h11.IDLE] | type[h11.SEND_BODY] | type[h11.DONE] | type[h11.ERROR]


class Requests:
    """One request after the other, each with its answer. ``max_head``: bytes of a head that is not whole yet.

    Names, states and errors are those of ``h11.Connection`` in the server's role, as far as they are needed.
    """

    def __init__(self, max_head: int) -> None:
        self.their_state: State = h11.IDLE
        self.they_are_waiting_for_100_continue = False
        self.answer = Framing()
        """To the request that came last; while there is none, to what can't be read as one."""
        self._max_head = max_head
        self._received = bytearray()
        self._searched = 0
        """Bytes at the start of ``_received`` in which no head ends."""
        self._left = 0
        """Bytes of the body that have not come yet."""
        self._chunks: _Chunks | None = None
        """The body, where it comes in chunks."""

    @property
    def our_state(self) -> type[h11.SEND_RESPONSE] | type[h11.SEND_BODY] | type[h11.DONE] | type[h11.MUST_CLOSE]:
        """Of the answer. ``MUST_CLOSE``: it is over, and was the last."""
        return self.answer.state

    def receive_data(self, data: bytes) -> None:
        """The next bytes."""
        self._received += data

    def next_event(self) -> Event:
        """What they say. Raises ``h11.RemoteProtocolError``, whose hint is the status to answer with."""
        try:
            if self.their_state is h11.IDLE:
                return self._next_head()
            if self.their_state is h11.SEND_BODY:
                return self._next_of_body()
        except (HttpParserError, h11.LocalProtocolError) as error:
            self.their_state = h11.ERROR
            hint = error.error_status_hint if isinstance(error, h11.LocalProtocolError) else 400
            raise h11.RemoteProtocolError(str(error), error_status_hint=hint) from None
        if self.answer.closes or self.their_state is h11.ERROR:
            self._received.clear()  # what follows is nobody's
        return h11.PAUSED if self._received else h11.NEED_DATA

    def send(self, event: h11.InformationalResponse) -> bytes:
        """100, which goes before an answer: the rest of that is ``answer``'s."""
        self.they_are_waiting_for_100_continue = False
        return b"HTTP/1.1 %d Continue\r\n\r\n" % event.status_code

    def start_next_cycle(self) -> None:
        """A request and its answer are over: the next may come."""
        self.their_state = h11.IDLE
        self.answer = Framing()

    def _next_head(self) -> Event:
        end = _BLANK_LINE.search(self._received, max(0, self._searched - 2))
        if end is None:
            self._searched = len(self._received)
            if self._received and self._received[0] <= ord(" "):
                raise h11.LocalProtocolError("this begins no request")
            if self._searched > self._max_head:
                raise h11.LocalProtocolError("the head is too long", error_status_hint=431)
            return h11.NEED_DATA
        head = bytes(self._received[: end.end()])
        del self._received[: end.end()]
        self._searched = 0
        request = _request(head)
        fields: dict[bytes, bytes] = {}
        for name, value in request.headers.raw_items():
            name = name.lower()
            fields[name] = fields[name] + b"," + value if name in fields else value
        self._chunks = _Chunks() if b"transfer-encoding" in fields else None
        self._left = int(fields.get(b"content-length", b"0"))
        newer = request.http_version == b"1.1"
        closes = not newer or _has(fields, b"connection", b"close")
        self.answer = Framing(request.method, chunks=newer, closes=closes)
        self.they_are_waiting_for_100_continue = newer and _has(fields, b"expect", b"100-continue")
        self.their_state = h11.SEND_BODY
        return request

    def _next_of_body(self) -> Event:
        if self._chunks is not None:
            data, whole = self._chunks.take(self._received), self._chunks.whole
        else:
            data = bytes(self._received[: self._left])
            del self._received[: self._left]
            self._left -= len(data)
            whole = not self._left
        if data or whole:
            self.they_are_waiting_for_100_continue = False
        if data:
            return h11.Data(data=data)
        if not whole:
            return h11.NEED_DATA
        self.their_state = h11.DONE
        return _END


class _Chunks:
    """A body in chunks. Its parser gets nothing that follows it: a cut is made behind every blank line, and the end is
    one. Trailers are dropped."""

    def __init__(self) -> None:
        self.whole = False
        self._bare = 0
        """Bytes since the last one of the body: sizes, extensions, trailers."""
        self._pieces: list[bytes] = []
        self._before = b""
        """The last bytes that were taken: a blank line may have begun with them."""
        self._parser = HttpRequestParser(self)
        self._parser.feed_data(_CHUNKED_HEAD)

    def take(self, received: bytearray) -> bytes:
        """What ``received`` has of it; what follows it is left there."""
        data, at = self._before + received, len(self._before)
        came = len(received)
        while at < len(data) and not self.whole:
            found = data.find(_END_OF_CHUNKS, max(0, at - 3))
            cut = found + len(_END_OF_CHUNKS) if found >= 0 else len(data)
            self._parser.feed_data(data[at:cut])
            at = cut
        received[:] = data[at:]
        self._before = data[max(0, at - 3) : at]
        piece = b"".join(self._pieces)
        self._pieces.clear()
        self._bare = 0 if piece else self._bare + came
        if self._bare > MAX_BARE and not self.whole:
            raise h11.LocalProtocolError("chunks of nothing")
        return piece

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self.whole = True


def _request(head: bytes) -> h11.Request:
    """Raises ``h11.LocalProtocolError``: for what stands in a line and may not stand there, too."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    found = _REQUEST_LINE.fullmatch(first)
    if found is None:
        raise h11.LocalProtocolError("no request line")
    method, target, version = found.groups()
    if version not in VERSIONS:
        raise h11.LocalProtocolError("another version", error_status_hint=505)
    headers = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon:
            raise h11.LocalProtocolError("no header")
        headers.append((name, value.strip(b" \t")))
    return h11.Request(method=method, target=target, headers=headers, http_version=version)


def _has(fields: Mapping[bytes, bytes], name: bytes, word: bytes) -> bool:
    """``word`` is in a field that is a list of words."""
    return name in fields and word in (each.strip() for each in fields[name].lower().split(b","))
