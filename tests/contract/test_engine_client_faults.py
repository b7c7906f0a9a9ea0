"""The engine client against servers that misbehave, one connection at a time."""

import asyncio
import contextlib
import gzip
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import msgspec
import pytest

from service.engine import OpenSandboxEngine, endpoints, execd, files, lifecycle, transport
from service.engine.transport import Deadline
from service.ports.engine import (
    AnswerTooLarge,
    CommandMissing,
    CommandSpec,
    Denied,
    EngineError,
    FileMissing,
    FileRange,
    Mount,
    NotReached,
    Refused,
    SandboxSpec,
    Unclear,
)
from tests.support.waiting import PATIENCE
from tests.unit.engine.raw_server import Arrived, Behaviour, RawServer, chunk, reply, reset, stream_head

SPEC = SandboxSpec(image="i", entrypoint=["sleep"], cpu="1", memory="1Gi", timeout=600)
COMMAND = CommandSpec(command="true", timeout=5)
ID = "4526c4a1b2a544a3bf60e3ab0baec150"
INIT = json.dumps({"type": "init", "text": ID}).encode() + b"\n\n"
PING = b'{"type":"ping","text":"pong"}\n\n'
COMPLETE = b'{"type":"execution_complete"}\n\n'
SANDBOX = {"id": "sb", "status": {"state": "Running"}}
STATUS = {"id": ID, "running": True, "content": "true", "started_at": "2026-11-29T15:35:06.304564128Z"}
PAGE = "<html><body>Bad Gateway</body></html>"
KEY = "the-engines-key"

Call = Callable[[OpenSandboxEngine], Awaitable[Any]]


async def drain(stream: AsyncIterator[Any]) -> list[Any]:
    return [each async for each in stream]


async def downloaded(engine: OpenSandboxEngine) -> bytes:
    async with engine.download("sb", "/f", 0, 10, timeout=0.3) as found:
        return b"".join(await drain(found.pieces))


LIFECYCLE_CALLS: dict[str, Call] = {
    "create": lambda engine: engine.create_sandbox(SPEC),
    "get": lambda engine: engine.get_sandbox("sb"),
    "list": lambda engine: engine.list_sandboxes({"a": "b"}),
    "delete": lambda engine: engine.delete_sandbox("sb"),
    "renew": lambda engine: engine.renew_sandbox("sb", 2e9),
    "pause": lambda engine: engine.pause_sandbox("sb"),
    "resume": lambda engine: engine.resume_sandbox("sb"),
    "check": lambda engine: engine.check(),
}
EXECD_CALLS: dict[str, Call] = {
    "ping": lambda engine: engine.ping("sb"),
    "submit": lambda engine: engine.submit("sb", COMMAND),
    "stream": lambda engine: drain(engine.stream("sb", COMMAND, silence=5)),
    "short": lambda engine: engine.run_short("sb", "true", timeout=5),
    "status": lambda engine: engine.status("sb", ID),
    "interrupt": lambda engine: engine.interrupt("sb", ID),
    "log": lambda engine: engine.log("sb", ID, 0),
    "read": lambda engine: engine.read_file("sb", "/f", 0, 10),
    "remove": lambda engine: engine.remove_files("sb", ["/f"]),
    "remove directory": lambda engine: engine.remove_directory("sb", "/f"),
    "upload": lambda engine: engine.upload("sb", "/f", b"x" * 10, length=10, timeout=0.3),
    "download": downloaded,
    "file info": lambda engine: engine.file_info("sb", "/f"),
    "list files": lambda engine: engine.list_directory("sb", "/f", limit=100_000),
    "make directory": lambda engine: engine.make_directory("sb", "/f"),
    "move": lambda engine: engine.move("sb", "/f", "/g"),
    "permissions": lambda engine: engine.set_permissions("sb", "/f", mode=0o600),
}
CALLS = LIFECYCLE_CALLS | EXECD_CALLS
READS = {"get", "list", "check", "ping", "status", "log", "read", "download", "file info", "list files"}
NO_BODY = {
    *("delete", "pause", "resume", "interrupt", "remove", "remove directory", "upload", "make directory", "move"),
    "permissions",
}
"""Calls to which any 2xx is an answer."""


