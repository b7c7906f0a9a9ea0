"""(b) A submission against the engine's own background submit, called directly: what the service adds; and an exec
against the engine's own foreground command.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from service.client import AsyncClient
from tests.bench.bed import QUICK, ROUNDS, one_replica

SANDBOXES = 8
AT_ONCE = 8
IDLE_RATE = 5.0
"""Submissions a second: each is over before the next one comes."""
CLOSED_SECONDS = 1.0 if QUICK else 3.0
OPEN_SECONDS = 2.0 if QUICK else 5.0
EXECS = 10 if QUICK else 30
"""A round, one after the other."""

Submit = Callable[[int], Awaitable[None]]


async def run(folder: Path) -> dict[str, Any]:
    """Open loop at half the rate that the engine reaches by itself."""
    async with one_replica(folder / "stack") as stack, AsyncClient(stack.replica_url(0)) as client:
        ids = [(await client.create_sandbox(wait_ready=60, timeout=7200)).id for _ in range(SANDBOXES)]
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            targets = [f"{stack.engine_url}/v1/sandboxes/{id}/proxy/44772/command" for id in ids]

            async def direct(number: int) -> None:
                body = {"command": "true", "background": True, "timeout": 60_000}
                async with session.post(targets[number % SANDBOXES], json=body) as answer:
                    async for line in answer.content:
                        if b"execution_complete" in line:
                            break

            async def served(number: int) -> None:
                body = {"sandbox_id": ids[number % SANDBOXES], "command": "true", "timeout": 60}
                async with session.post(f"{stack.replica_url(0)}/v1/exec-jobs", json=body) as answer:
                    assert answer.status == 202, await answer.text()
                    await answer.read()

            async def command(number: int) -> None:
                body = {"command": "echo hi", "timeout": 60_000}
                async with session.post(targets[number % SANDBOXES], json=body) as answer:
                    assert b"execution_complete" in await answer.read()

            async def exec_(number: int) -> None:
                body = {"sandbox_id": ids[number % SANDBOXES], "command": "echo hi", "timeout": 60}
                async with session.post(f"{stack.replica_url(0)}/v1/exec", json=body) as answer:
                    assert (await answer.json())["stdout"] == "hi\n"

            alone: dict[str, list[float]] = {"command": [], "exec": []}
            for number in range(ROUNDS):
                calls = [("command", command), ("exec", exec_)]
                for name, call in calls if number % 2 else reversed(calls):
                    alone[name].append(await _one_by_one(call))
            most = await _closed(direct)
            rate = most / 2
            waits: dict[str, list[float]] = {name: [] for name in ("direct", "served", "direct idle", "served idle")}
            for number in range(ROUNDS):
                sides = [("direct", direct), ("served", served)]
                for name, submit in sides if number % 2 else reversed(sides):
                    waits[name].append(await _open(submit, rate))
                    waits[f"{name} idle"].append(await _open(submit, IDLE_RATE))
            served_most = await _closed(served)
    medians = {name: statistics.median(each) for name, each in (waits | alone).items()}
    return {
        "direct_most_per_second": round(most, 1),
        "served_most_per_second": round(served_most, 1),
        "open_loop_per_second": round(rate, 1),
        "direct_p50_ms": round(medians["direct"], 2),
        "served_p50_ms": round(medians["served"], 2),
        "added_p50_ms": round(medians["served"] - medians["direct"], 2),
        "idle_per_second": IDLE_RATE,
        "added_idle_p50_ms": round(medians["served idle"] - medians["direct idle"], 2),
        "exec_p50_ms": round(medians["exec"], 2),
        "exec_to_direct": round(medians["exec"] / medians["command"], 2),
    }


async def _one_by_one(call: Submit) -> float:
    """The median wait in milliseconds."""
    waits = []
    for number in range(EXECS):
        begin = time.perf_counter()
        await call(number)
        waits.append((time.perf_counter() - begin) * 1000)
    return statistics.median(waits)


async def _closed(submit: Submit) -> float:
    """The rate that a few callers reach, each with one at a time."""
    count = 0
    end = time.perf_counter() + CLOSED_SECONDS

    async def one() -> None:
        nonlocal count
        while time.perf_counter() < end:
            count += 1
            await submit(count)

    await asyncio.gather(*(one() for _ in range(AT_ONCE)))
    return count / CLOSED_SECONDS


async def _open(submit: Submit, rate: float) -> float:
    """The median wait in milliseconds where requests come at `rate` whatever becomes of them."""
    waits: list[float] = []

    async def one(number: int) -> None:
        begin = time.perf_counter()
        await submit(number)
        waits.append((time.perf_counter() - begin) * 1000)

    tasks = []
    begin = time.perf_counter()
    for number in range(int(rate * OPEN_SECONDS)):
        await asyncio.sleep(max(0.0, begin + number / rate - time.perf_counter()))
        tasks.append(asyncio.create_task(one(number)))
    await asyncio.gather(*tasks)
    return statistics.median(waits)
