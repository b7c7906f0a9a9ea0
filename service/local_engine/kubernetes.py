"""Sandboxes as the lifecycle server's Kubernetes runtime has them: pods, each with an address of its own.

What differs from the Docker runtime, recorded in the exchanges `kubernetes` and seen under faults:

- Each pod has an address of its own on loopback (`127.x.y.z:44772`); a port without a daemon refuses.
- A create waits until the pod runs, for `ready_timeout` seconds; then it is taken back with a 504. A quantity that the
  cluster can't parse holds up every other create until then.
- `$` is expanded in the environment and the entrypoint.
- What happened to a pod is `Pending` more often than not: it is being made anew, or never will be.
- A pause needs a registry for snapshots. Without one it is taken back after a moment, and nobody is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from . import volumes, wire
from .isolation import Isolation, Mount
from .replies import Refused
from .requests import CreateRequest
from .sandboxes import MISSING_IMAGE, Phase, Sandbox, Sandboxes
from .spawning import Ending, Process, Spawner

EXECD_PORT = 44772
BOOTSTRAP = "/opt/opensandbox/bootstrap.sh"
"""What the runtime puts before every entrypoint, and shows."""

SETTLE_SECONDS = 0.2
"""How long a first process must last for its pod to count as running."""

PAUSE_SECONDS = 1.5
NOTICE_SECONDS = 0.7
"""How long a pod that was deleted is still shown as running."""

BACK_SECONDS = 2.3
"""How long a container takes to come back in its pod."""

REMADE_SECONDS = 10.0
ADDRESS_TRIES = 20
"""Addresses that are tried for a pod: another engine on this machine may have one."""

_QUANTITY = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?")
"""`k8s.io/apimachinery/pkg/api/resource`."""


class PodState(Phase):
    """What a sandbox is, in the words of the Kubernetes runtime."""

    PENDING = ("Pending", "CREATING", "Sandbox is being created")
    RUNNING = ("Running", "RUNNING", "Sandbox is running")
    PAUSING = ("Pausing", "PAUSING", "Pausing sandbox")
    PAUSED = ("Paused", "PAUSED", "Sandbox is paused")
    RESUMING = ("Resuming", "RESUMING", "Resuming sandbox")
    FAILED = ("Failed", "FAILED", "1/1 observed pods failed; primary reason=Error")


@dataclass(slots=True)
class PodSandbox(Sandbox):
    """A sandbox and its pod. `address`: the pod's, empty where it has none (any more)."""

    address: str = ""
    runner: web.ServerRunner | None = None
    starts: int = 1

    @property
    def gone(self) -> bool:
        """A pod that ended is not gone: its sandbox stays."""
        return False

    def view(self) -> dict[str, Any]:
        """As the base's; times in whole seconds, the runtime's own program before the entrypoint."""
        shown = Sandbox.view(self)
        shown["status"]["lastTransitionAt"] = whole(self.created)
        shown["entrypoint"] = [BOOTSTRAP, *self.request.entrypoint]
        return {**shown, "createdAt": whole(self.created)}

    def created_view(self) -> dict[str, Any]:
        """As the base's, in this runtime's words."""
        state, reason, message = PodState.RUNNING.value
        status = {"state": state, "reason": reason, "message": message, "lastTransitionAt": whole(self.created)}
        return {**Sandbox.created_view(self), "status": status}


def whole(time: datetime) -> str:
    """A time of the cluster's: in whole seconds."""
    return wire.server_time(time.replace(microsecond=0))


