"""Handlers of ``/v1/sandboxes/{sandbox_id}/archive``."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from service.api.bodies import check_raw, length_of, raw_body
from service.api.caller import HALF_CLOSED_SECONDS
from service.api.files import disposition
from service.api.parameters import given
from service.api.replies import reply
from service.errors import NotADirectory
from service.messages import FileType, Job

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from service.api.exchange import Call
    from service.api.parameters import FileQuery
    from service.core.files.archive import Packing

TAR = "application/x-tar"
TYPES = (TAR, "application/gzip", "application/x-gzip", "application/octet-stream")


async def put(call: Call, query: FileQuery) -> Response:
    """Unpack a tar, plain or gzipped, into a directory. What leads outside is refused before anything is unpacked."""
    exchange = call.exchange
    check_raw(exchange, TYPES)
    exchange.audited["path"] = query.path
    with call.core.room.share(call.tenant) as share:  # no guard, as for a file
        done = await call.core.files.unpack(
            call.tenant,
            call.sandbox_id,
            query.path,
            raw_body(exchange, call.receive),
            length=length_of(exchange),
            user=given(query.user),
            share=share,
        )
    if isinstance(done, Job):
        exchange.about(done.command_id)
        return reply(done, 202, location=f"/v1/exec-jobs/{done.command_id}")
    exchange.audited["size"] = done.bytes
    return reply(done)


async def get(call: Call, query: FileQuery) -> ASGIApp:
    """A tar of what lies in a directory."""
    return ArchiveAnswer(call, query.path, given(query.user))


class ArchiveAnswer:
    """A tar, streamed as it is made and as its reader takes it."""

    def __init__(self, call: Call, path: str, user: str | None) -> None:
        self._call = call
        self._path = path
        self._user = user

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = self._call
        if call.exchange.method == "HEAD":
            await self._head(send)
            return
        call.caller.stays = HALF_CLOSED_SECONDS
        await call.caller.unless_gone(self._whole(send))

    async def _head(self, send: Send) -> None:
        path = self._path.rstrip("/") + "/."
        found = await self._call.core.files.info(self._call.tenant, self._call.sandbox_id, path, user=self._user)
        if found.type is not FileType.DIRECTORY:
            raise NotADirectory
        await send(_start(None, "archive.tar"))
        await send({"type": "http.response.body", "body": b""})

    async def _whole(self, send: Send) -> None:
        call = self._call
        opened = call.core.files.pack(call.tenant, call.sandbox_id, self._path, user=self._user)
        async with opened as packing:
            await self._stream(packing, send)

    async def _stream(self, packing: Packing, send: Send) -> None:
        begun = False
        async with aclosing(packing.chunks(self._call.share)) as chunks:
            async for chunk in chunks:
                if not begun:
                    begun = True
                    await send(_start(packing.size, packing.name))
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _start(size: int | None, name: str) -> dict[str, object]:
    headers = [
        (b"content-type", TAR.encode()),
        (b"content-disposition", disposition(name).encode("ascii")),
        (b"cache-control", b"no-cache"),
    ]
    if size is not None:
        headers.append((b"content-length", b"%d" % size))
    return {"type": "http.response.start", "status": 200, "headers": headers}
