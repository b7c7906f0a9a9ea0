"""What is measured beside the callers: once a second, from the engine's own counters and the kernel's."""

import asyncio
import contextlib
import os
from dataclasses import dataclass, field

import aiohttp

from tests.load.callers import Callers
from tests.load.recording import Journal
from tests.support.stack import Stack

INTERVAL = 1.0
WINDOW = 10.0
"""Seconds over which a rate at the engine is taken: one second alone is a matter of chance."""


@dataclass(frozen=True)
class Sample:
    """One look at everything."""

    at: float
    states: dict[str, int]
    counts: dict[str, int]
    """The engine's counters since its start."""
    memory: dict[str, int]
    load: float


@dataclass
class Sampler:
    """Looks once a second, for as long as its block lasts."""

    stack: Stack
    callers: Callers
    journal: Journal
    samples: list[Sample] = field(default_factory=list)

    async def run(self) -> None:
        """For ever."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
            while True:
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with session.get(f"{self.stack.engine_url}/_dev/stats") as answer:
                        self._take(await answer.json())
                await asyncio.sleep(INTERVAL)

    def _take(self, counts: dict[str, int]) -> None:
        load = os.getloadavg()[0]
        at = self.journal.now()
        self.samples.append(Sample(at, dict(self.callers.states), counts, self.stack.memory(), load))

    def rates(self, *kinds: str) -> list[tuple[float, float]]:
        """Requests of these kinds a second at the engine, over the last `WINDOW` seconds, by time."""
        found = []
        for place, sample in enumerate(self.samples):
            before = next((s for s in reversed(self.samples[:place]) if sample.at - s.at >= WINDOW), None)
            if before is not None:
                done = sum(sample.counts[kind] - before.counts[kind] for kind in kinds)
                found.append((sample.at, done / (sample.at - before.at)))
        return found
