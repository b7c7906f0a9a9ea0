"""execd's file routes but the download: information, upload, removal, moving, directories, search."""

from __future__ import annotations

import errno
import fnmatch
import grp
import json
import os
import pwd
import stat
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import MultipartReader, web

from . import replies, wire
from .files import SandboxFiles

UPLOAD_PIECE_BYTES = 1 << 18
SEARCH_LIMIT = 100_000
"""Entries that a search or listing looks at, so that one call can't hold the engine up for long."""


def failure(error: Exception, what: str) -> web.Response:
    """404 `FILE_NOT_FOUND` for what is not there, 500 `RUNTIME_ERROR` for the rest."""
    number = error.errno if isinstance(error, OSError) else None
    reason = f"{what}: {wire.errno_text(number)}" if number else str(error)
    if number == errno.ENOENT:
        return replies.execd_error(404, "FILE_NOT_FOUND", f"file not found. {reason}")
    return replies.execd_error(500, "RUNTIME_ERROR", f"error accessing file: {reason}")


async def handle(request: web.BaseRequest, files: SandboxFiles, env: dict[str, str], path: str) -> web.Response:
    """Dispatch by method and path; what execd does not have is its plain 404."""
    handler = ROUTES.get((request.method, path))
    if handler is None:
        return replies.execd_not_found()
    try:
        return await handler(request, files, env)
    except OSError as error:
        return failure(error, f"stat {error.filename or path}")
    except _Bad as error:
        return replies.execd_error(400, error.code, str(error))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return failure(error, path)


class _Bad(ValueError):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def about(files: SandboxFiles, path: str) -> dict[str, Any]:
    """What execd tells of a file; `mode` is the octal digits read as a decimal number. Raises `OSError`."""
    found = files.stat(path, follow=False)
    kind = "other"
    for test, name in ((stat.S_ISLNK, "symlink"), (stat.S_ISDIR, "directory"), (stat.S_ISREG, "file")):
        if test(found.st_mode):
            kind = name
    try:
        owner = pwd.getpwuid(found.st_uid).pw_name
    except KeyError:
        owner = str(found.st_uid)
    try:
        group = grp.getgrgid(found.st_gid).gr_name
    except KeyError:
        group = str(found.st_gid)
    return {
        "path": os.path.normpath(path),
        "type": kind,
        "size": found.st_size,
        "modified_at": wire.go_time(found.st_mtime_ns),
        "created_at": wire.go_time(found.st_ctime_ns),
        "owner": owner,
        "group": group,
        "mode": int(f"{stat.S_IMODE(found.st_mode) & 0o777:o}"),
    }


async def _info(request: web.BaseRequest, files: SandboxFiles, env: dict[str, str]) -> web.Response:
    found: dict[str, Any] = {}
    for path in request.query.getall("path", []):
        try:
            found[path] = about(files, wire.expand_path(path, env))
        except OSError as error:
            return failure(error, f"file not found: {path}: lstat {path}")
    return replies.execd(200, wire.go_json(dict(sorted(found.items()))))


async def _upload(request: web.BaseRequest, files: SandboxFiles, env: dict[str, str]) -> web.Response:
    """Pairs of parts: `metadata` (JSON with `path` and perhaps `mode`), then the `file` that it describes."""
    if not request.content_type.startswith("multipart/"):
        raise _Bad("INVALID_FILE", "multipart form is empty")
    reader = await request.multipart()
    metadata: dict[str, Any] | None = None
    count = 0
    while (part := await reader.next()) is not None:
        if isinstance(part, MultipartReader):
            raise _Bad("INVALID_FILE", "multipart form is nested")
        if part.name == "metadata":
            metadata = _metadata(bytes(await part.read()))
        elif part.name == "file":
            if metadata is None:
                raise _Bad("INVALID_FILE_METADATA", "metadata file is missing")
            await _write(part, files, wire.expand_path(metadata["path"], env), metadata)
            metadata = None
            count += 1
    if metadata is not None or not count:
        raise _Bad("INVALID_FILE_CONTENT", "file is missing")
    return web.Response(headers=replies.EMPTY)


