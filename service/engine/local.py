"""The local engine as a child process, and its client: what ``local://`` stands for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
from typing import TYPE_CHECKING

import msgspec

from service.engine.client import OpenSandboxEngine

if TYPE_CHECKING:
    from service.engine.observing import Observe, Trace

START_SECONDS = 30.0
STOP_SECONDS = 10.0
"""For the local engine to end its sandboxes before it is killed."""


class EngineDidNotStart(Exception):
    """The local engine did not come up; it has said why on standard error."""


OWN_VOLUME = "pvc:workspaces"
"""The volume under the local engine's root, which goes with the engine."""


class _Ready(msgspec.Struct):
    url: str


class EngineChild:
    """The local engine as a child process on a free loopback port, with a random key.

    It ends when its standard input does, so it is gone with its parent, however that ends. It has a session
    of its own: Ctrl-C reaches the parent, which ends its sandboxes in order.
    """

    def __init__(self, process: asyncio.subprocess.Process, url: str, api_key: str) -> None:
        self.url = url
        self.api_key = api_key
        self._process = process
        self._reading = asyncio.create_task(self._read_on())

    @classmethod
    async def start(cls, *, volume: str | None = None) -> EngineChild:
        """``volume``: as in the settings; what it names may be mounted. Raises ``EngineDidNotStart``."""
        api_key = secrets.token_urlsafe(32)
        # -P: a `service` package in the working directory is not ours.
        command = [sys.executable, "-P", "-m", "service.local_engine", "--bind", "127.0.0.1:0"]
        kind, _, path = (volume or "").partition(":")
        if kind == "host":
            command += ["--volume-root", path]
        if kind == "pvc":
            command += ["--claim", path]
        process = await asyncio.create_subprocess_exec(
            *command,
            "--exit-with-stdin",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=_environment(api_key),
            start_new_session=True,
        )
        try:
            return cls(process, await _ready_url(process), api_key)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise

    async def stop(self) -> None:
        """End it with its sandboxes; again is fine."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        # Whoever inherited its standard output may keep that open.
        await asyncio.wait({self._reading}, timeout=1.0)
        self._reading.cancel()

    async def _read_on(self) -> None:
        """What it prints after its first line must not fill the pipe."""
        assert self._process.stdout is not None
        while await self._process.stdout.read(65_536):
            pass


def _environment(api_key: str) -> dict[str, str]:
    """This process's, without settings (those of traces too): they may hold secrets, which sandboxes must not
    inherit."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ONCEBOX_", "OTEL_")) or name.startswith("ONCEBOX_TEST_")
    }
    return {**kept, "OPEN_SANDBOX_API_KEY": api_key}


async def _ready_url(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
        return msgspec.json.decode(line, type=_Ready).url
    except TimeoutError:
        raise EngineDidNotStart(f"The local engine was not ready within {START_SECONDS:g} s.") from None
    except (msgspec.DecodeError, ValueError):
        raise EngineDidNotStart("The local engine ended before it was ready.") from None


class LocalEngine(OpenSandboxEngine):
    """The client of an ``EngineChild``, which ends with it."""

    def __init__(self, child: EngineChild, *, observe: Observe | None = None, trace: Trace | None = None) -> None:
        super().__init__(child.url, api_key=child.api_key, proxy="auto", observe=observe, trace=trace)
        self._child = child

    async def close(self) -> None:
        """Close every connection, and end the engine with its sandboxes."""
        await super().close()
        await self._child.stop()
