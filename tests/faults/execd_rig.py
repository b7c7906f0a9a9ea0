"""The rig around an execd that exists already: a lifecycle server of one sandbox, and our network before it."""

import asyncio
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from aiohttp import web

from tests.faults.rig import ENGINE_KEY, Rig
from tests.support.ports import LOOPBACK, free_port
from tests.support.redis_server import RedisServer
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import PATIENCE


class OneSandbox:
    """The lifecycle API of an engine whose one sandbox is there for good; each create gives it a new id."""

    def __init__(self, endpoint: str) -> None:
        self.port = free_port()
        self._endpoint = endpoint
        self._sandboxes: dict[str, dict[str, Any]] = {}
        app = web.Application()
        app.router.add_post("/v1/sandboxes", self._create)
        app.router.add_get("/v1/sandboxes", self._list)
        app.router.add_get("/v1/sandboxes/{id}", self._get)
        app.router.add_post("/v1/sandboxes/{id}/renew-expiration", self._renew)
        app.router.add_get("/v1/sandboxes/{id}/endpoints/44772", self._where)
        self._runner = web.AppRunner(app, shutdown_timeout=1)

    async def start(self) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, LOOPBACK, self.port).start()

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _create(self, request: web.Request) -> web.Response:
        sent = await request.json()
        now = datetime.now(UTC)
        made = {
            "id": str(uuid4()),
            "status": {"state": "Running"},
            "metadata": sent.get("metadata", {}),
            "image": sent["image"],
            "entrypoint": sent["entrypoint"],
            "createdAt": now.isoformat(),
            "expiresAt": (now + timedelta(seconds=sent["timeout"])).isoformat(),
        }
        self._sandboxes[made["id"]] = made
        return web.json_response(made, status=202)

    async def _list(self, request: web.Request) -> web.Response:
        wanted = dict(urllib.parse.parse_qsl(request.query.get("metadata", "")))
        items = [each for each in self._sandboxes.values() if wanted.items() <= each["metadata"].items()]
        pages = {"page": 1, "pageSize": 200, "totalItems": len(items), "totalPages": 1, "hasNextPage": False}
        return web.json_response({"items": items, "pagination": pages})

    async def _get(self, request: web.Request) -> web.Response:
        found = self._sandboxes.get(request.match_info["id"])
        if found is None:
            return web.json_response({"code": "DOCKER::SANDBOX_NOT_FOUND", "message": "no"}, status=404)
        return web.json_response(found)

    async def _renew(self, request: web.Request) -> web.Response:
        found = self._sandboxes[request.match_info["id"]]
        found["expiresAt"] = (await request.json())["expiresAt"]
        return web.json_response({"expiresAt": found["expiresAt"]})

    async def _where(self, request: web.Request) -> web.Response:
        return web.json_response({"endpoint": self._endpoint})


class ExecdRig(Rig):
    """Replicas and Redis as in `Rig`; the ledger lies in the file system of the execd, and is read through it."""

    async def start_on(self, execd: str, *, replicas: int = 2) -> None:
        """`execd`: its base URL."""
        self._execd = execd.rstrip("/")
        parts = urllib.parse.urlsplit(self._execd)
        self._redis = RedisServer(self._folder / "redis")
        self._redis.start()
        self._engine_net = await TcpProxy(str(parts.hostname), parts.port or 80).__aenter__()
        self._lifecycle = OneSandbox(f"{LOOPBACK}:{self._engine_net.port}{parts.path}")
        await self._lifecycle.start()
        for number in range(replicas):
            self.add_replica(f"replica{number}")
        for replica in self.replicas:
            replica.launch()
        await asyncio.gather(*(replica.ready() for replica in self.replicas))

    async def stop(self) -> None:
        await self._lifecycle.stop()

    def engine_settings(self) -> dict[str, str]:
        return {
            "ONCEBOX_ENGINE_URL": f"http://{LOOPBACK}:{self._lifecycle.port}",
            "ONCEBOX_ENGINE_API_KEY": ENGINE_KEY,
            "ONCEBOX_ENGINE_PROXY": "never",
            "ONCEBOX_VOLUME": "host:/tmp",
        }

    @property
    def directory(self) -> Path:
        raise NotImplementedError("the sandbox shares no directory with this machine")

    @property
    def place(self) -> str:
        return f"/tmp/ledger-{self._folder.name}-{self._lifecycle.port}"

    async def sandbox(self, *_: Any) -> str:
        """The one sandbox, with a directory for the ledger."""
        sandbox_id = await super().sandbox()
        made = {"sandbox_id": sandbox_id, "command": f"mkdir -p '{self.place}'"}
        answer = await self.caller.send("POST", f"{self.urls[0]}/v1/exec", json=made)
        assert answer.status == 200, answer
        return sandbox_id

    def runs(self) -> Counter[str]:
        return Counter(self.downloaded().split())

    def downloaded(self) -> str:
        """The ledger, as its execd has it; empty: nobody has written to it."""
        query = urllib.parse.urlencode({"path": f"{self.place}/ledger"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{self._execd}/files/download?{query}", timeout=PATIENCE) as reply:
                return str(reply.read().decode())
        except urllib.error.HTTPError as error:
            error.close()
            return ""
