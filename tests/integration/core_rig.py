"""Replicas in this process: each a core of its own on one real Redis and one really running local engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import msgspec

from service.core.app import Core
from service.engine import OpenSandboxEngine
from service.messages import CreateSandbox, Exec, JobOutput, SubmitJob
from service.settings import Settings
from service.store import open_store

KEY = "engine-key"

LEASE, CLAIM_WAIT = 60.0, 70.0
"""Longer than a machine stands still: whose claim it is changes only where a test wants it."""

WAITS = "until [ -e go ]; do sleep 0.05; done"
"""In a command: it waits there until ``go`` is called for its sandbox."""


class Rig:
    """An engine, a Redis, and as many replicas as a test asks for."""

    def __init__(self, engine_url: str, redis_url: str, root: str, **settings: Any) -> None:
        self.engine_url = engine_url
        self.settings = Settings(
            redis_url=redis_url,
            engine_url=engine_url,
            engine_api_key=KEY,
            volume=f"host:{root}/volumes",
            fence_dir=f"/tmp/.oncebox-{secrets.token_hex(4)}",  # in plain sandboxes /tmp is everybody's
            **{"engine_interval": 1.0, "lease": LEASE, "claim_wait": CLAIM_WAIT, **settings},
        )
        self.replicas: list[Core] = []

    async def replica(self, **changes: Any) -> Core:
        settings = msgspec.structs.replace(self.settings, **changes)
        store = open_store(settings.redis_url, retention=settings.retention, record_output=settings.record_output)
        engine = OpenSandboxEngine(settings.engine_url, api_key=KEY, proxy=settings.engine_proxy)
        core = Core(store, engine, settings, lookup_tries=(0.0, 0.1, 0.3))
        await core.start()
        self.replicas.append(core)
        return core

    async def sandbox(self, core: Core, **request: Any) -> str:
        answer = await core.sandboxes.create("default", CreateSandbox(**request), None)
        assert answer.value.ready
        return answer.value.sandbox_id

    async def dev(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """A control or a count of the development engine."""
        async with aiohttp.ClientSession() as session:
            method = "GET" if body is None else "POST"
            async with session.request(method, f"{self.engine_url}/_dev/{path}", json=body) as response:
                assert response.status < 300, await response.text()
                return await response.json(content_type=None) if response.content_length else None


@contextlib.contextmanager
def local_engine(root: str, *options: str) -> Iterator[str]:
    """A local engine in a process of its own; its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "service.local_engine", "--bind", "127.0.0.1:0", "--dev-controls", "--exit-with-stdin",
         "--root", root, *options],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**os.environ, "OPEN_SANDBOX_API_KEY": KEY},
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield msgspec.json.decode(process.stdout.readline())["url"]
        process.stdin.close()
        process.wait(60)


@contextlib.asynccontextmanager
async def rig(engine_url: str, redis_url: str, root: str, **settings: Any) -> AsyncIterator[Rig]:
    """A rig; its replicas are shut down at the end."""
    built = Rig(engine_url, redis_url, root, **settings)
    try:
        yield built
    finally:
        for core in built.replicas:
            await core.shutdown(0.0)
        shutil.rmtree(built.settings.fence_dir, ignore_errors=True)


async def submit(core: Core, sandbox_id: str, command: str, key: str | None = None, **more: Any) -> str:
    """A job's id."""
    request = SubmitJob(sandbox_id=sandbox_id, command=command, **more)
    return (await core.jobs.submit("default", request, key)).value.command_id


async def execute(core: Core, sandbox_id: str, command: str) -> str:
    """The stdout of a short command."""
    return (await core.execs.run("default", Exec(sandbox_id=sandbox_id, command=command), None)).value.stdout


async def go(core: Core, sandbox_id: str) -> None:
    """Let commands of this sandbox go on that wait."""
    await execute(core, sandbox_id, "touch go")


async def there(core: Core, sandbox_id: str, name: str) -> None:
    """Wait for a file in a sandbox's working directory."""

    async def seen() -> bool:
        return await execute(core, sandbox_id, f"[ -e {name} ] && echo yes") == "yes\n"

    await eventually(seen)


async def follow(core: Core, command_id: str, *, seconds: float = 60, **more: Any) -> tuple[JobOutput, str]:
    """The job at its end, and all of its output joined."""
    text, cursor = "", None
    async with asyncio.timeout(seconds):
        while True:
            page = (await core.jobs.get("default", command_id, cursor=cursor, wait=5, **more)).whole()
            assert isinstance(page, JobOutput)
            text = page.output if page.replace else text + page.output
            cursor = page.cursor
            if cursor is None:
                return page, text


async def eventually(condition: Callable[[], Awaitable[bool]], *, seconds: float = 60) -> None:
    """Returns as soon as the condition holds; fails after ``seconds``."""
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.02)
