"""execd, the daemon in each sandbox: commands started, followed and stopped, and the way there."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Literal, TypeVar

from service.engine import wire
from service.engine.endpoints import FRESH, TTL, Endpoints, Route
from service.engine.events import CommandStream
from service.engine.lifecycle import require_sandbox_id
from service.engine.outcomes import CallKind, Side
from service.engine.transport import Deadline, EngineRequest, Incoming, Reply, Transport, encode
from service.ports.engine import (
    CommandEvent,
    CommandMissing,
    CommandSpec,
    CommandStatus,
    FileMissing,
    FileRange,
    NotReached,
    SandboxMissing,
    ShortResult,
    Unclear,
)

PING = Deadline(total=5)
PROBE = Deadline(total=1)
"""Seconds for the ping that decides whether the direct way works."""
SUBMIT = Deadline(total=30)
"""Seconds: the terminal event of a background start comes in milliseconds."""
STATUS = Deadline(total=10)
INTERRUPT = Deadline(total=15)
"""Seconds: SIGTERM, up to 3 s, SIGKILL."""
LOG = Deadline(total=60)
STREAM_GRACE = 30.0
"""Seconds that a foreground stream may outlive its command's timeout."""
SHORT_GRACE = 2.0
"""The same for our own small commands."""
SHORT_SILENCE = 10.0
"""Seconds without a byte (pings come every 3) in which a small command's stream counts as lost."""

MAX_STATUS = 2 * 1024 * 1024
"""Bytes: the status repeats the whole command, which may be six bytes a character in JSON."""
MAX_LOG = 8 * 1024 * 1024
"""Bytes taken of one answer of execd's own log call."""
MAX_SHORT = 64 * 1024
"""Bytes kept of a small command's output."""
MAX_PONG = 64

T = TypeVar("T")
Stream = Literal["output", "stdout", "stderr"]


