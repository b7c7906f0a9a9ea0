"""What happens around every request: small ASGI applications, outermost first.

``Edge`` (request id, problems, access log), ``Keys`` (Idempotency-Key), ``Guard`` (limits on the head, Host,
Origin), ``Auth``, ``Turns`` (`api.turns`), ``RateLimits`` (`api.rates`), ``Body`` (read whole, bounded in size and
time); then the routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from service import context
from service.api.caller import CallerGone
from service.api.exchange import Exchange, shown_key
from service.api.observing import RequestObserver
from service.api.problems import problem_response
from service.core.limits.room import Room
from service.core.model.cursors import PIECE
from service.errors import (
    Forbidden,
    Internal,
    InvalidRequest,
    OnceboxError,
    OutcomeUnknown,
    PayloadTooLarge,
    UnsupportedMediaType,
)
from service.log_writer import Fields
from service.messages import MAX_BODY
from service.settings import is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from service.api.auth import Authenticator

log = logging.getLogger("oncebox")
access_log = logging.getLogger("oncebox.access")

BODY_SECONDS = 30.0
"""For the whole body to arrive: a slow sender must not hold a connection for ever."""
LINGER_SECONDS = 2.0
"""For which the rest of a refused body is read and dropped, so that its sender gets to read the answer."""
MAX_HEADERS = 100
MAX_HEAD = 32 * 1024
"""Bytes of all header lines together."""
MAX_TARGET = 8 * 1024
"""Bytes of path and query."""
NO_STORE = (b"cache-control", b"no-store")
CALLER_GONE = 499
"""Stands in the access log where there was nobody to answer."""
_BEGUN = (
    "The connection was closed on the caller's side. What was asked for goes on; a request with the same key finds it."
)


class Edge:
    """Gives every request an id and every error its problem, and writes one line about it."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        draining: Callable[[], bool],
        route_of: Callable[[str], str | None],
        observer: RequestObserver | None = None,
    ) -> None:
        self.app = app
        self.draining = draining
        self.route_of = route_of
        self.observer = observer or RequestObserver()
        self._dropping: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        exchange = Exchange.begin(scope)
        exchange.observer = self.observer
        context.begin(exchange.request_id)
        receive = _watched(exchange, receive)
        send = self._answering(scope, exchange, receive, send)
        try:
            await self._answer(scope, exchange, receive, send)
        finally:
            if exchange.route is None:  # refused before it got there
                exchange.route = self.route_of(scope["path"])
            if exchange.has_body and not exchange.body_done:
                self._drop_rest(receive)
            ended = time.perf_counter()
            self._tell(exchange, began, ended)
            _log_access(exchange, ended - began)

    def _drop_rest(self, receive: Receive) -> None:
        """Take what still comes of a body until the connection ends: servers that hand on so much at a time, and no
        more, wait for that."""
        task = asyncio.ensure_future(_dropped(receive))
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)

    def _tell(self, exchange: Exchange, began: float, ended: float) -> None:
        self.observer.request(exchange.route, exchange.method, exchange.status, exchange.wait, ended - began)
        if exchange.wait == "none":
            return
        self.observer.closed(exchange.wait)
        if exchange.status == CALLER_GONE or exchange.hung_up:
            self.observer.caller_left(ended - began, ended - (exchange.sent_at or began))

    async def _answer(self, scope: Scope, exchange: Exchange, receive: Receive, send: Send) -> None:
        try:
            error = await self._run(scope, exchange, receive, send)
            if error is not None and exchange.status is None:
                await problem_response(error, key_sent=exchange.key_sent)(scope, receive, send)
        except CallerGone as left:
            if left.begun and exchange.status is None:  # who closed only its own side can read it
                unknown = OutcomeUnknown(_BEGUN, command_id=exchange.command_id)
                with contextlib.suppress(CallerGone):
                    await problem_response(unknown, key_sent=exchange.key_sent)(scope, receive, send)
            exchange.status = CALLER_GONE

    async def _run(self, scope: Scope, exchange: Exchange, receive: Receive, send: Send) -> OnceboxError | None:
        """Let the application answer; the error that it ended with."""
        try:
            await self.app(scope, receive, send)
        except CallerGone:
            raise
        except OnceboxError as error:
            if error.command_id is not None:
                exchange.about(error.command_id)
            if exchange.status is not None:  # left unfinished: the server closes the connection, and its reader sees it
                log.warning("request %s was cut off: %s", exchange.request_id, error.code)
            return error
        except Exception:
            log.exception("a bug: request %s, %s", exchange.request_id, exchange.route)
            return Internal()
        return None

    def _answering(self, scope: Scope, exchange: Exchange, receive: Receive, send: Send) -> Send:
        async def answer(message: Message) -> None:
            exchange.sent_at = time.perf_counter()
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                own = list(message.get("headers", ()))
                cached = any(name.lower() == b"cache-control" for name, _ in own)
                headers = [*own, *([] if cached else [NO_STORE]), *_common_headers(exchange)]
                if self._closes(exchange) and scope.get("http_version", "1.1").startswith("1"):
                    headers.append((b"connection", b"close"))
                message = {**message, "headers": headers}
            elif exchange.method == "HEAD":
                message = {**message, "body": b""}
            try:
                if exchange.has_body and not exchange.body_done and _is_last(message):
                    await _send_pieces(send, {**message, "more_body": True})
                    await _linger(exchange, receive)
                    message = {"type": "http.response.body", "body": b""}
                await _send_pieces(send, message)
            except OSError:  # a reader that took nothing for too long was cut off (TimeoutError is one)
                raise CallerGone from None

        return answer

    def _closes(self, exchange: Exchange) -> bool:
        """The connection is not to be used again: the rest of a body may still come, or where it ends is in doubt."""
        unread = exchange.has_body and not exchange.body_done
        return unread or exchange.ambiguous or self.draining()


