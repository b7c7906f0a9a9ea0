"""execd's routes for files and directories."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from . import file_operations, go_json, replies, uploads, wire
from .file_operations import FileError, Paths, saying, within
from .presence import Presence
from .sandboxes import Sandbox

PERMISSION = {
    "owner": ("string", "Permission.owner"),
    "group": ("string", "Permission.group"),
    "mode": ("int", "Permission.mode"),
}
RENAME = {"src": ("string", "RenameFileItem.src"), "dest": ("string", "RenameFileItem.dest")}
REPLACEMENT = {"old": ("string", "ReplaceFileContentItem.old"), "new": ("string", "ReplaceFileContentItem.new")}


SHORT_BYTES = 2048
"""Go's buffer of an answer."""


class _Bad(Exception):
    """400."""

    def __init__(self, message: str, code: str = "INVALID_REQUEST_BODY") -> None:
        super().__init__(message)
        self.code = code


class Failed(Exception):
    """500 `RUNTIME_ERROR`, whatever is behind it."""


def failure(error: FileError) -> web.Response:
    """404 `FILE_NOT_FOUND` for what is not there, 500 `RUNTIME_ERROR` for the rest."""
    if error.missing:
        return replies.execd_error(404, "FILE_NOT_FOUND", f"file not found. {error}")
    return replies.execd_error(500, "RUNTIME_ERROR", f"error accessing file: {error}")


class Call:
    """One request."""

    def __init__(self, request: web.BaseRequest, sandbox: Sandbox) -> None:
        self.request = request
        self.paths = Paths(sandbox.files, sandbox.env)
        self.files = sandbox.files
        self.presence = Presence(sandbox)

    def all_paths(self) -> list[str]:
        """Those of the query."""
        return self.request.query.getall("path", [])

    def one_path(self) -> str:
        """The one that must be there, absolute."""
        path = self.request.query.get("path", "")
        if not path:
            raise _Bad("missing query parameter 'path'", "MISSING_QUERY")
        try:
            return self.paths.absolute(path)
        except FileError as error:
            raise Failed(f"error converting path  to absolute. {error}") from error

    async def json(self, kind: type, wanted: str) -> Any:
        """The body."""
        return go_json.container(go_json.first_value(await self.request.read()), kind, wanted)


async def handle(request: web.BaseRequest, sandbox: Sandbox, path: str) -> web.Response:
    """Dispatch by method and path; what execd does not have is its plain 404."""
    if (request.method, path) == ("POST", "/files/upload"):
        return await uploads.upload(request, Paths(sandbox.files, sandbox.env), Presence(sandbox))
    handler = ROUTES.get((request.method, path))
    if handler is None:
        return replies.execd_not_found()
    try:
        found = await handler(Call(request, sandbox))
    except FileError as error:
        return failure(error)
    except Failed as error:
        return replies.execd_error(500, "RUNTIME_ERROR", str(error))
    except _Bad as error:
        return replies.execd_error(400, error.code, str(error))
    except go_json.Bad as error:
        message = f"error parsing request, MAYBE invalid body format. {error}"
        return replies.execd_error(400, "INVALID_REQUEST_BODY", message)
    return web.Response(headers=replies.EMPTY) if found is None else replies.execd(200, wire.go_json(found))


async def _info(call: Call) -> dict[str, Any]:
    found = {}
    for path in call.all_paths():
        with within(f"invalid path {path}: "):
            place = call.paths.absolute(path)
        try:
            found[path] = file_operations.info(call.files, place)
        except FileError as error:
            what = "file not found: " if error.missing else "error accessing file "
            raise error.within(f"{what}{path}: ") from error
    return dict(sorted(found.items()))


async def _remove(call: Call) -> None:
    for path in call.all_paths():
        try:
            file_operations.remove_file(call.paths, path)
        except FileError as error:
            raise Failed(f"error removing file {path}. {error}") from error


