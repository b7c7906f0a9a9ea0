"""Whether a replica should get requests now."""

from __future__ import annotations

import asyncio
import logging

from service.core.claims.background import Background
from service.errors import StoreUnavailable
from service.ports.store import Store

log = logging.getLogger("oncebox")

CHECK = 3.0
"""Seconds for one check."""
MOST_WORDS = 300
"""Characters of what a store said itself that the log repeats."""


class Readiness:
    """Checks what a replica needs. ``stopping``: set once it is to end."""

    def __init__(self, store: Store, background: Background, stopping: asyncio.Event) -> None:
        self._store = store
        self._background = background
        self._stopping = stopping
        self._told: list[str] = []

    async def reasons(self) -> list[str]:
        """Why this replica should get no requests now, in sentences; empty: it should.

        An engine that does not answer is no such reason: recorded results are there all the same, and what needs
        the engine says so.
        """
        reasons, cause = await self._store_trouble()
        if self._stopping.is_set():
            reasons.append("The replica is stopping.")
        if failing := self._background.failing():
            reasons.append(f"What must run all the time goes on failing: {', '.join(failing)}; see this replica's log.")
        if reasons != self._told:  # told once each time, with what is for operators only
            told = ("not ready: %s %s", " ".join(reasons), cause) if reasons else ("ready again",)
            log.warning(*told)
            self._told = reasons
        return reasons

    async def _store_trouble(self) -> tuple[list[str], str]:
        """Why the store keeps this replica from its work, and what it said itself; empty: it does not."""
        try:
            async with asyncio.timeout(CHECK):
                health, _ = await asyncio.gather(self._store.health(), self._store.check_writes())
        except StoreUnavailable as error:
            return [error.detail], " ".join(str(error.__cause__ or "").split())[:MOST_WORDS]
        except TimeoutError:
            return ["Redis did not answer in time."], f"Not within {CHECK:g} s."
        if health.maxmemory_policy in (None, "noeviction"):
            return [], ""
        evicts = (
            f"Redis may evict keys (maxmemory_policy is {health.maxmemory_policy}); set it to noeviction: "
            "an evicted claim would let a command run twice."
        )
        return [evicts], ""
