"""Files and directories of a sandbox, by the routes of execd that are made for them."""

import secrets
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import quote

from service.engine import wire
from service.engine.endpoints import FRESH, Route
from service.engine.execd import Execd
from service.engine.outcomes import CallKind
from service.engine.transport import Deadline, Incoming, Reply, encode
from service.ports.engine import Download, EngineError, FileInfo, FileRange, PathInvalid, Unclear

READ = Deadline(total=30)
QUICK = Deadline(total=30)
"""For what touches one name."""
LIST = Deadline(total=60)
REMOVE = Deadline(total=30)
REMOVE_ALL = Deadline(total=300)

MAX_INFO = 64 * 1024
"""Bytes: a path of 4,096 bytes twice, each six bytes in JSON."""
MAX_EMPTY = 1024
STEP = 256 * 1024
"""Bytes handed to the connection at a time."""
TO_THE_END = 10**18


class ExecdFiles(Execd):
    """The file calls of the port, which says what each of them does."""

    # -- contents

    async def upload(
        self,
        sandbox_id: str,
        path: str,
        data: bytes | AsyncIterable[bytes],
        *,
        length: int,
        mode: int | None = None,
        owner: str | None = None,
        group: str | None = None,
        timeout: float = 300,
    ) -> None:
        """One multipart upload."""
        form = _Form({"path": _text(path), **_permission(mode, owner, group)}, data, length)
        deadline = Deadline(total=timeout)
        try:
            async with self.open(
                CallKind.UPLOAD, sandbox_id, "POST", "/files/upload", deadline, body=form.pieces(), headers=form.headers
            ) as incoming:
                await incoming.reply(MAX_EMPTY)
        except EngineError:
            if form.failure is not None:
                raise form.failure from None
            raise

    @asynccontextmanager
    async def download(
        self, sandbox_id: str, path: str, offset: int = 0, length: int | None = None, *, timeout: float = 300
    ) -> AsyncIterator[Download]:
        """One ranged download, left in order."""
        async with self._ranged(CallKind.DOWNLOAD, sandbox_id, path, offset, length, Deadline(total=timeout)) as found:
            yield found

    async def read_file(self, sandbox_id: str, path: str, offset: int, length: int) -> FileRange:
        """One ranged download, taken whole."""
        url, headers = "/files/download?" + _query(path), _range_header(offset, length)

        async def ask(route: Route) -> FileRange:
            async with self.open(CallKind.READ, sandbox_id, "GET", url, READ, headers=headers, route=route) as incoming:
                await incoming.check()
                found = _range(incoming, offset, length)
                return FileRange(offset, b"".join([piece async for piece in found.pieces]), found.size)

        return await self.sure(sandbox_id, ask)

    @asynccontextmanager
    async def _ranged(
        self, call: CallKind, sandbox_id: str, path: str, offset: int, length: int | None, deadline: Deadline
    ) -> AsyncIterator[Download]:
        url, headers = "/files/download?" + _query(path), _range_header(offset, length)
        async with AsyncExitStack() as found:

            async def ask(route: Route) -> Download:
                async with AsyncExitStack() as tried:
                    opened = self.open(call, sandbox_id, "GET", url, deadline, headers=headers, route=route)
                    incoming = await tried.enter_async_context(opened)
                    await incoming.check()
                    download = _range(incoming, offset, TO_THE_END if length is None else length)
                    found.push_async_exit(tried.pop_all())
                    return download

            yield await self.sure(sandbox_id, ask)

    async def read_lines(self, sandbox_id: str, path: str, limit: int) -> bytes | None:
        """One download by lines, from the first to the last; None where that is more than ``limit`` bytes."""
        url = f"/files/download?{_query(path)}&offset=1"

        async def ask(route: Route) -> bytes | None:
            async with self.open(CallKind.READ, sandbox_id, "GET", url, READ, route=route) as incoming:
                await incoming.check()
                data = await incoming.at_most(limit + 1)
                return data if len(data) <= limit else None

        return await self.sure(sandbox_id, ask)

    # -- names

    async def file_info(self, sandbox_id: str, path: str) -> FileInfo:
        """What is at a path."""
        reply = await self._get(CallKind.FILE_INFO, sandbox_id, f"/files/info?{_query(path)}", QUICK, MAX_INFO)
        return wire.file_info(reply.body)

    async def list_directory(self, sandbox_id: str, path: str, *, limit: int) -> list[FileInfo]:
        """What is in a directory."""
        reply = await self._get(CallKind.LIST_FILES, sandbox_id, f"/directories/list?{_query(path)}", LIST, limit)
        return wire.file_list(reply.body)

    async def make_directory(
        self,
        sandbox_id: str,
        path: str,
        *,
        mode: int | None = None,
        owner: str | None = None,
        group: str | None = None,
    ) -> None:
        """Make a directory, and its parents."""
        await self._post(
            CallKind.MAKE_DIRECTORY, sandbox_id, "/directories", {_text(path): _permission(mode, owner, group)}
        )

    async def move(self, sandbox_id: str, source: str, target: str) -> None:
        """Rename to a name that is free."""
        await self._post(CallKind.MOVE, sandbox_id, "/files/mv", [{"src": _text(source), "dest": _text(target)}])

    async def set_permissions(
        self,
        sandbox_id: str,
        path: str,
        *,
        mode: int | None = None,
        owner: str | None = None,
        group: str | None = None,
    ) -> None:
        """Set the mode, the owner and the group."""
        body = {_text(path): _permission(mode, owner, group)}
        await self._post(CallKind.PERMISSIONS, sandbox_id, "/files/permissions", body)

    async def remove_files(self, sandbox_id: str, paths: Sequence[str]) -> None:
        """Remove files; missing ones are no error to execd either."""
        if paths:
            await self._delete(sandbox_id, f"/files?{'&'.join(map(_query, paths))}", REMOVE)

    async def remove_directory(self, sandbox_id: str, path: str) -> None:
        """Remove whatever is there, with all that is in it."""
        await self._delete(sandbox_id, f"/directories?{_query(path)}", REMOVE_ALL)

    # -- the way there

    async def _get(self, call: CallKind, sandbox_id: str, url: str, deadline: Deadline, limit: int) -> Reply:
        async def ask(route: Route) -> Reply:
            return await self.call(call, sandbox_id, "GET", url, deadline, limit, route=route)

        return await self.sure(sandbox_id, ask)

    async def _post(self, call: CallKind, sandbox_id: str, url: str, body: Any) -> None:
        async with self.open(call, sandbox_id, "POST", url, QUICK, body=encode(body)) as incoming:
            await incoming.reply(MAX_EMPTY)

    async def _delete(self, sandbox_id: str, url: str, deadline: Deadline) -> None:
        await self.call(CallKind.REMOVE, sandbox_id, "DELETE", url, deadline, MAX_EMPTY, max_age=FRESH)


