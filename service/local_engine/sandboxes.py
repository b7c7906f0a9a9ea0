"""The sandboxes of the engine: their life from create to delete or expiry, and how a list of them is made."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any

from . import volumes, wire
from .execd import Execd
from .files import SandboxFiles
from .isolation import Isolation, Layout, Mount
from .replies import Refused
from .requests import CreateRequest
from .spawning import Ending, Namespaces, Process, Spawner, StartFailed

log = logging.getLogger(__name__)

MISSING_IMAGE = "no-such-image"
"""Images whose name holds this can't be pulled; every other name means the machine's own programs."""


class Phase(Enum):
    """A state of a sandbox, as a runtime words it: state, reason, message."""


class State(Phase):
    """What a sandbox is, as the lifecycle server's Docker runtime words it: state, reason, message."""

    RUNNING = ("Running", "CONTAINER_RUNNING", "Sandbox container is running.")
    PAUSED = ("Paused", "CONTAINER_PAUSED", "Sandbox container is paused.")
    TERMINATED = ("Terminated", "CONTAINER_EXITED", "Sandbox container exited successfully.")
    FAILED = ("Failed", "CONTAINER_EXITED_ERROR", "Sandbox container exited with code {code}.")


@dataclass(slots=True)
class Sandbox:
    """One sandbox. `created` is what the create was answered with, `started` what every later answer says."""

    id: str
    request: CreateRequest
    layout: Layout
    mounts: Sequence[Mount]
    env: dict[str, str]
    process: Process
    namespaces: Namespaces
    files: SandboxFiles
    created: datetime
    started: datetime
    expires: datetime | None
    metadata: dict[str, str]
    state: Phase = State.RUNNING
    exit_code: int = 0
    changed: datetime = field(default_factory=lambda: datetime.now(UTC))
    thawed: asyncio.Event = field(default_factory=asyncio.Event)
    execd: Execd = field(init=False)
    outputs: list[str] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None
    restarting: bool = False

    @property
    def gone(self) -> bool:
        """Whether its first process has ended."""
        return self.state in (State.TERMINATED, State.FAILED)

    def view(self) -> dict[str, Any]:
        """The sandbox as GET and the list show it; what is empty is left out."""
        state, reason, message = self.state.value
        shown: dict[str, Any] = {
            "id": self.id,
            "image": {"uri": self.request.image},
            "status": {
                "state": state,
                "reason": reason,
                "message": message.format(code=self.exit_code),
                "lastTransitionAt": wire.server_time(self.changed),
            },
        }
        if self.metadata:
            shown["metadata"] = self.metadata
        shown["entrypoint"] = list(self.request.entrypoint)
        if self.expires is not None:
            shown["expiresAt"] = wire.server_time(self.expires)
        shown["createdAt"] = wire.server_time(self.started)
        return shown

    def created_view(self) -> dict[str, Any]:
        """The answer to the create: always Running, whatever the entrypoint does, and without the image."""
        created = wire.server_time(self.created)
        shown: dict[str, Any] = {
            "id": self.id,
            "status": {
                "state": "Running",
                "reason": "CONTAINER_RUNNING",
                "message": "Sandbox container started successfully.",
                "lastTransitionAt": created,
            },
        }
        if self.metadata:
            shown["metadata"] = self.metadata
        if self.expires is not None:
            shown["expiresAt"] = wire.server_time(self.expires)
        return {**shown, "createdAt": created, "entrypoint": list(self.request.entrypoint)}


