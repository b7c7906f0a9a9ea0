"""Two states of the code, or more, measured in turns: what a use costs each of them, as a ratio to the first.

    python -m tests.bench.pairs job,poll before=../before now=.

Each state is a checkout with an installation of its own in its `.venv`. Each gets a Redis, an engine and one replica;
a round measures all of them, the next one in the other order. `ROUNDS` in the environment: how many (20). With
`AT_ONE_TIME=1` a round measures all at the same time: of use for processor time, on a machine whose load changes.

Read the medians of the ratios. Processor time (user and system, of the replica's process alone) moves little with what
else the machine does, rates and waits move a lot.
"""

import asyncio
import contextlib
import functools
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.bench.bed import bare_server, processor_seconds, sandbox_on
from tests.bench.http_load import closed_loop, get, post
from tests.support.balancer import ROOT
from tests.support.ports import LOOPBACK, free_port
from tests.support.processes import ManagedProcess, end_in_order
from tests.support.redis_server import RedisServer

AT_ONCE = 8
"""Callers, each with one request at a time."""
JOBS = 96
"""A round."""
EXECS = 24
SECONDS = 2.0
"""Of a round of polls or replays."""
CONNECTIONS = 16
"""That they are asked over."""
SANDBOXES = 8
REPLAYED = 64
"""Sandboxes whose creations are replayed."""
FINISHED = 16
ENDED = "oncebox_jobs_ended_total"


@dataclass(frozen=True)
class Found:
    """What one round found, for one request each."""

    cpu_ms: float
    rate: float
    """Requests a second, while they were made."""
    p50_ms: float


