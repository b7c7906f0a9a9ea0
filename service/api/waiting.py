"""Answers that are waited for: a hop in between must not take the silence for a dead connection.

Load balancers cut off a connection on which nothing moves for a while, often after less than the 30 s of a long
poll. So an answer that takes long begins before it is known: with its head, and then a blank every
``SIGN_OF_LIFE_SECONDS``, which JSON allows in front of a value.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from service.api.caller import CallerGone, end
from service.api.replies import JSON, output_reply, pieces

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import ASGIApp, Receive, Scope, Send

    from service.api.exchange import Call
    from service.core.model.answers import OutputPage

SIGN_OF_LIFE_SECONDS = 8.0
"""Without a byte, after which one is sent: less than the idle timeouts of balancers, most of which are 10 s to 60 s."""


async def reply_in_time(
    call: Call, answer: Awaitable[OutputPage], *, otherwise: Callable[[], Awaitable[OutputPage]]
) -> ASGIApp:
    """``answer`` as JSON with status 200; begun before it is known where that takes long.

    Once the caller waits no more, ``answer`` is cancelled, and what ``otherwise`` has at once is the answer: it is read
    by whoever closed only its own side. Raises what ``answer`` raises, if it does so before the head was sent; later
    trouble breaks the answer off.
    """
    slow = SlowReply(call, answer, otherwise)
    begun = False
    try:
        if (page := await slow.known()) is not None:
            return output_reply(page)
        begun = True
        return slow
    finally:
        if not begun:
            await slow.close()


class SlowReply:
    """The head, blanks for as long as ``answer`` takes, and its result."""

    def __init__(
        self, call: Call, answer: Awaitable[OutputPage], otherwise: Callable[[], Awaitable[OutputPage]]
    ) -> None:
        self._call = call
        self._work = asyncio.ensure_future(answer)
        self._otherwise = otherwise

    async def known(self) -> OutputPage | None:
        """The answer if it comes within one period, or what there is in its place once nobody waits for it."""
        try:
            if await self._call.caller.waits(self._work, SIGN_OF_LIFE_SECONDS):
                return self._work.result()
        except CallerGone:
            self._call.exchange.hung_up = True
            await self.close()
            return await self._otherwise()
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers = [(b"content-type", JSON.encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            page = None
            while page is None:
                await send({"type": "http.response.body", "body": b" ", "more_body": True})
                page = await self.known()
            for piece in pieces(page):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await self.close()

    async def close(self) -> None:
        """Nobody waits any more."""
        await end(self._work)
