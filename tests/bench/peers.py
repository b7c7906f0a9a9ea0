"""(h) Peers at the same work: submit a no-op and wait for its result, on the same Redis; and the engine's own call.

A queue calls a Python function in a worker; Oncebox starts a process in a sandbox, behind a fence, and records what it
printed. The peers are installed into an environment of their own each (`build/peers`), where that can be done.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from service.client import AsyncSandbox
from tests.bench.bed import QUICK, one_replica, sandbox_on
from tests.support.balancer import ROOT
from tests.support.processes import ManagedProcess
from tests.support.stack import Stack

PACKAGES = {"arq": ["arq"], "saq": ["saq[redis]", "typing_extensions"], "taskiq": ["taskiq", "taskiq-redis>=1.1"]}
"""Each in an environment of its own: they don't agree on a version of redis-py."""
INSTALL_SECONDS = 300
AT_ONCE = 16
PEER_COUNT = 300 if QUICK else 2000
COUNT = 60 if QUICK else 300


def environment(name: str) -> Path | None:
    """A peer's Python, installed if need be; None where that fails."""
    folder = Path(os.environ.get("PEERS") or ROOT / "build" / "peers") / name
    python = folder / "bin" / "python"
    try:
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=INSTALL_SECONDS)
            words = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES[name]]
            subprocess.run(words, check=True, timeout=INSTALL_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    return python


async def run(folder: Path) -> dict[str, Any]:
    """Each in turn; then ours."""
    pythons = {name: await asyncio.to_thread(environment, name) for name in PACKAGES}
    async with one_replica(folder / "stack") as stack, sandbox_on(stack.replica_url(0)) as sandbox:
        rows: dict[str, Any] = {}
        for name, python in pythons.items():
            if python is not None:
                rows[name] = await asyncio.to_thread(_peer, python, name, stack, folder)
        rows["oncebox job (a process in a sandbox)"] = await _waits(_job(sandbox), COUNT)
        rows["oncebox /v1/exec"] = await _waits(_exec(sandbox), COUNT)
        async with aiohttp.ClientSession() as session:
            rows["engine, foreground call through its proxy"] = await _waits(
                _foreground(session, stack, sandbox), COUNT
            )
    return {
        "at_once": AT_ONCE,
        "installed": [name for name, python in pythons.items() if python is not None],
        "rows": rows,
    }


def _peer(python: Path, name: str, stack: Stack, folder: Path) -> dict[str, Any]:
    words = [str(python), str(ROOT / "tests" / "bench" / "peer_queues.py"), name]
    url = f"redis://127.0.0.1:{stack.redis.port}/1"
    with ManagedProcess([*words, "worker", url], folder=folder, name=f"peer-{name}"):
        client = [*words, "client", url, str(PEER_COUNT), str(AT_ONCE)]
        done = subprocess.run(client, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        return {"failed": done.stderr.strip().splitlines()[-1:]}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _job(sandbox: AsyncSandbox) -> Callable[[], Awaitable[object]]:
    async def one() -> object:
        return await (await sandbox.submit("true")).result(check=True)

    return one


def _exec(sandbox: AsyncSandbox) -> Callable[[], Awaitable[object]]:
    async def one() -> object:
        return await sandbox.exec("true")

    return one


def _foreground(session: aiohttp.ClientSession, stack: Stack, sandbox: AsyncSandbox) -> Callable[[], Awaitable[object]]:
    target = f"{stack.engine_url}/v1/sandboxes/{sandbox.id}/proxy/44772/command"

    async def one() -> object:
        async with session.post(target, json={"command": "true", "timeout": 60_000}) as answer:
            return await answer.read()

    return one


async def _waits(one: Callable[[], Awaitable[object]], count: int) -> dict[str, float]:
    waits: list[float] = []
    left = iter(range(count))

    async def caller() -> None:
        for _ in left:
            begin = time.perf_counter()
            await one()
            waits.append((time.perf_counter() - begin) * 1000)

    begin = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
    took = time.perf_counter() - begin
    return {"rate": round(count / took, 1), "p50_ms": round(statistics.median(waits), 2)}