class Side:
    """One state: where it serves, and what was made in it."""

    def __init__(self, name: str, url: str, pid: int, token: str) -> None:
        self.name = name
        self.url = url
        self._pid = pid
        self._token = token
        self.sandboxes: list[str] = []
        self.finished: list[bytes] = []
        self.replays: list[bytes] = []
        self.session: aiohttp.ClientSession

    def processor(self) -> float:
        """Seconds so far."""
        return processor_seconds(self._pid)

    async def prepare(self, uses: set[str]) -> None:
        """Sandboxes, and what is polled or replayed."""
        async with sandbox_on(self.url) as sandbox:
            self.sandboxes = [sandbox.id]
            job = await sandbox.submit("echo warm")
            await job.result(timeout=60)
            if "fetch" in uses:
                jobs = [await sandbox.submit("echo hello; exit 3") for _ in range(FINISHED)]
                await asyncio.gather(*(job.result(timeout=60) for job in jobs))
                self.finished = [get(f"/v1/exec-jobs/{job.id}") for job in jobs]
        for number in range(SANDBOXES - 1):
            self.sandboxes.append(await self._create(f"more {number}"))
        if "replay" in uses:
            for number in range(REPLAYED):
                await self._create(f"replayed-{number}")
                make = post("/v1/sandboxes", {"timeout": 7200}, Idempotency_Key=f"replayed-{number}")
                self.replays.append(make)

    async def _create(self, key: str) -> str:
        headers = {"Idempotency-Key": key.replace(" ", "-")}
        async with self.session.post(f"{self.url}/v1/sandboxes", json={"timeout": 7200}, headers=headers) as answer:
            assert answer.status in (200, 201), await answer.text()
            return str((await answer.json())["sandbox_id"])

    async def ended(self) -> int:
        """Jobs and execs that this replica saw to their end."""
        headers = {"Authorization": f"Bearer {self._token}"}
        async with self.session.get(f"{self.url}/metrics", headers=headers) as answer:
            lines = (await answer.text()).splitlines()
        return round(sum(float(line.split()[-1]) for line in lines if line.startswith(ENDED)))

    async def jobs(self) -> Found:
        """Keyed submissions, and then whatever their jobs cost until they are recorded."""
        before, ended = self.processor(), await self.ended()
        waits, took = await _callers(JOBS, self._submit)
        async with asyncio.timeout(60):
            while await self.ended() < ended + JOBS:
                await asyncio.sleep(0.5)
        return Found((self.processor() - before) / JOBS * 1000, JOBS / took, statistics.median(waits))

    async def _submit(self, number: int) -> None:
        body = {"sandbox_id": self.sandboxes[number % SANDBOXES], "command": "true", "timeout": 60}
        headers = {"Idempotency-Key": secrets.token_hex(16)}
        async with self.session.post(f"{self.url}/v1/exec-jobs", json=body, headers=headers) as answer:
            assert answer.status == 202, await answer.text()
            await answer.read()

    async def execs(self) -> Found:
        """`echo hi`, to its result."""
        before = self.processor()
        waits, took = await _callers(EXECS, self._exec)
        return Found((self.processor() - before) / EXECS * 1000, EXECS / took, statistics.median(waits))

    async def _exec(self, number: int) -> None:
        body = {"sandbox_id": self.sandboxes[number % SANDBOXES], "command": "echo hi", "timeout": 60}
        async with self.session.post(f"{self.url}/v1/exec", json=body) as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()

    async def noops(self) -> Found:
        """Submissions of `true`, each to its result, by more callers."""
        before = self.processor()
        waits, took = await _callers(JOBS, self._noop, at_once=2 * AT_ONCE)
        return Found((self.processor() - before) / JOBS * 1000, JOBS / took, statistics.median(waits))

    async def _noop(self, number: int) -> None:
        body = {"sandbox_id": self.sandboxes[number % SANDBOXES], "command": "true", "timeout": 60}
        async with self.session.post(f"{self.url}/v1/exec-jobs", json=body) as answer:
            assert answer.status == 202, await answer.text()
            page = await answer.json()
        while not page.get("finished_at"):
            target = f"{self.url}/v1/exec-jobs/{page['command_id']}"
            async with self.session.get(target, params={"wait": 10, "cursor": page.get("cursor") or ""}) as answer:
                page = await answer.json()

    async def asked(self, requests: list[bytes]) -> Found:
        """`requests` again and again, over kept connections."""
        before = self.processor()
        measured = await closed_loop(
            self.url, lambda n: requests[n % len(requests)], connections=CONNECTIONS, seconds=SECONDS
        )
        assert not measured.failed
        return Found((self.processor() - before) / (measured.rate * SECONDS) * 1000, measured.rate, measured.p50)

    async def poll(self) -> Found:
        """Polls for news of a running job, of which there is none."""
        async with self.session.post(
            f"{self.url}/v1/exec-jobs",
            json={"sandbox_id": self.sandboxes[0], "command": "sleep 5", "timeout": 60},
        ) as answer:
            job = (await answer.json())["command_id"]
        page: dict[str, Any] = {}
        async with asyncio.timeout(30):
            while page.get("state") != "running" or not page.get("cursor"):
                async with self.session.get(f"{self.url}/v1/exec-jobs/{job}") as answer:
                    page = await answer.json()
                await asyncio.sleep(0.1)
        found = await self.asked([get(f"/v1/exec-jobs/{job}?cursor={page['cursor']}")])
        async with self.session.delete(f"{self.url}/v1/exec-jobs/{job}") as answer:
            await answer.read()
        await asyncio.sleep(0.5)
        return found


Work = Callable[[], Awaitable[Found]]
USES: dict[str, Callable[[Side], Awaitable[Found]]] = {
    "job": Side.jobs,
    "exec": Side.execs,
    "noop": Side.noops,
    "poll": Side.poll,
    "fetch": lambda side: side.asked(side.finished),
    "replay": lambda side: side.asked(side.replays),
}
BARE = {
    "poll": get("/"),
    "fetch": get("/"),
    "replay": post("/v1/sandboxes", {"timeout": 7200}, Idempotency_Key="replayed"),
}
"""What a bare handler is asked beside them: another row of the table."""
AT_ONE_TIME = bool(os.environ.get("AT_ONE_TIME"))
FIGURES = ("cpu_ms", "rate", "p50_ms")


async def _callers(
    count: int, one: Callable[[int], Awaitable[None]], *, at_once: int = AT_ONCE
) -> tuple[list[float], float]:
    """Waits in milliseconds, and how long all of it took."""
    waits: list[float] = []
    left = iter(range(count))

    async def caller() -> None:
        for number in left:
            begin = time.perf_counter()
            await one(number)
            waits.append((time.perf_counter() - begin) * 1000)

    begin = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(at_once)))
    return waits, time.perf_counter() - begin