async def _move(call: Call) -> None:
    items = await call.json(list, "[]model.RenameFileItem")
    for item in [go_json.struct(each, "model.RenameFileItem", RENAME) for each in items]:
        file_operations.move(call.paths, item["src"], item["dest"])


async def _permissions(call: Call) -> None:
    for path, wanted in (await _wanted(call)).items():
        try:
            file_operations.permit(call.paths, path, wanted)
        except FileError as error:
            raise Failed(f"error changing permissions for {path}. {error}") from error


async def _make_directories(call: Call) -> None:
    for path, wanted in (await _wanted(call)).items():
        place = call.paths.absolute(path)
        try:
            call.files.stat(place)
            existed = True
        except OSError:
            existed = False
        file_operations.make_directories(call.files, place)
        if not existed:
            file_operations.permit(call.paths, place, wanted)


async def _wanted(call: Call) -> dict[str, dict[str, Any]]:
    items = await call.json(dict, "map[string]model.Permission")
    return {
        wire.without_surrogates(path): go_json.struct(each, "model.Permission", PERMISSION)
        for path, each in items.items()
    }


async def _replace(call: Call) -> dict[str, Any] | None:
    items = await call.json(dict, "map[string]model.ReplaceFileContentItem")
    counts = {}
    for path, each in items.items():
        item = go_json.struct(each, "model.ReplaceFileContentItem", REPLACEMENT)
        place = call.paths.absolute(path)
        counts[path] = {"replacedCount": await _replaced(call, place, item["old"].encode(), item["new"].encode())}
    return dict(sorted(counts.items())) if call.request.query.get("verbose") == "true" else None


async def _replaced(call: Call, place: str, old: bytes, new: bytes) -> int:
    with saying(f"stat {place}"):
        call.files.stat(place)
    content = await _content(call, place)
    if not old:
        raise _Bad("old content must not be empty")
    with saying(f"open {place}"):
        descriptor = await uploads.open_as_execd(call.files, call.presence, place, os.O_WRONLY | os.O_TRUNC)
    with saying(f"write {place}"), os.fdopen(descriptor, "wb") as file:
        file.write(content.replace(old, new))
    return content.count(old)


async def _content(call: Call, place: str) -> bytes:
    with saying(f"open {place}"):
        descriptor = await uploads.open_as_execd(call.files, call.presence, place, os.O_RDONLY)
    try:
        with saying(f"read {place}"):
            return b"".join([piece async for piece in pieces(call.presence, descriptor)])
    finally:
        os.close(descriptor)


async def _remove_directories(call: Call) -> None:
    for path in call.all_paths():
        try:
            place = call.paths.expand(path)
        except FileError as error:
            raise Failed(f"error resolving directory {path}. {error}") from error
        try:
            await file_operations.remove_all(call.files, place)
        except FileError as error:
            raise Failed(f"error removing directory {path}. {error}") from error


async def _list(call: Call) -> list[dict[str, Any]]:
    given = call.request.query.get("path", "")
    depth = call.request.query.get("depth", "") or "1"
    if given and not wire.is_number(depth.removeprefix("+")):
        raise _Bad(f"invalid query parameter 'depth': {depth}")
    path = call.one_path()
    found = file_operations.info(call.files, path)
    if found["type"] == "symlink":
        raise _Bad(f"path is a symbolic link, refusing to traverse: {path}")
    if found["type"] != "directory":
        raise _Bad(f"path is not a directory: {path}")
    if not int(depth):
        return []
    try:
        return [each async for each in file_operations.entries(call.files, path, int(depth))]
    except FileError as error:
        raise Failed(f"error listing directory {path}. {error}") from error


async def _search(call: Call) -> list[dict[str, Any]]:
    path = call.one_path()
    with saying(f"stat {path}"):
        call.files.stat(path)
    pattern = call.request.query.get("pattern", "") or "**"
    found = []
    try:
        async for name, each in file_operations.walk(call.files, path):
            if _matches(pattern, name):
                found.append(each)
    except FileError as error:
        raise Failed(f"error searching files. {error}") from error
    return found


