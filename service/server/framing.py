"""How an answer is put on the connection (RFC 9112): head, body, end."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

import h11

_STATUS_LINES = {int(status): f"HTTP/1.1 {status} {status.phrase}".encode() for status in HTTPStatus}
_WITHOUT_BODY = (204, 304)


class Framing:
    """One answer, to a request of ``method``. ``closes``: it is the last; ``chunks``: its reader understands them.

    Bytes are returned, to be sent in this order. What can't be framed raises ``h11.LocalProtocolError``.
    """

    def __init__(self, method: bytes = b"", *, closes: bool = True, chunks: bool = False) -> None:
        self.state: type[h11.SEND_RESPONSE] | type[h11.SEND_BODY] | type[h11.DONE] | type[h11.MUST_CLOSE]
        self.state = h11.SEND_RESPONSE
        self.closes = closes
        self.bodyless = method == b"HEAD"
        """Whatever is answered: no body is sent."""
        self._chunks = chunks
        self._left: int | None = None
        """Bytes of the body that are still to come, where its length was said."""

    def head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Status and headers. Without a ``content-length``, the body is in chunks, or ends with the connection."""
        if self.state is not h11.SEND_RESPONSE:
            raise h11.LocalProtocolError("there is an answer already")
        lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d " % status]
        for name, value in headers:
            lines.append(b"%b: %b" % (name, value))
            if name == b"content-length":
                self._left = int(value)
            elif name == b"connection" and value == b"close":
                self.closes = True
                lines.pop()
        bodyless = self.bodyless or status in _WITHOUT_BODY
        if self._left is not None or bodyless:
            self._chunks = False
        elif self._chunks:
            lines.append(b"transfer-encoding: chunked")
        else:
            self.closes = True
        if bodyless:
            self._left = 0
        if self.closes:
            lines.append(b"connection: close")
        head = b"\r\n".join(lines)
        breaks = len(lines) - 1
        if head.count(b"\n") != breaks or head.count(b"\r") != breaks or b"\0" in head:
            raise h11.LocalProtocolError("a line break in a header")
        self.state = h11.SEND_BODY
        return head + b"\r\n\r\n"

    def data(self, data: bytes) -> bytes:
        """A piece of the body."""
        if self.state is not h11.SEND_BODY:
            raise h11.LocalProtocolError("there is no answer to this body")
        if self._chunks:
            return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                raise h11.LocalProtocolError("more than the length that was said")
        return data

    def end(self) -> bytes:
        """The body is whole."""
        if self.state is not h11.SEND_BODY or self._left:
            raise h11.LocalProtocolError("less than the length that was said")
        self.state = h11.MUST_CLOSE if self.closes else h11.DONE
        return b"0\r\n\r\n" if self._chunks else b""
