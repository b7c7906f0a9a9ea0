"""The lifecycle API's routes: each translates HTTP and leaves the rest to `sandboxes`."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

from . import replies, wire
from .replies import Invalid, Refused
from .requests import RESERVED_PREFIX, check_labels, parse_create, parse_json
from .sandboxes import Sandboxes, matching, page_of

VERSION = "1.1.1"
"""The version of the server whose behaviour is copied; clients ask for it."""

MAXIMUM_PAGE_SIZE = 200
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_ONE = re.compile(r"/sandboxes/([^/]+)")
_ACTION = re.compile(r"/sandboxes/([^/]+)/(pause|resume|renew-expiration|metadata)")
_ENDPOINT = re.compile(r"/sandboxes/([^/]+)/endpoints/([^/]+)")


class LifecycleRoutes:
    """Finds the handler of a method and path, and the kind that it is counted under."""

    def __init__(self, sandboxes: Sandboxes, maximum_timeout: int) -> None:
        self._sandboxes = sandboxes
        self._maximum_timeout = maximum_timeout

    def find(self, method: str, path: str, address: str) -> tuple[str, Handler]:
        """The kind and handler; for what is not there, one that says so. `address`: host and port of endpoints."""
        if path == "/sandboxes":
            table: dict[str, tuple[str, Handler]] = {
                "GET": ("list", self._list),
                "POST": ("create", self._create),
            }
        elif match := _ONE.fullmatch(path):
            name = match[1]
            table = {
                "GET": ("get", lambda request: self._get(name)),
                "DELETE": ("delete", lambda request: self._delete(name)),
            }
        elif match := _ACTION.fullmatch(path):
            table = self._actions(match[1], match[2])
        elif match := _ENDPOINT.fullmatch(path):
            name, port = match[1], match[2]
            table = {"GET": ("endpoint", lambda request: self._endpoint(request, name, port, address))}
        elif path == "/openapi.json":
            table = {"GET": ("other", _openapi)}
        else:
            return "other", _not_found
        return table.get(method, ("other", _not_allowed))

    def _actions(self, name: str, action: str) -> dict[str, tuple[str, Handler]]:
        if action == "metadata":
            return {"PATCH": ("metadata", lambda request: self._patch(request, name))}
        handlers: dict[str, Handler] = {
            "pause": lambda request: self._pause(name),
            "resume": lambda request: self._resume(name),
            "renew-expiration": lambda request: self._renew(request, name),
        }
        return {"POST": (action.partition("-")[0], handlers[action])}

    async def _create(self, request: web.BaseRequest) -> web.Response:
        body = await request.read()
        create = parse_create(body, self._maximum_timeout, any_limits=self._sandboxes.any_limits)
        sandbox = await self._sandboxes.create(create)
        return replies.lifecycle(202, sandbox.created_view())

    async def _list(self, request: web.BaseRequest) -> web.Response:
        query = request.query
        page = _whole_number(query.get("page", "1"), "page", None)
        size = _whole_number(query.get("pageSize", "20"), "pageSize", MAXIMUM_PAGE_SIZE)
        metadata = parse_filter(query.get("metadata", ""))
        found = matching(list(self._sandboxes), query.getall("state", []), metadata)
        return replies.lifecycle(200, page_of(found, page, size))

    async def _get(self, name: str) -> web.Response:
        return replies.lifecycle(200, self._sandboxes.get(name).view())

    async def _delete(self, name: str) -> web.Response:
        await self._sandboxes.delete(name)
        return web.Response(status=204, headers={**replies.EMPTY, "Vary": "Origin"})

    async def _pause(self, name: str) -> web.Response:
        await self._sandboxes.pause(name)
        return replies.lifecycle_empty(202)

    async def _resume(self, name: str) -> web.Response:
        await self._sandboxes.resume(name)
        return replies.lifecycle_empty(202)

    async def _renew(self, request: web.BaseRequest, name: str) -> web.Response:
        expires = parse_expiry(await request.read())
        sandbox = self._sandboxes.get(name)
        if expires <= datetime.now(UTC):
            raise Refused(400, "DOCKER::INVALID_EXPIRATION", "New expiration time must be in the future.")
        if sandbox.expires is None:
            message = f"Sandbox {name} does not have automatic expiration enabled."
            raise Refused(409, "DOCKER::INVALID_EXPIRATION", message)
        sandbox.expires = expires
        self._sandboxes.schedule_expiry(sandbox)
        return replies.lifecycle(200, {"expiresAt": wire.server_time(expires)})

    async def _patch(self, request: web.BaseRequest, name: str) -> web.Response:
        """A JSON merge patch: null removes, everything else is set as text."""
        sent = parse_json(await request.read())
        if not isinstance(sent, dict):
            raise Invalid("dict_type", ["body"], "Input should be a valid dictionary", sent)
        for key, value in sent.items():
            if value is not None and not isinstance(value, str):
                raise Invalid("string_type", ["body", key], "Input should be a valid string", value)
        sandbox = self._sandboxes.get(name)
        for key in sent:
            if key.startswith(RESERVED_PREFIX):
                message = f"Metadata key '{key}' is reserved ({RESERVED_PREFIX} prefix)."
                raise Refused(400, "INVALID_METADATA_LABEL", message)
        check_labels({key: value for key, value in sent.items() if value is not None})
        for key, value in sent.items():
            if value is None:
                sandbox.metadata.pop(key, None)
            else:
                sandbox.metadata[key] = value
        return replies.lifecycle(200, sandbox.view())

    async def _endpoint(self, request: web.BaseRequest, name: str, port: str, address: str) -> web.Response:
        """Where a port of the sandbox is reached; only execd's is really served."""
        if not wire.is_number(port):
            message = "Input should be a valid integer, unable to parse string as an integer"
            raise Invalid("int_parsing", ["path", "port"], message, port)
        if not 0 < int(port) < 65536:
            raise Refused(400, "DOCKER::INVALID_PORT", "Port must be between 1 and 65535.")
        sandbox = self._sandboxes.get(name)
        if request.query.get("use_server_proxy", "").lower() in ("true", "1", "yes", "on"):
            prefix = "/v1" if request.path.startswith("/v1/") else ""
            host = request.headers.get("Host") or address
            return replies.lifecycle(200, {"endpoint": f"{host}{prefix}/sandboxes/{sandbox.id}/proxy/{port}"})
        address = address or request.headers.get("Host", "")
        return replies.lifecycle(200, {"endpoint": self._sandboxes.endpoint(sandbox, port, address)})


