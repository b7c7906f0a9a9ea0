"""Replicas, Redis and the engine as real processes, and what stands between them.

Example:
    await rig.start(replicas=2)
    first, second = rig.replicas
    first.points.hold("after_claim")
    ...  # submit to first.url
    await first.points.reached("after_claim")
    first.kill()

The commands themselves write down that they ran (`Rig.command`), into a file of the host that the sandboxes mount:
the ledger. What it says is what was executed, whatever the service believes.
"""

import asyncio
import json
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from service.store import keys
from tests.faults.caller import Caller
from tests.faults.inputs import expecting, remember
from tests.support.ports import LOOPBACK, free_port
from tests.support.processes import ManagedProcess, Spawner
from tests.support.redis_server import Option, RedisServer
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import PATIENCE, eventually

LONG_LEASE = 60.0
"""Seconds of a claim's lease: longer than a living replica stands still on any machine."""

LEASE = 1.0
"""The shortest that there is: for tests in which one runs out, so that they need not wait for long."""

CLAIM_WAIT = 2.0
"""Seconds that a request waits for somebody else's work."""

OWNER = "ledger"
"""The workspace owner of all sandboxes: they share one `/workspace`, and with it the ledger."""

ENGINE_KEY = "engine-key-of-the-tests"
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class PausePoints:
    """Named points at which one replica can be held (`service.core.claims.failpoints`)."""

    folder: Path

    def hold(self, point: str) -> None:
        """Whoever reaches the point waits there from now on."""
        self.folder.joinpath(point).touch()

    def release(self, point: str) -> None:
        """Lets go on whoever waits at the point: within milliseconds, so don't hold it again at once."""
        self.folder.joinpath(point).unlink(missing_ok=True)

    def count(self, point: str) -> int:
        """How many have reached the point while it was held."""
        return sum(path.stat().st_size for path in self.folder.glob(f"{point}.*.hit"))

    async def reached(self, point: str, *, times: int = 1, timeout: float = PATIENCE) -> None:
        """Waits until so many wait at the point."""
        await eventually(lambda: self.count(point) >= times, timeout=timeout)

    def forget(self) -> None:
        """As if nobody had ever reached any point, and none held."""
        for path in self.folder.iterdir():
            path.unlink()


