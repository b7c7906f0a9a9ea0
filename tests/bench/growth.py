"""(g) Growth: what a request costs where 100 jobs are recorded, and where 100,000 are.

A job that really ran is copied, key by key and index by index, under made-up ids; so the copies are what the service
itself would have written. A second stack, which keeps its 100, is measured in turns with it: the comparison is between
the two at the same moment. Two processes of one program differ by up to a tenth for as long as they live (where their
memory lies, how they hash), so what is shown is how that comparison moves from where both have 100.
"""

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import redis

from service.client import AsyncSandbox
from service.core.model import identity
from service.store import keys
from tests.bench.bed import QUICK, finished_jobs, one_replica, sandbox_on
from tests.bench.http_load import closed_loop, get, post
from tests.support.stack import Stack

SIZES = (100, 1_000, 10_000) if QUICK else (100, 1_000, 10_000, 100_000)
KINDS = ("poll", "list", "submit")
_RATIOS = (*(f"{kind}_{what}" for kind in KINDS for what in ("ratio", "cpu_ratio")), "replica_ratio")
ROUNDS = 4 if QUICK else 24
"""Many short ones: the machine's own ups and downs last for seconds, and meet both sides of a round alike."""
SECONDS = 0.5
CONNECTIONS = 16
BATCH = 1_000


class Costs(NamedTuple):
    """Of one round."""

    rate: float
    cpu: float
    """Seconds of the replica's processor for each answer."""


Side = Callable[[], Awaitable[Costs]]


class Shelf:
    """A stack with recorded jobs."""

    def __init__(self, stack: Stack, sandbox: AsyncSandbox) -> None:
        self.url = stack.replica_url(0)
        self.stack = stack
        self.ids: list[str] = []
        self._sandbox = sandbox
        self._client = redis.Redis(port=stack.redis.port)

    async def fill(self, size: int) -> None:
        """As many recorded jobs as that."""
        if not self.ids:
            self.ids = [job.id for job in await finished_jobs(self._sandbox, 1)]
        await asyncio.to_thread(self._copy, size - len(self.ids))

    def _copy(self, count: int) -> None:
        whole = keys.of_claim(self.ids[0])[:4]
        dumps = [self._client.dump(name) for name in whole]
        lifetime = 80_000_000
        lists = keys.lists("default", self.ids[0])
        times, sizes = keys.outputs(self.ids[0])
        output = keys.output(self.ids[0])
        newest = int(self._client.zscore(lists[0], self.ids[0]) or 0)
        size = int(self._client.hget(sizes, output) or 0)
        for start in range(0, count, BATCH):
            pipe = self._client.pipeline(transaction=False)
            for number in range(start, min(start + BATCH, count)):
                id = identity.command_id(self._sandbox.id, identity.job_ref(identity.random_token()))
                for name, dump in zip(keys.of_claim(id)[:4], dumps, strict=True):
                    if dump is not None:
                        pipe.restore(name, lifetime, dump)
                for listed in lists:
                    pipe.zadd(listed, {id: newest - number})
                pipe.zadd(times, {keys.output(id): newest - number})
                pipe.hset(sizes, keys.output(id), str(size))
                pipe.hincrby(sizes, "", size)
                self.ids.append(id)
            pipe.execute()

    async def poll(self) -> Costs:
        """Any of the recorded ones."""
        step = 7919  # a prime: all over the place
        requests = [get(f"/v1/exec-jobs/{self.ids[number * step % len(self.ids)]}") for number in range(256)]
        return await self._timed(lambda n: requests[n % 256], CONNECTIONS)

    async def list(self) -> Costs:
        """The newest page."""
        request = get("/v1/exec-jobs?page_size=50")
        return await self._timed(lambda _: request, CONNECTIONS)

    async def submit(self) -> Costs:
        """New jobs."""
        request = post("/v1/exec-jobs", {"sandbox_id": self._sandbox.id, "command": "true", "timeout": 60})
        return await self._timed(lambda _: request, 4)

    async def _timed(self, request: Callable[[int], bytes], connections: int) -> Costs:
        before = self.stack.replicas[0].cpu_seconds()
        measured = await closed_loop(self.url, request, connections=connections, seconds=SECONDS)
        took = self.stack.replicas[0].cpu_seconds() - before
        return Costs(measured.rate, took / measured.rate / SECONDS)

    def memory(self) -> dict[str, float]:
        """MiB of the replica and of Redis."""
        used = float(self._client.info("memory")["used_memory"])
        return {"replica_mib": self.stack.replicas[0].memory() / 2**20, "redis_mib": used / 2**20}


async def run(folder: Path) -> dict[str, Any]:
    """Size by size."""
    async with (
        one_replica(folder / "small") as first,
        one_replica(folder / "large") as second,
        sandbox_on(first.replica_url(0)) as few,
        sandbox_on(second.replica_url(0)) as many,
    ):
        small, large = Shelf(first, few), Shelf(second, many)
        await small.fill(SIZES[0])
        rows = []
        for size in SIZES:
            await large.fill(size)
            rows.append(await _row(small, large, size))
    return {"rows": [_grown(row, rows[0]) for row in rows], "apart": {name: rows[0][name] for name in _RATIOS}}


def _grown(row: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    """The row with its ratios against those of the first."""
    return {**row, **{name: round(row[name] / first[name], 3) for name in _RATIOS}}


async def _row(small: Shelf, large: Shelf, size: int) -> dict[str, Any]:
    row: dict[str, Any] = {"jobs": size}
    for name in KINDS:
        found = [await _round(getattr(small, name), getattr(large, name), number) for number in range(ROUNDS)]
        row[f"{name}_rate"] = round(statistics.median(many.rate for _, many in found), 1)
        row[f"{name}_ratio"] = round(statistics.median(many.rate / few.rate for few, many in found), 3)
        row[f"{name}_cpu_ratio"] = round(statistics.median(few.cpu / many.cpu for few, many in found), 3)
    memory, base = large.memory(), small.memory()
    row["replica_mib"] = round(memory["replica_mib"], 1)
    row["replica_ratio"] = round(memory["replica_mib"] / base["replica_mib"], 3)
    row["redis_mib"] = round(memory["redis_mib"], 1)
    return row


async def _round(few: Side, many: Side, number: int) -> tuple[Costs, Costs]:
    """Both, one after the other; each is the first in every other round."""
    if number % 2:
        return await few(), await many()
    after = await many()
    return await few(), after
