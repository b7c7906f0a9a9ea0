"""One tenant floods, another asks now and then: what the quiet one notices.

Two replicas on one Redis and one engine. The quiet tenant asks for a job's state every 50 ms and submits a job a
second. It is measured alone, then while the noisy tenant, which has a rate, sends as much as a process of its own can
over 64 connections. Promised: the quiet tenant's p99 stays within twice of what it is alone.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

from service.tenants import key_digest
from tests.acceptance.http_rig import Replica
from tests.bench.bed import QUICK
from tests.integration.core_rig import KEY, local_engine
from tests.support.processes import Spawner
from tests.support.redis_server import RedisServer

SECONDS = 4.0 if QUICK else 20.0
"""Of each of the four turns: alone, flooded, alone, flooded."""
START = 2.0
"""Within which the flood is in flow, and for which it goes on after the last measurement."""
CONNECTIONS = 64
RATE = "submits_per_second = 1\npolls_per_second = 20"

FLOOD = """
import asyncio, json, sys, time, aiohttp
from collections import Counter
async def one(session, urls, body, until, seen, begun):
    while time.monotonic() < until:
        for url in urls:
            async with session.get(url + "/v1/exec-jobs") as answer:
                await answer.read(); seen[answer.status] += 1
            async with session.post(url + "/v1/exec-jobs", json=body) as answer:
                await answer.read(); seen[answer.status] += 1
        begun.release()
async def told(begun, connections):
    for _ in range(connections):
        await begun.acquire()
    print("flooding", flush=True)
async def main(seconds, connections, sandbox, *urls):
    seen, until, begun = Counter(), time.monotonic() + float(seconds), asyncio.Semaphore(0)
    async with aiohttp.ClientSession(headers={"Authorization": "Bearer obx_noisy"}) as session:
        body = {"sandbox_id": sandbox, "command": "true"}
        telling = asyncio.create_task(told(begun, int(connections)))
        await asyncio.gather(*(one(session, urls, body, until, seen, begun) for _ in range(int(connections))))
    print(json.dumps(seen))
asyncio.run(main(*sys.argv[1:]))
"""


def headers(tenant: str) -> dict[str, str]:
    return {"Authorization": f"Bearer obx_{tenant}"}


async def quiet(urls: list[str], sandbox: str, job: str) -> list[float]:
    """Seconds that each of the quiet tenant's requests took."""
    took: list[float] = []
    async with aiohttp.ClientSession(headers=headers("quiet")) as session:
        until = time.monotonic() + SECONDS
        number = 0
        while time.monotonic() < until:
            number += 1
            url = urls[number % len(urls)]
            began = time.perf_counter()
            if number % 20:
                sent = session.get(f"{url}/v1/exec-jobs/{job}")
            else:
                sent = session.post(f"{url}/v1/exec-jobs", json={"sandbox_id": sandbox, "command": "true"})
            async with sent as answer:
                await answer.read()
                assert answer.status < 300, answer.status
            if number % 20:
                took.append(time.perf_counter() - began)
            await asyncio.sleep(max(0.0, 0.05 - (time.perf_counter() - began)))
    return took


async def flooded(urls: list[str], sandboxes: dict[str, str], job: str) -> tuple[list[float], Counter[str]]:
    seconds = SECONDS + 2 * START
    command = [sys.executable, "-c", FLOOD, str(seconds), str(CONNECTIONS), sandboxes["noisy"], *urls]
    noise = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert noise.stdout is not None
    # Not while a Python process starts and opens its connections: that takes the processor from everybody.
    await asyncio.wait_for(noise.stdout.readline(), seconds)
    took = await quiet(urls, sandboxes["quiet"], job)
    said, _ = await noise.communicate()
    return took, Counter({str(status): count for status, count in json.loads(said).items()})


def figures(took: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(took, n=100)
    return {"p50_ms": round(cuts[49] * 1000, 2), "p99_ms": round(cuts[98] * 1000, 2), "requests": len(took)}


async def measure(urls: list[str], sandboxes: dict[str, str], job: str) -> dict[str, Any]:
    alone: list[float] = []
    with_noise: list[float] = []
    answers: Counter[str] = Counter()
    for _ in range(2):  # in turns, so that whatever else the machine does meets both
        alone += await quiet(urls, sandboxes["quiet"], job)
        took, seen = await flooded(urls, sandboxes, job)
        with_noise += took
        answers += seen
    before, after = figures(alone), figures(with_noise)
    return {
        "alone": before, "flooded": after, "p99_ratio": round(after["p99_ms"] / before["p99_ms"], 2),
        "noisy_requests_a_second": round(sum(answers.values()) / (SECONDS + 2 * START) / 2),
        "noisy_answers": dict(answers), "noisy_may": RATE.split("\n"), "noisy_connections": CONNECTIONS,
    }  # fmt: skip


async def run(folder: Path) -> dict[str, Any]:
    """Two replicas with both tenants."""
    tenants = folder / "tenants.toml"
    tenants.write_text(
        f'[quiet]\nkeys = ["{key_digest("obx_quiet")}"]\n'
        f'[noisy]\nkeys = ["{key_digest("obx_noisy")}"]\n[noisy.quota]\n{RATE}\n'
    )
    (folder / "engine").mkdir()
    spawner = Spawner(folder)
    with RedisServer(folder / "redis") as redis, local_engine(str(folder / "engine")) as engine_url:
        env = {
            "ONCEBOX_TENANTS": str(tenants), "ONCEBOX_SECRET": "s", "ONCEBOX_REDIS_URL": redis.url,
            "ONCEBOX_ENGINE_URL": engine_url, "ONCEBOX_ENGINE_API_KEY": KEY, "ONCEBOX_SHUTDOWN_DELAY": "0",
        }  # fmt: skip
        try:
            replicas = [Replica(spawner, env) for _ in range(2)]
            made = {
                tenant: replicas[0].ask("POST", "/v1/sandboxes", {}, **headers(tenant)).json()["sandbox_id"]
                for tenant in ("quiet", "noisy")
            }
            body = {"sandbox_id": made["quiet"], "command": "sleep 600"}
            job = replicas[0].ask("POST", "/v1/exec-jobs", body, **headers("quiet")).json()["command_id"]
            return await measure([each.url for each in replicas], made, job)
        finally:
            spawner.kill_all()