def _matches(pattern: str, name: str) -> bool:
    try:
        return file_operations.glob(pattern).fullmatch(name) is not None
    except (ValueError, IndexError) as error:
        raise FileError(f"invalid pattern {pattern}: syntax error in pattern") from error


async def pieces(presence: Presence, descriptor: int) -> AsyncIterator[bytes]:
    """What is to be read, to its end, which need not come. Raises `OSError`."""
    while True:
        await presence.awake()
        try:
            data = os.read(descriptor, uploads.PIECE_BYTES)
        except BlockingIOError:
            await presence.until_readable(descriptor)
            continue
        if not data:
            return
        yield data


async def lines(
    request: web.BaseRequest, presence: Presence, descriptor: int, memory: int | None
) -> web.StreamResponse:
    """A download by lines: `limit` of them from line `offset` (1 is the first), as text.

    A line that does not fit into the sandbox's `memory` kills the daemon: `ConnectionResetError`.
    """
    numbers = {}
    for name, standard in (("offset", 1), ("limit", -1)):
        given = request.query.get(name, "")
        if given and not (wire.is_number(given) and int(given) > 0):
            message = f"invalid query parameter '{name}': {given}"
            return replies.execd_error(400, "INVALID_REQUEST_BODY", message)
        numbers[name] = int(given) if given else standard
    answer = _Answer(request)
    number = 0
    try:
        async for line in _lines(presence, descriptor, memory):
            number += 1
            if number < numbers["offset"]:
                continue
            await answer.write((b"\n" if number > numbers["offset"] else b"") + line.rstrip(b"\r\n"))
            if number - numbers["offset"] + 1 == numbers["limit"]:
                break
    except OSError as error:
        if isinstance(error, ConnectionError):
            raise
    return await answer.end()


class _Answer:
    """A text of which nobody knows the length: Go says it of a short one, and sends a long one in chunks."""

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self._begun = bytearray()
        self._response = web.StreamResponse(headers={**replies.SERVER, "Content-Type": "text/plain; charset=utf-8"})

    async def write(self, data: bytes) -> None:
        """Send it, or keep it for the moment."""
        if self._response.prepared:
            await self._response.write(data)
            return
        self._begun += data
        if len(self._begun) > SHORT_BYTES:
            await self._response.prepare(self._request)
            await self._response.write(self._begun)

    async def end(self) -> web.StreamResponse:
        """The answer, all of it sent or ready."""
        if not self._response.prepared:
            return web.Response(body=bytes(self._begun), headers=self._response.headers)
        await self._response.write_eof()
        return self._response


async def _lines(presence: Presence, descriptor: int, memory: int | None) -> AsyncIterator[bytes]:
    rest = bytearray()
    async for piece in pieces(presence, descriptor):
        rest += piece
        *whole, last = rest.split(b"\n") if b"\n" in piece else [rest]
        for line in whole:
            yield bytes(line)
        rest = bytearray(last)
        if memory is not None and len(rest) > memory:
            presence.kill()
            await presence.awake()
    if rest:
        yield bytes(rest)


ROUTES: dict[tuple[str, str], Callable[[Call], Awaitable[Any]]] = {
    ("GET", "/files/info"): _info,
    ("DELETE", "/files"): _remove,
    ("POST", "/files/mv"): _move,
    ("POST", "/files/permissions"): _permissions,
    ("POST", "/files/replace"): _replace,
    ("GET", "/files/search"): _search,
    ("GET", "/directories/list"): _list,
    ("POST", "/directories"): _make_directories,
    ("DELETE", "/directories"): _remove_directories,
}
"""By method and path; the upload is apart, and what else execd has (sessions, code, terminals) is not here."""
