"""execd's routes for one sandbox. Status reads and ranged downloads are the hot ones and kept lean."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from email.utils import formatdate
from typing import Any
from urllib.parse import quote

from aiohttp import web

from . import file_routes, replies, streams, uploads, wire
from .command_requests import BadCommand, parse_command
from .execd import NotRunning
from .file_operations import FileError, Paths, saying
from .presence import Presence
from .sandboxes import Sandbox
from .stats import Fault, Stats

SMALL_READ_BYTES = 1 << 18
"""Reads up to this size are one `pread` and one write; larger ones are streamed in pieces of it."""

LOG_READ_COPIES = 3
"""How often execd's memory holds the rest of a log that is read with `/command/{id}/logs`."""

OUTPUT_ENDINGS = (".output", ".stdout", ".stderr")
"""Of the files that commands write to."""
METRICS_SECONDS = 1.0
NO_SNIFF = {
    **replies.SERVER,
    "Content-Type": "text/plain; charset=utf-8",
    "X-Content-Type-Options": "nosniff",
}


class ExecdRoutes:
    """Dispatches a request by its path inside execd."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats

    async def handle(
        self, request: web.BaseRequest, sandbox: Sandbox, path: str, proxied: bool, fault: Fault | None
    ) -> web.StreamResponse:
        """Answer as execd does. The daemon is alive and not frozen."""
        method = request.method
        if method == "GET":
            if path.startswith("/command/"):
                return await self._command_read(request, sandbox, path)
            if path == "/files/download":
                return await self._download(request, sandbox)
            if path == "/ping":
                return web.Response(headers=replies.EMPTY)
            if path == "/metrics":
                return await _metrics()
        elif path == "/command":
            if method == "POST":
                return await self._submit(request, sandbox, proxied, fault)
            if method == "DELETE":
                return await self._interrupt(request, sandbox)
        if path.startswith(("/files", "/directories")):
            return await file_routes.handle(request, sandbox, path)
        return replies.execd_not_found()

    # -- commands -----------------------------------------------------------------------------------------

    async def _submit(
        self, request: web.BaseRequest, sandbox: Sandbox, proxied: bool, fault: Fault | None
    ) -> web.StreamResponse:
        body = await request.read()
        execd = sandbox.execd
        try:
            command = parse_command(body)
            _check_directory(sandbox, command.cwd)
        except BadCommand as error:
            return replies.execd_error(400, "INVALID_REQUEST_BODY", str(error))
        stream = streams.EventStream(request, execd, proxied, fault)
        run = streams.run_background if command.background else streams.run_foreground
        return await run(stream, execd, command)

    async def _command_read(self, request: web.BaseRequest, sandbox: Sandbox, path: str) -> web.StreamResponse:
        if path.startswith("/command/status/"):
            identifier = path[16:]
            command = sandbox.execd.commands.get(identifier)
            if command is None:
                return replies.execd_error(404, "INVALID_REQUEST_BODY", f"command not found: {identifier}")
            return web.Response(body=command.status(), headers=replies.EXECD_JSON)
        parts = path.split("/")
        if len(parts) == 4 and parts[3] == "logs":
            return await self._logs(request, sandbox, parts[2])
        return replies.execd_not_found()

    async def _logs(self, request: web.BaseRequest, sandbox: Sandbox, identifier: str) -> web.StreamResponse:
        """The rest of a background command's output. Reading too much of it at once kills the daemon."""
        command = sandbox.execd.commands.get(identifier)
        if command is None:
            return _bad_log(f"command not found: {identifier}")
        if not command.background:
            return _bad_log(f"command {identifier} is not running in background")
        try:
            cursor = int(request.query.get("cursor", "0"))
        except ValueError:
            cursor = 0
        try:
            descriptor = sandbox.files.open(command.output, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            reason = f"open {command.output}: {wire.errno_text(error.errno or 0)}"
            return _bad_log(f"error open combined output file for command {identifier}: {reason}")
        try:
            if cursor < 0:
                return _bad_log(f"error seek file: seek {command.output}: invalid argument")
            size = os.fstat(descriptor).st_size
            rest = max(size - cursor, 0)
            memory = sandbox.request.memory
            if memory is not None and LOG_READ_COPIES * rest > memory:
                sandbox.execd.die()
                return cut(request)
            headers = {
                **replies.SERVER,
                "Content-Type": "text/plain; charset=utf-8",
                "EXECD-COMMANDS-TAIL-CURSOR": str(max(size, cursor)),
            }
            return await self._send(request, Presence(sandbox), descriptor, cursor, rest, 200, headers)
        finally:
            os.close(descriptor)

    async def _interrupt(self, request: web.BaseRequest, sandbox: Sandbox) -> web.StreamResponse:
        identifier = request.query.get("id", "")
        if not identifier:
            return replies.execd_error(400, "MISSING_QUERY", "missing query parameter 'id'")
        try:
            await sandbox.execd.interrupt(identifier)
        except NotRunning as error:
            # The misspelling is execd's.
            return replies.execd_error(500, "RUNTIME_ERROR", f"error interruptting code context. {error}")
        return web.Response(headers=replies.EMPTY)

    # -- reading files ------------------------------------------------------------------------------------

    async def _download(self, request: web.BaseRequest, sandbox: Sandbox) -> web.StreamResponse:
        path = request.query.get("path", "")
        if not path:
            return replies.execd_error(400, "MISSING_QUERY", "missing query parameter 'path'")
        header = request.headers.get("Range", "")
        lines = "offset" in request.query or "limit" in request.query
        if lines and header:
            message = "line-based reading (offset/limit) and byte range (Range header) are mutually exclusive"
            return replies.execd_error(400, "INVALID_REQUEST_BODY", message)
        paths, presence = Paths(sandbox.files, sandbox.env), Presence(sandbox)
        try:
            path = paths.expand(path)
        except FileError as error:
            return replies.execd_error(500, "RUNTIME_ERROR", f"error resolving file path: {path}. {error}")
        try:
            with saying(f"open {path}"):
                descriptor = await _open(sandbox, presence, path, lines)
        except FileError as error:
            return file_routes.failure(error)
        self._stats.outputs += path.endswith(OUTPUT_ENDINGS)
        try:
            if lines:
                return await file_routes.lines(request, presence, descriptor, sandbox.request.memory)
            return await self._send_file(request, presence, descriptor, path, header)
        finally:
            os.close(descriptor)

    async def _send_file(
        self, request: web.BaseRequest, presence: Presence, descriptor: int, path: str, header: str
    ) -> web.StreamResponse:
        about = os.fstat(descriptor)
        size = about.st_size
        headers = {
            **replies.SERVER,
            "Content-Type": "application/octet-stream",
            "Content-Disposition": _disposition(os.path.basename(path.rstrip("/"))),
        }
        if header:
            try:
                found = wire.first_range(header, size)
            except wire.BadRange:
                return await _bad_range(request, headers, size)
            if found is not None:
                start, length = found
                headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{size}"
                return await self._send(request, presence, descriptor, start, length, 206, headers)
        try:
            size = os.lseek(descriptor, 0, os.SEEK_END)
        except OSError:
            return web.Response(status=500, body=b"seeker can't seek\n", headers={**headers, **NO_SNIFF})
        status = wire.fallback_status(header, size)
        if status == 416:
            headers.update(NO_SNIFF)
            headers["Content-Range"] = f"bytes */{size}"
            return web.Response(status=416, body=b"invalid range: failed to overlap\n", headers=headers)
        headers["Accept-Ranges"] = "bytes"
        headers["Last-Modified"] = formatdate(about.st_mtime, usegmt=True)
        if status == 206:
            headers["Content-Range"] = f"bytes {size}-{size - 1}/{size}"
            return web.Response(status=206, headers=headers)
        return await self._send(request, presence, descriptor, 0, size, 200, headers)

    async def _send(
        self,
        request: web.BaseRequest,
        presence: Presence,
        descriptor: int,
        start: int,
        length: int,
        status: int,
        headers: dict[str, str],
    ) -> web.StreamResponse:
        """Send part of a file; memory is bounded whatever its length."""
        if length <= SMALL_READ_BYTES and len(data := _read(descriptor, length, start)) == length:
            self._stats.bytes += len(data)
            return web.Response(status=status, body=data, headers=headers)
        response = web.StreamResponse(status=status, headers=headers)
        response.content_length = length
        await response.prepare(request)
        try:
            while length > 0 and (data := _read(descriptor, min(length, SMALL_READ_BYTES), start)):
                await response.write(data)
                await presence.awake()
                start, length = start + len(data), length - len(data)
                self._stats.bytes += len(data)
            if length > 0:
                return cut(request, response)
            await response.write_eof()
        except ConnectionError:
            return cut(request, response)
        return response


def _read(descriptor: int, length: int, start: int) -> bytes:
    """What is there; of a directory nothing."""
    try:
        return os.pread(descriptor, length, start) if length else b""
    except OSError:
        return b""


async def _bad_range(request: web.BaseRequest, headers: dict[str, str], size: int) -> web.StreamResponse:
    """416 with the length of the file instead of the body's: execd forgets to correct it, and hangs up."""
    body = b'{"code":"UNKNOWN"}'
    response = web.StreamResponse(status=416, headers=headers)
    response.content_length = size
    await response.prepare(request)
    if len(body) <= size:
        await response.write(body)
    else:
        response.force_close()
    if request.transport is not None:
        request.transport.close()
    return response


def cut(request: web.BaseRequest, response: web.StreamResponse | None = None) -> web.StreamResponse:
    """End the connection without (the rest of) an answer."""
    if request.transport is not None:
        request.transport.abort()
    return response or web.Response(status=500)


def _bad_log(message: str) -> web.Response:
    return replies.execd_error(400, "INVALID_REQUEST_BODY", message)


async def _open(sandbox: Sandbox, presence: Presence, path: str, lines: bool) -> int:
    """A file to read. The daemon's own environment is none of the engine's; readers of lines alone have it."""
    if wire.clean_path(path) == "/proc/self/environ":
        return _environment(sandbox.env) if lines else _unseekable()
    return await uploads.open_as_execd(sandbox.files, presence, path, os.O_RDONLY)


def _environment(env: dict[str, str]) -> int:
    """A file with a process's variables, each with a NUL behind it."""
    descriptor = os.memfd_create("environ")
    os.write(descriptor, b"".join(f"{name}={value}\0".encode() for name, value in env.items()))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _unseekable() -> int:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.close(writer)
    return reader


def _disposition(name: str) -> str:
    if name.isascii():
        return f'attachment; filename="{name}"'.replace("\n", " ").replace("\r", " ")
    encoded = quote(name)
    return f"attachment; filename=\"{encoded}\"; filename*=UTF-8''{encoded}"


def _check_directory(sandbox: Sandbox, cwd: str) -> None:
    """Raises `BadCommand` unless `cwd` is empty or a directory of the sandbox."""
    if not cwd:
        return
    prefix = "invalid request, validation error"
    path = cwd
    try:
        path = wire.expand_path(cwd, sandbox.env)
        about = sandbox.files.stat(path)
    except wire.UndefinedVariables as error:
        raise BadCommand(f'{prefix} cannot resolve working directory "{cwd}": {error}') from error
    except FileNotFoundError as error:
        reason = f"stat {path}: no such file or directory"
        raise BadCommand(f"{prefix} working directory does not exist: {cwd}: {reason}") from error
    except (OSError, ValueError) as error:
        reason = wire.errno_text(error.errno or 22) if isinstance(error, OSError) else "invalid argument"
        raise BadCommand(f'{prefix} cannot access working directory "{cwd}": stat {path}: {reason}') from error
    if not stat.S_ISDIR(about.st_mode):
        raise BadCommand(f"{prefix} working directory path is not a directory: {cwd}")


async def _metrics() -> web.Response:
    """The machine's processors and memory; takes a second, as the real one does."""
    before = _processor_times()
    await asyncio.sleep(METRICS_SECONDS)
    busy, total = (now - then for now, then in zip(_processor_times(), before, strict=True))
    memory = _memory()
    found: dict[str, Any] = {
        "cpu_count": os.cpu_count() or 1,
        "cpu_used_pct": 100 * busy / total if total else 0,
        "mem_total_mib": memory["MemTotal"] / 1024,
        "mem_used_mib": (memory["MemTotal"] - memory["MemAvailable"]) / 1024,
        "timestamp": time.time_ns() // 1_000_000,
    }
    return replies.execd(200, wire.go_json(found))


def _memory() -> dict[str, int]:
    with open("/proc/meminfo", encoding="ascii") as file:
        return {line.split(":")[0]: int(line.split()[1]) for line in file}


def _processor_times() -> tuple[int, int]:
    with open("/proc/stat", encoding="ascii") as file:
        times = [int(field) for field in file.readline().split()[1:9]]
    return sum(times) - times[3] - times[4], sum(times)
