"""What following costs: running jobs that callers wait for on one replica, and what a look takes of each process."""

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil

from service.client import AsyncClient
from tests.bench.bed import QUICK, one_replica, running_jobs
from tests.bench.http_load import get
from tests.support.stack import Stack

SANDBOXES = 10
JOBS_EACH = 5 if QUICK else 50
SECONDS = 5.0 if QUICK else 15.0
SETTLE = 3.0


async def run(folder: Path) -> dict[str, Any]:
    """Watched by one long poll each, then by nobody."""
    async with one_replica(folder / "stack") as stack, AsyncClient(stack.replica_url(0)) as client:
        jobs = []
        for _ in range(SANDBOXES):
            sandbox = await client.create_sandbox(wait_ready=60, timeout=7200)
            jobs += await running_jobs(sandbox, JOBS_EACH)
        parts = urlsplit(stack.replica_url(0))
        writers = []
        for id, cursor in jobs:
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.write(get(f"/v1/exec-jobs/{id}?wait=30&cursor={cursor}"))
            writers.append(writer)
        await asyncio.sleep(SETTLE)
        watched = await _measured(stack)
        for writer in writers:
            writer.close()
        await asyncio.sleep(SETTLE)
        return {"jobs": len(jobs), "watched": watched, "unwatched": await _measured(stack)}


async def _measured(stack: Stack) -> dict[str, float]:
    before, looks = _used(stack), await _looks(stack)
    await asyncio.sleep(SECONDS)
    after, done = _used(stack), max(1, await _looks(stack) - looks)
    cores = {name: (after[name] - before[name]) / SECONDS for name in before}
    return {
        "looks_per_second": round(done / SECONDS, 1),
        **{f"{name}_cores": round(value, 3) for name, value in cores.items()},
        **{f"{name}_us_a_look": round(value * SECONDS / done * 1e6) for name, value in cores.items()},
    }


def _used(stack: Stack) -> dict[str, float]:
    redis = psutil.Process(stack.redis.process.pid).cpu_times()
    return {
        "replica": stack.replicas[0].cpu_seconds(),
        "redis": float(redis.user + redis.system),
        "engine": stack.engine.cpu_seconds(),
    }


async def _looks(stack: Stack) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"{stack.engine_url}/_dev/stats") as answer:
        return int((await answer.json())["status"])
