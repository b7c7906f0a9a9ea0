"""What the benchmarks run on: Redis, the engine and one replica; and how rounds alternate."""

import asyncio
import contextlib
import os
import statistics
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import psutil

from service.client import AsyncClient, AsyncJob, AsyncSandbox, JobState
from tests.bench.http_load import Measured
from tests.support.balancer import ROOT
from tests.support.ports import LOOPBACK, free_port
from tests.support.processes import ManagedProcess
from tests.support.stack import Stack

QUICK = bool(os.environ.get("QUICK"))
"""Short rounds, to try the benchmarks out: their figures are worth little."""
ROUNDS = 2 if QUICK else 5
SECONDS = 0.5 if QUICK else 2.0

Side = Callable[[], Awaitable[Measured]]


@contextlib.asynccontextmanager
async def one_replica(folder: Path) -> AsyncIterator[Stack]:
    """A stack of which all but one replica has been ended: `replica_url(0)`."""
    async with Stack(folder) as stack:
        for each in (*stack.replicas[1:], stack.balancer):
            each.kill()
        yield stack


@contextlib.asynccontextmanager
async def bare_server(folder: Path, size: int) -> AsyncIterator[tuple[str, int]]:
    """The baseline, which answers with `size` bytes: its URL and its pid."""
    port = free_port()
    argv = [sys.executable, "-m", "tests.bench.bare", str(port), str(size)]
    with ManagedProcess(argv, folder=folder, name=f"bare{port}", env={"PYTHONPATH": str(ROOT)}) as process:
        url = f"http://{LOOPBACK}:{port}"
        await asyncio.to_thread(process.wait_for_url, f"{url}/")
        yield url, process.pid


async def alternating(sides: Mapping[str, Side], *, rounds: int = ROUNDS) -> dict[str, Measured]:
    """Measures the sides in turns; the median of each figure."""
    found: dict[str, list[Measured]] = {name: [] for name in sides}
    for number in range(rounds):
        order = list(sides.items())
        for name, side in order if number % 2 else reversed(order):
            found[name].append(await side())
    return {name: _median(each) for name, each in found.items()}


def _median(rounds: list[Measured]) -> Measured:
    return Measured(
        rate=statistics.median(each.rate for each in rounds),
        p50=statistics.median(each.p50 for each in rounds),
        p99=statistics.median(each.p99 for each in rounds),
        failed=sum(each.failed for each in rounds),
    )


def processor_seconds(pid: int) -> float:
    """Of a process alone, since its start."""
    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)


async def finished_jobs(sandbox: AsyncSandbox, count: int) -> list[AsyncJob]:
    """Jobs that are over and recorded."""
    jobs = [await sandbox.submit("echo hello; exit 3") for _ in range(count)]
    await asyncio.gather(*(job.result(timeout=60) for job in jobs))
    return jobs


async def running_jobs(sandbox: AsyncSandbox, count: int) -> list[tuple[str, str]]:
    """The ids of jobs that say nothing for a long time, each with the cursor at the end of its output."""
    jobs = [await sandbox.submit("sleep 900", timeout=900) for _ in range(count)]
    cursors = []
    for job in jobs:
        async with asyncio.timeout(30):
            while job.cursor is None or (await job.status()).state is not JobState.RUNNING:
                async for _ in job.stream(follow=False):
                    pass
        cursors.append(job.cursor)
    return [(job.id, cursor) for job, cursor in zip(jobs, cursors, strict=True)]


@contextlib.asynccontextmanager
async def sandbox_on(url: str) -> AsyncIterator[AsyncSandbox]:
    """A client of one replica, and a sandbox that is ready."""
    async with AsyncClient(url) as client:
        yield await client.create_sandbox(wait_ready=60, timeout=7200)


def shown(measured: Measured) -> dict[str, float]:
    """For the figures."""
    return {
        "rate": round(measured.rate, 1),
        "p50_ms": round(measured.p50, 2),
        "p99_ms": round(measured.p99, 2),
        "failed": measured.failed,
    }