async def _send_pieces(send: Send, message: Message) -> None:
    """Send ``message``, a long body in pieces: what the reader has not taken yet is not copied for the connection."""
    body = message.get("body", b"")
    for start in range(0, len(body) - PIECE, PIECE):
        await send({"type": message["type"], "body": body[start : start + PIECE], "more_body": True})
    if len(body) > PIECE:
        message = {**message, "body": body[(len(body) - 1) // PIECE * PIECE :]}
    await send(message)


def _is_last(message: Message) -> bool:
    return message["type"] == "http.response.body" and not message.get("more_body", False)


def _common_headers(exchange: Exchange) -> list[tuple[bytes, bytes]]:
    headers = [
        (b"x-request-id", exchange.request_id.encode("latin-1")),
        (b"x-content-type-options", b"nosniff"),
    ]
    if exchange.key is not None:
        headers.append((b"idempotency-key", shown_key(exchange.key).encode("latin-1")))
    return headers + exchange.answer_headers


def _watched(exchange: Exchange, receive: Receive) -> Receive:
    async def watched() -> Message:
        message = await receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            exchange.body_done = True
        return message

    return watched


async def _dropped(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _linger(exchange: Exchange, receive: Receive) -> None:
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            while not exchange.body_done:
                await receive()
    except TimeoutError:
        pass


def _log_access(exchange: Exchange, seconds: float) -> None:
    quiet = exchange.route in ("/healthz", "/readyz", "/metrics") and exchange.status == 200
    level = logging.DEBUG if quiet else logging.INFO
    if access_log.isEnabledFor(level):
        line = Fields(
            {
                "method": exchange.method[:16],
                "route": exchange.route,
                "status": exchange.status,
                "ms": round(seconds * 1000, 1),
                "request_id": exchange.request_id,
                "tenant": exchange.tenant,
            }
        )
        if exchange.command_id is not None:
            line["command_id"] = exchange.command_id
        access_log.log(level, "%s", line, extra={"fields": line})


class Keys:
    """Finds the Idempotency-Key of a POST; makes one where ``makes`` has the path and none was sent."""

    def __init__(self, app: ASGIApp, *, makes: Collection[str]) -> None:
        self.app = app
        self.makes = frozenset(makes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            Exchange.of(scope).take_key(makes=scope["path"] in self.makes)
        await self.app(scope, receive, send)


class Guard:
    """Refuses heads that are too large or ambiguous, and, where there are no API keys, web pages.

    ``local``: Host must be a loopback name and an Origin too (DNS rebinding). False, without keys but not
    for this machine alone: an Origin must be that of the Host. None, with keys: neither is looked at.
    """

    def __init__(self, app: ASGIApp, *, local: bool | None) -> None:
        self.app = app
        self.local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange.of(scope)
        if len(scope["headers"]) > MAX_HEADERS:
            raise InvalidRequest.of("headers", f"more than {MAX_HEADERS}")
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEAD:
            raise InvalidRequest.of("headers", f"more than {MAX_HEAD} bytes")
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MAX_TARGET:
            raise InvalidRequest.of("path", f"path and query are more than {MAX_TARGET} bytes")
        if exchange.ambiguous:
            raise InvalidRequest.of("transfer-encoding", "sent together with content-length")
        if self.local is not None:
            self._check_page(exchange)
        await self.app(scope, receive, send)

    def _check_page(self, exchange: Exchange) -> None:
        hosts = exchange.headers.get("host", [])
        host = hosts[0].strip().lower() if len(hosts) == 1 else ""
        if self.local and not is_loopback_authority(host):
            raise Forbidden("Host must be a loopback name: there are no API keys, so only this machine is served")
        for origin in exchange.headers.get("origin", []):
            authority = _authority_of(origin)
            same = authority == host and bool(host)
            if not (same or (self.local and is_loopback_authority(authority))):
                raise Forbidden("This Origin is foreign: there are no API keys, so no other site's page is served")


def _authority_of(origin: str) -> str:
    try:
        parts = urlsplit(origin.strip().lower())
    except ValueError:
        return ""
    return parts.netloc if parts.scheme in ("http", "https") and not parts.path else ""


@functools.lru_cache(256)
def is_loopback_authority(authority: str) -> bool:
    """A Host (or an Origin's) that names this machine alone; lower case."""
    match = re.fullmatch(r"(\[[0-9a-f:.]+\]|[^:\[\]@/]+)(:[0-9]{1,5})?", authority)
    return match is not None and is_loopback(match[1].strip("[]"))


class Auth:
    """Tells who is asking; ``public`` has the paths that anyone may see."""

    def __init__(self, app: ASGIApp, *, authenticator: Authenticator, public: Collection[str]) -> None:
        self.app = app
        self.authenticator = authenticator
        self.public = frozenset(public)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in self.public:
            exchange = Exchange.of(scope)
            exchange.tenant = self.authenticator.authenticate(exchange.headers)
            context.tenant.set(exchange.tenant)
        await self.app(scope, receive, send)


class Body:
    """Reads the whole body: JSON only, at most ``MAX_BODY`` bytes, within ``BODY_SECONDS``; as much as ``room`` has.

    ``raw`` (a method and a path): whose handler reads it by itself (`api.bodies`).
    """

    def __init__(
        self, app: ASGIApp, *, room: Room, raw: Callable[[str, str], bool] = lambda method, path: False
    ) -> None:
        self.app = app
        self.room = room
        self.raw = raw
        self.seconds = BODY_SECONDS
        self._reading: set[asyncio.Timeout] = set()

    def hurry(self) -> None:
        """The replica ends: bodies that have not arrived yet get only ``LINGER_SECONDS`` more."""
        self.seconds = LINGER_SECONDS
        for deadline in self._reading:
            deadline.reschedule(asyncio.get_running_loop().time() + LINGER_SECONDS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange.of(scope)
        if self.raw(exchange.method, scope["path"]):
            await self.app(scope, receive, send)
            return
        if exchange.has_body or "content-type" in exchange.headers:
            _check_json(exchange)
        if exchange.has_body:
            length = exchange.header("content-length") or "0"
            if not length.isdecimal() or int(length[:20]) > MAX_BODY:
                raise _too_large()
            with self.room.share(exchange.tenant) as share:
                await share.hold(int(length) or MAX_BODY)
                exchange.body = await self._read(receive)
                share.shrink(len(exchange.body))
                await self.app(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _read(self, receive: Receive) -> bytes:
        try:
            async with asyncio.timeout(self.seconds) as deadline:
                self._reading.add(deadline)
                try:
                    return await _whole(receive)
                finally:
                    self._reading.discard(deadline)
        except TimeoutError:
            raise InvalidRequest("The body did not arrive in time") from None


def _check_json(exchange: Exchange) -> None:
    kind, _, parameters = (exchange.header("content-type") or "").lower().partition(";")
    charset = re.sub(r"[\s\";]", "", parameters)
    if kind.strip() != "application/json" or charset not in ("", "charset=utf-8", "charset=utf8"):
        raise UnsupportedMediaType("The body must be application/json, in UTF-8")
    if (exchange.header("content-encoding") or "identity").strip().lower() != "identity":
        raise UnsupportedMediaType("The body must not be compressed")


async def _whole(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise CallerGone
        body += message.get("body", b"")
        if len(body) > MAX_BODY:
            raise _too_large()
        if not message.get("more_body", False):
            return bytes(body)


def _too_large() -> PayloadTooLarge:
    return PayloadTooLarge(f"The body is over {MAX_BODY} bytes")