class Execd:
    """Calls of execd in any sandbox. ``proxy_headers`` go along through the lifecycle server's proxy only."""

    def __init__(self, transport: Transport, proxy_headers: Mapping[str, str]) -> None:
        self._transport = transport
        self._proxy_headers = proxy_headers
        self.endpoints: Endpoints

    # -- commands

    async def submit(self, sandbox_id: str, spec: CommandSpec) -> str:
        """execd's id of the started command. Leaving at the terminal event closes the connection: execd holds
        it open.
        """
        stream = CommandStream()
        async with aclosing(
            self._run(CallKind.SUBMIT, sandbox_id, _body(spec, background=True), SUBMIT, stream)
        ) as events:
            async for _ in events:
                pass
        assert stream.command is not None
        return stream.command

    async def stream(self, sandbox_id: str, spec: CommandSpec, *, silence: float) -> AsyncGenerator[CommandEvent, None]:
        """Events of a foreground command, as they come."""
        deadline = Deadline(spec.timeout + STREAM_GRACE, silence)
        body = _body(spec, background=False)
        async with aclosing(self._run(CallKind.STREAM, sandbox_id, body, deadline, CommandStream())) as events:
            async for event in events:
                yield event

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
        """The result of a small command. Lines come without their ends: they are joined with line feeds
        again.
        """
        spec = CommandSpec(command=command, timeout=timeout, env=env or {}, cwd=cwd, uid=uid, gid=gid)
        deadline = Deadline(timeout + SHORT_GRACE, SHORT_SILENCE)
        lines: list[str] = []
        room = MAX_SHORT
        exit_code = 0
        body = _body(spec, background=False)
        async with aclosing(self._run(CallKind.SHORT, sandbox_id, body, deadline, CommandStream())) as events:
            async for event in events:
                if event.type == "stdout" and room > 0:
                    lines.append("" if event.text == "\n" else event.text)
                    room -= len(event.text.encode()) + 1
                elif event.type == "exit":
                    exit_code = _shell_code(event)
        text = "\n".join(lines).encode()[:MAX_SHORT].decode(errors="ignore")
        return ShortResult(exit_code, text)

    async def _run(
        self, call: CallKind, sandbox_id: str, body: bytes, deadline: Deadline, stream: CommandStream
    ) -> AsyncGenerator[CommandEvent, None]:
        try:
            async with self.open(call, sandbox_id, "POST", "/command", deadline, body=body) as incoming:
                await incoming.check()
                async for piece in incoming.pieces():
                    for event in stream.feed(piece):
                        yield event
                    _raise(stream)
                    if stream.over:
                        return
                for event in stream.finish():
                    yield event
                _raise(stream)
        except Unclear as error:
            error.command = stream.command
            raise

    async def status(self, sandbox_id: str, command: str) -> CommandStatus:
        """execd's word on a command, foreground ones too."""
        require_command_id(command)

        async def ask(route: Route) -> CommandStatus:
            path = f"/command/status/{command}"
            reply = await self.call(CallKind.STATUS, sandbox_id, "GET", path, STATUS, MAX_STATUS, route=route)
            return wire.command_status(reply.body, command)

        return await self.sure(sandbox_id, ask)

    async def interrupt(self, sandbox_id: str, command: str) -> None:
        """SIGTERM to the process group, up to 3 s, SIGKILL."""
        require_command_id(command)
        await self.call(CallKind.INTERRUPT, sandbox_id, "DELETE", f"/command?id={command}", INTERRUPT, max_age=FRESH)

    async def log(self, sandbox_id: str, command: str, offset: int) -> FileRange:
        """At most ``MAX_LOG`` bytes from ``offset``; ``size`` is execd's next cursor."""
        require_command_id(command)
        path = f"/command/{command}/logs?cursor={offset}"
        async with self.open(CallKind.LOG, sandbox_id, "GET", path, LOG, max_age=TTL) as incoming:
            await incoming.check()
            cursor = wire.log_cursor(incoming.headers)
            data = await incoming.at_most(min(MAX_LOG, max(cursor - offset, 0) or 1))
            if cursor < offset + len(data):
                raise Unclear("log: more bytes than its cursor says")
            return FileRange(offset, data, cursor)

    # -- the way there

    def output_path(self, command: str, stream: Stream = "output") -> str:
        """Where execd writes a command's output: ``output`` of a background one, the others of a foreground one."""
        require_command_id(command)
        return f"/tmp/{command}.{stream}"  # noqa: S108  # a path in the sandbox

    async def ping(self, sandbox_id: str) -> None:
        """Raises unless the daemon answers."""
        reply = await self.call(CallKind.PING, sandbox_id, "GET", "/ping", PING, MAX_PONG)
        _pong(reply)

    async def probe(self, route: Route) -> None:
        """Raises unless the daemon answers on ``route`` at once."""
        _pong(await self._transport.call(self._request(CallKind.PING, route, "GET", "/ping", PROBE), MAX_PONG))

    async def sure(self, sandbox_id: str, ask: Callable[[Route], Awaitable[T]]) -> T:
        """Read with what is remembered of the way there. A "there is none" is believed of a fresh route, and of an
        older one that is still the same; another one is asked again. A port that refuses is believed of a new one.

        The remembered endpoint of a sandbox that is gone may have become another sandbox's.
        """
        require_sandbox_id(sandbox_id)
        route = await self.endpoints.route(sandbox_id, TTL)
        fresh = self.endpoints.fresh(route)
        try:
            return await ask(route)
        except (CommandMissing, FileMissing):
            if fresh:
                raise
            now = await self.endpoints.route(sandbox_id, FRESH)
            if now.leads_as(route):
                raise
        except NotReached as error:
            if not error.refused or self.endpoints.new(route):
                raise
            now = await self.endpoints.route(sandbox_id, FRESH)
        return await ask(now)

    async def call(
        self,
        call: CallKind,
        sandbox_id: str,
        method: str,
        path: str,
        deadline: Deadline,
        limit: int = MAX_STATUS,
        *,
        max_age: float = TTL,
        route: Route | None = None,
    ) -> Reply:
        """The whole answer, of at most ``limit`` bytes."""
        async with self.open(call, sandbox_id, method, path, deadline, max_age=max_age, route=route) as incoming:
            return await incoming.reply(limit)

    @asynccontextmanager
    async def open(
        self,
        call: CallKind,
        sandbox_id: str,
        method: str,
        path: str,
        deadline: Deadline,
        *,
        body: bytes | AsyncIterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        max_age: float = FRESH,
        route: Route | None = None,
    ) -> AsyncIterator[Incoming]:
        """Send a request by ``route``, or by one of at most ``max_age`` seconds.

        Where a port refuses and the route is not of this moment, another one is asked for, once: on Kubernetes a
        sandbox moves. Nothing was sent by then.
        """
        require_sandbox_id(sandbox_id)
        begun, last = False, route is not None
        while True:
            way = route or await self.endpoints.route(sandbox_id, max_age)
            request = self._request(call, way, method, path, deadline, body=body, headers=headers)
            try:
                async with self._transport.open(request) as incoming:
                    begun = True
                    yield incoming
                    return
            except (NotReached, SandboxMissing, Unclear) as error:
                self.endpoints.forget(sandbox_id, way)
                refused = isinstance(error, NotReached) and error.refused
                if begun or last or not refused or self.endpoints.new(way):
                    raise
                last = True

    def _request(
        self,
        call: CallKind,
        route: Route,
        method: str,
        path: str,
        deadline: Deadline,
        *,
        body: bytes | AsyncIterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> EngineRequest:
        ours = self._proxy_headers if route.side is Side.PROXY else {}
        return EngineRequest(
            call=call,
            side=route.side,
            method=method,
            url=route.base + path,
            deadline=deadline,
            headers={**route.headers, **ours, **(headers or {})},
            body=body,
            repeatable=method == "GET",
            server_name=route.server_name,
        )


def require_command_id(command: str) -> None:
    """An id that can't be one is missing: it must not become part of a URL or a path."""
    if not wire.ID.fullmatch(command):
        raise CommandMissing("no such command")


def _body(spec: CommandSpec, *, background: bool) -> bytes:
    body: dict[str, Any] = {
        "command": spec.command,
        "background": background,
        "timeout": max(1, round(spec.timeout * 1000)),
    }
    if spec.cwd is not None:
        body["cwd"] = spec.cwd
    if spec.env:
        body["envs"] = dict(spec.env)
    if spec.uid is not None:
        body["uid"] = spec.uid
    if spec.gid is not None:
        body["gid"] = spec.gid
    return encode(body)


def _raise(stream: CommandStream) -> None:
    if stream.failure is not None:
        raise stream.failure


def _shell_code(event: CommandEvent) -> int:
    code = event.exit_code if event.exit_code is not None else -1
    number = wire.signal_number(event.text) if code == -1 else None
    return 128 + number if number is not None else code


def _pong(reply: Reply) -> None:
    if reply.status != 200 or "html" in reply.headers.get("content-type", "").lower():
        raise Unclear(f"ping: HTTP {reply.status} that is not the daemon's", status=reply.status)
