"""Two replicas with two tenants: whole applications in this process, on a real Redis and a really running engine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import redis.asyncio

from service.api.application import Application
from service.app import create_app
from service.core.app import Core
from service.engine import OpenSandboxEngine
from service.settings import Settings
from service.store import open_store
from service.tenants import Tenants, key_digest
from tests.integration.core_rig import CLAIM_WAIT, KEY, LEASE
from tests.unit.api.fakes import Got, ask

ALICE, BOB = "alice", "bob"
SECRET = "a-secret-that-signs"
RESERVED = "oncebox.io/"


def tenants_file(directory: Path, *, quota: str = "") -> Path:
    """Alice and Bob, both of whom may use the owners `shared-*`; `quota` is Alice's."""
    path = directory / "tenants.toml"
    limits = f"[alice.quota]\n{quota}\n" if quota else ""
    alice = f'[alice]\nkeys = ["{key_digest("obx_alice")}"]\nowners = ["alice*", "shared-*", "A*"]\n{limits}'
    path.write_text(f'{alice}[bob]\nkeys = ["{key_digest("obx_bob")}"]\nowners = ["bob*", "shared-*", "A*"]\n')
    return path


class Replica:
    """One replica, asked as a tenant over HTTP's own interface."""

    def __init__(self, core: Core, app: Application) -> None:
        self.core = core
        self.app = app

    async def ask(
        self, tenant: str, method: str, target: str, body: Any = None, *, key: str | None = None, **headers: str
    ) -> Got:
        """An answer to a tenant."""
        sent = [("Authorization", f"Bearer obx_{tenant}"), ("X-Request-Id", "the-request"), *headers.items()]
        raw = b"" if body is None else msgspec.json.encode(body)
        if body is not None:
            sent += [("Content-Type", "application/json"), ("Content-Length", str(len(raw)))]
        if key is not None:
            sent.append(("Idempotency-Key", key))
        return await ask(self.app, method, target, headers=sent, body=[raw] if raw else [])

    async def create(self, tenant: str, key: str | None = None, **request: Any) -> str:
        """A sandbox's id."""
        got = await self.ask(tenant, "POST", "/v1/sandboxes", request, key=key)
        assert got.status == 201, got.body
        return str(got.json["sandbox_id"])

    async def submit(self, tenant: str, sandbox_id: str, command: str, key: str | None = None) -> str:
        """A job's id."""
        body = {"sandbox_id": sandbox_id, "command": command}
        got = await self.ask(tenant, "POST", "/v1/exec-jobs", body, key=key)
        assert got.status == 202, got.body
        return str(got.json["command_id"])

    async def finished(self, tenant: str, command_id: str) -> Any:
        """The job at its end, with the whole of its output, which comes in pieces."""
        cursor = output = ""
        while True:
            got = await self.ask(tenant, "GET", f"/v1/exec-jobs/{command_id}?wait=5{cursor}")
            assert got.status == 200, got.body
            output = got.json["output"] if got.json["replace"] else output + got.json["output"]
            if got.json["cursor"] is None:
                return {**got.json, "output": output}
            cursor = f"&cursor={got.json['cursor']}"


class TenantsRig:
    """The replicas, Redis, and the engine with its key in an attacker's hands."""

    def __init__(self, engine_url: str, redis_url: str, root: Path) -> None:
        self.engine_url = engine_url
        self.redis_url = redis_url
        self.root = root
        self.replicas: list[Replica] = []

    async def replica(self, file: Path, **changes: Any) -> Replica:
        given: dict[str, Any] = {
            "engine_interval": 1.0,
            "lease": LEASE,
            "claim_wait": CLAIM_WAIT,
            "secret": SECRET,
            **changes,
        }
        settings = Settings(
            redis_url=self.redis_url, engine_url=self.engine_url, engine_api_key=KEY, tenants=str(file),
            volume=f"host:{self.root}/volumes", **given,
        )  # fmt: skip
        store = open_store(settings.redis_url, retention=settings.retention, record_output=settings.record_output)
        engine = OpenSandboxEngine(settings.engine_url, api_key=KEY, proxy=settings.engine_proxy)
        core = Core(store, engine, settings, policy=Tenants(str(file)), lookup_tries=(0.0, 0.1, 0.3))
        await core.start()
        replica = Replica(core, create_app(core, settings, manages_core=False))
        self.replicas.append(replica)
        return replica

    async def replica_like(self, other: Replica) -> Replica:
        """One more replica with another's tenants, on what the rig names by now."""
        assert other.core.settings.tenants is not None
        return await self.replica(Path(other.core.settings.tenants))

    async def flush(self) -> None:
        """Redis loses everything; what the replicas believe for seconds is forgotten too."""
        async with redis.asyncio.Redis.from_url(self.redis_url) as client:
            await client.flushdb()
        for replica in self.replicas:
            replica.core.liveness._over._known.clear()

    async def engine(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the engine itself, with its key."""
        async with (
            aiohttp.ClientSession(headers={"OPEN-SANDBOX-API-KEY": KEY}) as session,
            session.request(method, f"{self.engine_url}{path}", json=body) as answer,
        ):
            assert answer.status < 300, (answer.status, await answer.text())
            return await answer.json(content_type=None) if answer.status != 204 else None

    async def clear(self) -> None:
        """No sandbox is left for the next test."""
        while items := (await self.engine("GET", "/v1/sandboxes?pageSize=100"))["items"]:
            for item in items:
                with contextlib.suppress(AssertionError):  # gone meanwhile
                    await self.engine("DELETE", f"/v1/sandboxes/{item['id']}")

    async def labels(self, sandbox_id: str) -> dict[str, str]:
        """A sandbox's labels as the engine has them."""
        found: dict[str, str] = (await self.engine("GET", f"/v1/sandboxes/{sandbox_id}"))["metadata"]
        return found

    async def forge(self, sandbox_id: str, labels: dict[str, str | None]) -> None:
        """Write a sandbox's labels behind the service's back."""
        await self.engine("PATCH", f"/v1/sandboxes/{sandbox_id}/metadata", labels)

    async def create_at_engine(self, labels: dict[str, str]) -> str:
        """A sandbox that the service did not make."""
        body = {
            "image": {"uri": "python:3.12"}, "entrypoint": ["sleep", "infinity"], "timeout": 600, "metadata": labels,
            "resourceLimits": {"cpu": "500m", "memory": "256Mi"},
        }  # fmt: skip
        return str((await self.engine("POST", "/v1/sandboxes", body))["id"])


@contextlib.asynccontextmanager
async def tenants_rig(engine_url: str, redis_url: str, root: Path) -> AsyncIterator[TenantsRig]:
    """A rig without replicas yet; those that it gets are shut down at the end."""
    built = TenantsRig(engine_url, redis_url, root)
    try:
        yield built
    finally:
        for replica in built.replicas:
            await replica.core.shutdown(0.0)
        await built.clear()
