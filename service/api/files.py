"""Handlers of ``/v1/sandboxes/{sandbox_id}/files`` and ``.../directories``."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING
from urllib.parse import quote

from service.api.bodies import check_raw, length_of, raw_body
from service.api.caller import HALF_CLOSED_SECONDS
from service.api.parameters import given
from service.api.ranges import wanted_range
from service.api.replies import empty, reply
from service.core.files.conditions import Conditions, http_date
from service.core.files.read import part_of

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from service.api.exchange import Call, Exchange
    from service.api.parameters import DirectoryQuery, FileQuery, PutFileQuery, RemoveFileQuery, UserQuery
    from service.core.files.read import Found, Part
    from service.messages import MakeDirectory


async def put(call: Call, query: PutFileQuery) -> Response:
    """Write a file, whole or not at all: what is there stays until all bytes have come."""
    exchange = call.exchange
    check_raw(exchange)
    exchange.audited["path"] = query.path
    with call.core.room.share(call.tenant) as share:  # no guard: who watches for the caller's end eats the body
        written = await call.core.files.put(
            call.tenant,
            call.sandbox_id,
            query.path,
            raw_body(exchange, call.receive),
            length=length_of(exchange),
            mode=given(query.mode),
            user=given(query.user),
            conditions=conditions_of(exchange),
            share=share,
        )
    exchange.audited["size"] = written.file.size
    answer = reply(written.file, 201 if written.made else 200)
    answer.headers["ETag"] = written.etag
    return answer


async def get(call: Call, query: FileQuery) -> ASGIApp:
    """The bytes of a file, links followed."""
    return FileAnswer(call, query.path, given(query.user))


async def remove(call: Call, query: RemoveFileQuery) -> Response:
    """Remove a file, a link, or a directory; what is not there is no error."""
    call.exchange.audited["path"] = query.path
    await call.core.files.remove(
        call.tenant, call.sandbox_id, query.path, recursive=query.recursive, user=given(query.user)
    )
    return empty()


async def info(call: Call, query: FileQuery) -> Response:
    """What stands under a path; a link itself."""
    return reply(await call.core.files.info(call.tenant, call.sandbox_id, query.path, user=given(query.user)))


async def list_(call: Call, query: DirectoryQuery) -> Response:
    """List a directory, by name."""
    page = await call.core.files.list(
        call.tenant,
        call.sandbox_id,
        query.path,
        user=given(query.user),
        page_size=query.page_size,
        page_token=given(query.page_token),
    )
    return reply(page)


async def make_directory(call: Call, request: MakeDirectory, query: UserQuery) -> Response:
    """Make a directory, with its parents."""
    call.exchange.audited["path"] = request.path
    directory, made = await call.core.files.make_directory(
        call.tenant, call.sandbox_id, request.path, mode=request.mode, user=given(query.user)
    )
    return reply(directory, 201 if made else 200)


def conditions_of(exchange: Exchange) -> Conditions:
    """The conditional headers. Lists of tags may come in several lines (RFC 9110, 5.3)."""
    return Conditions(
        if_match=_joined(exchange, "if-match"),
        if_none_match=_joined(exchange, "if-none-match"),
        if_range=exchange.header("if-range"),
    )


def _joined(exchange: Exchange, name: str) -> str | None:
    values = exchange.headers.get(name)
    return None if values is None else ", ".join(values)


class FileAnswer:
    """A file, streamed as its reader takes it. Never shown by a browser: its bytes are the sandbox's."""

    def __init__(self, call: Call, path: str, user: str | None) -> None:
        self._call = call
        self._path = path
        self._user = user
        self._head = call.exchange.method == "HEAD"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call, exchange = self._call, self._call.exchange
        wanted = wanted_range(exchange.headers.get("range", []))
        opened = call.core.files.open(call.tenant, call.sandbox_id, self._path, user=self._user, read=not self._head)
        async with opened as found:
            part = part_of(found.stat, wanted, conditions_of(exchange))
            if self._head or part.unchanged or part.start == part.end:
                await send(_start(found, part))
                await send({"type": "http.response.body", "body": b""})
                return
            call.caller.stays = HALF_CLOSED_SECONDS
            await call.caller.unless_gone(self._stream(found, part, send))

    async def _stream(self, found: Found, part: Part, send: Send) -> None:
        """The head goes out with the first bytes: until then what can't be had is a problem."""
        begun = False
        async with aclosing(self._call.core.files.reads.chunks(found, part, self._call.share)) as chunks:
            async for chunk in chunks:
                if not begun:
                    begun = True
                    await send(_start(found, part))
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _start(found: Found, part: Part) -> dict[str, object]:
    headers = [
        (b"etag", found.stat.etag.encode()),
        (b"last-modified", http_date(found.stat).encode()),
        (b"cache-control", b"no-cache"),
    ]
    if part.unchanged:
        return {"type": "http.response.start", "status": 304, "headers": headers}
    headers += [
        (b"content-type", b"application/octet-stream"),
        (b"content-disposition", disposition(found.name).encode("ascii")),
        (b"accept-ranges", b"bytes"),
        (b"content-length", b"%d" % (part.end - part.start)),
    ]
    if part.partial:
        headers.append((b"content-range", b"bytes %d-%d/%d" % (part.start, part.end - 1, found.stat.size)))
    return {"type": "http.response.start", "status": 206 if part.partial else 200, "headers": headers}


def disposition(name: str) -> str:
    """``Content-Disposition`` of a file to be kept (RFC 6266): plain ASCII for old readers, RFC 8187 for the others."""
    plain = "".join(char if " " <= char <= "~" and char not in '"\\%' else "_" for char in name) or "file"
    if plain == name:
        return f'attachment; filename="{name}"'
    exact = quote(name.encode("utf-8", "replace"), safe="!#$&+-.^_`|~")
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{exact}"
