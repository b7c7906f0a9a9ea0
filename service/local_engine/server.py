"""One HTTP server for everything: the lifecycle API at `/` and `/v1`, and each sandbox's execd.

A plain dispatcher instead of a router: a status read passes through a few string comparisons only.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import socket
import struct
from collections.abc import Awaitable, Callable

from aiohttp import web

from . import dev_controls, replies
from .execd_http import ExecdRoutes
from .lifecycle_routes import VERSION, LifecycleRoutes
from .replies import Invalid, Refused
from .sandboxes import Sandbox, Sandboxes
from .stats import Fault, Faults, Stats

log = logging.getLogger(__name__)

EXECD_PORT = "44772"
PROXY_SECONDS = 180.0
"""How long the proxy waits for a daemon that does not answer."""

MAXIMUM_BODY_BYTES = 1 << 30
MAXIMUM_LINE_BYTES = 1 << 16
API_KEY_HEADER = "OPEN-SANDBOX-API-KEY"
_PROXY_PATH = re.compile(r"/sandboxes/([^/]+)/proxy/([0-9]{1,9})(/.*)?")


class Dispatcher:
    """Turns requests into answers; `api_key` empty: none is asked for."""

    def __init__(self, sandboxes: Sandboxes, api_key: str, *, dev: bool, maximum_timeout: int) -> None:
        self.stats = Stats()
        self.faults = Faults()
        self.address = ""
        self._sandboxes = sandboxes
        self._key = api_key.encode()
        self._execd = ExecdRoutes(self.stats)
        self._lifecycle = LifecycleRoutes(sandboxes, maximum_timeout)
        self._dev = dev_controls.DevControls(sandboxes, self.stats, self.faults) if dev else None

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request."""
        path = request.path
        try:
            if path.startswith("/execd/"):
                identifier, slash, rest = path[7:].partition("/")
                return await self._direct(request, identifier, slash + rest)
            return await self._lifecycle_request(request, path)
        except Refused as error:
            return replies.refusal(error)
        except Invalid as error:
            return replies.invalid(error)
        except ConnectionError:  # the caller left in the middle of its request
            return reset(request)

    # -- lifecycle ----------------------------------------------------------------------------------------

    async def _lifecycle_request(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        if path == "/health" and request.method == "GET":
            return replies.lifecycle(200, {"status": "healthy"})
        if path == "/version" and request.method == "GET":
            return replies.lifecycle(200, {"version": VERSION})
        if self._dev is not None and path.startswith("/_dev/"):
            return await self._dev.handle(request, path)
        if path.startswith("/v1/"):
            path = path[3:]
        proxied = _PROXY_PATH.fullmatch(path) if "/proxy/" in path and ".." not in path else None
        if proxied:
            return await self._proxied(request, proxied[1], proxied[2], proxied[3] or "/")
        if refused := self._check_key(request):
            return refused
        kind, handler = self._lifecycle.find(request.method, path, self.address)
        return await self._counted(request, kind, lambda fault: handler(request))

    def _check_key(self, request: web.BaseRequest) -> web.Response | None:
        if not self._key or request.path in ("/docs", "/openapi.json"):
            return None
        given = request.headers.get(API_KEY_HEADER, "")
        if not given:
            message = f"Authentication credentials are missing. Provide API key via {API_KEY_HEADER} header."
            return replies.lifecycle(401, {"code": "MISSING_API_KEY", "message": message})
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._key):
            message = "Authentication credentials are invalid. Check your API key and try again."
            return replies.lifecycle(401, {"code": "INVALID_API_KEY", "message": message})
        return None

    # -- execd, directly and through the proxy --------------------------------------------------------------

    async def _direct(self, request: web.BaseRequest, identifier: str, path: str) -> web.StreamResponse:
        """A sandbox that is gone, or a dead daemon, resets the connection: nothing answers there any more."""
        sandbox = self._sandboxes.find(identifier)
        if sandbox is None:
            return reset(request)
        return await self._to_daemon(request, sandbox, path)

    async def _to_daemon(self, request: web.BaseRequest, sandbox: Sandbox, path: str) -> web.StreamResponse:
        if not sandbox.thawed.is_set():
            await take_in(request, path)
            await sandbox.thawed.wait()
        if sandbox.gone or not sandbox.execd.alive:
            return reset(request)
        return await self._execd_request(request, sandbox, path, False)

    def daemon(self, sandbox: Sandbox) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
        """What answers at the port of the sandbox's own daemon, where it has one."""

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            try:
                return await self._to_daemon(request, sandbox, request.path)
            except ConnectionError:
                return reset(request)

        return answer

    async def _proxied(self, request: web.BaseRequest, identifier: str, port: str, path: str) -> web.StreamResponse:
        sandbox = self._sandboxes.get(identifier)
        place = f"127.0.0.1:{port}"
        self._sandboxes.check_reachable(sandbox, port)
        if not sandbox.thawed.is_set():
            await take_in(request, path)
            try:
                async with asyncio.timeout(PROXY_SECONDS):
                    await sandbox.thawed.wait()
            except TimeoutError as error:
                message = f"The backend sandbox {place} did not respond in time: "
                raise Refused(504, "BACKEND_TIMEOUT", message) from error
        if not sandbox.execd.alive:
            message = f"The backend sandbox {place} dropped the connection or sent an invalid response: "
            raise Refused(502, "BACKEND_RESPONSE_FAILED", message)
        if port != EXECD_PORT:
            headers = {
                **replies.SERVER,
                "Content-Type": "text/plain; charset=utf-8",
                "X-Content-Type-Options": "nosniff",
                "Vary": "Origin",
            }
            return web.Response(status=502, body=b"Bad Gateway\n", headers=headers)
        if request.method == "HEAD":
            return replies.lifecycle(405, {"detail": "Method Not Allowed"})
        return await self._execd_request(request, sandbox, path, True)

    async def _execd_request(
        self, request: web.BaseRequest, sandbox: Sandbox, path: str, proxied: bool
    ) -> web.StreamResponse:
        response = await self._counted(
            request,
            execd_kind(request.method, path),
            lambda f: self._execd.handle(request, sandbox, path, proxied, f),
        )
        if proxied and not response.prepared:
            response.headers["Vary"] = "Origin"
        return response

    # -- counting and faults --------------------------------------------------------------------------------

    async def _counted(
        self,
        request: web.BaseRequest,
        kind: str,
        answer: Callable[[Fault | None], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        self.stats.counts[kind] += 1
        fault = self.faults.take(kind)
        if fault is None:
            return await answer(None)
        if kind != "upload":  # it is read in pieces
            await request.read()
        if fault.delay:
            await asyncio.sleep(fault.delay)
        if fault.reply == "drop_before":
            return reset(request)
        if fault.status:
            headers = {**replies.SERVER, "Content-Type": fault.content_type}
            return web.Response(status=fault.status, body=fault.body.encode(), headers=headers)
        response = await answer(fault)
        return reset(request) if fault.reply == "drop" else response


async def take_in(request: web.BaseRequest, path: str) -> None:
    """Keep a submit's body: what was sent to a frozen daemon is carried out when it thaws, the sender gone or not."""
    if path == "/command":
        await request.read()


def execd_kind(method: str, path: str) -> str:
    """Under which name a request to execd is counted."""
    if path.startswith("/command"):
        if path.startswith("/command/status/"):
            return "status"
        if path.endswith("/logs"):
            return "log"
        return {"POST": "submit", "DELETE": "interrupt"}.get(method, "other")
    if path == "/files/download":
        return "file"
    if path == "/files/upload":
        return "upload"
    return "ping" if path == "/ping" else "other"


def reset(request: web.BaseRequest) -> web.StreamResponse:
    """Cut the connection with a reset, as a port without a daemon behind it does."""
    transport = request.transport
    if transport is not None:
        connection = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    return web.Response(status=500)


def make_server(dispatcher: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> web.Server:
    """The aiohttp server around what answers: no access log, large bodies, long lines."""
    loop = asyncio.get_running_loop()

    def make_request(message, payload, protocol, writer, task):  # type: ignore[no-untyped-def]  # aiohttp's own types are private
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MAXIMUM_BODY_BYTES)

    return web.Server(
        dispatcher,
        request_factory=make_request,
        access_log=None,
        max_line_size=MAXIMUM_LINE_BYTES,
        max_field_size=MAXIMUM_LINE_BYTES,
        keepalive_timeout=75.0,
    )