@contextlib.asynccontextmanager
async def state(name: str, tree: Path, folder: Path) -> AsyncIterator[Side]:
    """A Redis, an engine and a replica of `tree`."""
    program = tree.absolute() / ".venv" / "bin" / "oncebox"
    engine, port, token = f"{LOOPBACK}:{free_port()}", free_port(), secrets.token_hex(16)
    words = ["--root", str(folder / name / "engine"), "--volume-root", str(folder / name / "volumes")]
    strangers = {key: None for key in os.environ if key.startswith("ONCEBOX_") and "_TEST_" not in key}
    theirs = {**strangers, "PYTHONPATH": str(tree.absolute()), "OPEN_SANDBOX_API_KEY": token}
    ours = {**theirs, "PYTHONPATH": str(ROOT)}
    engine_words: list[str | Path] = [Path(sys.executable).parent / "oncebox", "engine", "--bind", engine, *words]
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(RedisServer(folder / name / "redis", appendonly=True, appendfsync="everysec"))
        running = ManagedProcess(engine_words, folder=folder, name=f"engine-{name}", env=ours, cwd=ROOT)
        stack.enter_context(running)
        await asyncio.to_thread(running.wait_for_line, r"^\{.*\}$", timeout=60)
        settings = {
            "ONCEBOX_BIND": f"{LOOPBACK}:{port}",
            "ONCEBOX_REDIS_URL": redis.url,
            "ONCEBOX_ENGINE_URL": f"http://{engine}",
            "ONCEBOX_ENGINE_API_KEY": token,
            "ONCEBOX_VOLUME": f"host:{folder / name / 'volumes'}",
            "ONCEBOX_METRICS_TOKEN": token,
        }
        replica = ManagedProcess(
            [program, "serve"], folder=folder, name=f"replica-{name}", env={**theirs, **settings}, cwd=tree.absolute()
        )
        stack.enter_context(replica)
        url = f"http://{LOOPBACK}:{port}"
        await asyncio.to_thread(replica.wait_for_url, f"{url}/readyz", timeout=60)
        print(f"{name}: {url}, pid {replica.pid}", flush=True)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            side = Side(name, url, replica.pid, token)
            side.session = session
            yield side


async def measure(uses: list[str], trees: dict[str, Path], rounds: int, folder: Path) -> None:
    """All rounds, and a table for each use."""
    async with contextlib.AsyncExitStack() as stack:
        sides = [await stack.enter_async_context(state(name, tree, folder)) for name, tree in trees.items()]
        for side in sides:
            await side.prepare(set(uses))
        bare: list[Side] = []
        if BARE.keys() & set(uses):
            url, pid = await stack.enter_async_context(bare_server(folder, 700))
            bare = [Side("bare", url, pid, "")]
        for use in uses:
            found: dict[str, list[Found]] = {}
            for number in range(rounds + 1):
                works: dict[str, Work] = {side.name: functools.partial(USES[use], side) for side in sides}
                works |= {side.name: functools.partial(side.asked, [BARE[use]]) for side in bare if use in BARE}
                for name, one in (await _round(works, number)).items():
                    if number:  # the first warms up
                        found.setdefault(name, []).append(one)
            show(use, found)


async def _round(works: Mapping[str, Work], number: int) -> dict[str, Found]:
    """All of them, in turns or at once."""
    if AT_ONE_TIME:
        return dict(zip(works, await asyncio.gather(*(work() for work in works.values())), strict=True))
    order = list(works) if number % 2 else list(works)[::-1]
    found = {name: await works[name]() for name in order}
    return {name: found[name] for name in works}


def show(use: str, found: dict[str, list[Found]]) -> None:
    """The medians, and the ratios to the first state by round: their median and quartiles."""
    first, base = next(iter(found.items()))
    print(f"\n{use}, {len(base)} rounds, ratios to {first!r}")
    for name, rounds in found.items():
        print(f"  {name:10} {'  '.join(_shown(figure, rounds, base) for figure in FIGURES)}", flush=True)


def _shown(figure: str, rounds: list[Found], base: list[Found]) -> str:
    own = [getattr(each, figure) for each in rounds]
    ratios = [mine / getattr(other, figure) for mine, other in zip(own, base, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return f"{figure} {statistics.median(own):.2f}, ratio {middle:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    end_in_order()
    uses = sys.argv[1].split(",")
    trees = {name: Path(tree) for name, _, tree in (word.partition("=") for word in sys.argv[2:])}
    with tempfile.TemporaryDirectory(prefix="oncebox-pairs-", ignore_cleanup_errors=True) as folder:
        asyncio.run(measure(uses, trees, int(os.environ.get("ROUNDS", "20")), Path(folder)))


if __name__ == "__main__":
    main()