class Sandboxes:
    """The table of all sandboxes, oldest first."""

    kind = Sandbox
    any_limits = False
    """What is no quantity is let through."""
    started: Phase | None = State.RUNNING
    """What a sandbox is once its first process was started anew; None: as it was."""

    def __init__(self, spawner: Spawner, isolation: Isolation, root: Path, volume_root: Path) -> None:
        self._spawner = spawner
        self._isolation = isolation
        self._directory = root / "sandboxes"
        self._volume_root = volume_root
        self._table: dict[str, Sandbox] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[Sandbox]:
        return iter(self._table.values())

    def find(self, identifier: str) -> Sandbox | None:
        """The sandbox of this id, if there is one."""
        return self._table.get(identifier)

    def get(self, identifier: str) -> Sandbox:
        """The sandbox of this id. Raises `Refused` (404)."""
        sandbox = self._table.get(identifier)
        if sandbox is None:
            raise self.missing(identifier)
        return sandbox

    def missing(self, identifier: str) -> Refused:
        """There is no sandbox of this id."""
        return Refused(404, "DOCKER::SANDBOX_NOT_FOUND", f"Sandbox {identifier} not found.")

    # -- addresses ----------------------------------------------------------------------------------------

    def endpoint(self, sandbox: Sandbox, port: str, address: str) -> str:
        """Where a port of the sandbox is reached, at this engine's `address`; only execd's is really served."""
        path = f"execd/{sandbox.id}" if port == "44772" else f"port/{sandbox.id}/{port}"
        return f"{address}/{path}"

    def check_reachable(self, sandbox: Sandbox, port: str) -> None:
        """Raises `Refused` as the proxy does where nothing listens in the sandbox."""
        if sandbox.gone:
            message = f"Could not connect to the backend sandbox 127.0.0.1:{port}: All connection attempts failed"
            raise Refused(502, "BACKEND_CONNECTION_FAILED", message)

    def kill_execd(self, sandbox: Sandbox) -> None:
        """The daemon dies; what it started lives on."""
        sandbox.execd.die()

    # -- create and delete --------------------------------------------------------------------------------

    async def create(self, request: CreateRequest) -> Sandbox:
        """Make a sandbox. No two creates are ever the same one. Raises `Refused`."""
        created = datetime.now(UTC)
        mounts = volumes.resolve(request.volumes, self._volume_root)
        if MISSING_IMAGE in request.image:
            raise Refused(
                500,
                "DOCKER::SANDBOX_IMAGE_PULL_FAILED",
                f"Failed to pull image {request.image}: no such host",
            )
        return await self._make(request, mounts, created)

    async def _make(self, request: CreateRequest, mounts: Sequence[Mount], created: datetime) -> Sandbox:
        """Start it and put it into the table. Raises `Refused`."""
        identifier = str(uuid.uuid4())
        layout = Layout(self._directory / identifier)
        layout.make()
        env = self._isolation.environment(layout, identifier, request.env)
        expires = created + timedelta(seconds=request.timeout) if request.timeout is not None else None
        try:
            process, namespaces = await self._isolation.launch(layout, mounts, identifier, request.entrypoint, env)
            files = SandboxFiles(layout, mounts, namespaces.init)
        except (StartFailed, OSError) as error:
            log = layout.directory / "entrypoint.log"
            said = log.read_text(errors="replace")[-500:] if log.exists() else ""
            shutil.rmtree(layout.directory, ignore_errors=True)
            raise Refused(
                500, "DOCKER::SANDBOX_START_FAILED", f"Failed to start the sandbox: {said or error}"
            ) from error
        now = datetime.now(UTC)
        sandbox = self.kind(
            identifier, request, layout, mounts, env, process, namespaces, files, created, now, expires,
            dict(request.metadata), changed=now,
        )  # fmt: skip
        sandbox.thawed.set()
        self._table[identifier] = sandbox
        self._begin(sandbox)
        self.schedule_expiry(sandbox)
        return sandbox

    def _begin(self, sandbox: Sandbox) -> None:
        """A new first process runs: a daemon with an empty table beside it, until it ends."""
        sandbox.execd = Execd(sandbox, self._spawner, sandbox.outputs)
        process = sandbox.process
        process.ended.add_done_callback(lambda ended: self._first_process_ended(sandbox, process, ended.result()))

    def _first_process_ended(self, sandbox: Sandbox, process: Process, ending: Ending) -> None:
        if sandbox.process is not process or sandbox.restarting:
            return
        code = os.waitstatus_to_exitcode(ending.status)
        sandbox.exit_code = 128 - code if code < 0 else code
        sandbox.state = State.FAILED if sandbox.exit_code else State.TERMINATED
        sandbox.changed = datetime.now(UTC)
        sandbox.thawed.set()
        sandbox.execd.die()
        sandbox.files.close()
        if not sandbox.namespaces.init:
            self._background(self._isolation.end(process, sandbox.namespaces, sandbox.id))

    async def delete(self, identifier: str) -> None:
        """End a sandbox and remove its files; its volumes stay. Raises `Refused` (404)."""
        sandbox = self.get(identifier)
        del self._table[identifier]
        if sandbox.timer is not None:
            sandbox.timer.cancel()
        sandbox.execd.die()
        await self._isolation.end(sandbox.process, sandbox.namespaces, identifier)
        sandbox.thawed.set()
        sandbox.files.close()
        self._background(self._remove_files(sandbox))

    async def _remove_files(self, sandbox: Sandbox) -> None:
        self._remove_outputs(sandbox)
        directory = sandbox.layout.directory
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, lambda: shutil.rmtree(directory, ignore_errors=True))

    def _remove_outputs(self, sandbox: Sandbox) -> None:
        """In plain mode the output files are in the machine's `/tmp`: the one thing of a sandbox that is there."""
        if not self._isolation.private:
            for path in set(sandbox.outputs):
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def _background(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- expiry -------------------------------------------------------------------------------------------

    def schedule_expiry(self, sandbox: Sandbox) -> None:
        """Have the sandbox deleted at its `expires`; never when that is None."""
        if sandbox.timer is not None:
            sandbox.timer.cancel()
            sandbox.timer = None
        if sandbox.expires is not None:
            delay = sandbox.expires.timestamp() - time.time()
            loop = asyncio.get_running_loop()
            sandbox.timer = loop.call_later(max(delay, 0), lambda: self._background(self._expire(sandbox.id)))

    async def _expire(self, identifier: str) -> None:
        try:
            await self.delete(identifier)
            log.info("sandbox %s expired", identifier)
        except Refused:
            pass

    # -- pause, resume, restart ---------------------------------------------------------------------------

    async def pause(self, identifier: str) -> None:
        """Freeze every process, the daemon included. Raises `Refused` (404, 409)."""
        sandbox = self.get(identifier)
        if sandbox.state is not State.RUNNING:
            raise Refused(409, "DOCKER::SANDBOX_NOT_RUNNING", "Sandbox is not in a running state.")
        sandbox.state = State.PAUSED
        sandbox.thawed.clear()
        await self._spawner.signal_all(sandbox.namespaces, sandbox.id, signal.SIGSTOP)

    async def resume(self, identifier: str) -> None:
        """Thaw a frozen sandbox; calls that came meanwhile are carried out. Raises `Refused` (404, 409)."""
        sandbox = self.get(identifier)
        if sandbox.state is not State.PAUSED:
            raise Refused(409, "DOCKER::SANDBOX_NOT_PAUSED", "Sandbox is not in a paused state.")
        await self._spawner.signal_all(sandbox.namespaces, sandbox.id, signal.SIGCONT)
        sandbox.state = State.RUNNING
        sandbox.thawed.set()

    async def restart(self, identifier: str, new_files: bool) -> None:
        """All processes die; the first one starts anew, in the old or a new file system. Raises `Refused`."""
        sandbox = self.get(identifier)
        sandbox.restarting = True
        try:
            sandbox.execd.die()
            await self._isolation.end(sandbox.process, sandbox.namespaces, identifier)
            sandbox.files.close()
            if new_files:
                sandbox.layout.renew()
            sandbox.process, sandbox.namespaces = await self._isolation.launch(
                sandbox.layout, sandbox.mounts, identifier, sandbox.request.entrypoint, sandbox.env
            )
            sandbox.files = SandboxFiles(sandbox.layout, sandbox.mounts, sandbox.namespaces.init)
        finally:
            sandbox.restarting = False
        sandbox.state = self.started or sandbox.state
        sandbox.thawed.set()
        self._begin(sandbox)

    def restart_execd(self, sandbox: Sandbox) -> None:
        """A daemon with an empty table; what the old one started lives on."""
        sandbox.execd.die()
        sandbox.execd = Execd(sandbox, self._spawner, sandbox.outputs)

    async def close(self) -> None:
        """Wait for removals under way; the spawner ends the processes."""
        for sandbox in self._table.values():
            self._remove_outputs(sandbox)
            if sandbox.timer is not None:
                sandbox.timer.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=5)


def matching(sandboxes: Sequence[Sandbox], states: Sequence[str], metadata: dict[str, str]) -> list[Sandbox]:
    """Those in one of `states` (any letter case; none: all) that carry all of `metadata`, newest first."""
    wanted = {state.lower() for state in states}
    found = [s for s in reversed(sandboxes) if not wanted or s.state.value[0].lower() in wanted]
    if not metadata:
        return found
    keep: Callable[[Sandbox], bool] = lambda s: all(s.metadata.get(k) == v for k, v in metadata.items())  # noqa: E731
    return [sandbox for sandbox in found if keep(sandbox)]


def page_of(found: Sequence[Sandbox], page: int, size: int) -> dict[str, Any]:
    """One page by offset, with the totals: items move between pages while sandboxes come and go."""
    pages = -(-len(found) // size)
    return {
        "items": [sandbox.view() for sandbox in found[(page - 1) * size : page * size]],
        "pagination": {
            "page": page,
            "pageSize": size,
            "totalItems": len(found),
            "totalPages": pages,
            "hasNextPage": page < pages,
        },
    }


def new_engine_name() -> str:
    """A name by which this engine's processes are told from another's."""
    return secrets.token_hex(8)
