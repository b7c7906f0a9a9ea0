"""``Range`` (one range of bytes) and the answer that carries raw output."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from service.api.caller import HALF_CLOSED_SECONDS, Caller
from service.errors import RangeNotSatisfiable

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from service.core.model.answers import RawOutput

_RANGE = re.compile(r"bytes[ \t]*=[ \t]*(?:([0-9]{1,18})-([0-9]{1,18})?|-([0-9]{1,18}))[ \t]*", re.IGNORECASE)


def wanted_range(values: list[str]) -> tuple[int | None, int | None] | None:
    """The one range of a ``Range`` header: first and last byte (inclusive; None: to the end), or None and how
    many bytes from the end.

    None where there is no range, several, or a malformed one: such a header is ignored (RFC 9110, 14.2).
    Raises ``RangeNotSatisfiable`` for the last 0 bytes.
    """
    match = _RANGE.fullmatch(values[0].strip()) if len(values) == 1 else None
    if match is None:
        return None
    if match[3] is not None:
        if int(match[3]) == 0:
            raise RangeNotSatisfiable("The last 0 bytes are no range")
        return None, int(match[3])
    first, last = int(match[1]), None if match[2] is None else int(match[2])
    return None if last is not None and last < first else (first, last)


class RawAnswer:
    """Bytes streamed as the reader takes them; 206 for a range, ``Oncebox-Skipped-Bytes`` where some went."""

    def __init__(self, caller: Caller, raw: RawOutput, *, head: bool) -> None:
        self.caller = caller
        self.raw = raw
        self.head = head

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = self.raw
        headers = [(b"content-type", b"application/octet-stream"), (b"accept-ranges", b"bytes")]
        headers.append((b"content-length", b"%d" % (raw.end - raw.start)))
        if raw.skipped:
            headers.append((b"oncebox-skipped-bytes", b"%d" % raw.skipped))
        if raw.partial:
            size = "*" if raw.size is None else str(raw.size)
            headers.append((b"content-range", f"bytes {raw.start}-{raw.end - 1}/{size}".encode()))
        await send({"type": "http.response.start", "status": 206 if raw.partial else 200, "headers": headers})
        try:
            if not self.head:
                self.caller.stays = HALF_CLOSED_SECONDS
                await self.caller.unless_gone(self._stream(send))
            await send({"type": "http.response.body", "body": b""})
        finally:
            if (close := getattr(raw.chunks, "aclose", None)) is not None:
                await close()

    async def _stream(self, send: Send) -> None:
        async for chunk in self.raw.chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
