"""Rates over all replicas: how many submits and polls a second a tenant may send.

Each is a bucket in the store that refills steadily (GCRA). A tenant without a limit costs the store nothing, and one
that was refused is refused from memory until its wait is over: a flood must not cost others their store.
"""

from __future__ import annotations

import asyncio
import math
from typing import Literal

import msgspec

from service.core.model.policy import Policy
from service.ports.store import Admission, Store

Kind = Literal["submits", "polls"]

LONGEST_WINDOW = 3600
"""Seconds of the window of the slowest rate."""
ASKING = 2
"""Questions to the store at once for one tenant; of a flood, the first answer refuses all others."""


class Rate(msgspec.Struct, frozen=True):
    """A limit, and what it said to one request."""

    kind: Kind
    quota: int
    """Requests in one window, all of which may come at once."""
    window: int
    """Whole seconds."""
    admission: Admission
    remembered: bool = False
    """Refused from memory: it was told before when to come again, and did not wait."""


class Rates:
    """Counts requests; asks the store only where a tenant has a limit."""

    def __init__(self, store: Store, policy: Policy) -> None:
        self._store = store
        self._policy = policy
        self._refused: dict[tuple[str, Kind], tuple[float, Rate]] = {}
        self._asking: dict[tuple[str, Kind], asyncio.Semaphore] = {}

    async def admit(self, tenant: str, kind: Kind) -> Rate | None:
        """Count one request. None: the tenant has no such limit. Raises ``StoreUnavailable``."""
        quota = self._policy.quota(tenant)
        per_second = quota.submits_per_second if kind == "submits" else quota.polls_per_second
        if per_second is None:
            return None
        most, window = window_of(per_second)
        if (refused := self._remembered(tenant, kind, most, window)) is not None:
            return refused
        async with self._asking.setdefault((tenant, kind), asyncio.Semaphore(ASKING)):
            if (refused := self._remembered(tenant, kind, most, window)) is not None:
                return refused
            said = await self._store.admit(f"{kind}:{tenant}", interval=window / most, burst=most)
        rate = Rate(kind, most, window, said)
        if not said.let_through:
            self._refused[tenant, kind] = (asyncio.get_running_loop().time() + said.wait, rate)
        return rate

    def _remembered(self, tenant: str, kind: Kind, most: int, window: int) -> Rate | None:
        """What a request is refused with that did not wait as one before it was told to."""
        until, refusal = self._refused.get((tenant, kind), (0.0, None))
        wait = until - asyncio.get_running_loop().time()
        if refusal is None or wait <= 0 or (refusal.quota, refusal.window) != (most, window):
            return None
        told = msgspec.structs.replace(refusal.admission, wait=wait, reset=wait + (most - 1) * window / most)
        return msgspec.structs.replace(refusal, admission=told, remembered=True)


def window_of(per_second: float) -> tuple[int, int]:
    """The rate as whole requests in whole seconds, never more than it: 20 in 1 s, 1 in 4 s for 0.25."""
    window = min(LONGEST_WINDOW, max(1, math.ceil(1 / per_second)))
    return max(1, math.floor(per_second * window + 1e-9)), window