class _Form:
    """A form of two parts, made as it is sent: what to do, and the bytes. ``failure``: what their source raised."""

    def __init__(self, metadata: Mapping[str, Any], data: bytes | AsyncIterable[bytes], length: int) -> None:
        boundary = secrets.token_hex(16)
        self._head = _part(boundary, "metadata") + encode(metadata) + b"\r\n" + _part(boundary, "file")
        self._tail = f"\r\n--{boundary}--\r\n".encode()
        self._data = data
        self._length = length
        self.failure: Exception | None = None
        self.headers = {
            "Content-Type": f"multipart/form-data; boundary={boundary}",
            "Content-Length": str(len(self._head) + length + len(self._tail)),
        }

    async def pieces(self) -> AsyncIterator[bytes]:
        """The form. Where its source fails it stops short of its length: execd takes nothing of it then."""
        yield self._head
        try:
            async for piece in self._exactly():
                yield piece
        except Exception as error:
            self.failure = error
            raise
        yield self._tail

    async def _exactly(self) -> AsyncIterator[bytes]:
        left = self._length
        async for piece in _steps(self._data) if isinstance(self._data, bytes) else self._data:
            left -= len(piece)
            if left < 0:
                break
            yield piece
        if left:
            raise ValueError(f"the data must have {self._length} bytes, as was said")


async def _steps(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), STEP):
        yield data[start : start + STEP]


def _part(boundary: str, name: str) -> bytes:
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{name}"\r\n'
    return f"{head}Content-Type: application/octet-stream\r\n\r\n".encode()


def _permission(mode: int | None, owner: str | None, group: str | None) -> dict[str, Any]:
    """execd takes the octal digits of a mode as a decimal number: 0o644 is 644."""
    if mode is not None and not 0o001 <= mode <= 0o777:
        raise ValueError("mode must be 0o001 to 0o777")
    return {"mode": int(f"{mode or 0:o}"), "owner": owner or "", "group": group or ""}


def _query(path: str) -> str:
    return f"path={quote(_text(path), safe='')}"


def _text(path: str) -> str:
    """The path, which must be Unicode. Raises ``PathInvalid``."""
    if not path.isascii() and any("\ud800" <= each <= "\udfff" for each in path):
        raise PathInvalid("the path is not valid Unicode")
    return path


def _range_header(offset: int, length: int | None) -> dict[str, str]:
    if offset < 0 or (length is not None and length < 1):
        raise ValueError("offset must be at least 0 and length at least 1")
    return {"Range": f"bytes={offset}-{'' if length is None else offset + length - 1}"}


def _range(incoming: Incoming, offset: int, length: int) -> Download:
    if incoming.status == 206:
        count, size = wire.content_range(incoming.headers.get("content-range"), offset, length)
        return Download(offset, count, size, incoming.counted(count))
    if incoming.status == 416:
        size = wire.unsatisfied_range(incoming.headers.get("content-range"), offset)
        return Download(offset, 0, size, _steps(b""))
    # An empty file has no ranges: it is answered whole. Its headers tell it from somebody else's empty page.
    if incoming.status == 200 and "content-disposition" in incoming.headers:
        return Download(offset, 0, 0, incoming.counted(0))
    raise Unclear(f"read: HTTP {incoming.status} in place of the range", status=incoming.status)
