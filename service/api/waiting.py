"""Answers that are waited for: a hop in between must not take the silence for a dead connection.

Load balancers cut off a connection on which nothing moves for a while, often after less than the 30 s of a long
poll. So an answer that takes long begins before it is known: with its head, and then a blank every
``SIGN_OF_LIFE_SECONDS``, which JSON allows in front of a value.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from service.api.replies import JSON, reply

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import ASGIApp, Receive, Scope, Send

    from service.api.exchange import Call

SIGN_OF_LIFE_SECONDS = 8.0
"""Without a byte, after which one is sent: less than the idle timeouts of balancers, most of which are 10 s to 60 s."""


async def reply_in_time(call: Call, answer: Awaitable[Any], *, otherwise: Callable[[], Awaitable[Any]]) -> ASGIApp:
    """``answer`` as JSON with status 200; begun before it is known where that takes long.

    Once the caller waits no more, ``answer`` is cancelled, and what ``otherwise`` has at once is the answer: it is read
    by whoever closed only its own side. Raises what ``answer`` raises, if it does so before the head was sent; later
    trouble breaks the answer off.
    """
    slow = SlowReply(call, answer, otherwise)
    begun = False
    try:
        if await slow.known():
            return reply(await slow.result())
        begun = True
        return slow
    finally:
        if not begun:
            await slow.close()


class SlowReply:
    """The head, blanks for as long as ``answer`` takes, and its result."""

    def __init__(self, call: Call, answer: Awaitable[Any], otherwise: Callable[[], Awaitable[Any]]) -> None:
        self._exchange = call.exchange
        self._work = asyncio.ensure_future(answer)
        self._gone = asyncio.ensure_future(call.gone())
        self._otherwise = otherwise

    async def known(self) -> bool:
        """Waits for one period; whether ``result`` is there."""
        await asyncio.wait({self._work, self._gone}, timeout=SIGN_OF_LIFE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        return self._work.done() or self._gone.done()

    async def result(self) -> Any:
        """The answer, or what there is in its place."""
        if self._work.done():
            return self._work.result()
        self._exchange.hung_up = True
        await self.close()
        return await self._otherwise()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers = [(b"content-type", JSON.encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while True:
                await send({"type": "http.response.body", "body": b" ", "more_body": True})
                if await self.known():
                    break
            await send({"type": "http.response.body", "body": msgspec.json.encode(await self.result())})
        finally:
            await self.close()

    async def close(self) -> None:
        """Nobody waits any more."""
        for task in (self._work, self._gone):
            task.cancel()
        await asyncio.gather(self._work, self._gone, return_exceptions=True)
