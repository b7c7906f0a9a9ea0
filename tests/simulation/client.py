"""The engine as a replica calls it: every call is a message, and an answer, on a network that loses both.

How a lost one looks to the core is what the product's own client makes of it (`service.engine.outcomes`): before
anything was sent ``NotReached``, after that ``Unclear``, at its deadlines.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from typing import Any, Generic, TypeVar

from service.engine.execd import INTERRUPT, LOG, PING, SHORT_GRACE, STATUS, SUBMIT
from service.engine.files import READ
from service.engine.lifecycle import CREATE, DELETE, GET, LIST, PAUSE, RENEW
from service.engine.transport import CONNECT, Deadline
from service.messages import SandboxState
from service.ports.engine import (
    CommandEvent,
    CommandSpec,
    CommandStatus,
    EngineError,
    FileRange,
    NoAddress,
    NotReached,
    Runtime,
    SandboxInfo,
    SandboxListing,
    SandboxMissing,
    SandboxSpec,
    ShortResult,
    Unclear,
)
from tests.simulation.engine import Daemon, SimEngine
from tests.simulation.loop import Host, VirtualLoop
from tests.simulation.network import Network

T = TypeVar("T")


class SimClient:
    """The engine port, for one replica."""

    def __init__(self, engine: SimEngine, network: Network, host: Host) -> None:
        self._engine = engine
        self._network = network
        self._host = host

    # -- one exchange

    async def _exchange(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        server: Host,
        breaks: dict[Callable[[], None], None],
        deadline: Deadline,
        name: str,
    ) -> T:
        """Send a message, and wait for its answer. Raises ``EngineError``."""
        calls = self._engine.calls
        calls[name] = calls.get(name, 0) + 1
        if self._network.at(self._host.name).silent:
            await asyncio.sleep(min(CONNECT, deadline.total))
            raise NotReached("could not connect")
        exchange = _Exchange(self._network, self._engine.loop, self._host, server, breaks, work, name)
        exchange.send()
        try:
            async with asyncio.timeout(deadline.total):
                return await exchange.answer
        except TimeoutError as error:
            raise _unclear("silent") from error
        finally:
            exchange.close()

    async def _lifecycle(self, name: str, work: Callable[[], Coroutine[Any, Any, T]], deadline: Deadline) -> T:
        engine = self._engine
        if not engine.up:
            await asyncio.sleep(0.001)
            raise NotReached("the connection was refused")
        return await self._exchange(work, engine.host, engine.breaks, deadline, name)

    async def _execd(
        self, id: str, name: str, work: Callable[[Daemon], Coroutine[Any, Any, T]], deadline: Deadline
    ) -> T:
        engine = self._engine
        box = engine.boxes.get(id)
        if box is None:
            await self.get_sandbox(id)
            raise SandboxMissing("not found")
        if not box.addressed:
            await self.get_sandbox(id)
            raise NoAddress("no address", code="KUBERNETES::POD_IP_NOT_AVAILABLE", status=404)
        daemon = box.daemon
        if daemon is None:
            await asyncio.sleep(self._network.at(self._host.name).latency)
            refused = NotReached("the connection was refused")
            refused.refused = True
            raise refused
        return await self._exchange(lambda: work(daemon), daemon.host, daemon.breaks, deadline, name)

    # -- lifecycle

    async def runtime(self) -> Runtime | None:
        return "docker"

    async def create_sandbox(self, spec: SandboxSpec) -> SandboxInfo:
        return await self._lifecycle("create", lambda: self._engine.create(spec), CREATE)

    async def get_sandbox(self, sandbox_id: str) -> SandboxInfo:
        return await self._lifecycle("get", lambda: self._engine.get(sandbox_id), GET)

    async def list_sandboxes(
        self, metadata: Mapping[str, str], *, states: Sequence[SandboxState] = (), page: int = 1, page_size: int = 200
    ) -> SandboxListing:
        return await self._lifecycle("list", lambda: self._engine.list(dict(metadata), page, page_size), LIST)

    async def delete_sandbox(self, sandbox_id: str) -> None:
        try:
            await self._lifecycle("delete", lambda: self._engine.delete(sandbox_id), DELETE)
        except SandboxMissing:
            pass

    async def renew_sandbox(self, sandbox_id: str, expires_at: float) -> float:
        return await self._lifecycle("renew", lambda: self._engine.renew(sandbox_id, expires_at), RENEW)

    async def pause_sandbox(self, sandbox_id: str) -> None:
        await self._lifecycle("pause", lambda: self._engine.pause(sandbox_id, "pause"), PAUSE)

    async def resume_sandbox(self, sandbox_id: str) -> None:
        await self._lifecycle("resume", lambda: self._engine.pause(sandbox_id, "resume"), PAUSE)

    # -- execd

    async def ping(self, sandbox_id: str) -> None:
        await self._execd(sandbox_id, "ping", lambda daemon: daemon.ping(), PING)

    async def submit(self, sandbox_id: str, spec: CommandSpec) -> str:
        return await self._execd(sandbox_id, "submit", lambda daemon: daemon.submit(spec), SUBMIT)

    def stream(self, sandbox_id: str, spec: CommandSpec, *, silence: float) -> AsyncGenerator[CommandEvent, None]:
        raise NotImplementedError

    async def run_short(
        self,
        sandbox_id: str,
        command: str,
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        uid: int | None = None,
        gid: int | None = None,
    ) -> ShortResult:
        deadline = Deadline(timeout + SHORT_GRACE)
        return await self._execd(sandbox_id, "short", lambda daemon: daemon.run_short(command), deadline)

    async def status(self, sandbox_id: str, command: str) -> CommandStatus:
        return await self._execd(sandbox_id, "status", lambda daemon: daemon.status(command), STATUS)

    async def interrupt(self, sandbox_id: str, command: str) -> None:
        await self._execd(sandbox_id, "interrupt", lambda daemon: daemon.interrupt(command), INTERRUPT)

    async def log(self, sandbox_id: str, command: str, offset: int) -> FileRange:
        path = self.output_path(command)
        return await self._execd(sandbox_id, "log", lambda daemon: daemon.read_file(path, offset, 2**20), LOG)

    async def read_file(self, sandbox_id: str, path: str, offset: int, length: int) -> FileRange:
        return await self._execd(sandbox_id, "read", lambda daemon: daemon.read_file(path, offset, length), READ)

    async def read_lines(self, sandbox_id: str, path: str, limit: int) -> bytes | None:
        return await self._execd(sandbox_id, "lines", lambda daemon: daemon.read_lines(path), READ)

    async def upload(self, sandbox_id: str, path: str, data: bytes, **options: Any) -> None:
        await self._execd(sandbox_id, "upload", lambda daemon: daemon.upload(path, data), READ)

    def output_path(self, command: str, stream: str = "output") -> str:
        return f"/tmp/{command}.{stream}"

    async def check(self) -> None:
        await self._lifecycle("check", lambda: self._engine.list({}, 1, 1), GET)

    async def close(self) -> None:
        pass


class _Exchange(Generic[T]):
    """One message, the work that it asks for, and the answer: each may be late, doubled, lost, or cut."""

    def __init__(
        self,
        network: Network,
        loop: VirtualLoop,
        client: Host,
        server: Host,
        breaks: dict[Callable[[], None], None],
        work: Callable[[], Coroutine[Any, Any, T]],
        name: str,
    ) -> None:
        self.answer: asyncio.Future[T] = loop.create_future()
        self._network = network
        self._loop = loop
        self._client = client
        self._server = server
        self._breaks = breaks
        """What is done when the server dies."""
        self._work = work
        self._name = name

    def send(self) -> None:
        """The message leaves."""
        weather, rng = self._network.at(self._client.name), self._network.rng
        if rng.random() < weather.cut:
            if rng.random() < 0.5:
                self._soon(self._arrived)
            self._soon(self._broken)
        elif rng.random() >= weather.lost:
            self._soon(self._arrived)
            if self._name != "create" and rng.random() < weather.doubled:
                self._soon(self._arrived)

    def close(self) -> None:
        """Nobody waits for the answer any more."""
        self._breaks.pop(self._broken, None)

    def _soon(self, what: Callable[..., None], *args: Any) -> None:
        network = self._network
        self._loop.at(self._loop.now + network.at(self._client.name).delay(network.rng), what, *args)

    def _arrived(self) -> None:
        if not self._server.alive:
            self._broken()
            return
        self._breaks[self._broken] = None
        self._server.start(self._work(), f"serve {self._name}").add_done_callback(self._done)

    def _done(self, done: asyncio.Task[T]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is not None and not isinstance(error, EngineError):
            raise error
        weather, rng = self._network.at(self._client.name), self._network.rng
        if rng.random() < weather.lost or weather.silent:
            return
        if rng.random() < weather.cut:
            self._soon(self._broken)
        else:
            self._soon(self._settle, error, None if error else done.result())

    def _settle(self, error: BaseException | None, found: Any) -> None:
        if self.answer.done():
            return
        if error is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(found)

    def _broken(self) -> None:
        self._settle(_unclear("dropped"), None)


def _unclear(cause: Any) -> Unclear:
    error = Unclear("the connection was lost" if cause == "dropped" else "timed out")
    error.hop, error.cause = "direct", cause
    return error