async def _not_found(request: web.BaseRequest) -> web.Response:
    return replies.lifecycle(404, {"detail": "Not Found"})


async def _not_allowed(request: web.BaseRequest) -> web.Response:
    return replies.lifecycle(405, {"detail": "Method Not Allowed"})


async def _openapi(request: web.BaseRequest) -> web.Response:
    """A list of the paths, without schemas: the real document describes much that is not here."""
    paths = {
        "/sandboxes": ("get", "post"),
        "/sandboxes/{sandbox_id}": ("get", "delete"),
        "/sandboxes/{sandbox_id}/metadata": ("patch",),
        "/sandboxes/{sandbox_id}/pause": ("post",),
        "/sandboxes/{sandbox_id}/resume": ("post",),
        "/sandboxes/{sandbox_id}/renew-expiration": ("post",),
        "/sandboxes/{sandbox_id}/endpoints/{port}": ("get",),
        "/sandboxes/{sandbox_id}/proxy/{port}/{path}": ("get", "post", "put", "delete", "patch"),
        "/health": ("get",),
        "/version": ("get",),
    }
    described: dict[str, Any] = {
        path: {method: {"responses": {}} for method in methods} for path, methods in paths.items()
    }
    info = {"title": "Local development engine", "version": VERSION}
    return replies.lifecycle(200, {"openapi": "3.1.0", "info": info, "paths": described})


def parse_filter(given: str) -> dict[str, str]:
    """The `metadata` parameter: a query string of its own. Empty: no filter. Raises `Refused`."""
    if not given:
        return {}
    try:
        return dict(parse_qsl(given, keep_blank_values=True, strict_parsing=True))
    except ValueError as error:
        raise Refused(400, "INVALID_METADATA_FORMAT", f"Invalid metadata format: {error}") from error


def parse_expiry(body: bytes) -> datetime:
    """`{"expiresAt": ...}` as a time; without a zone it is UTC. Raises `Invalid`."""
    sent = parse_json(body)
    given: Any = sent.get("expiresAt") if isinstance(sent, dict) else None
    if given is None:
        raise Invalid("missing", ["body", "expiresAt"], "Field required", sent)
    try:
        if isinstance(given, int | float) and not isinstance(given, bool):
            return datetime.fromtimestamp(given, UTC)
        parsed = datetime.fromisoformat(given)
    except (ValueError, TypeError, OverflowError, OSError) as error:
        message = "Input should be a valid datetime or date"
        raise Invalid("datetime_from_date_parsing", ["body", "expiresAt"], message, given, error=str(error)) from error
    return parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def _whole_number(given: str, name: str, maximum: int | None) -> int:
    try:
        number = int(given)
    except ValueError as error:
        message = "Input should be a valid integer, unable to parse string as an integer"
        raise Invalid("int_parsing", ["query", name], message, given) from error
    if number < 1:
        message = "Input should be greater than or equal to 1"
        raise Invalid("greater_than_equal", ["query", name], message, given, ge=1)
    if maximum is not None and number > maximum:
        message = f"Input should be less than or equal to {maximum}"
        raise Invalid("less_than_equal", ["query", name], message, given, le=maximum)
    return number