class Rig:
    """A server that is both the engine and the sandbox's daemon, and a client of it."""

    def __init__(self, server: RawServer) -> None:
        self.server = server
        self.engine = OpenSandboxEngine(server.url, api_key=KEY, proxy="never")
        self.behave: Behaviour = nothing
        self.path = "/execd"

    async def serve(self, request: Arrived, writer: asyncio.StreamWriter) -> None:
        if "/endpoints/" in request.target:
            writer.write(reply(200, {"endpoint": f"{self.server.address}{self.path}", "headers": {"Token": "t"}}))
            return
        await self.behave(request, writer)

    def arrived(self) -> list[Arrived]:
        """What came in, but for lookups of endpoints."""
        return [each for each in self.server.requests if "/endpoints/" not in each.target]


async def nothing(_: Arrived, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    server = RawServer(nothing)
    async with server:
        made = Rig(server)
        server.behave = made.serve
        yield made
        await made.engine.close()


def answering(*replies: bytes) -> Behaviour:
    """The same bytes to every request, in pieces."""

    async def behave(_: Arrived, writer: asyncio.StreamWriter) -> None:
        for each in replies:
            writer.write(each)
            await writer.drain()

    return behave


async def cut(_: Arrived, writer: asyncio.StreamWriter) -> None:
    reset(writer)


# -- nothing is sent twice


@pytest.mark.parametrize("name", sorted(set(CALLS) - READS))
@pytest.mark.parametrize("how", ["reset", "closed", "half a head", "half a body"])
async def test_a_request_that_does_something_is_sent_once_and_its_loss_is_unclear(
    rig: Rig, name: str, how: str
) -> None:
    rig.behave = {
        "reset": cut,
        "closed": nothing,
        "half a head": closing(b"HTTP/1.1 200 OK\r\nContent-"),
        "half a body": closing(b"HTTP/1.1 400 X\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"),
    }[how]
    for _ in range(2):
        with pytest.raises(Unclear):
            await CALLS[name](rig.engine)
    assert len(rig.arrived()) == 2


def closing(data: bytes) -> Behaviour:
    async def behave(_: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        writer.close()

    return behave


async def test_a_request_that_does_something_has_a_connection_of_its_own(rig: Rig) -> None:
    rig.behave = answering(reply(204))
    for _ in range(3):
        await rig.engine.delete_sandbox("sb")
    assert rig.server.connections == 3


async def test_reads_share_connections_and_survive_one_that_was_closed(rig: Rig) -> None:
    rig.behave = answering(reply(200, SANDBOX))
    for _ in range(5):
        await rig.engine.get_sandbox("sb")
    assert rig.server.connections == 1
    dropped: list[Arrived] = []

    async def drop_first(request: Arrived, writer: asyncio.StreamWriter) -> None:
        if not dropped:
            dropped.append(request)
            writer.close()
        else:
            writer.write(reply(200, SANDBOX))

    rig.behave = drop_first
    assert (await rig.engine.get_sandbox("sb")).id == "sb"


# -- not reached


@pytest.mark.parametrize("name", sorted(CALLS))
async def test_a_refused_connection_is_not_reached(rig: Rig, name: str) -> None:
    async with RawServer(nothing) as gone:
        url = gone.url
    engine = OpenSandboxEngine(url, api_key=KEY, proxy="auto")
    with pytest.raises(NotReached):
        await CALLS[name](engine)
    await engine.close()


@pytest.mark.parametrize("name", sorted(EXECD_CALLS))
async def test_a_daemon_whose_port_is_closed_is_not_reached_and_its_endpoint_forgotten(rig: Rig, name: str) -> None:
    async with RawServer(nothing) as gone:
        address = gone.address
    rig.server.behave = answering(reply(200, {"endpoint": address}))
    for _ in range(2):
        with pytest.raises(NotReached):
            await EXECD_CALLS[name](rig.engine)
    assert rig.server.count("GET", "/v1/sandboxes/sb/endpoints/44772") == 2


@pytest.mark.parametrize("url", ["http://no-such-host.invalid:1", "https://{address}"])
async def test_no_name_and_no_tls_is_not_reached(rig: Rig, url: str) -> None:
    engine = OpenSandboxEngine(url.format(address=rig.server.address), api_key=KEY, proxy="auto")
    rig.behave = closing(b"not tls")
    with pytest.raises(NotReached):
        await engine.create_sandbox(SPEC)
    await engine.close()


async def test_a_full_pool_is_not_reached(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    release = asyncio.Event()

    async def hold(_: Arrived, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(reply(202, SANDBOX))

    rig.behave = hold
    engine = OpenSandboxEngine(rig.server.url, api_key=KEY, proxy="never", limit=1)
    first = asyncio.ensure_future(engine.create_sandbox(SPEC))
    while not rig.arrived():
        await asyncio.sleep(0.01)
    monkeypatch.setattr(transport, "CONNECT", 0.2)
    with pytest.raises(NotReached):
        await engine.create_sandbox(SPEC)
    release.set()
    assert (await first).id == "sb"
    assert len(rig.arrived()) == 1
    await engine.close()


async def test_a_closed_client_sends_nothing(rig: Rig) -> None:
    await rig.engine.close()
    for name in CALLS:
        with pytest.raises(NotReached):
            await CALLS[name](rig.engine)
    assert rig.server.requests == []


async def test_a_lookup_that_breaks_leaves_the_command_unsent(rig: Rig) -> None:
    for answer in (reply(502, PAGE, "text/html"), reply(200, {"endpoint": 5}), reply(200, PAGE, "text/html")):
        rig.server.behave = answering(answer)
        with pytest.raises(NotReached):
            await rig.engine.submit("sb", COMMAND)
    rig.server.behave = cut
    with pytest.raises(NotReached):
        await rig.engine.submit("sb", COMMAND)


# -- deadlines


async def _hangs(_: Arrived, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


def dribbling(head: bytes, piece: bytes) -> Behaviour:
    async def behave(_: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while not writer.is_closing():
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.05)

    return behave


SLOW = {
    "no head": _hangs,
    "a head byte by byte": dribbling(b"HTTP/1.1 200 OK\r\n", b"a"),
    "a body byte by byte": dribbling(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b" "),
    "an error byte by byte": dribbling(b"HTTP/1.1 400 X\r\nContent-Length: 9999\r\n\r\n", b" "),
    "pings for ever": dribbling(stream_head() + chunk(INIT), chunk(PING)),
}


@pytest.mark.parametrize("name", sorted(CALLS))
@pytest.mark.parametrize("how", sorted(SLOW))
async def test_every_call_ends_at_its_deadline(rig: Rig, monkeypatch: pytest.MonkeyPatch, name: str, how: str) -> None:
    for module in (lifecycle, execd, files):
        for constant, value in vars(module).copy().items():
            if isinstance(value, Deadline) and constant != "ENDPOINT":
                monkeypatch.setattr(module, constant, Deadline(total=0.3))
    monkeypatch.setattr(execd, "STREAM_GRACE", -4.7)
    monkeypatch.setattr(execd, "SHORT_GRACE", -4.7)
    if how == "pings for ever" and name in ("log", "read", "download", *NO_BODY):
        pytest.skip("not a stream")
    rig.behave = SLOW[how]
    while True:
        with pytest.raises((Unclear, NotReached)) as caught:
            await CALLS[name](rig.engine)
        if caught.type is Unclear:
            break
        assert not rig.arrived(), "the machine stood still: the deadline was over before anything was sent"


async def test_a_silent_stream_is_unclear_long_before_its_deadline(rig: Rig) -> None:
    async def behave(_: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head() + chunk(INIT))
        await writer.drain()
        await asyncio.sleep(3600)

    rig.behave = behave
    with pytest.raises(Unclear) as caught:
        await drain(rig.engine.stream("sb", CommandSpec(command="x", timeout=7200), silence=0.3))
    assert caught.value.command == ID


async def test_submit_returns_at_the_terminal_event_and_lets_the_stream_end_by_itself(rig: Rig) -> None:
    returned, ended = asyncio.Event(), asyncio.Event()

    async def behave(_: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head() + chunk(INIT) + chunk(COMPLETE))
        await writer.drain()
        await returned.wait()
        for data in (chunk(PING), chunk(PING), chunk(b"")):
            # To a connection that its reader has closed, the second of these fails.
            writer.write(data)
            await asyncio.sleep(0.05)
            await writer.drain()
        ended.set()

    rig.behave = behave
    async with asyncio.timeout(60):
        assert await rig.engine.submit("sb", COMMAND) == ID
    returned.set()
    async with asyncio.timeout(60):
        await ended.wait()
        while rig.engine._transport._draining:
            await asyncio.sleep(0.01)


async def test_a_stream_that_never_ends_is_let_go(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "DRAIN_TIME", 0.2)
    rig.behave = dribbling(stream_head() + chunk(INIT) + chunk(COMPLETE), chunk(PING))
    await rig.engine.submit("sb", COMMAND)
    async with asyncio.timeout(PATIENCE):
        while rig.server.open_now > 1:
            await asyncio.sleep(0.02)


async def test_a_caller_that_is_cancelled_leaves_nothing_behind(rig: Rig) -> None:
    rig.behave = _hangs
    before = asyncio.all_tasks()
    caller = asyncio.ensure_future(rig.engine.create_sandbox(SPEC))
    while not rig.arrived():
        await asyncio.sleep(0.01)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert not rig.engine._transport._single.in_use
    assert len(asyncio.all_tasks() - before) <= 1, "the server's own"


# -- what is no answer


@pytest.mark.parametrize("name", sorted(set(CALLS) - NO_BODY))
@pytest.mark.parametrize(
    "body", [PAGE, "", "{", "[]", "null", '"x"', "{}", '{"id": 1}', "\x00\xff", '{"code":"X","message":"y"}']
)
async def test_a_200_that_is_none_is_unclear(rig: Rig, name: str, body: str) -> None:
    if name in ("ping", "log") and body != PAGE:
        pytest.skip("any short text is an answer")
    if name == "list files" and body == "[]":
        pytest.skip("an empty list is an answer")
    kind = "text/html" if body == PAGE else "application/json"
    rig.behave = answering(reply(200, body, kind))
    with pytest.raises(Unclear):
        await CALLS[name](rig.engine)


@pytest.mark.parametrize("name", sorted(CALLS))
@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 429, 500, 502, 503, 504])
async def test_a_gateways_page_is_unclear(rig: Rig, name: str, status: int) -> None:
    rig.behave = answering(reply(status, PAGE, "text/html"))
    with pytest.raises(Unclear):
        await CALLS[name](rig.engine)


@pytest.mark.parametrize("name", sorted(CALLS))
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(rig: Rig, name: str, status: int) -> None:
    async with RawServer(answering(reply(200, SANDBOX))) as elsewhere:
        rig.behave = answering(reply(status, Location=f"{elsewhere.url}/v1/sandboxes"))
        with pytest.raises(Unclear):
            await CALLS[name](rig.engine)
        assert elsewhere.requests == []


@pytest.mark.parametrize("name", sorted(set(CALLS) - {"log"}))
async def test_a_huge_answer_is_not_read_to_its_end(rig: Rig, name: str) -> None:
    sent = 0

    async def behave(_: Arrived, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(stream_head(Content_Range="bytes 0-9/20"))
        while sent < 200 << 20:
            writer.write(chunk(b" " * 65536))
            await writer.drain()
            sent += 65536

    rig.behave = behave
    with pytest.raises((Unclear, AnswerTooLarge)):
        await CALLS[name](rig.engine)
    await rig.engine.close()
    assert sent < 100 << 20


@pytest.mark.parametrize("length", [200, 10**12])
async def test_a_huge_error_is_not_read_to_its_end(rig: Rig, length: int) -> None:
    body = json.dumps({"code": "X", "message": "y" * 100_000}).encode()
    head = f"HTTP/1.1 400 X\r\nContent-Type: application/json\r\nContent-Length: {max(length, len(body))}\r\n\r\n"
    rig.behave = closing(head.encode() + body)
    with pytest.raises(Unclear):
        await rig.engine.submit("sb", COMMAND)


async def test_a_compressed_answer_is_not_unpacked(rig: Rig) -> None:
    bomb = gzip.compress(json.dumps(SANDBOX).encode() + b" " * (32 << 20))
    rig.behave = answering(reply(200, bomb, "application/json", Content_Encoding="gzip"))
    with pytest.raises(Unclear):
        await rig.engine.get_sandbox("sb")
    assert rig.arrived()[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: " + b"b" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_unclear(rig: Rig, data: bytes) -> None:
    rig.behave = closing(data)
    for name in ("create", "submit", "status"):
        with pytest.raises(Unclear):
            await CALLS[name](rig.engine)


async def test_an_answer_about_something_else_is_unclear(rig: Rig) -> None:
    rig.behave = answering(reply(200, {**SANDBOX, "id": "other"}))
    with pytest.raises(Unclear):
        await rig.engine.get_sandbox("sb")
    rig.behave = answering(reply(200, {**STATUS, "id": "f" * 32}))
    with pytest.raises(Unclear):
        await rig.engine.status("sb", ID)


# -- ranges

DISPOSITION = {"Content_Disposition": 'attachment; filename="f"'}


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (reply(206, b"cde", Content_Range="bytes 2-4/10"), FileRange(2, b"cde", 10)),
        (reply(206, b"cd", Content_Range="bytes 2-3/4"), FileRange(2, b"cd", 4)),
        (reply(416, "invalid range", "text/plain", Content_Range="bytes */2"), FileRange(2, b"", 2)),
        (reply(416, "invalid range", "text/plain", Content_Range="bytes */0"), FileRange(2, b"", 0)),
        (reply(200, b"", **DISPOSITION), FileRange(2, b"", 0)),
    ],
)
async def test_a_range_is_an_answer(rig: Rig, answer: bytes, found: FileRange) -> None:
    rig.behave = answering(answer)
    assert await rig.engine.read_file("sb", "/f", 2, 3) == found
    assert rig.arrived()[0].headers["range"] == "bytes=2-4"


@pytest.mark.parametrize(
    "answer",
    [
        reply(200, b"abcdefghij", **DISPOSITION),
        reply(200, b"abc", **DISPOSITION),
        reply(200, b""),
        reply(200, b"", "text/html"),
        reply(204),
        reply(206, b"cde"),
        reply(206, b"abc", Content_Range="bytes 0-2/10"),
        reply(206, b"cdef", Content_Range="bytes 2-5/10"),
        reply(206, b"cde", Content_Range="bytes 2-4/*"),
        reply(206, b"cd", Content_Range="bytes 2-4/10"),
        reply(206, b"cdef", Content_Range="bytes 2-4/10"),
        reply(206, b"--x", "multipart/byteranges; boundary=x"),
        reply(416, "no", "text/plain"),
        reply(416, "no", "text/plain", Content_Range="bytes */9"),
        b"HTTP/1.1 206 X\r\nContent-Range: bytes 2-4/10\r\nContent-Length: 3\r\nConnection: close\r\n\r\nc",
        b"HTTP/1.1 206 X\r\nContent-Range: bytes 2-4/10\r\nConnection: close\r\n\r\nc",
    ],
)
async def test_what_is_not_the_range_is_unclear(rig: Rig, answer: bytes) -> None:
    rig.behave = closing(answer)
    with pytest.raises(Unclear):
        await rig.engine.read_file("sb", "/f", 2, 3)


async def test_a_log_is_bounded_and_checked(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    cursor = "EXECD_COMMANDS_TAIL_CURSOR"
    monkeypatch.setattr(execd, "MAX_LOG", 4)
    rig.behave = answering(reply(200, b"abcdefghij", **{cursor: "12"}))
    assert await rig.engine.log("sb", ID, 2) == FileRange(2, b"abcd", 12)
    rig.behave = answering(reply(200, b"", **{cursor: "2"}))
    assert await rig.engine.log("sb", ID, 2) == FileRange(2, b"", 2)
    for bad in (reply(200, b"x"), reply(200, b"x", **{cursor: "2"}), reply(200, b"x", **{cursor: "-1"})):
        rig.behave = answering(bad)
        with pytest.raises(Unclear):
            await rig.engine.log("sb", ID, 2)


# -- who is told what


async def test_the_key_goes_to_the_lifecycle_server_and_never_to_a_sandbox(rig: Rig) -> None:
    rig.behave = answering(reply(200))
    await rig.engine.ping("sb")
    lookup, ping = rig.server.requests
    assert lookup.headers["open-sandbox-api-key"] == KEY
    assert "open-sandbox-api-key" not in ping.headers
    assert ping.headers["token"] == "t"
    assert ping.target == "/execd/ping"
    proxied = OpenSandboxEngine(rig.server.url, api_key=KEY, proxy="always")
    await proxied.ping("sb")
    assert rig.server.requests[-1].target == "/v1/sandboxes/sb/proxy/44772/ping"
    assert rig.server.requests[-1].headers["open-sandbox-api-key"] == KEY
    await proxied.close()


async def test_an_error_names_no_secret(rig: Rig) -> None:
    rig.behave = cut
    secret = SandboxSpec(**{**_fields(SPEC), "env": {"TOKEN": "s3cret"}})
    for call in (
        rig.engine.create_sandbox(secret),
        rig.engine.submit("sb", CommandSpec(command="echo s3cret", timeout=5, env={"T": "s3cret"})),
    ):
        with pytest.raises(EngineError) as caught:
            await call
        shown = f"{caught.value!r} {caught.value.__cause__!r}"
        assert "s3cret" not in shown
        assert KEY not in shown


def _fields(spec: SandboxSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in spec.__struct_fields__}


async def test_an_endpoint_outside_the_networks_is_never_contacted(rig: Rig) -> None:
    async with RawServer(answering(reply(200))) as daemon:
        for endpoint in (daemon.address, daemon.address.replace("127.0.0.1", "localhost")):
            rig.server.behave = answering(reply(200, {"endpoint": endpoint}))
            engine = OpenSandboxEngine(rig.server.url, api_key=KEY, proxy="never", networks=[ip_network("10.0.0.0/8")])
            with pytest.raises(NotReached):
                await engine.submit("sb", COMMAND)
            await engine.close()
            allowed = OpenSandboxEngine(
                rig.server.url, api_key=KEY, proxy="never", networks=[ip_network("127.0.0.0/8")]
            )
            assert daemon.requests == []
            await allowed.ping("sb")
            assert daemon.requests.pop().headers["host"] == endpoint
            await allowed.close()


@pytest.mark.parametrize("name", ["status", "read"])
@pytest.mark.parametrize(
    ("age", "path", "asked", "looked_up"),
    [
        (0.0, "/execd", ["/execd"], 0),
        (0.0, "/moved", ["/execd"], 0),
        (6.0, "/execd", ["/execd"], 1),
        (6.0, "/moved", ["/execd", "/moved"], 1),
    ],
)
async def test_there_is_none_is_asked_again_where_an_old_way_there_is_another_now(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, name: str, age: float, path: str, asked: list[str], looked_up: int
) -> None:
    """The endpoint of a sandbox that is gone may have become another sandbox's."""
    clock = [time.monotonic()]
    monkeypatch.setattr(rig.engine.endpoints, "_clock", lambda: clock[0])
    code = "FILE_NOT_FOUND" if name == "read" else "INVALID_REQUEST_BODY"
    rig.behave = answering(reply(404, {"code": code, "message": "x"}))
    with pytest.raises((CommandMissing, FileMissing)):
        await CALLS[name](rig.engine)
    rig.server.requests.clear()
    rig.path = path
    clock[0] += age
    with pytest.raises((CommandMissing, FileMissing)):
        await CALLS[name](rig.engine)
    assert ["/" + each.target.split("/")[1] for each in rig.arrived()] == asked
    assert rig.server.count("GET", "/v1/sandboxes/sb/endpoints") == looked_up


async def test_what_is_sent_goes_by_a_fresh_way(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.behave = answering(stream_head() + chunk(INIT) + chunk(COMPLETE) + chunk(b""))
    clock = [time.monotonic()]
    monkeypatch.setattr(rig.engine.endpoints, "_clock", lambda: clock[0])
    await rig.engine.submit("sb", COMMAND)
    await rig.engine.submit("sb", COMMAND)
    assert rig.server.count("GET", "/v1/sandboxes/sb/endpoints") == 1
    clock[0] += 6
    await rig.engine.submit("sb", COMMAND)
    assert rig.server.count("GET", "/v1/sandboxes/sb/endpoints") == 2


async def test_calls_are_observed(rig: Rig) -> None:
    seen: list[tuple[str, str]] = []
    engine = OpenSandboxEngine(
        rig.server.url,
        api_key=KEY,
        proxy="never",
        observe=lambda kind, outcome, seconds: seen.append((kind, outcome)) if 0 <= seconds < 3600 else None,
    )
    rig.behave = answering(reply(200, SANDBOX))
    await engine.get_sandbox("sb")
    rig.behave = answering(reply(401, {"code": "INVALID_API_KEY", "message": "x"}))
    with pytest.raises(Denied):
        await engine.check()
    rig.behave = answering(reply(400, {"code": "INVALID_REQUEST_BODY", "message": "x"}))
    with pytest.raises(Refused):
        await engine.submit("sb", COMMAND)
    rig.behave = cut
    with pytest.raises(Unclear):
        await engine.create_sandbox(SPEC)
    rig.behave = answering(stream_head() + chunk(INIT) + chunk(PING))
    stream = engine.stream("sb", COMMAND, silence=5)
    await anext(stream)
    await stream.aclose()
    await engine.close()
    assert seen == [
        ("get", "answer"),
        ("check", "refused"),
        ("endpoint", "answer"),
        ("submit", "refused"),
        ("create", "unclear"),
        ("stream", "left"),
    ]


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:80", "ftp://h", "http://", "http://u:p@h", "http://h/?x", "http://h#x", "http://h /", "local://"],
)
def test_an_engines_url_is_plain(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        OpenSandboxEngine(url, api_key="", proxy="auto")


async def test_an_engines_url_may_have_a_path(rig: Rig) -> None:
    engine = OpenSandboxEngine(f"{rig.server.url}/engine/", api_key="", proxy="auto")
    rig.behave = answering(reply(200, SANDBOX))
    await engine.get_sandbox("sb")
    assert rig.arrived()[0].target == "/engine/v1/sandboxes/sb"
    assert "open-sandbox-api-key" not in rig.arrived()[0].headers
    await engine.close()


async def test_a_create_says_what_it_wants(rig: Rig) -> None:
    rig.behave = answering(reply(202, SANDBOX))
    await rig.engine.create_sandbox(SPEC)
    body = rig.arrived()[0].json()
    assert body == {
        "image": {"uri": "i"},
        "entrypoint": ["sleep"],
        "resourceLimits": {"cpu": "1", "memory": "1Gi"},
        "timeout": 600,
        "env": {},
        "metadata": {},
    }


@pytest.mark.parametrize("name", ["submit", "stream", "short", "status", "read"])
async def test_a_sandbox_that_has_moved_is_found_at_once(rig: Rig, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(endpoints, "NEW", 0.0)
    rig.behave = answering(reply(404, {"code": "INVALID_REQUEST_BODY", "message": "none"}))
    with contextlib.suppress(EngineError):
        await rig.engine.status("sb", ID)
    async with RawServer(nothing) as gone:
        rig.engine.endpoints._routes["sb"] = replace(rig.engine.endpoints._routes["sb"], base=f"{gone.url}/execd")
    rig.server.requests.clear()
    with contextlib.suppress(EngineError):
        await CALLS[name](rig.engine)
    assert len(rig.arrived()) >= 1, "by the new way"
    assert sum("/endpoints/" in each.target for each in rig.server.requests) == 1


async def test_a_port_that_refuses_where_the_engine_has_just_sent_us_is_tried_once(rig: Rig) -> None:
    async with RawServer(nothing) as gone:
        there = reply(200, {"endpoint": f"{gone.address}/execd"})
    rig.server.behave = answering(there)
    with pytest.raises(NotReached) as refused:
        await rig.engine.status("sb", ID)
    assert refused.value.refused
    assert len(rig.server.requests) == 1


DOLLARS = ["$", "$$", "$HOME", "$(HOME)", "a$$$b", "$$(X)"]


def of_code(code: str) -> bytes:
    return reply(404, {"code": code, "message": "no such sandbox"})


async def created_with_dollars(engine: OpenSandboxEngine, rig: Rig) -> tuple[list[str], list[str]]:
    """The entrypoint and the values as they went out."""
    rig.behave = answering(reply(202, SANDBOX))
    env = {f"N{number}": text for number, text in enumerate(DOLLARS)}
    await engine.create_sandbox(msgspec.structs.replace(SPEC, entrypoint=DOLLARS, env=env))
    body = rig.arrived()[-1].json()
    return body["entrypoint"], list(body["env"].values())


@pytest.mark.parametrize(
    ("code", "runtime", "escaped"),
    [
        ("KUBERNETES::SANDBOX_NOT_FOUND", "kubernetes", True),
        ("DOCKER::SANDBOX_NOT_FOUND", "docker", False),
        ("OTHER::SANDBOX_NOT_FOUND", None, False),
    ],
)
async def test_the_runtime_is_learnt_from_one_answer_and_dollars_are_escaped_for_kubernetes_alone(
    rig: Rig, code: str, runtime: str | None, escaped: bool
) -> None:
    rig.behave = answering(of_code(code))
    assert await rig.engine.runtime() == runtime
    asked = len(rig.arrived())
    if runtime is not None:
        assert await rig.engine.runtime() == runtime
        assert len(rig.arrived()) == asked == 1
    expected = [text.replace("$", "$$") if escaped else text for text in DOLLARS]
    assert await created_with_dollars(rig.engine, rig) == (expected, expected)


async def test_a_code_that_both_runtimes_have_teaches_nothing(rig: Rig) -> None:
    rig.behave = answering(reply(400, {"code": "DOCKER::INVALID_EXPIRATION", "message": "past"}))
    with pytest.raises(Refused):
        await rig.engine.renew_sandbox("sb", 1.0)
    rig.behave = answering(of_code("KUBERNETES::SANDBOX_NOT_FOUND"))
    assert await rig.engine.runtime() == "kubernetes"


@pytest.mark.parametrize(("runtime", "escaped"), [("kubernetes", True), ("docker", False)])
async def test_a_runtime_that_is_told_is_not_asked_for(rig: Rig, runtime: Any, escaped: bool) -> None:
    engine = OpenSandboxEngine(rig.server.url, api_key=KEY, proxy="never", runtime=runtime)
    assert await engine.runtime() == runtime
    assert rig.arrived() == []
    sent, _ = await created_with_dollars(engine, rig)
    assert sent[1] == ("$$$$" if escaped else "$$")
    await engine.close()


async def test_what_is_too_long_for_kubernetes_once_it_is_escaped_is_not_sent_there(rig: Rig) -> None:
    for runtime, taken in (("kubernetes", False), ("docker", True)):
        engine = OpenSandboxEngine(rig.server.url, api_key=KEY, proxy="never", runtime=runtime)  # type: ignore[arg-type]
        rig.behave = answering(reply(202, SANDBOX))
        spec = msgspec.structs.replace(SPEC, env={f"N{n}": "$" * 90_000 for n in range(8)})
        with contextlib.nullcontext() if taken else pytest.raises(Refused, match="longer than Kubernetes holds"):
            await engine.create_sandbox(spec)
        assert len(rig.arrived()) == taken
        await engine.close()


async def test_a_claim_must_be_there_already(rig: Rig) -> None:
    rig.behave = answering(reply(202, SANDBOX))
    mount = Mount(name="w", claim="work", sub_path="alice/workspace", mount_path="/workspace")
    await rig.engine.create_sandbox(msgspec.structs.replace(SPEC, volumes=[mount]))
    volume = rig.arrived()[0].json()["volumes"][0]
    assert volume["pvc"] == {"claimName": "work", "createIfNotExists": False}


async def test_a_pod_that_can_not_start_is_a_refusal_that_names_its_image(rig: Rig) -> None:
    message = "Sandbox x failed: 1/1 observed pods failed; primary reason=ErrImagePull; sample pod=x-0"
    rig.behave = answering(reply(500, {"code": "KUBERNETES::POD_FAILED", "message": message}))
    with pytest.raises(Refused, match=r"image i: .*ErrImagePull"):
        await rig.engine.create_sandbox(SPEC)


async def test_a_filter_is_quoted_twice(rig: Rig) -> None:
    rig.behave = answering(reply(200, {"items": [], "pagination": {"hasNextPage": False}}))
    await rig.engine.list_sandboxes({"a.b/c": "x", "d": "&="}, page=3, page_size=7)
    target = rig.arrived()[0].target
    assert target == "/v1/sandboxes?page=3&pageSize=7&metadata=a.b%252Fc%3Dx%26d%3D%2526%253D"
