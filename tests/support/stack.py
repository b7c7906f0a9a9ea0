"""The whole topology as plain processes on loopback: Redis (AOF), three replicas, a load balancer, the local engine.

`python -m tests.support.stack` (`make stack`) runs it until Ctrl-C and starts again what dies. In tests:

    async with Stack(folder) as stack:
        ...  # talk to stack.url; stack.replicas[0].kill(); await stack.replicas[1].roll()
"""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.support import balancer
from tests.support.ports import LOOPBACK, free_port
from tests.support.processes import ManagedProcess
from tests.support.redis_server import RedisServer
from tests.support.waiting import PATIENCE

REPLICAS = 3
SUPERVISION_SECONDS = 0.5
RESTARTS = 20
"""How often a process that ends by itself is started again; then the stack ends."""

BIN = Path(sys.executable).parent


class Service:
    """One process of the stack, on an address that stays the same over its restarts."""

    def __init__(
        self, name: str, argv: Sequence[str | Path], *, folder: Path, env: Mapping[str, str], ready: str | None
    ) -> None:
        self.name = name
        self._argv = argv
        self._folder = folder
        # Settings of whoever starts the stack are not the stack's.
        strangers = {key: None for key in os.environ if key.startswith("ONCEBOX_") and "_TEST_" not in key}
        self._env: dict[str, str | None] = {**strangers, "PYTHONPATH": str(balancer.ROOT), **env}
        self._ready = ready
        self._process: ManagedProcess | None = None

    @property
    def process(self) -> ManagedProcess:
        assert self._process is not None, "not started"
        return self._process

    def launch(self) -> None:
        """Starts the process; `ready` waits for it."""
        self._process = ManagedProcess(self._argv, folder=self._folder, name=self.name, env=self._env)

    async def ready(self) -> None:
        """Waits until it serves."""
        if self._ready is not None:
            await asyncio.to_thread(self.process.wait_for_url, self._ready)

    async def start(self) -> None:
        """Starts it (again), and waits until it serves."""
        self.launch()
        await self.ready()

    def kill(self) -> None:
        """Ends it with SIGKILL."""
        self.process.kill()

    async def roll(self, *, timeout: float = PATIENCE) -> int:
        """Ends it in good order and starts it again: its exit code."""
        code = await asyncio.to_thread(self.process.terminate, timeout=timeout)
        await self.start()
        return code

    def memory(self) -> int:
        """Resident bytes of the process alone; 0 where it does not run."""
        with contextlib.suppress(psutil.Error):
            return int(psutil.Process(self.process.pid).memory_info().rss)
        return 0

    def cpu_seconds(self) -> float:
        """Seconds of processor time of the process alone, since its start."""
        with contextlib.suppress(psutil.Error):
            used = psutil.Process(self.process.pid).cpu_times()
            return float(used.user + used.system)
        return 0.0


