"""Real Redis servers: alone, behind a Sentinel, and as a Cluster; each on a port of its own."""

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.ports import LOOPBACK, free_port
from tests.support.processes import POLL_INTERVAL, ManagedProcess
from tests.support.waiting import PATIENCE

OLDEST_VERSION = 7

START_TIMEOUT = PATIENCE
"""Seconds that a server has to answer its first PING."""

SERVICE_NAME = "oncebox"
"""The name under which the Sentinel knows its master."""

CLUSTER_SLOTS = 16_384

Option: TypeAlias = str | int | bool
"""A value in Redis's configuration; True is written as `yes`."""


@functools.cache
def redis_executable() -> Path | None:
    """The server that the tests start: `ONCEBOX_TEST_REDIS_SERVER`, else what PATH has, else None."""
    named = os.environ.get("ONCEBOX_TEST_REDIS_SERVER")
    for candidate in (named, shutil.which("redis-server"), shutil.which("valkey-server")):
        if candidate and (_major_version(candidate) or 0) >= OLDEST_VERSION:
            # Not resolved: the program plays another role under the name that a link may point to.
            return Path(candidate).absolute()
    return None


def _major_version(executable: str) -> int | None:
    try:
        shown = subprocess.run([executable, "--version"], capture_output=True, text=True, timeout=PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"\bv=(\d+)\.", shown.stdout)
    return int(found[1]) if found else None


