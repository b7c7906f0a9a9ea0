"""Rates at the door: 429 with ``Retry-After``, and the ``RateLimit`` headers of the IETF draft.

draft-ietf-httpapi-ratelimit-headers: ``RateLimit-Policy: "submits";q=20;w=1`` says what holds, and
``RateLimit: "submits";r=7;t=1`` how much of it is left, and in how many seconds it is whole again.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

from service.api.exchange import Exchange
from service.errors import RateLimited

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from service.core.app import Core
    from service.core.limits.rates import Rate

HOLD = 3.0
"""Seconds at most for which the answer to somebody who did not wait is held back: it costs nothing, and a flood that
waits for its answers is slowed to what can be borne."""
MOST_HELD = 256
"""Answers held back at once; more are given at once."""


class RateLimits:
    """Counts a request of a known tenant before its body is read. ``makes``: paths whose POSTs are submits."""

    def __init__(self, app: ASGIApp, *, core: Core, makes: Collection[str]) -> None:
        self.app = app
        self.core = core
        self.makes = frozenset(makes)
        self.held: Counter[str] = Counter()
        """Answers held back now, by tenant."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange.of(scope)
        if exchange.tenant is not None:
            submits = exchange.method == "POST" and scope["path"] in self.makes
            rate = await self.core.rates.admit(exchange.tenant, "submits" if submits else "polls")
            if rate is not None:
                exchange.answer_headers += _headers(rate)
                if not rate.admission.let_through:
                    if rate.remembered:
                        await self._hold(exchange.tenant, rate.admission.wait)
                    raise RateLimited(
                        f"This tenant may send {rate.quota} {rate.kind} in {rate.window} s; nothing was done.",
                        retry_after=rate.admission.wait,
                    )
        await self.app(scope, receive, send)

    async def _hold(self, tenant: str, wait: float) -> None:
        """The longer, the more of this tenant's are held; and each for another time, since they would come again at
        once together."""
        if self.held.total() >= MOST_HELD:
            return
        self.held[tenant] += 1
        try:
            await asyncio.sleep(min(wait * self.held[tenant], HOLD) * random.uniform(0.5, 1.0))
        finally:
            self.held[tenant] -= 1
            if not self.held[tenant]:
                del self.held[tenant]


def _headers(rate: Rate) -> list[tuple[bytes, bytes]]:
    policy = f'"{rate.kind}";q={rate.quota};w={rate.window}'
    left = f'"{rate.kind}";r={rate.admission.left};t={math.ceil(rate.admission.reset)}'
    return [(b"ratelimit-policy", policy.encode()), (b"ratelimit", left.encode())]