def _metadata(sent: bytes) -> dict[str, Any]:
    try:
        found = json.loads(sent)
    except ValueError as error:
        raise _Bad("INVALID_FILE_METADATA", f"invalid metadata format. {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("path"), str) or not found["path"]:
        raise _Bad("INVALID_FILE_METADATA", "metadata path is empty")
    return found


async def _write(part: Any, files: SandboxFiles, path: str, metadata: dict[str, Any]) -> None:
    files.make_directories(parent_of(path))
    descriptor = files.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK)
    try:
        while piece := await part.read_chunk(UPLOAD_PIECE_BYTES):
            os.write(descriptor, piece)
        if mode := metadata.get("mode"):
            os.fchmod(descriptor, int(str(mode), 8))
    except ValueError as error:
        raise _Bad("INVALID_FILE_METADATA", f"invalid mode. {error}") from error
    finally:
        os.close(descriptor)


def parent_of(path: str) -> str:
    """The directory that holds `path`."""
    return os.path.dirname(os.path.normpath(path))


async def _remove(request: web.BaseRequest, files: SandboxFiles, env: dict[str, str]) -> web.Response:
    for path in request.query.getall("path", []):
        try:
            files.remove(wire.expand_path(path, env))
        except OSError as error:
            message = f"error removing file {path}. {wire.errno_text(error.errno or 0)}"
            return replies.execd_error(500, "RUNTIME_ERROR", message)
    return web.Response(headers=replies.EMPTY)


async def _json_body(request: web.BaseRequest, kind: type) -> Any:
    try:
        sent = json.loads(await request.read())
    except ValueError as error:
        raise _Bad("INVALID_REQUEST_BODY", f"error parsing request, MAYBE invalid body format. {error}") from error
    if not isinstance(sent, kind):
        raise _Bad("INVALID_REQUEST_BODY", "error parsing request, MAYBE invalid body format.")
    return sent


async def _move(request: web.BaseRequest, files: SandboxFiles, env: dict[str, str]) -> web.Response:
    for item in await _json_body(request, list):
        target = wire.expand_path(item["dest"], env)
        files.make_directories(parent_of(target), 0o755)
        try:
            files.stat(target)
        except FileNotFoundError:
            files.rename(wire.expand_path(item["src"], env), target)
        else:
            message = f"error accessing file: destination path already exists: {item['dest']}"
            return replies.execd_error(500, "RUNTIME_ERROR", message)
    return web.Response(headers=replies.EMPTY)


async def _permissions(request: web.BaseRequest, files: SandboxFiles, env: dict[str, str]) -> web.Response:
    """Sets modes; owners and groups are left as they are."""
    for path, wanted in (await _json_body(request, dict)).items():
        if mode := wanted.get("mode"):
            descriptor = files.open(wire.expand_path(path, env), os.O_RDONLY | os.O_NONBLOCK)
            try:
                os.fchmod(descriptor, int(str(mode), 8))
            finally:
                os.close(descriptor)
    return web.Response(headers=replies.EMPTY)


async def _replace(request: web.BaseRequest, files: SandboxFiles, env: dict[str, str]) -> web.Response:
    for path, item in (await _json_body(request, dict)).items():
        descriptor = files.open(wire.expand_path(path, env), os.O_RDWR | os.O_NONBLOCK)
        with os.fdopen(descriptor, "r+b") as file:
            if not item.get("old"):
                raise _Bad("INVALID_REQUEST_BODY", "old content must not be empty")
            replaced = file.read().replace(item["old"].encode(), item.get("new", "").encode())
            file.seek(0)
            file.write(replaced)
            file.truncate()
    return web.Response(headers=replies.EMPTY)


async def _make_directories(request: web.BaseRequest, files: SandboxFiles, env: dict[str, str]) -> web.Response:
    for path in await _json_body(request, dict):
        files.make_directories(wire.expand_path(path, env))
    return web.Response(headers=replies.EMPTY)


async def _remove_directories(request: web.BaseRequest, files: SandboxFiles, env: dict[str, str]) -> web.Response:
    for path in request.query.getall("path", []):
        _remove_tree(files, wire.expand_path(path, env))
    return web.Response(headers=replies.EMPTY)


