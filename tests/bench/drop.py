"""The incident, as a benchmark: `python -m tests.bench.drop` (`make bench-drop`).

Many callers run long commands at a time, and the network loses about a quarter of all connections without a word.
Three ways, side by side: the engine's own foreground call with its own client, `POST /v1/exec`, and jobs; the two
with our SDK, and with the loss on both hops: between caller and service, and between service and engine.

From the environment: `SECONDS_EACH` (20), `COMMANDS` (72), `CALLERS` (64), `SHARE` (0.24). Ends with 1 unless all
jobs came back right.
"""

import asyncio
import io
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from opensandbox import Sandbox
from opensandbox.config import ConnectionConfig
from opensandbox.models.execd import RunCommandOpts
from rich.console import Console
from rich.table import Table

from service.client import AsyncClient, AsyncSandbox
from tests.bench import results
from tests.bench.lossy import LossyProxy
from tests.load.run import machine
from tests.support.ports import LOOPBACK
from tests.support.processes import end_in_order
from tests.support.stack import Stack

OWNER = "drop"
SANDBOXES = 9
LINES_AT_END = 300
RIGHT, WRONG, ERROR, HUNG = "right", "wrong", "honest error", "hung"


@dataclass(frozen=True)
class Terms:
    """How much, how long, how bad."""

    seconds: float = float(os.environ.get("SECONDS_EACH", "20"))
    commands: int = int(os.environ.get("COMMANDS", "72"))
    callers: int = int(os.environ.get("CALLERS", "64"))
    share: float = float(os.environ.get("SHARE", "0.24"))

    @property
    def patience(self) -> float:
        """Seconds after which a call that has not returned is said to hang."""
        return self.seconds * 3 + 120

    def command(self, mark: str, ledger: str) -> str:
        """Some lines while it runs, many at its end, and an exit code."""
        step = self.seconds / 10
        talk = f"i=0; while [ $i -lt 10 ]; do echo {mark} $i; sleep {step:.2f}; i=$((i+1)); done"
        return f"echo {mark} >> {ledger}; {talk}; seq -f '{mark} %.0f' 1 {LINES_AT_END}; exit {exit_code(mark)}"

    @staticmethod
    def output(mark: str) -> list[str]:
        """Its lines."""
        return [f"{mark} {n}" for n in range(10)] + [f"{mark} {n}" for n in range(1, LINES_AT_END + 1)]


def exit_code(mark: str) -> int:
    """A command's own."""
    return int(mark.rpartition("-")[2]) % 7


@dataclass
class Way:
    """One way to run commands, and what came of it."""

    name: str
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    lost: int = 0
    seen: int = 0
    ran: Counter[str] = field(default_factory=Counter)

    async def run(self, terms: Terms, one: Callable[[int, str], Awaitable[tuple[int | None, list[str]]]]) -> None:
        """Runs all commands, so many at a time; `one` runs one and returns its exit code and lines."""
        gate = asyncio.Semaphore(terms.callers)
        await asyncio.gather(*(self._one(terms, gate, number, one) for number in range(terms.commands)))

    async def _one(
        self, terms: Terms, gate: asyncio.Semaphore, number: int,
        one: Callable[[int, str], Awaitable[tuple[int | None, list[str]]]],
    ) -> None:  # fmt: skip
        mark = f"{self.name.split()[0]}-{number}"
        async with gate:
            begin = time.monotonic()
            try:
                async with asyncio.timeout(terms.patience):
                    code, lines = await one(number, mark)
            except TimeoutError:
                self.outcomes[HUNG] += 1
                return
            except Exception as error:  # noqa: BLE001 - counted
                self.outcomes[ERROR] += 1
                self.said.append(f"{type(error).__name__}: {str(error)[:100]}")
                return
            right = code == exit_code(mark) and lines == terms.output(mark)
            self.outcomes[RIGHT if right else WRONG] += 1
            self.seconds.append(time.monotonic() - begin)
            if not right:
                self.said.append(f"{mark}: exit code {code}, {len(lines)} lines")


async def directly(stack: Stack, terms: Terms, ledger: str) -> Way:
    """The engine's own client, its foreground call, through the lossy network."""
    way = Way("engine: its own client, a foreground call")
    async with _lossy(int(stack.engine_url.rpartition(":")[2]), terms, seed=1) as network:
        config = ConnectionConfig(
            domain=network.url.removeprefix("http://"),
            api_key=stack.engine_key,
            protocol="http",
            use_server_proxy=True,
            disable_metrics=True,
        )
        sandboxes = [
            await Sandbox.create("any", timeout=timedelta(hours=2), entrypoint=["sleep", "infinity"],
                                 connection_config=config)
            for _ in range(SANDBOXES)
        ]  # fmt: skip
        network.begin()

        async def one(number: int, mark: str) -> tuple[int | None, list[str]]:
            options = RunCommandOpts(timeout=timedelta(seconds=terms.seconds + 60))
            done = await sandboxes[number % SANDBOXES].commands.run(terms.command(mark, ledger), opts=options)
            return done.exit_code, [line for each in done.logs.stdout for line in each.text.splitlines()]

        await way.run(terms, one)
        way.lost, way.seen = network.lost, network.seen
    return way


