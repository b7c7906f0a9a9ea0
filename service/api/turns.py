"""Requests begin a few in each turn of the event loop, the tenants in turn.

The loop gives every request that has begun a step in each of its turns. Where hundreds arrive at once, a turn takes as
long as a step of all of them, and so does each step of a tenant who sent only one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from service.api.exchange import Exchange

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

BEGUN_AT_ONCE = 4
"""Requests in one turn of the event loop."""


class Turns:
    """Lets a request of a known tenant begin, or queues it for the next turns."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._left = BEGUN_AT_ONCE
        """That may still begin in this turn."""
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        """By tenant; the tenant whose turn it is first."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tenant = Exchange.of(scope).tenant
        if tenant is not None:
            await self._begin(tenant)
        await self.app(scope, receive, send)

    async def _begin(self, tenant: str) -> None:
        loop = asyncio.get_running_loop()
        if self._left and not self._queues:
            if self._left == BEGUN_AT_ONCE:
                loop.call_soon(self._next_turn)
            self._left -= 1
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._queues.setdefault(tenant, deque()).append(turn)
        await turn

    def _next_turn(self) -> None:
        self._left = BEGUN_AT_ONCE
        while self._left and self._queues:
            tenant, queue = next(iter(self._queues.items()))
            turn = queue.popleft()
            del self._queues[tenant]
            if queue:  # it is the last to have its turn again
                self._queues[tenant] = queue
            if not turn.done():
                turn.set_result(None)
                self._left -= 1
        if self._left < BEGUN_AT_ONCE:
            asyncio.get_running_loop().call_soon(self._next_turn)
