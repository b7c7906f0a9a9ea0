"""execd's upload: the whole form first, then one file after the other copied over what is there."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import stat
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import BodyPartReader, MultipartReader, web

from . import file_operations, go_json, replies
from .file_operations import FileError, Paths, saying, within
from .files import SandboxFiles
from .presence import Presence

MEMORY_BYTES = 32 << 20
"""What a form's parts take in the daemon's memory, all together; a part that goes over it lies on its disk, whole."""
PIECE_BYTES = 1 << 18
BLOCK_POLL_SECONDS = 0.05
METADATA = {
    "path": ("string", "FileMetadata.path"),
    "owner": ("string", "FileMetadata.Permission.owner"),
    "group": ("string", "FileMetadata.Permission.group"),
    "mode": ("int", "FileMetadata.Permission.mode"),
}


class BadUpload(Exception):
    """400; nothing of this part was written, but the ones before it are."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Part:
    """The content of one part: in memory, or in a file of the sandbox's `/tmp`."""

    def __init__(self) -> None:
        self._memory = bytearray()
        self._descriptor = -1
        self._path = ""

    def spill(self, paths: Paths) -> None:
        """Go on in a file."""
        self._path = f"/tmp/multipart-{secrets.randbelow(1 << 32)}"  # noqa: S108  # in the sandbox
        self._descriptor = paths.files.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        memory, self._memory = self._memory, bytearray()
        self.write(memory)

    def write(self, data: bytes | bytearray) -> None:
        """Add to it. Raises `OSError`."""
        if self._descriptor < 0:
            self._memory += data
            return
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    @property
    def whole(self) -> bytes:
        """All of it."""
        return b"".join(self.pieces())

    def pieces(self) -> Any:
        """It, piece by piece."""
        if self._descriptor < 0:
            for start in range(0, len(self._memory), PIECE_BYTES):
                yield bytes(self._memory[start : start + PIECE_BYTES])
            return
        start = 0
        while data := os.pread(self._descriptor, PIECE_BYTES, start):
            yield data
            start += len(data)

    def close(self, paths: Paths) -> None:
        """Remove the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            try:
                paths.files.unlink(self._path)
            except OSError:
                pass


async def upload(request: web.BaseRequest, paths: Paths, presence: Presence) -> web.Response:
    """Answer `POST /files/upload`. A form that breaks off changes nothing."""
    parts: dict[str, list[Part]] = {"metadata": [], "file": []}
    try:
        await _parse(request, paths, presence, parts)
        for metadata, file in _pairs(parts):
            await _write(paths, presence, _metadata(metadata.whole), file)
    except BadUpload as error:
        return replies.execd_error(400, error.code, str(error))
    except FileError as error:
        return replies.execd_error(500, "RUNTIME_ERROR", str(error))
    finally:
        for part in (*parts["metadata"], *parts["file"]):
            part.close(paths)
    return web.Response(headers=replies.EMPTY)


async def _parse(request: web.BaseRequest, paths: Paths, presence: Presence, parts: dict[str, list[Part]]) -> None:
    """Take the parts that have a file name; a full disk below `/tmp` is a bad form to execd."""
    room = MEMORY_BYTES
    try:
        reader = await request.multipart()
        while (sent := await _next(request, reader)) is not None:
            if not isinstance(sent, BodyPartReader):
                raise ValueError("nested")
            part, size = Part(), 0
            if sent.filename and sent.name in parts:
                parts[sent.name].append(part)
            async for data in _content(sent, presence):
                if size <= room < size + len(data):
                    part.spill(paths)
                size += len(data)
                part.write(data)
            room -= size if size <= room else 0
        if not sum(map(len, parts.values())) and not reader.at_eof():
            raise ValueError("no parts")
    except (ValueError, AssertionError, RuntimeError, EOFError, KeyError) as error:
        raise BadUpload("INVALID_FILE", "multipart form is empty") from error
    except OSError as error:
        if isinstance(error, ConnectionError):
            raise
        raise BadUpload("INVALID_FILE", "multipart form is empty") from error


async def _next(request: web.BaseRequest, reader: MultipartReader) -> Any:
    """The next part; to Go, a form that ends behind the boundary of one has ended."""
    sent = await reader.next()
    ended = sent is not None and not sent.headers and request.content.at_eof()
    return None if ended else sent


async def _content(sent: BodyPartReader, presence: Presence) -> AsyncIterator[bytes]:
    while data := await sent.read_chunk(PIECE_BYTES):
        await presence.awake()
        yield data


def _pairs(parts: dict[str, list[Part]]) -> list[tuple[Part, Part]]:
    metadata, files = parts["metadata"], parts["file"]
    if not metadata:
        raise BadUpload("INVALID_FILE_METADATA", "metadata file is missing")
    if not files:
        raise BadUpload("INVALID_FILE_CONTENT", "file is missing")
    if len(metadata) != len(files):
        raise BadUpload("INVALID_FILE", f"metadata and file count mismatch: {len(metadata)} vs {len(files)}")
    return list(zip(metadata, files, strict=True))


def _metadata(sent: bytes) -> dict[str, Any]:
    try:
        found = go_json.struct(go_json.only_value(sent), "model.FileMetadata", METADATA)
    except go_json.Bad as error:
        raise BadUpload("INVALID_FILE_METADATA", f"invalid metadata format. {error}") from error
    if not found["path"]:
        raise BadUpload("INVALID_FILE_METADATA", "metadata path is empty")
    return found


async def _write(paths: Paths, presence: Presence, metadata: dict[str, Any], part: Part) -> None:
    with within(f"error resolving target path {metadata['path']}. "):
        path = paths.expand(metadata["path"])
    directory = file_operations.directory_of(path)
    with within(f"error creating target directory {directory}. "):
        file_operations.make_directories(paths.files, directory)
    with within(f"error opening destination file {path}. "), saying(f"open {path}"):
        descriptor = await open_as_execd(paths.files, presence, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        with within(f"error copying file {path}. "), saying(f"write {path}"):
            await _copy(presence, part, descriptor)
    finally:
        os.close(descriptor)
    with within(f"error chmoding file {path}. "):
        file_operations.permit(paths, path, metadata)


async def _copy(presence: Presence, part: Part, descriptor: int) -> None:
    for data in part.pieces():
        view = memoryview(data)
        while view:
            await presence.awake()
            try:
                view = view[os.write(descriptor, view) :]
            except BlockingIOError:
                await asyncio.sleep(BLOCK_POLL_SECONDS)
        await asyncio.sleep(0)


async def open_as_execd(files: SandboxFiles, presence: Presence, path: str, flags: int) -> int:
    """A descriptor; waits for ever for the other end of a FIFO, the caller gone or not. Raises `OSError`."""
    await presence.awake()
    reading = flags & os.O_ACCMODE == os.O_RDONLY
    try:
        descriptor = files.open(path, flags | os.O_NONBLOCK, 0o777)
    except OSError as error:
        if error.errno != errno.ENXIO or not stat.S_ISFIFO(files.stat(path).st_mode):
            raise
        return await _open_for_reader(files.open(path, os.O_PATH), presence)
    if reading and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        try:
            await presence.until_readable(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
    return descriptor


async def _open_for_reader(fifo: int, presence: Presence) -> int:
    """The same FIFO, whatever has its name by then."""
    try:
        while True:
            try:
                return os.open(f"/proc/self/fd/{fifo}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
            await asyncio.sleep(BLOCK_POLL_SECONDS)
            await presence.awake()
    finally:
        os.close(fifo)
