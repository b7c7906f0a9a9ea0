"""The reply to a submit: a stream of events that stays open a second longer than it has anything to say."""

from __future__ import annotations

import asyncio
import os

from aiohttp import web

from . import replies, wire
from .execd import CommandRequest, Execd, NotStarted
from .stats import Fault

PING_SECONDS = 3.0
LINGER_SECONDS = 1.0
"""How long the reply stays open after its last event."""

TAIL_SECONDS = 0.1
"""How often a foreground command's two files are read."""

READ_BYTES = 1 << 18

STREAM_HEADERS = {
    **replies.SERVER,
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "Connection": "keep-alive",
    "X-Accel-Buffering": "no",
}
PROXIED_STREAM_HEADERS = {k: v for k, v in STREAM_HEADERS.items() if k != "Connection"} | {"Vary": "Origin"}


class EventStream:
    """Sends frames until the caller or the daemon is gone; either ends the stream, not the command."""

    def __init__(self, request: web.BaseRequest, execd: Execd, proxied: bool, fault: Fault | None) -> None:
        self._request = request
        self._execd = execd
        self._cut = fault.reply if fault else ""
        self._response = web.StreamResponse(headers=PROXIED_STREAM_HEADERS if proxied else STREAM_HEADERS)
        self._response.enable_chunked_encoding()
        self._open = True
        self._pinging: asyncio.Task[None] | None = None
        self._forget = execd.on_death(self.abort)

    async def send(self, data: bytes) -> None:
        """Write one or more frames; nothing when the caller is gone."""
        if not self._open:
            return
        try:
            if not self._response.prepared:
                await self._response.prepare(self._request)
            await self._response.write(data)
        except (ConnectionError, RuntimeError):
            self._open = False

    async def init(self, identifier: str) -> None:
        """The first event, and the first ping behind it."""
        if self._cut == "cut_before_init":
            self.abort()
        await self.send(wire.frame("init", text=identifier))
        self._pinging = asyncio.get_running_loop().create_task(self._ping())
        if self._cut == "cut_after_init":
            await asyncio.sleep(0)
            self.abort()

    async def _ping(self) -> None:
        while self._open:
            if self._execd.host.thawed.is_set():
                await self.send(wire.frame("ping", text="pong"))
            await asyncio.sleep(PING_SECONDS)

    def abort(self) -> None:
        """Cut the connection."""
        self._open = False
        if self._request.transport is not None:
            self._request.transport.abort()

    async def finish(self, linger: bool = True) -> web.StreamResponse:
        """Stay open a second longer, then end."""
        if self._cut == "cut_after_complete":
            self.abort()
        if linger and self._open:
            await asyncio.sleep(LINGER_SECONDS)
        if self._pinging is not None:
            self._pinging.cancel()
        self._forget()
        if self._open:
            try:
                await self._response.write_eof()
            except (ConnectionError, RuntimeError):
                pass
        return self._response


async def run_background(stream: EventStream, execd: Execd, request: CommandRequest) -> web.StreamResponse:
    """`init` goes out before there is a process, and before the id is in the table."""
    identifier = execd.new_id()
    await stream.init(identifier)
    await asyncio.sleep(0)  # the ping
    begun = asyncio.get_running_loop().time()
    try:
        await execd.start(identifier, request)
    except NotStarted as error:
        message = f"error running commands failed to start commands: {error}"
        await stream.send(wire.go_json({"code": "RUNTIME_ERROR", "message": message}))
        return await stream.finish(linger=False)
    await stream.send(wire.frame("execution_complete", execution_time=_milliseconds_since(begun)))
    return await stream.finish()


async def run_foreground(stream: EventStream, execd: Execd, request: CommandRequest) -> web.StreamResponse:
    """The command's lines as they come, then how it ended."""
    identifier = execd.new_id()
    begun = asyncio.get_running_loop().time()
    try:
        command = await execd.start(identifier, request)
    except NotStarted as error:
        await stream.init(identifier)
        await stream.send(wire.error_frame(str(error), str(error)))
        return await stream.finish()
    process = command.process
    await stream.init(identifier)
    await asyncio.sleep(0)  # the ping
    assert process is not None
    tails = [Tail(execd, identifier, "stdout"), Tail(execd, identifier, "stderr")]
    while not process.ended.done():
        await asyncio.wait([process.ended], timeout=TAIL_SECONDS)
        if not process.ended.done():
            for tail in tails:
                await tail.send_new(stream)
    for tail in tails:
        await tail.send_new(stream, last=True)
    ending = process.ended.result()
    code, failure = wire.exit_of(ending.status)
    if failure:
        await stream.send(wire.error_frame(str(code), failure))
        command.finish(code, failure, ending.at)
    else:
        command.finish(code, failure, ending.at)
        await stream.send(wire.frame("execution_complete", execution_time=_milliseconds_since(begun)))
    return await stream.finish()


def _milliseconds_since(begun: float) -> int:
    return int((asyncio.get_running_loop().time() - begun) * 1000)


class Tail:
    """Follows one of a foreground command's two files by name, as execd does."""

    def __init__(self, execd: Execd, identifier: str, kind: str) -> None:
        self._files = execd.host.files
        self._path = f"/tmp/{identifier}.{kind}"  # noqa: S108 - inside the sandbox
        self._kind = kind
        self._lines = wire.Lines()
        self._position = 0

    async def send_new(self, stream: EventStream, last: bool = False) -> None:
        """Send the lines that were completed since the last time; with `last`, all that is left."""
        try:
            descriptor = self._files.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        except (OSError, ValueError):
            descriptor = -1
        try:
            while descriptor >= 0 and (data := os.pread(descriptor, READ_BYTES, self._position)):
                self._position += len(data)
                await self._send(stream, self._lines.feed(data))
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        if last:
            await self._send(stream, self._lines.feed(b"", last=True))

    async def _send(self, stream: EventStream, lines: list[str]) -> None:
        if lines:
            await stream.send(b"".join(wire.frame(self._kind, text=line) for line in lines))