class Replica:
    """One `oncebox serve`, on a port that stays the same over its restarts."""

    def __init__(self, name: str, spawn: Spawner, folder: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.port = free_port()
        self.url = f"http://{LOOPBACK}:{self.port}"
        folder.mkdir()
        self.points = PausePoints(folder)
        self.env = {**env, "ONCEBOX_TEST_PAUSE_POINTS": str(folder)}
        self._spawn = spawn
        self._process: ManagedProcess | None = None

    @property
    def process(self) -> ManagedProcess:
        assert self._process is not None, "not started"
        return self._process

    def launch(self) -> None:
        """Starts the process; `ready` waits for it."""
        argv: list[str | Path] = [BIN / "oncebox", "serve", "--bind", f"{LOOPBACK}:{self.port}"]
        self._process = self._spawn(argv, name=self.name, env=self.env)

    async def ready(self) -> None:
        """Waits until it says that it is ready."""
        await asyncio.to_thread(self.process.wait_for_url, f"{self.url}/readyz")

    async def start(self) -> None:
        """Starts it (again), and waits until it is ready."""
        self.launch()
        await self.ready()

    def kill(self) -> None:
        """Ends it with SIGKILL."""
        self.process.kill()

    def freeze(self) -> None:
        """SIGSTOP: it does nothing more, and its connections stay open."""
        self.process.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.process.send(signal.SIGCONT)

    def signal_to_stop(self) -> None:
        """SIGTERM."""
        self.process.send(signal.SIGTERM)


class EngineProcess:
    """The local engine, apart, with its controls for tests."""

    def __init__(self, spawn: Spawner, folder: Path, options: Sequence[str] = ()) -> None:
        self.volume_root = folder / "volumes"
        self.volume_root.mkdir(parents=True)
        argv = [sys.executable, "-m", "service.local_engine", "--bind", f"{LOOPBACK}:0", "--dev-controls"]
        argv += ["--volume-root", str(self.volume_root), *options]
        self.process = spawn(argv, name="engine", env={"OPEN_SANDBOX_API_KEY": ENGINE_KEY})
        said = json.loads(self.process.wait_for_line(r"^\{.*\}$")[0])
        self.url: str = said["url"]
        self.isolation: str = said["isolation"]
        self.port = int(self.url.rpartition(":")[2])

    @property
    def private(self) -> bool:
        """Sandboxes have a file system and a pid name space of their own."""
        return self.isolation == "bwrap"


class Rig:
    """Everything that a fault test runs on. `start` it first; it ends with its block."""

    def __init__(self, spawn: Spawner, folder: Path) -> None:
        self.replicas: list[Replica] = []
        self.caller = Caller()
        self.holds_inputs = True
        """What a command is to read is put beside the fences, which some tests take away."""
        self.lease = LONG_LEASE
        self.claim_wait = CLAIM_WAIT
        self._spawn = spawn
        self._folder = folder
        self._engine: EngineProcess | None = None
        self._redis: RedisServer | None = None
        self._engine_net: TcpProxy | None = None
        self._redis_net: TcpProxy | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.caller.__aexit__(kind, error, trace)
        for replica in self.replicas:
            replica.kill()
        for network in (self._engine_net, self._redis_net):
            if network is not None:
                await network.__aexit__(kind, error, trace)
        if self._redis is not None:
            self._redis.kill()

    @property
    def engine(self) -> EngineProcess:
        assert self._engine is not None, "not started"
        return self._engine

    @property
    def redis(self) -> RedisServer:
        assert self._redis is not None, "not started"
        return self._redis

    @property
    def engine_net(self) -> TcpProxy:
        """Between the replicas and the engine, its daemons included; only with `start(networks=True)`."""
        assert self._engine_net is not None, "started without networks"
        return self._engine_net

    @property
    def redis_net(self) -> TcpProxy:
        """Between the replicas and Redis; only with `start(networks=True)`."""
        assert self._redis_net is not None, "started without networks"
        return self._redis_net

    @property
    def urls(self) -> list[str]:
        return [replica.url for replica in self.replicas]

    async def start(
        self,
        *,
        replicas: int = 2,
        networks: bool = False,
        redis: Mapping[str, Option] | None = None,
        env: Mapping[str, str] | None = None,
        engine: Sequence[str] = (),
    ) -> None:
        """Starts all of it, and waits until every replica is ready.

        `env`: further settings of the replicas. `engine`: further options of the engine.
        """
        self._redis = RedisServer(self._folder / "redis", **(redis or {}))
        self._redis.start()
        self._engine = await asyncio.to_thread(EngineProcess, self._spawn, self._folder / "engine", engine)
        if networks:
            self._engine_net = await TcpProxy(LOOPBACK, self._engine.port).__aenter__()
            self._redis_net = await TcpProxy(LOOPBACK, self._redis.port).__aenter__()
        for number in range(replicas):
            self.add_replica(f"replica{number}", env)
        for replica in self.replicas:
            replica.launch()
        await asyncio.gather(*(replica.ready() for replica in self.replicas))

    def add_replica(self, name: str, env: Mapping[str, str] | None = None) -> Replica:
        """One more replica, not yet started."""
        redis_port = self._redis_net.port if self._redis_net else self.redis.port
        settings = {
            "ONCEBOX_REDIS_URL": f"redis://{LOOPBACK}:{redis_port}/0",
            **self.engine_settings(),
            "ONCEBOX_LEASE": str(self.lease),
            "ONCEBOX_CLAIM_WAIT": str(self.claim_wait),
            "ONCEBOX_SHUTDOWN_DELAY": "0",
            **(env or {}),
        }
        replica = Replica(name, self._spawn, self._folder / f"{name}-points", settings)
        self.replicas.append(replica)
        return replica

    def engine_settings(self) -> dict[str, str]:
        """Where a replica finds the engine."""
        return {
            "ONCEBOX_ENGINE_URL": self._engine_net.url if self._engine_net else self.engine.url,
            "ONCEBOX_ENGINE_API_KEY": ENGINE_KEY,
            # Through the proxy everything passes our network; without one, the daemons are reached directly.
            "ONCEBOX_ENGINE_PROXY": "always" if self._engine_net else "auto",
            "ONCEBOX_VOLUME": f"host:{self.engine.volume_root}",
        }

    # -- sandboxes and commands

    async def sandbox(self, replica: Replica | None = None) -> str:
        """A new sandbox that is ready; its `/workspace` holds the ledger."""
        url = (replica or self.replicas[0]).url
        answer = await self.caller.create(url, key=None, workspace_owner=OWNER)
        assert answer.status == 201, answer
        assert answer.body["ready"], answer
        return str(answer.body["sandbox_id"])

    @property
    def directory(self) -> Path:
        """The directory of the host that all sandboxes share."""
        return self.engine.volume_root / OWNER / "workspace"

    @property
    def _ledger(self) -> Path:
        return self.directory / "ledger"

    @property
    def place(self) -> str:
        """Where a command finds that directory."""
        return "/workspace" if self.engine.private else str(self.directory)

    def command(self, mark: str, *, exit_code: int = 7, then: str = "") -> str:
        """A command that notes its mark in the ledger, runs `then`, prints `out-<mark>` where it was given what goes
        with its mark to read (`tests.faults.inputs`), and exits with the code.
        """
        read, given = expecting(mark) if self.holds_inputs else ("true", None)
        ledger = shlex.quote(f"{self.place}/ledger")
        return remember(f"echo {mark} >> {ledger}; {then or ':'}; {read} && echo out-{mark}; exit {exit_code}", given)

    def runs(self) -> Counter[str]:
        """What was executed: how often each mark was written."""
        return Counter(self._ledger.read_text().split()) if self._ledger.exists() else Counter()

    def stored(self, id: str) -> bytes:
        """A claim as it stands in Redis."""
        with self.redis.client() as client:
            client.connection_pool.connection_kwargs["decode_responses"] = False
            raw: Any = client.get(keys.claim(id))
        return bytes(raw)

    def attempt(self, id: str) -> int:
        """The attempt of a claim: its header is `1 state epoch attempt ...`."""
        return int(self.stored(id).split(b" ", 4)[3])

    async def submissions(self, replica: Replica, sandbox_id: str) -> int:
        """How many jobs the daemon of a private sandbox was told to start: each leaves an output file."""
        counting = {"sandbox_id": sandbox_id, "command": "ls /tmp | grep -c '[.]output$'"}
        answer = await self.caller.send("POST", f"{replica.url}/v1/exec", json=counting)
        assert answer.status == 200, answer
        return int(answer.body["stdout"])

    # -- the engine's controls

    async def delete_at_engine(self, sandbox_id: str) -> None:
        """Somebody else deletes a sandbox: the service does not know."""
        url = f"{self.engine.url}/v1/sandboxes/{sandbox_id}"
        answer = await self.caller.send("DELETE", url, headers={"OPEN-SANDBOX-API-KEY": ENGINE_KEY})
        assert answer.status == 204, answer

    async def order_fault(self, **fields: Any) -> None:
        """Orders a fault at the engine (`service.local_engine.dev_controls`)."""
        answer = await self.caller.send("POST", f"{self.engine.url}/_dev/faults", json=fields)
        assert answer.status == 200, answer

    async def forget_faults(self) -> None:
        await self.caller.send("DELETE", f"{self.engine.url}/_dev/faults")

    async def execd(self, sandbox_id: str, action: str) -> None:
        """`kill`, `start` or `restart` the daemon of a sandbox."""
        answer = await self.caller.send(
            "POST", f"{self.engine.url}/_dev/sandboxes/{sandbox_id}/execd", json={"action": action}
        )
        assert answer.status == 204, answer

    async def restart_container(self, sandbox_id: str, *, filesystem: str) -> None:
        """Ends all processes of a sandbox and starts it anew, on its files (`kept`) or without them (`new`)."""
        answer = await self.caller.send(
            "POST",
            f"{self.engine.url}/_dev/sandboxes/{sandbox_id}/container",
            json={"action": "restart", "filesystem": filesystem},
        )
        assert answer.status == 204, answer

    async def pod(self, sandbox_id: str, action: str, **more: Any) -> None:
        """What happens to a sandbox's pod, on an engine that is `--like kubernetes`."""
        answer = await self.caller.send(
            "POST", f"{self.engine.url}/_dev/sandboxes/{sandbox_id}/pod", json={"action": action, **more}
        )
        assert answer.status == 204, answer

    async def state_at_engine(self, sandbox_id: str) -> str:
        """The state that the engine tells of a sandbox."""
        url = f"{self.engine.url}/v1/sandboxes/{sandbox_id}"
        answer = await self.caller.send("GET", url, headers={"OPEN-SANDBOX-API-KEY": ENGINE_KEY})
        return str(answer.body["status"]["state"])

    async def engine_counts(self) -> dict[str, int]:
        """What the engine was asked to do."""
        return (await self.caller.send("GET", f"{self.engine.url}/_dev/stats")).body
