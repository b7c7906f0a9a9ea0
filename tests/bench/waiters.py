"""(f) Idle waiters on one replica: what each long poll and each event stream holds of its memory."""

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.bench.bed import QUICK, one_replica, running_jobs, sandbox_on
from tests.bench.http_load import get
from tests.support.stack import Stack

WAITERS = 200 if QUICK else 2000
JOBS = 50
SETTLE = 4.0


async def run(folder: Path) -> dict[str, Any]:
    """Long polls first, then event streams, each on the same running jobs."""
    async with one_replica(folder / "stack") as stack, sandbox_on(stack.replica_url(0)) as sandbox:
        jobs = await running_jobs(sandbox, JOBS)
        polls = [get(f"/v1/exec-jobs/{id}?wait=30&cursor={cursor}") for id, cursor in jobs]
        streams = [get(f"/v1/exec-jobs/{id}/events?cursor={cursor}") for id, cursor in jobs]
        # What is loaded at first use is no waiter's. Both are held against the memory before: what the first ones gave
        # back, the second ones take again.
        await _waiting(stack, polls, WAITERS // 10, 0)
        before = stack.replicas[0].memory()
        return {
            "waiters": WAITERS,
            "long_poll": await _waiting(stack, polls, WAITERS, before),
            "event_stream": await _waiting(stack, streams, WAITERS, before),
        }


async def _waiting(stack: Stack, requests: list[bytes], count: int, before: int) -> dict[str, float]:
    """Opens the connections, waits until all is quiet, and looks."""
    parts = urlsplit(stack.replica_url(0))
    replica = stack.replicas[0]
    writers = []
    for number in range(count):
        _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(requests[number % len(requests)])
        writers.append(writer)
    await asyncio.sleep(SETTLE)
    used, memory = replica.cpu_seconds(), replica.memory()
    await asyncio.sleep(SETTLE)
    core = (replica.cpu_seconds() - used) / SETTLE
    for writer in writers:
        writer.close()
    await asyncio.sleep(SETTLE)
    return {
        "kib_each": round((memory - before) / count / 1024, 1),
        "replica_mib": round(memory / 2**20, 1),
        "core_share": round(core, 3),
    }