class RedisServer:
    """One redis-server process on loopback.

    Nothing is saved to disk unless the options say so (`appendonly=True`). All blocking calls take
    milliseconds, or fail after `START_TIMEOUT`.

    Args:
        folder: for its data, configuration and log; made if it is missing.
        options: Redis's own, with `_` for `-`: `appendonly=True, appendfsync="always", maxmemory="10mb",
            maxmemory_policy="noeviction", requirepass="secret", replicaof="127.0.0.1 6379"`.
    """

    host = LOOPBACK
    _flags: tuple[str, ...] = ()

    def __init__(self, folder: Path, **options: Option) -> None:
        self.folder = folder
        self.port = free_port()
        self.password = str(options["requirepass"]) if "requirepass" in options else None
        self._options = options
        self._process: ManagedProcess | None = None
        self._paused = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def url(self) -> str:
        """`redis://...` of database 0, with the password where there is one."""
        credentials = f":{self.password}@" if self.password else ""
        return f"redis://{credentials}{self.host}:{self.port}/0"

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def process(self) -> ManagedProcess:
        """The process that was started last."""
        assert self._process is not None, "not started"
        return self._process

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    @contextlib.contextmanager
    def client(self, *, timeout: float = PATIENCE) -> Iterator[redis.Redis]:
        """A blocking client of redis-py that sends nothing twice and waits `timeout` seconds for answers."""
        client = redis.Redis(
            host=self.host,
            port=self.port,
            password=self.password,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
        )
        try:
            yield client
        finally:
            client.close()

    def start(self) -> None:
        """Starts the process on the data that its folder has, and waits until it answers."""
        assert not self.alive, "already started"
        executable = redis_executable()
        assert executable is not None, "no Redis server was found"
        self.folder.mkdir(parents=True, exist_ok=True)
        configuration = self.folder / "redis.conf"
        configuration.write_text("\n".join(self._configuration()) + "\n")
        argv: list[str | Path] = [executable, configuration, *self._flags]
        self._process = ManagedProcess(argv, folder=self.folder, name="redis")
        self._paused = False
        wait_until(self._answers, "its first answer", self._process)

    def stop(self) -> None:
        """Ends the process as an operator does, with SIGTERM: what its options save is saved."""
        if self.alive:
            self.resume()
            self.process.terminate()

    def kill(self) -> None:
        """Ends the process with SIGKILL: what is on disk stays, all else is lost."""
        if self._process is not None:
            self._process.kill()

    def restart(self) -> None:
        """Stops the process if it runs, and starts it anew on the same port and the same data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freezes the process (SIGSTOP): connections stay open, nothing is answered."""
        self.process.send(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """Lets a frozen process go on. Harmless on one that is not frozen."""
        if self._paused:
            self.process.send(signal.SIGCONT)
            self._paused = False

    def reset(self) -> None:
        """Makes it as good as new: running, and without data."""
        self.resume()
        if not self.alive:
            self.start()
        with self.client() as client:
            client.flushall()

    def _configuration(self) -> Iterator[str]:
        yield from (f"bind {self.host}", f"port {self.port}", f"dir {self.folder}")
        for name, value in {"save": "", **self._options}.items():
            written = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
            directive = name.replace("_", "-")
            yield f"{directive} {written}" if written else f'{directive} ""'

    def _answers(self) -> bool:
        with self.client(timeout=5.0) as client:
            try:
                return bool(client.ping())
            except (redis.ConnectionError, redis.TimeoutError):
                return False


class SentinelProcess(RedisServer):
    """A Sentinel that watches one master, the quorum being one. Started anew, it has forgotten everything."""

    _flags = ("--sentinel",)

    def __init__(self, folder: Path, master: RedisServer) -> None:
        super().__init__(folder)
        self._master = master

    def reset(self) -> None:
        self.resume()
        if not self.alive:
            self.start()

    def _configuration(self) -> Iterator[str]:
        yield from (f"bind {self.host}", f"port {self.port}", f"dir {self.folder}")
        yield f"sentinel monitor {SERVICE_NAME} {self._master.host} {self._master.port} 1"
        yield f"sentinel down-after-milliseconds {SERVICE_NAME} 5000"


class RedisSentinel:
    """A master and the Sentinel that watches it."""

    def __init__(self, folder: Path) -> None:
        self.master = RedisServer(folder / "master")
        self.sentinel = SentinelProcess(folder / "sentinel", self.master)

    def __enter__(self) -> Self:
        self.master.start()
        self.sentinel.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sentinel.kill()
        self.master.kill()

    @property
    def url(self) -> str:
        return f"redis+sentinel://{self.sentinel.address}/{SERVICE_NAME}/0"

    def reset(self) -> None:
        """Makes it as good as new: both running, and no data."""
        self.master.reset()
        self.sentinel.reset()


class RedisCluster:
    """A Cluster of masters without replicas that share the slots evenly."""

    def __init__(self, folder: Path, *, masters: int = 3, **options: Option) -> None:
        self.nodes = [
            RedisServer(
                folder / f"node{number}",
                cluster_enabled=True,
                cluster_port=free_port(),
                cluster_node_timeout=30_000,
                **options,
            )
            for number in range(masters)
        ]

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                node.start()
            self._assign_slots()
            self._meet()
            for node in self.nodes:
                wait_until(functools.partial(self._complete, node), "a complete cluster", node.process)
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(node.address for node in self.nodes)}"

    def reset(self) -> None:
        """Makes it as good as new: all running, and no data."""
        for node in self.nodes:
            node.reset()
        for node in self.nodes:
            wait_until(functools.partial(self._complete, node), "a complete cluster", node.process)

    def _assign_slots(self) -> None:
        count = len(self.nodes)
        for number, node in enumerate(self.nodes):
            first, last = CLUSTER_SLOTS * number // count, CLUSTER_SLOTS * (number + 1) // count - 1
            with node.client() as client:
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
                client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)

    def _meet(self) -> None:
        first, *others = self.nodes
        with first.client() as client:
            for node in others:
                bus = node._options["cluster_port"]
                client.execute_command("CLUSTER MEET", node.host, node.port, bus)

    def _complete(self, node: RedisServer) -> bool:
        with node.client() as client:
            information = client.execute_command("CLUSTER INFO")
        return (
            information["cluster_state"] == "ok"
            and int(information["cluster_known_nodes"]) == len(self.nodes)
            and int(information["cluster_slots_ok"]) == CLUSTER_SLOTS
        )

    def _kill(self) -> None:
        for node in self.nodes:
            node.kill()


def wait_until(
    condition: Callable[[], bool], what: str, process: ManagedProcess, *, timeout: float = START_TIMEOUT
) -> None:
    """Asks again and again until the condition holds; fails when the process ends or the time is over."""
    deadline = time.monotonic() + timeout
    while not condition():
        if not process.alive or time.monotonic() > deadline:
            raise AssertionError(f"no sign of {what}: {process.report()}")
        time.sleep(POLL_INTERVAL)
