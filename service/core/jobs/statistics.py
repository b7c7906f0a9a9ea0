"""What a tenant's jobs and sandboxes are at, in numbers; for a page that asks every few seconds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from service.core import records
from service.core.jobs.listing import LOOKED_AT, JobList
from service.core.limits.room import UNBOUNDED, Share
from service.core.sandboxes.listing import SandboxList
from service.messages import MAX_PAGE, StatsMinute, TenantStats
from service.ports.store import Minute, Store

FRESH = 5.0
"""Seconds for which counts are handed out again."""
TENANTS = 256
"""Whose counts are remembered."""
HOUR = 60


class Statistics:
    """Counts, once in ``FRESH`` seconds a tenant, whoever asks."""

    def __init__(self, store: Store, jobs: JobList, sandboxes: SandboxList) -> None:
        self._store = store
        self._jobs = jobs
        self._sandboxes = sandboxes
        self._known: dict[str, tuple[float, TenantStats]] = {}
        self._counting: dict[str, asyncio.Lock] = {}

    async def of(self, tenant: str, *, share: Share = UNBOUNDED) -> TenantStats:
        """A tenant's own. Raises ``RateLimited``, ``EngineUnavailable``."""
        lock = self._counting.setdefault(tenant, asyncio.Lock())
        async with lock:
            known = self._known.get(tenant)
            if known is None or asyncio.get_running_loop().time() - known[0] > FRESH:
                known = asyncio.get_running_loop().time(), await self._count(tenant, share)
                self._remember(tenant, known)
        return known[1]

    def _remember(self, tenant: str, known: tuple[float, TenantStats]) -> None:
        self._known.pop(tenant, None)
        self._known[tenant] = known
        for old in list(self._known)[:-TENANTS]:
            del self._known[old], self._counting[old]

    async def _count(self, tenant: str, share: Share) -> TenantStats:
        async def some_jobs(token: str | None) -> tuple[list[str], str | None]:
            page = await self._jobs.page(tenant, sandbox_id=None, page_size=MAX_PAGE, page_token=token, share=share)
            return [job.state.value for job in page.items], page.next_page_token

        async def some_sandboxes(token: str | None) -> tuple[list[str], str | None]:
            page = await self._sandboxes.page(
                tenant, metadata={}, states=set(), page_size=MAX_PAGE, page_token=token, max_age=FRESH, share=share
            )
            return [sandbox.state.value for sandbox in page.items], page.next_page_token

        now, minutes = await self._store.minutes(tenant)
        return TenantStats(
            jobs=await _counted(some_jobs),
            sandboxes=await _counted(some_sandboxes),
            counted=LOOKED_AT,
            minutes=_hour(now, minutes),
        )


async def _counted(some: Callable[[str | None], Awaitable[tuple[list[str], str | None]]]) -> dict[str, int]:
    """States and how often they occur, among the newest ``LOOKED_AT``."""
    states: Counter[str] = Counter()
    token: str | None = None
    for _ in range(LOOKED_AT // MAX_PAGE):
        found, token = await some(token)
        states.update(found)
        if token is None:
            break
    return dict(sorted(states.items()))


def _hour(now: int, minutes: list[Minute]) -> list[StatsMinute]:
    """Every minute of the last hour, the oldest first; the last one is not over yet."""
    last = now // 60_000
    hour = {at: StatsMinute(at=records.rfc3339(at * 60.0) or "") for at in range(last - HOUR + 1, last + 1)}
    for minute in minutes:
        shown = hour.get(minute.at // 60_000)
        if shown is None:
            continue
        if minute.what == "started":
            shown.started += minute.times
        else:
            shown.ended += minute.times
            shown.states[minute.what] = shown.states.get(minute.what, 0) + minute.times
    return list(hour.values())
