"""Replicas and Redis on a real OpenSandbox, as the environment names it.

| variable | |
| --- | --- |
| ONCEBOX_TEST_ENGINE_URL | the lifecycle server |
| ONCEBOX_TEST_ENGINE_API_KEY | its key |
| ONCEBOX_TEST_IMAGE | an image with a `sh` that the engine has or can pull (default `python:3.12`) |
| ONCEBOX_TEST_VOLUME | `host:/path` below one of its `allowed_host_paths`, or `pvc:NAME`: for tests of workspaces |
| ONCEBOX_TEST_DOCKER | its Docker daemon, as in `DOCKER_HOST`: for tests that restart containers |
"""

import asyncio
import os
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.faults.caller import Answer
from tests.faults.rig import Rig
from tests.support.processes import Spawner
from tests.support.redis_server import RedisServer
from tests.support.tcp_proxy import TcpProxy

PORT = 44772
PATIENT = {"ONCEBOX_LEASE": "15", "ONCEBOX_CLAIM_WAIT": "20"}
"""The defaults: making a container takes seconds."""
EXECD_PID = 'for p in /proc/[0-9]*; do read -r n <"$p/comm"; [ "$n" = execd ] && echo "${p#/proc/}"; done'
"""Prints the pid of the sandbox's daemon."""


@dataclass(frozen=True)
class RealEngine:
    """The engine that the environment names."""

    url: str
    api_key: str
    image: str
    volume: str | None
    docker: str | None

    @classmethod
    def named(cls) -> Self | None:
        """None: it names none."""
        url = os.environ.get("ONCEBOX_TEST_ENGINE_URL")
        if not url:
            return None
        return cls(
            url=url.rstrip("/"),
            api_key=os.environ.get("ONCEBOX_TEST_ENGINE_API_KEY", ""),
            image=os.environ.get("ONCEBOX_TEST_IMAGE", "python:3.12"),
            volume=os.environ.get("ONCEBOX_TEST_VOLUME"),
            docker=os.environ.get("ONCEBOX_TEST_DOCKER"),
        )


class RealRig(Rig):
    """Replicas and Redis as in `Rig`. The ledger lies in a sandbox's own file system, and is read by `ran`."""

    def __init__(self, spawn: Spawner, folder: Path, real: RealEngine) -> None:
        super().__init__(spawn, folder)
        self.real = real
        self._mode = "auto"
        self._made: list[str] = []

    async def start_on(
        self, *, mode: str = "auto", network: bool = False, replicas: int = 2, env: Mapping[str, str] | None = None
    ) -> None:
        """`mode`: how execd is reached. `network`: ours between the replicas and the lifecycle server."""
        self._mode = mode
        self._redis = RedisServer(self._folder / "redis")
        self._redis.start()
        if network:
            parts = urllib.parse.urlsplit(self.real.url)
            self._engine_net = await TcpProxy(str(parts.hostname), parts.port or 80).__aenter__()
        for number in range(replicas):
            self.add_replica(f"replica{number}", {**PATIENT, **(env or {})})
        for replica in self.replicas:
            replica.launch()
        await asyncio.gather(*(replica.ready() for replica in self.replicas))

    def engine_settings(self) -> dict[str, str]:
        settings = {
            "ONCEBOX_ENGINE_URL": self._engine_net.url if self._engine_net else self.real.url,
            "ONCEBOX_ENGINE_API_KEY": self.real.api_key,
            "ONCEBOX_ENGINE_PROXY": self._mode,
            "ONCEBOX_IMAGE": self.real.image,
        }
        return {**settings, "ONCEBOX_VOLUME": self.real.volume} if self.real.volume else settings

    async def clear(self) -> None:
        """Deletes every sandbox that was made, at the engine."""
        await asyncio.gather(*(self.at_engine("DELETE", f"/v1/sandboxes/{each}") for each in self._made))

    async def at_engine(self, method: str, path: str, body: Any = None) -> Answer:
        """One request to the engine itself."""
        headers = {"OPEN-SANDBOX-API-KEY": self.real.api_key}
        return await self.caller.send(method, self.real.url + path, json=body, headers=headers)

    # -- sandboxes

    async def create(
        self, *, key: str | None = None, replica: int = 0, api_key: str | None = None, **fields: Any
    ) -> Answer:
        """One create; small, short-lived, and remembered for the end of the test."""
        fields = {"resources": {"cpu": "1", "memory": "1Gi"}, "timeout": 900, **fields}
        url = f"{self.urls[replica]}/v1/sandboxes"
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        answer = await self.caller.send("POST", url, json=fields, key=key, headers=headers)
        if answer.status == 201:
            self._made.append(answer.body["sandbox_id"])
        return answer

    async def ready_sandbox(self, **fields: Any) -> str:
        """A new sandbox that runs commands."""
        answer = await self.create(**fields)
        assert answer.status == 201, answer
        assert answer.body["ready"], answer
        return str(answer.body["sandbox_id"])

    async def short(self, sandbox_id: str, command: str, *, replica: int = 0, **fields: Any) -> Mapping[str, Any]:
        """The result of a sync exec."""
        body = {"sandbox_id": sandbox_id, "command": command, **fields}
        answer = await self.caller.send("POST", f"{self.urls[replica]}/v1/exec", json=body)
        assert answer.status == 200, answer
        return answer.body

    # -- commands

    @property
    def place(self) -> str:
        return "/root"

    async def ran(self, sandbox_id: str) -> list[str]:
        """The marks that the commands of a sandbox wrote down, in order (`command`)."""
        return str((await self.short(sandbox_id, f"cat {self.place}/ledger || :"))["stdout"]).split()

    async def execd_pid(self, sandbox_id: str) -> int:
        return int((await self.short(sandbox_id, EXECD_PID))["stdout"])

    async def execd_peak(self, sandbox_id: str) -> int:
        """The most memory that the daemon has ever had, in bytes."""
        text = str((await self.short(sandbox_id, f"grep VmHWM /proc/$({EXECD_PID})/status"))["stdout"])
        return int(text.split()[1]) * 1024

    async def kill_execd(self, sandbox_id: str, *, back_after: float | None) -> None:
        """SIGKILL in half a second; with `back_after` it is started again so many seconds later."""
        pid = await self.execd_pid(sandbox_id)
        again = "" if back_after is None else f"sleep {back_after}; exec $exe"
        plan = f"exe=$(readlink /proc/{pid}/exe); sleep 0.5; kill -9 {pid}; {again}"
        await self.short(sandbox_id, f"setsid sh -c '{plan}' >/dev/null 2>&1 & sleep 0.2")

    async def restart_container(self, sandbox_id: str, *, filesystem: str = "kept") -> None:
        """`docker restart`, which keeps the file system."""
        assert self.real.docker is not None
        assert filesystem == "kept"
        argv = ["docker", "-H", self.real.docker, "restart", "-t", "0", f"sandbox-{sandbox_id}"]
        process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
        await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0

    # -- a job at its end

    async def whole(self, command_id: str, *, replica: int = 0) -> tuple[Mapping[str, Any], str]:
        """Follows a job by cursor to its end: the job, and all of its output."""
        text, cursor = "", None
        async with asyncio.timeout(90):
            while True:
                query = "?wait=5" + (f"&cursor={cursor}" if cursor else "")
                answer = await self.caller.send("GET", f"{self.urls[replica]}/v1/exec-jobs/{command_id}{query}")
                assert answer.status == 200, answer
                text = answer.body["output"] if answer.body["replace"] else text + answer.body["output"]
                cursor = answer.body["cursor"]
                if cursor is None:
                    return answer.body, text