async def served(stack: Stack, terms: Terms, ledger: str, behind: LossyProxy, *, jobs: bool) -> Way:
    """Our SDK, through a lossy network to the service, which reaches the engine through another one (`behind`)."""
    way = Way("jobs through the SDK" if jobs else "/v1/exec through the SDK")
    clean = AsyncClient(stack.url)
    made = [await clean.create_sandbox(workspace_owner=OWNER, timeout=7200, wait_ready=60) for _ in range(SANDBOXES)]
    async with _lossy(stack.port, terms, seed=2 + jobs) as network, AsyncClient(network.url) as client:
        network.begin()
        behind.begin()
        sandboxes = [client.sandbox(each.id) for each in made]

        async def one(number: int, mark: str) -> tuple[int | None, list[str]]:
            sandbox = sandboxes[number % SANDBOXES]
            command = terms.command(mark, ledger)
            return await (_job(sandbox, command, terms) if jobs else _exec(sandbox, command, terms))

        await way.run(terms, one)
        way.lost, way.seen = network.lost, network.seen
    await clean.close()
    return way


async def _job(sandbox: AsyncSandbox, command: str, terms: Terms) -> tuple[int | None, list[str]]:
    job = await sandbox.submit(command, timeout=int(terms.seconds) + 120)
    output = io.BytesIO()
    result = await job.output_to(output)
    assert output.getvalue().endswith(b"\n")
    return result.exit_code, output.getvalue().decode().splitlines()


async def _exec(sandbox: AsyncSandbox, command: str, terms: Terms) -> tuple[int | None, list[str]]:
    result = await sandbox.exec(command, timeout=int(terms.seconds) + 20)
    return result.exit_code, result.stdout.splitlines()


def _lossy(port: int, terms: Terms, *, seed: int) -> LossyProxy:
    return LossyProxy(LOOPBACK, port, share=terms.share, within=terms.seconds, seed=seed)


async def run(terms: Terms, folder: Path) -> list[Way]:
    """All three at the same time, each on sandboxes of its own."""
    behind = _lossy(0, terms, seed=5)
    settings = {"ONCEBOX_ENGINE_URL": behind.url, "ONCEBOX_ENGINE_PROXY": "always"}
    stack = Stack(folder, settings=settings)
    behind.upstream = (LOOPBACK, int(stack.engine_url.rpartition(":")[2]))
    async with behind, stack:
        path = stack.volume_root / OWNER / "workspace" / "ledger"
        inside = "/workspace/ledger" if stack.isolation == "bwrap" else str(path)
        outside = "/dev/null" if stack.isolation == "bwrap" else str(path)
        ways = await asyncio.gather(
            directly(stack, terms, outside),
            served(stack, terms, inside, behind, jobs=False),
            served(stack, terms, inside, behind, jobs=True),
        )
        for mark in path.read_text().split():
            for way in ways:
                if mark.startswith(way.name.split()[0] + "-"):
                    way.ran[mark] += 1
        return list(ways)


def show(ways: list[Way], terms: Terms) -> None:
    """The table."""
    title = (
        f"{terms.commands} commands of {terms.seconds:g} s, {terms.callers} callers at a time, "
        f"{terms.share:.0%} of connections fall silent"
    )
    table = Table(
        "way", "right, in full", "wrong", "honest error", "hung", "ran twice", "median", "slowest", title=title
    )
    for way in ways:
        times = sorted(way.seconds) or [0.0]
        counts = [str(way.outcomes[each]) for each in (RIGHT, WRONG, ERROR, HUNG)]
        twice = str(sum(count > 1 for count in way.ran.values())) if way.ran else "-"
        table.add_row(way.name, *counts, twice, f"{times[len(times) // 2]:.1f} s", f"{times[-1]:.1f} s")
    Console(width=130).print(table)
    for way in ways:
        print(f"{way.name}: {way.lost} of {way.seen} connections of callers lost")
        for text, count in Counter(way.said).most_common(5):
            print(f"  {count} x {text}")


def record(ways: list[Way], terms: Terms) -> None:
    """Into the figures that the docs show."""
    rows = [
        {
            "way": way.name,
            **{name.replace(" ", "_"): way.outcomes[name] for name in (RIGHT, WRONG, ERROR, HUNG)},
            "ran_twice": sum(count > 1 for count in way.ran.values()) if way.ran else "-",
            "median_seconds": round(sorted(way.seconds)[len(way.seconds) // 2], 1) if way.seconds else None,
            "slowest_seconds": round(max(way.seconds), 1) if way.seconds else None,
            "connections_lost": way.lost,
            "connections": way.seen,
        }
        for way in ways
    ]
    facts = {"commands": terms.commands, "seconds": terms.seconds, "callers": terms.callers, "share": terms.share}
    results.record("drop", {**facts, "machine": machine(), "ways": rows})


def main() -> int:
    end_in_order()
    terms = Terms()
    print(f"This takes up to {terms.patience + terms.seconds:.0f} s.", flush=True)
    with tempfile.TemporaryDirectory(prefix="oncebox-drop-", ignore_cleanup_errors=True) as folder:
        ways = asyncio.run(run(terms, Path(folder)))
    show(ways, terms)
    record(ways, terms)
    return 0 if ways[2].outcomes[RIGHT] == terms.commands and max(ways[2].ran.values()) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
