"""(d) Claims a second against what redis-benchmark gets for `SET NX` on the same Redis with as many clients."""

import asyncio
import re
import secrets
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from service.store import open_store
from tests.bench.bed import ROUNDS, SECONDS
from tests.support.redis_server import RedisServer

CLIENTS = 64
BODY = b'{"kind":"job","tenant":"default","sandbox_id":"0123456789abcdef","timeout":3600}'


async def run(folder: Path) -> dict[str, Any]:
    """Both on one Redis with AOF, in turns."""
    program = shutil.which("redis-benchmark")
    with RedisServer(folder / "redis", appendonly=True, appendfsync="everysec") as redis:
        ours, raw = [], []
        for _ in range(ROUNDS):
            ours.append(await _claims(redis.url))
            if program is not None:
                raw.append(await _benchmark(program, redis.port))
    result: dict[str, Any] = {"clients": CLIENTS, "claims_per_second": round(statistics.median(ours))}
    if raw:
        result["set_nx_per_second"] = round(statistics.median(raw))
        result["claims_to_set_nx"] = round(statistics.median(ours) / statistics.median(raw), 3)
    return result


async def _claims(url: str) -> float:
    store = open_store(url, retention=60, record_output=262_144)
    count = 0
    end = time.perf_counter() + SECONDS

    async def one() -> None:
        nonlocal count
        while time.perf_counter() < end:
            made, _, _ = await store.claim(secrets.token_hex(16), token="t" * 32, owner="o" * 16, lease=15, body=BODY)
            assert made
            count += 1

    try:
        await store.now()
        begin = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(CLIENTS)))
        return count / (time.perf_counter() - begin)
    finally:
        await store.close()


async def _benchmark(program: str, port: int) -> float:
    words = ["-p", str(port), "-c", str(CLIENTS), "-n", "60000", "-r", "100000000", "-q"]
    process = await asyncio.create_subprocess_exec(
        program, *words, "SET", "bench:__rand_int__", "v" * 120, "NX", stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    found = re.findall(rb"([\d.]+) requests per second", said)
    return float(found[-1])