class Pods(Sandboxes):
    """All sandboxes, each with its pod. `ready_timeout`: seconds. `always`: the template's restart policy is that, and
    not `Never`. `snapshots`: there is a registry for them.
    """

    kind = PodSandbox
    any_limits = True
    started = None

    def __init__(
        self,
        spawner: Spawner,
        isolation: Isolation,
        root: Path,
        volume_root: Path,
        *,
        ready_timeout: float,
        always: bool,
        snapshots: bool,
    ) -> None:
        super().__init__(spawner, isolation, root, volume_root)
        self._ready_timeout = ready_timeout
        self._always = always
        self._snapshots = snapshots
        self._stopped: set[str] = set()
        """Sandboxes with a quantity that stops the controller for all."""
        self._moves = asyncio.Event()
        self._moves.set()
        self.daemon: Callable[[Sandbox], web.Server]
        """Makes the server of a sandbox's daemon, for its pod's port."""
        self.keeps_what_it_takes_back = 0
        """How many creates from now on are not taken back, though the caller is told so."""

    def missing(self, identifier: str) -> Refused:
        """There is no sandbox of this id."""
        return Refused(404, "KUBERNETES::SANDBOX_NOT_FOUND", f"Sandbox '{identifier}' not found")

    # -- create and delete

    async def create(self, request: CreateRequest) -> Sandbox:
        """Make a sandbox and wait until its pod runs. Raises `Refused`, with nothing left."""
        mounts: list[Mount] | None = None
        with contextlib.suppress(volumes.ClaimMissing):  # its pod then waits for it for ever
            mounts = volumes.resolve(request.volumes, self._volume_root)
        parsed = all(_QUANTITY.fullmatch(limit) for limit in request.limits.values())
        startable = parsed and mounts is not None and MISSING_IMAGE not in request.image
        expanded = expansion(request)
        begun = expanded if startable else replace(expanded, entrypoint=("sleep", "infinity"))
        sandbox = await self._make(begun, mounts or [], datetime.now(UTC))
        sandbox.request = request
        assert isinstance(sandbox, PodSandbox)
        sandbox.state = PodState.PENDING
        if not parsed:
            self._stopped.add(sandbox.id)
            self._moves.clear()
        try:
            async with asyncio.timeout(self._ready_timeout):
                await self._until_running(sandbox, startable)
        except TimeoutError:
            await self._take_back(sandbox)
            message = (
                f"Timeout waiting for sandbox {sandbox.id} to be Running with IP. "
                f"Elapsed: {self._ready_timeout:.1f}s, Last state: Pending"
            )
            raise Refused(504, "KUBERNETES::POD_READY_TIMEOUT", message) from None
        except Refused:
            await self._take_back(sandbox)
            raise
        return sandbox

    async def _until_running(self, sandbox: PodSandbox, startable: bool) -> None:
        if MISSING_IMAGE in sandbox.request.image:
            message = (
                f"Sandbox {sandbox.id} failed: 1/1 observed pods failed; primary reason=ErrImagePull; "
                f"sample pod={sandbox.id}-0"
            )
            raise Refused(500, "KUBERNETES::POD_FAILED", message)
        await self._moves.wait()
        if not startable:
            await asyncio.Event().wait()
        await asyncio.wait([sandbox.process.ended], timeout=SETTLE_SECONDS)
        if sandbox.process.ended.done():
            await asyncio.Event().wait()
        await self._open(sandbox)
        sandbox.state = PodState.RUNNING

    async def _take_back(self, sandbox: PodSandbox) -> None:
        if self.keeps_what_it_takes_back:
            self.keeps_what_it_takes_back -= 1
            await self._open(sandbox)
            sandbox.state = PodState.RUNNING
        else:
            await self.delete(sandbox.id)

    async def delete(self, identifier: str) -> None:
        """End a sandbox: its pod's port refuses at once. Raises `Refused` (404)."""
        await self._shut(self._pod(identifier))
        self._stopped.discard(identifier)
        if not self._stopped:
            self._moves.set()
        await super().delete(identifier)

    def _pod(self, identifier: str) -> PodSandbox:
        sandbox = self.get(identifier)
        assert isinstance(sandbox, PodSandbox)
        return sandbox

    # -- addresses

    def endpoint(self, sandbox: Sandbox, port: str, address: str) -> str:
        """The pod's own address. Raises `Refused` where it has none."""
        return f"{self._address(sandbox)}:{port}"

    def check_reachable(self, sandbox: Sandbox, port: str) -> None:
        """Raises `Refused` as the proxy does: without an address, or where nothing listens."""
        address = self._address(sandbox)
        if port != str(EXECD_PORT) or not sandbox.execd.alive:
            message = f"Could not connect to the backend sandbox {address}:{port}: All connection attempts failed"
            raise Refused(502, "BACKEND_CONNECTION_FAILED", message)

    def _address(self, sandbox: Sandbox) -> str:
        assert isinstance(sandbox, PodSandbox)
        if not sandbox.address:
            message = f"Pod IP is not yet available for sandbox '{sandbox.id}'"
            raise Refused(404, "KUBERNETES::POD_IP_NOT_AVAILABLE", message)
        return sandbox.address

    async def _open(self, sandbox: PodSandbox, address: str = "") -> None:
        """The daemon listens: at the pod's `address`, or at a new one."""
        await self._shut(sandbox)
        sandbox.runner = web.ServerRunner(self.daemon(sandbox), shutdown_timeout=0, handle_signals=False)
        await sandbox.runner.setup()
        for tries_left in reversed(range(ADDRESS_TRIES)):
            sandbox.address = address or f"127.{_octet()}.{_octet()}.{_octet()}"
            try:
                await web.TCPSite(sandbox.runner, sandbox.address, EXECD_PORT, reuse_address=True).start()
                return
            except OSError:
                if address or not tries_left:
                    raise

    async def _shut(self, sandbox: PodSandbox) -> None:
        """Nothing listens there any more, and what was connected is cut."""
        runner, sandbox.runner = sandbox.runner, None
        if runner is not None:
            await runner.cleanup()

    def kill_execd(self, sandbox: Sandbox) -> None:
        """The daemon dies, and its port refuses."""
        assert isinstance(sandbox, PodSandbox)
        super().kill_execd(sandbox)
        self._background(self._shut(sandbox))

    def restart_execd(self, sandbox: Sandbox) -> None:
        """A daemon with an empty table, at the same address."""
        assert isinstance(sandbox, PodSandbox)
        super().restart_execd(sandbox)
        self._background(self._open(sandbox, sandbox.address))

    async def close(self) -> None:
        """Close every port too."""
        for sandbox in self:
            assert isinstance(sandbox, PodSandbox)
            await self._shut(sandbox)
        await super().close()

    # -- what happens to pods

    def _first_process_ended(self, sandbox: Sandbox, process: Process, ending: Ending) -> None:
        """The port refuses. With `Never` it stays so; with `Always` it comes back, once as if nothing had been."""
        assert isinstance(sandbox, PodSandbox)
        if sandbox.process is not process or sandbox.restarting or self.find(sandbox.id) is None:
            return
        sandbox.state = PodState.PENDING
        sandbox.execd.die()
        self._background(self._shut(sandbox))
        if self._always and sandbox.address:
            self._background(self._back(sandbox, process))

    async def _back(self, sandbox: PodSandbox, process: Process) -> None:
        await asyncio.sleep(BACK_SECONDS)
        if sandbox.process is process and self.find(sandbox.id) is not None:
            sandbox.starts += 1
            await self._start_anew(sandbox, new_files=True, address=sandbox.address)
            if sandbox.starts > 2:
                sandbox.state = PodState.FAILED

    async def _start_anew(self, sandbox: PodSandbox, *, new_files: bool, address: str = "") -> None:
        request = sandbox.request
        sandbox.request = expansion(request)
        try:
            await super().restart(sandbox.id, new_files)
        finally:
            sandbox.request = request
        await self._open(sandbox, address)
        sandbox.state = PodState.RUNNING

    async def restart(self, identifier: str, new_files: bool) -> None:
        """The container comes back in its pod, at the same address."""
        sandbox = self._pod(identifier)
        await self._start_anew(sandbox, new_files=new_files, address=sandbox.address)

    async def remake(self, identifier: str, seconds: float) -> None:
        """The pod is deleted: after `seconds` there is a new one, with a new address and a new file system."""
        sandbox = self._pod(identifier)
        await self._stop(sandbox)
        self._background(self._remade(sandbox, seconds))

    async def _remade(self, sandbox: PodSandbox, seconds: float) -> None:
        await asyncio.sleep(min(NOTICE_SECONDS, seconds))
        sandbox.state, sandbox.address = PodState.PENDING, ""
        await asyncio.sleep(max(0.0, seconds - NOTICE_SECONDS))
        if self.find(sandbox.id) is not None:
            await self._start_anew(sandbox, new_files=True)

    async def evict(self, identifier: str) -> None:
        """The pod is taken from its node, and no other is made."""
        sandbox = self._pod(identifier)
        await self._stop(sandbox)
        sandbox.state, sandbox.address = PodState.PENDING, ""

    def node_reports(self, identifier: str, reports: bool) -> None:
        """The node's kubelet is stopped, or back: its pods are `Pending` meanwhile, though all in them goes on."""
        self._pod(identifier).state = PodState.RUNNING if reports else PodState.PENDING

    def kill_first_process(self, identifier: str) -> None:
        """As `kill -9` in the container, or a process that runs out of memory."""
        self._spawner.kill(self._pod(identifier).process, 9)

    async def _stop(self, sandbox: PodSandbox) -> None:
        sandbox.restarting = True
        try:
            sandbox.execd.die()
            await self._shut(sandbox)
            await self._isolation.end(sandbox.process, sandbox.namespaces, sandbox.id)
        finally:
            sandbox.restarting = False

    # -- pause and resume

    async def pause(self, identifier: str) -> None:
        """Begin to pause: with a registry the pod is gone after a moment, without one nothing happens at all."""
        sandbox = self._pod(identifier)
        if sandbox.state not in (PodState.RUNNING, PodState.PAUSING):
            raise self._wrong_state("pause", sandbox, "Running")
        if sandbox.state is PodState.RUNNING:
            sandbox.state = PodState.PAUSING
            self._background(self._paused(sandbox))

    async def _paused(self, sandbox: PodSandbox) -> None:
        await asyncio.sleep(PAUSE_SECONDS)
        if not self._snapshots:
            sandbox.state = PodState.RUNNING
            return
        await self._stop(sandbox)
        sandbox.state, sandbox.address = PodState.PAUSED, ""

    async def resume(self, identifier: str) -> None:
        """Begin to resume: a new pod at a new address, with the files of the old one and none of its processes."""
        sandbox = self._pod(identifier)
        if sandbox.state is not PodState.PAUSED:
            raise self._wrong_state("resume", sandbox, "Paused")
        sandbox.state = PodState.RESUMING
        self._background(self._start_anew(sandbox, new_files=False))

    def _wrong_state(self, action: str, sandbox: Sandbox, expected: str) -> Refused:
        message = f"Cannot {action} sandbox in state {sandbox.state.value[0]}, expected {expected}"
        return Refused(409, "KUBERNETES::INVALID_STATE", message)


def _octet() -> int:
    return 1 + secrets.randbelow(254)


def expansion(request: CreateRequest) -> CreateRequest:
    """Environment and entrypoint as processes get them: each variable may name those before it."""
    known: dict[str, str] = {}
    for name, value in request.env.items():
        known[name] = expand(value, known)
    return replace(request, env=known, entrypoint=tuple(expand(word, known) for word in request.entrypoint))


def expand(text: str, known: Mapping[str, str]) -> str:
    """`$(NAME)` is that variable where there is one, `$$` is `$`; every other `$` is one."""

    def found(match: re.Match[str]) -> str:
        name = match[1]
        return "$" if name is None else known.get(name, match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", found, text)
