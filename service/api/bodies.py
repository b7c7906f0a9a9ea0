"""Raw bodies: bytes as they come, at the pace of whoever takes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from service.api.caller import CallerGone
from service.errors import InvalidRequest, UnsupportedMediaType

if TYPE_CHECKING:
    from starlette.types import Receive

    from service.api.exchange import Exchange

SILENCE_SECONDS = 30.0
"""Without a byte, after which a body's sender is not waited for."""


def check_raw(exchange: Exchange, types: tuple[str, ...] = ()) -> None:
    """Raises ``UnsupportedMediaType`` for a body that is compressed for its way, or says to be none of ``types``."""
    if (exchange.header("content-encoding") or "identity").strip().lower() != "identity":
        raise UnsupportedMediaType("The body must not be compressed for its way (Content-Encoding)")
    kind = (exchange.header("content-type") or "").partition(";")[0].strip().lower()
    if types and kind and kind not in types:
        raise UnsupportedMediaType(f"The body must be of one of these types: {', '.join(types)}")


def length_of(exchange: Exchange) -> int | None:
    """Bytes of the body; None: chunked. Raises ``InvalidRequest``."""
    if "transfer-encoding" in exchange.headers:
        return None
    length = exchange.header("content-length") or "0"
    if not length.isdecimal() or len(length) > 18:
        raise InvalidRequest.of("content-length", "is no number of bytes")
    return int(length)


async def raw_body(exchange: Exchange, receive: Receive) -> AsyncIterator[bytes]:
    """The body's bytes; whoever takes none leaves them with their sender.

    Raises ``CallerGone`` where it breaks off, ``InvalidRequest`` where nothing comes for ``SILENCE_SECONDS``.
    """
    while exchange.has_body and not exchange.body_done:
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                message = await receive()
        except TimeoutError:
            raise InvalidRequest(f"No byte of the body came for {SILENCE_SECONDS:g} s") from None
        if message["type"] == "http.disconnect":
            raise CallerGone
        if body := message.get("body", b""):
            yield body
