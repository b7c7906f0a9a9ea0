"""A core that does nothing but note what it was asked, and an ASGI client that shows every byte."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from service.api.application import Application
from service.api.auth import Authenticator
from service.core.app import Core
from service.core.files import paths
from service.core.files.read import Found, Part
from service.core.files.upload import Written
from service.core.limits.rates import Rate
from service.core.limits.room import Room, Share
from service.core.model.answers import Answer, Event, ExecEvent, OutputPage, RawOutput
from service.messages import (
    CreateSandbox,
    Exec,
    ExecResult,
    ExecStart,
    ExecText,
    File,
    FilePage,
    FileType,
    Job,
    JobOutput,
    JobPage,
    JobState,
    OutputEvent,
    Sandbox,
    SandboxPage,
    SandboxState,
    SubmitJob,
    TenantStats,
    Unpacked,
)
from service.settings import Settings
from tests.support.waiting import PATIENCE

JOB = Job(command_id="cmd_c2I_0", sandbox_id="sb", state=JobState.RUNNING)
FILE = File(path="/f", type=FileType.FILE, size=0, mode="0644", modified_at="2026-01-01T00:00:00.000Z")
SANDBOX = Sandbox(sandbox_id="sb", state=SandboxState.RUNNING, ready=True)
RESULT = ExecResult(
    command_id="cmd_c2I_0", exit_code=0, timed_out=False, stdout="hi\n", stderr="", truncated=False, duration=0.1
)


@dataclass
class FakeCore:
    """Sandboxes, jobs and execs in one: ``calls`` has what was asked, ``error`` is raised instead of an answer."""

    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    error: Exception | None = None
    replayed: bool = False
    reasons: list[str] = field(default_factory=list)
    pending: asyncio.Event | None = None
    """A long poll and an exec answer when it is set."""
    poll_cancelled: bool = False
    events_script: list[Event | Exception | asyncio.Event] = field(default_factory=list)
    events_closed: bool = False
    exec_script: list[ExecEvent | Exception] = field(default_factory=list)
    raw_output: RawOutput | None = None

    settings: Settings = field(default_factory=Settings)
    rate: Rate | None = None
    counted: list[tuple[str, str]] = field(default_factory=list)
    room: Room = field(default_factory=Room)
    output: bytes = b"hi\n"

    def __post_init__(self) -> None:
        self.sandboxes = self.sandbox_list = _Sandboxes(self)
        self.jobs = self.job_list = _Jobs(self)
        self.statistics = _Statistics(self)
        self.execs = _Execs(self)
        self.files = _Files(self)
        self.rates = self
        self.started = 0
        self.shut_down: list[float] = []

    def note(self, name: str, **asked: Any) -> None:
        self.calls.append((name, asked))
        if self.error is not None:
            raise self.error

    async def admit(self, tenant: str, kind: str) -> Rate | None:
        """Rates: what was counted, and what they say."""
        self.counted.append((tenant, kind))
        return self.rate

    @property
    def asked(self) -> dict[str, Any]:
        """What the last call was asked."""
        return self.calls[-1][1]

    def app(
        self,
        settings: Settings | None = None,
        *,
        manages_core: bool = False,
        authenticator: Authenticator | None = None,
    ) -> Application:
        return Application(
            cast(Core, self), settings or Settings(), manages_core=manages_core, authenticator=authenticator
        )

    async def readiness(self) -> list[str]:
        return self.reasons

    async def start(self) -> None:
        self.started += 1

    async def shutdown(self, grace: float) -> None:
        self.shut_down.append(grace)


class _Sandboxes:
    def __init__(self, core: FakeCore) -> None:
        self.core = core

    async def create(self, tenant: str, request: CreateSandbox, key: str | None) -> Answer[Sandbox]:
        self.core.note("create", tenant=tenant, request=request, key=key)
        return Answer(SANDBOX, self.core.replayed, key or "")

    async def get(self, tenant: str, sandbox_id: str) -> Sandbox:
        self.core.note("get", tenant=tenant, sandbox_id=sandbox_id)
        return SANDBOX

    async def page(self, tenant: str, *, share: Share, **asked: Any) -> SandboxPage:
        self.core.note("list", tenant=tenant, **asked)
        return SandboxPage(items=[SANDBOX])

    async def delete(self, tenant: str, sandbox_id: str) -> None:
        self.core.note("delete", tenant=tenant, sandbox_id=sandbox_id)

    async def renew(self, tenant: str, sandbox_id: str, timeout: int) -> Sandbox:
        self.core.note("renew", tenant=tenant, sandbox_id=sandbox_id, timeout=timeout)
        return SANDBOX

    async def pause(self, tenant: str, sandbox_id: str) -> Sandbox:
        self.core.note("pause", tenant=tenant, sandbox_id=sandbox_id)
        return SANDBOX

    async def resume(self, tenant: str, sandbox_id: str) -> Sandbox:
        self.core.note("resume", tenant=tenant, sandbox_id=sandbox_id)
        return SANDBOX


class _Statistics:
    def __init__(self, core: FakeCore) -> None:
        self.core = core

    async def of(self, tenant: str, *, share: Share) -> TenantStats:
        self.core.note("stats", tenant=tenant)
        return TenantStats(jobs={"running": 1}, sandboxes={}, counted=1000, minutes=[])


class _Jobs:
    def __init__(self, core: FakeCore) -> None:
        self.core = core

    async def submit(self, tenant: str, request: SubmitJob, key: str | None) -> Answer[Job]:
        self.core.note("submit", tenant=tenant, request=request, key=key)
        return Answer(JOB, self.core.replayed, key or "")

    async def get(self, tenant: str, command_id: str, *, share: Share, **asked: Any) -> OutputPage:
        self.core.note("get", tenant=tenant, command_id=command_id, **asked)
        if self.core.pending is not None and asked.get("wait"):
            try:
                await self.core.pending.wait()
            except asyncio.CancelledError:
                self.core.poll_cancelled = True
                raise
        job = JobOutput(command_id=command_id, sandbox_id="sb", state=JobState.RUNNING, cursor="c1")
        return OutputPage(msgspec.structs.replace(job, encoding=asked["encoding"]), self.core.output)

    async def page(self, tenant: str, *, share: Share, **asked: Any) -> JobPage:
        self.core.note("list", tenant=tenant, **asked)
        return JobPage(items=[JOB])

    async def cancel(self, tenant: str, command_id: str) -> Job:
        self.core.note("cancel", tenant=tenant, command_id=command_id)
        return JOB

    def is_end(self, cursor: str) -> bool:
        return cursor == "the-end"

    async def events(self, tenant: str, command_id: str, *, share: Share, **asked: Any) -> AsyncIterator[Event]:
        self.core.note("events", tenant=tenant, command_id=command_id, **asked)
        try:
            for item in self.core.events_script:
                if isinstance(item, asyncio.Event):
                    await item.wait()
                elif isinstance(item, Exception):
                    raise item
                else:
                    yield item
        finally:
            self.core.events_closed = True

    async def raw(self, tenant: str, command_id: str, *, share: Share, **asked: Any) -> RawOutput:
        self.core.note("raw", tenant=tenant, command_id=command_id, **asked)
        assert self.core.raw_output is not None
        return self.core.raw_output


class _Execs:
    def __init__(self, core: FakeCore) -> None:
        self.core = core

    async def run(self, tenant: str, request: Exec, key: str | None, *, share: Share) -> Answer[ExecResult]:
        self.core.note("run", tenant=tenant, request=request, key=key)
        if self.core.pending is not None:
            await self.core.pending.wait()
        return Answer(RESULT, self.core.replayed, key or "")

    async def stream(self, tenant: str, request: Exec, key: str | None, *, share: Share) -> AsyncIterator[ExecEvent]:
        self.core.note("stream", tenant=tenant, request=request, key=key)
        for item in self.core.exec_script:
            if isinstance(item, Exception):
                raise item
            yield item


class _Files:
    def __init__(self, core: FakeCore) -> None:
        self.core = core
        self.reads = self

    async def put(
        self, tenant: str, sandbox_id: str, path: str, body: AsyncIterator[bytes], *, share: Share, **asked: Any
    ) -> Written:
        self.core.note("put", tenant=tenant, sandbox_id=sandbox_id, path=path, **asked)
        await share.hold(1000)
        self.core.asked["body"] = b"".join([chunk async for chunk in body])
        return Written(msgspec.structs.replace(FILE, path=path, size=len(self.core.asked["body"])), True, '"tag"')

    @contextlib.asynccontextmanager
    async def open(self, tenant: str, sandbox_id: str, path: str, **asked: Any) -> AsyncIterator[Found]:
        self.core.note("open", tenant=tenant, sandbox_id=sandbox_id, path=path, **asked)
        line = paths.parse_stat(f"81a4 {len(self.core.output)} 0 0 1 2 1700000000 x|1700000000 x|")
        yield Found(sandbox_id=sandbox_id, path=path, user=None, at=path, way=None, name="f", stat=line)

    async def chunks(self, found: Found, part: Part, share: Share) -> AsyncIterator[bytes]:
        yield self.core.output[part.start : part.end]

    async def unpack(
        self, tenant: str, sandbox_id: str, path: str, body: AsyncIterator[bytes], *, share: Share, **asked: Any
    ) -> Unpacked | Job:
        self.core.note("unpack", tenant=tenant, sandbox_id=sandbox_id, path=path, **asked)
        await share.hold(1000)
        return Unpacked(files=1, bytes=len(b"".join([chunk async for chunk in body])))

    @contextlib.asynccontextmanager
    async def pack(self, tenant: str, sandbox_id: str, path: str, **asked: Any) -> AsyncIterator[Any]:
        self.core.note("pack", tenant=tenant, sandbox_id=sandbox_id, path=path, **asked)
        yield None

    async def info(self, tenant: str, sandbox_id: str, path: str, **asked: Any) -> File:
        self.core.note("info", tenant=tenant, sandbox_id=sandbox_id, path=path, **asked)
        return FILE

    async def list(self, tenant: str, sandbox_id: str, path: str, **asked: Any) -> FilePage:
        self.core.note("list", tenant=tenant, sandbox_id=sandbox_id, path=path, **asked)
        return FilePage(items=[FILE])

    async def make_directory(self, tenant: str, sandbox_id: str, path: str, **asked: Any) -> tuple[File, bool]:
        self.core.note("make_directory", tenant=tenant, sandbox_id=sandbox_id, path=path, **asked)
        return FILE, True

    async def remove(self, tenant: str, sandbox_id: str, path: str, **asked: Any) -> None:
        self.core.note("remove", tenant=tenant, sandbox_id=sandbox_id, path=path, **asked)


def output_event(text: str, id: str) -> Event:
    return Event("output", id, OutputEvent(output=text))


EXEC_EVENTS = [
    ExecEvent("start", ExecStart(command_id="cmd_c2I_0")),
    ExecEvent("stdout", ExecText(text="hi\n")),
    ExecEvent("result", RESULT),
]


async def chunks(*parts: bytes, error: Exception | None = None) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
    if error is not None:
        raise error


@dataclass
class Got:
    """An answer as it was sent. ``finished``: its last part came."""

    status: int = 0
    header_list: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    parts: list[bytes] = field(default_factory=list)
    finished: bool = False

    @property
    def headers(self) -> dict[str, str]:
        names = [name for name, _ in self.header_list]
        assert len(set(names)) == len(names), f"a header twice: {names}"
        return dict(self.header_list)

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Connection:
    """One request to an ASGI application, driven from a test."""

    def __init__(
        self,
        app: Callable[..., Any],
        method: str,
        target: str,
        *,
        headers: Iterable[tuple[str, str]] = (),
        body: Iterable[bytes] = (),
        more: bool = False,
    ) -> None:
        path, _, query = target.partition("?")
        sent = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
        if not any(name == b"host" for name, _ in sent):
            sent.append((b"host", b"127.0.0.1:8700"))
        self.scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": sent,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8700),
        }
        self.got = Got()
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.cut_off = False
        self.taken = asyncio.Event()
        self.taken.set()
        parts = list(body)
        for part in parts:
            self.incoming.put_nowait({"type": "http.request", "body": part, "more_body": True})
        if not more:
            self.incoming.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        self.task = asyncio.ensure_future(app(self.scope, self.incoming.get, self._send))

    async def _send(self, message: dict[str, Any]) -> None:
        await self.taken.wait()
        if self.cut_off:
            raise TimeoutError(110, "Connection timed out")
        if message["type"] == "http.response.start":
            assert self.got.status == 0, "a second answer"
            self.got.status = message["status"]
            self.got.header_list = [(name.decode().lower(), value.decode()) for name, value in message["headers"]]
        else:
            assert self.got.status != 0, "a body without a head"
            assert not self.got.finished, "a body after the end"
            self.got.body += message.get("body", b"")
            self.got.parts.append(message.get("body", b""))
            self.got.finished = not message.get("more_body", False)

    def disconnect(self) -> None:
        self.incoming.put_nowait({"type": "http.disconnect"})

    async def answer(self) -> Got:
        async with asyncio.timeout(PATIENCE):
            await self.task
        return self.got


async def ask(app: Callable[..., Any], method: str, target: str, **request: Any) -> Got:
    """Send a request and take its answer."""
    return await Connection(app, method, target, **request).answer()


async def post(
    app: Callable[..., Any], target: str, body: Any, *, headers: Iterable[tuple[str, str]] = (), **request: Any
) -> Got:
    """POST ``body``: bytes as they are, anything else as JSON."""
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    sent = [("content-type", "application/json"), ("content-length", str(len(raw))), *headers]
    return await ask(app, "POST", target, headers=sent, body=[raw], **request)
