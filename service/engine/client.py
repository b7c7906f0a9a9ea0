"""``OpenSandboxEngine``: the port's ``Engine`` on OpenSandbox's wire protocol."""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Literal

from service.engine.endpoints import Endpoints, Mode, Network
from service.engine.execd import Execd, output_path
from service.engine.files import ExecdFiles
from service.engine.lifecycle import Lifecycle
from service.engine.observing import Observe, Trace
from service.engine.transport import Transport
from service.messages import SandboxState
from service.ports.engine import (
    CommandEvent,
    CommandSpec,
    CommandStatus,
    FileRange,
    Runtime,
    SandboxInfo,
    SandboxListing,
    SandboxSpec,
    ShortResult,
)

DEFAULT_LIMIT = 512
"""Connections of each of the two pools (reads; all else)."""
_URL = re.compile(r"(https?)://[^\s/@?#\\]+(/[^\s@?#\\]*)?", re.IGNORECASE)


class OpenSandboxEngine:
    """An OpenSandbox engine, spoken to over HTTP. Connections are made in the event loop of the first call.

    Args:
        url: ``http(s)://host[:port]`` of the lifecycle server. Endpoints in sandboxes get the same scheme.
        api_key: sent to the lifecycle server alone, never to a sandbox; empty: none is sent.
        proxy: reach execd through the lifecycle server's proxy (``always``), at its own endpoint (``never``), or
            at its own endpoint wherever that answers (``auto``).
        networks: where not empty, endpoints outside them are never contacted.
        runtime: what the engine runs sandboxes with; None: learnt from its answers.
        limit: connections of each of two pools.
        observe: called after each HTTP call with its kind, ``answer``, ``refused``, ``not_reached``, ``unclear``,
            ``left`` (the reader went away) or ``cancelled``, and its duration in seconds.
        trace: asked before each HTTP call for the headers that carry a trace on, and told of its end.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str,
        proxy: Mode,
        networks: Sequence[Network] = (),
        runtime: Runtime | None = None,
        limit: int = DEFAULT_LIMIT,
        observe: Observe | None = None,
        trace: Trace | None = None,
    ) -> None:
        found = _URL.fullmatch(url)
        if found is None:
            raise ValueError("the engine's URL must be http(s)://host[:port], without a user, a query or a fragment")
        if not re.fullmatch(r"[\x21-\x7e]*", api_key):
            raise ValueError("the engine's API key must be visible ASCII")
        self._transport = Transport(limit=limit, observe=observe, trace=trace)
        self._lifecycle = Lifecycle(self._transport, url, api_key, runtime=runtime)
        self._execd = Execd(self._transport, self._lifecycle.headers)
        self._endpoints = Endpoints(
            lookup=self._lifecycle.endpoint,
            ping=self._execd.probe,
            proxy_base=self._lifecycle.proxy_base,
            scheme=found[1].lower(),
            mode=proxy,
            networks=networks,
        )
        self._execd.endpoints = self._endpoints
        files = ExecdFiles(self._execd)
        self.upload, self.download = files.upload, files.download
        self.read_file, self.read_lines = files.read_file, files.read_lines
        self.file_info, self.list_directory, self.make_directory = (
            files.file_info,
            files.list_directory,
            files.make_directory,
        )
        self.move, self.set_permissions = files.move, files.set_permissions
        self.remove_files, self.remove_directory = files.remove_files, files.remove_directory

    # -- lifecycle

    async def runtime(self) -> Runtime | None:
        """What the engine runs sandboxes with; None where it can't be learnt."""
        return await self._lifecycle.runtime()

    async def create_sandbox(self, spec: SandboxSpec) -> SandboxInfo:
        """Not idempotent. May take minutes; at most 11."""
        return await self._lifecycle.create(spec)

    async def get_sandbox(self, sandbox_id: str) -> SandboxInfo:
        """Raises ``SandboxMissing`` when it is certain that there is none."""
        return await self._lifecycle.get(sandbox_id)

    async def list_sandboxes(
        self,
        metadata: Mapping[str, str],
        *,
        states: Sequence[SandboxState] = (),
        page: int = 1,
        page_size: int = 200,
    ) -> SandboxListing:
        """A page, newest first. The filter is the engine's word: check each item."""
        return await self._lifecycle.list(metadata, states=states, page=page, page_size=page_size)

    async def delete_sandbox(self, sandbox_id: str) -> None:
        """A sandbox that is gone already is no error."""
        self._endpoints.forget(sandbox_id)
        await self._lifecycle.delete(sandbox_id)

    async def renew_sandbox(self, sandbox_id: str, expires_at: float) -> float:
        """Set the expiry (Unix seconds); the one now in force."""
        return await self._lifecycle.renew(sandbox_id, expires_at)

    async def pause_sandbox(self, sandbox_id: str) -> None:
        """Raises ``SandboxNotReady`` when it is not running."""
        await self._lifecycle.pause(sandbox_id)

    async def resume_sandbox(self, sandbox_id: str) -> None:
        """Raises ``SandboxNotReady`` when it is not paused."""
        await self._lifecycle.resume(sandbox_id)

    # -- execd

    async def ping(self, sandbox_id: str) -> None:
        """Raises unless the sandbox's daemon answers."""
        await self._execd.ping(sandbox_id)

    async def submit(self, sandbox_id: str, spec: CommandSpec) -> str:
        """Start a command in the background; execd's id of it. An ``Unclear`` after the id has it."""
        return await self._execd.submit(sandbox_id, spec)

    def stream(self, sandbox_id: str, spec: CommandSpec, *, silence: float) -> AsyncGenerator[CommandEvent, None]:
        """Run a command in the foreground; ends after ``complete`` or ``exit`` (whose text is execd's
        "signal: killed").
        """
        return self._execd.stream(sandbox_id, spec, silence=silence)

    async def run_short(
        self,
        sandbox_id: str,
        command: str,
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        uid: int | None = None,
        gid: int | None = None,
    ) -> ShortResult:
        """Run one of our own small commands and wait for it; exit code 128 + n after signal n."""
        return await self._execd.run_short(sandbox_id, command, timeout=timeout, env=env, uid=uid, gid=gid)

    async def status(self, sandbox_id: str, command: str) -> CommandStatus:
        """Raises ``CommandMissing``."""
        return await self._execd.status(sandbox_id, command)

    async def interrupt(self, sandbox_id: str, command: str) -> None:
        """SIGTERM, 3 s, SIGKILL. Raises ``CommandNotRunning``."""
        await self._execd.interrupt(sandbox_id, command)

    async def log(self, sandbox_id: str, command: str, offset: int) -> FileRange:
        """execd's own log call: only where no path is known. ``size`` is its next cursor."""
        return await self._execd.log(sandbox_id, command, offset)

    def output_path(self, command: str, stream: Literal["output", "stdout", "stderr"] = "output") -> str:
        """Where execd writes a command's output by default."""
        return output_path(command, stream)

    async def check(self) -> None:
        """Raises unless the lifecycle server answers to our key."""
        await self._lifecycle.check()

    async def close(self) -> None:
        """Close every connection."""
        await self._endpoints.close()
        await self._transport.close()