def _remove_tree(files: SandboxFiles, path: str) -> None:
    try:
        if not stat.S_ISDIR(files.stat(path, follow=False).st_mode):
            files.remove(path)
            return
        for name in files.names(path):
            _remove_tree(files, os.path.join(path, name))
        descriptor, name = files.parent(path)
    except FileNotFoundError:
        return
    try:
        os.rmdir(name, dir_fd=descriptor)
    finally:
        os.close(descriptor)


def _walk(files: SandboxFiles, path: str, depth: int, left: list[int]) -> list[dict[str, Any]]:
    """Entries below `path`, `depth` levels deep, at most `left[0]` of them."""
    found: list[dict[str, Any]] = []
    if depth <= 0:
        return found
    for name in files.names(path):
        if left[0] <= 0:
            break
        left[0] -= 1
        entry = about(files, os.path.join(path, name))
        found.append(entry)
        if entry["type"] == "directory":
            found += _walk(files, entry["path"], depth - 1, left)
    return found


def _asked_path(request: web.BaseRequest, env: dict[str, str]) -> str:
    path = request.query.get("path", "")
    if not path:
        raise _Bad("MISSING_QUERY", "missing query parameter 'path'")
    return os.path.normpath(wire.expand_path(path, env))


async def _list(request: web.BaseRequest, files: SandboxFiles, env: dict[str, str]) -> web.Response:
    path = _asked_path(request, env)
    depth = request.query.get("depth", "1")
    if not wire.is_number(depth):
        raise _Bad("INVALID_REQUEST_BODY", f"invalid query parameter 'depth': {depth}")
    mode = files.stat(path, follow=False).st_mode
    if stat.S_ISLNK(mode):
        raise _Bad("INVALID_REQUEST_BODY", f"path is a symbolic link, refusing to traverse: {path}")
    if not stat.S_ISDIR(mode):
        raise _Bad("INVALID_REQUEST_BODY", f"path is not a directory: {path}")
    return replies.execd(200, wire.go_json(_walk(files, path, int(depth), [SEARCH_LIMIT])))


async def _search(request: web.BaseRequest, files: SandboxFiles, env: dict[str, str]) -> web.Response:
    path = _asked_path(request, env)
    pattern = request.query.get("pattern") or "**"
    files.stat(path)
    entries = _walk(files, path, SEARCH_LIMIT, [SEARCH_LIMIT])
    found = [
        e for e in entries if e["type"] != "directory" and fnmatch.fnmatchcase(os.path.basename(e["path"]), pattern)
    ]
    return replies.execd(200, wire.go_json(found))


def some_lines(request: web.BaseRequest, descriptor: int) -> web.Response:
    """A download by lines: `limit` of them from line `offset` (1 is the first), as text."""
    numbers = {}
    for name, standard in (("offset", 1), ("limit", -1)):
        given = request.query.get(name, "")
        if given and not (wire.is_number(given) and int(given) > 0):
            message = f"invalid query parameter '{name}': {given}"
            return replies.execd_error(400, "INVALID_REQUEST_BODY", message)
        numbers[name] = int(given) if given else standard
    kept: list[bytes] = []
    with os.fdopen(os.dup(descriptor), "rb") as file:
        for number, line in enumerate(file, 1):
            if number >= numbers["offset"]:
                kept.append(line.rstrip(b"\r\n"))
                if len(kept) == numbers["limit"]:
                    break
    headers = {**replies.SERVER, "Content-Type": "text/plain; charset=utf-8"}
    return web.Response(body=b"\n".join(kept), headers=headers)


ROUTES: dict[tuple[str, str], Callable[[web.BaseRequest, SandboxFiles, dict[str, str]], Awaitable[web.Response]]] = {
    ("GET", "/files/info"): _info,
    ("POST", "/files/upload"): _upload,
    ("DELETE", "/files"): _remove,
    ("POST", "/files/mv"): _move,
    ("POST", "/files/permissions"): _permissions,
    ("POST", "/files/replace"): _replace,
    ("GET", "/files/search"): _search,
    ("GET", "/directories/list"): _list,
    ("POST", "/directories"): _make_directories,
    ("DELETE", "/directories"): _remove_directories,
}
"""By method and path; what else execd has (sessions, code, terminals) is not here."""