class Stack:
    """Everything; ends with its block. `settings`: further ones of the replicas, by variable.

    `port`: where callers connect; 0: any free one. `engine_options`: further words of the engine's command line.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int = 0,
        settings: Mapping[str, str] | None = None,
        engine_options: Sequence[str] = ("--dev-controls",),
    ) -> None:
        self.folder = folder
        self.engine_key = secrets.token_urlsafe(24)
        # Not every balancer says that it is one: without a token callers would come from loopback, as scrapes do.
        self.metrics_token = secrets.token_urlsafe(24)
        self.port = port or free_port()
        self.url = f"http://{LOOPBACK}:{self.port}"
        self.redis = RedisServer(
            folder / "redis", appendonly=True, appendfsync="everysec", maxmemory="1gb", maxmemory_policy="noeviction"
        )
        self.volume_root = folder / "volumes"
        self._processes = folder / "processes"
        self.engine = self._engine(engine_options)
        self._ports = [free_port() for _ in range(REPLICAS)]
        self.replicas = [
            self._replica(f"replica{number}", port, settings or {}) for number, port in enumerate(self._ports, start=1)
        ]
        argv, env, self.balancer_kind = balancer.command(
            f"{LOOPBACK}:{self.port}", [f"{LOOPBACK}:{port}" for port in self._ports]
        )
        self.balancer = self._service("balancer", argv, env, f"{self.url}/readyz")
        self.isolation = "?"

    @property
    def services(self) -> list[Service]:
        """All but Redis, in the order of their start."""
        return [self.engine, *self.replicas, self.balancer]

    def replica_url(self, number: int) -> str:
        """Where one replica, counted from 0, is reached without the balancer."""
        return f"http://{LOOPBACK}:{self._ports[number]}"

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    async def start(self) -> None:
        """Starts all of it, and waits until a request through the balancer is answered by a ready replica."""
        self._processes.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(self.redis.start)
        self.engine.launch()
        said = await asyncio.to_thread(self.engine.process.wait_for_line, r"^\{.*\}$", timeout=60)
        self.isolation = json.loads(said[0])["isolation"]
        for replica in self.replicas:
            replica.launch()
        for replica in self.replicas:
            await replica.ready()
        await self.balancer.start()

    def stop(self) -> None:
        """Ends everything: what callers talk to first; the engine in good order, with its sandboxes."""
        for service in (self.balancer, *self.replicas):
            with contextlib.suppress(AssertionError):
                service.kill()
        with contextlib.suppress(AssertionError):
            self.engine.process.terminate(timeout=20)
        self.redis.kill()

    def memory(self) -> dict[str, int]:
        """Resident bytes by name of process."""
        sizes = {service.name: service.memory() for service in self.services}
        with contextlib.suppress(AssertionError, psutil.Error):
            sizes["redis"] = int(psutil.Process(self.redis.process.pid).memory_info().rss)
        return sizes

    def _service(self, name: str, argv: Sequence[str | Path], env: Mapping[str, str], ready: str | None) -> Service:
        return Service(name, argv, folder=self._processes, env=env, ready=ready)

    def _engine(self, options: Sequence[str]) -> Service:
        self.engine_url = f"http://{LOOPBACK}:{free_port()}"
        argv: list[str | Path] = [BIN / "oncebox", "engine", "--bind", self.engine_url.removeprefix("http://")]
        places = ["--root", str(self.folder / "engine"), "--volume-root", str(self.volume_root)]
        return self._service("engine", [*argv, *places, *options], {"OPEN_SANDBOX_API_KEY": self.engine_key}, None)

    def further(self, name: str, port: int, *words: str, settings: Mapping[str, str] | None = None) -> Service:
        """One more `oncebox serve` on the same Redis and engine, not behind the balancer; not yet started."""
        return self._replica(name, port, settings or {}, *words)

    def _replica(self, name: str, port: int, settings: Mapping[str, str], *words: str) -> Service:
        env = {
            "ONCEBOX_BIND": f"{LOOPBACK}:{port}",
            "ONCEBOX_REDIS_URL": self.redis.url,
            "ONCEBOX_ENGINE_URL": self.engine_url,
            "ONCEBOX_ENGINE_API_KEY": self.engine_key,
            "ONCEBOX_VOLUME": f"host:{self.volume_root}",
            "ONCEBOX_METRICS_TOKEN": self.metrics_token,
            **settings,
        }
        return self._service(name, [BIN / "oncebox", "serve", *words], env, f"http://{LOOPBACK}:{port}/readyz")


# -- by hand


async def supervise(stack: Stack) -> None:
    """Start again what ends by itself; returns when that happens too often."""
    left = RESTARTS
    while left:
        await asyncio.sleep(SUPERVISION_SECONDS)
        if not stack.redis.alive:
            print(f"redis ended ({stack.redis.process.exit_code}): starting it again", flush=True)
            await asyncio.to_thread(stack.redis.start)
            left -= 1
        for service in stack.services:
            if not service.process.alive:
                print(f"{service.name} ended ({service.process.exit_code}): starting it again", flush=True)
                await service.start()
                left -= 1
    print("Something does not stay up: giving up.", flush=True)


def lines(stack: Stack) -> Iterator[str]:
    """What there is, and what to try."""
    yield f"Oncebox at {stack.url}  (balancer: {stack.balancer_kind}, idle connections dropped after 12 s)"
    for number, replica in enumerate(stack.replicas):
        yield f"  {replica.name:9} {stack.replica_url(number)}  pid {replica.process.pid}"
    yield f"  {'engine':9} {stack.engine_url}  pid {stack.engine.process.pid}  isolation: {stack.isolation}"
    yield f"  {'redis':9} {stack.redis.url}  pid {stack.redis.process.pid}  AOF"
    yield f"  metrics   of each replica at /metrics, for the bearer {stack.metrics_token}"
    yield f"  logs      {stack.folder / 'processes'}"
    yield ""
    yield "Try, in another terminal:"
    yield f"  export ONCEBOX_URL={stack.url}"
    yield f"  {_shown(BIN / 'oncebox')} run -- sh -c 'for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 2; done; exit 3'"
    yield f"  kill -9 {stack.replicas[0].process.pid}    # meanwhile: a replica dies, the command and its output do not"
    yield f"  {_shown(BIN / 'oncebox')} ps"
    yield "Ctrl-C ends all of it."


def _shown(path: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


async def run(folder: Path, port: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    starting = asyncio.create_task(_run(folder, port))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if stop.is_set():
        print("\nEnding all of it.", flush=True)
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await starting


async def _run(folder: Path, port: int) -> None:
    async with Stack(folder, port=port) as stack:
        print("\n".join(lines(stack)), flush=True)
        await supervise(stack)


def main() -> None:
    """`PORT` in the environment: where callers connect (default 8700)."""
    port = int(os.environ.get("PORT", "8700"))
    with tempfile.TemporaryDirectory(prefix="oncebox-stack-") as folder:
        asyncio.run(run(Path(folder), port))


if __name__ == "__main__":
    main()
