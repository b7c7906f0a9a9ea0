"""Answers in the shapes that the two real servers use, errors included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from . import wire

SERVER = {"Server": "local-engine"}
EXECD_JSON = {**SERVER, "Content-Type": "application/json; charset=utf-8"}
LIFECYCLE_JSON = {**SERVER, "Content-Type": "application/json", "Vary": "Origin"}
PLAIN = {**SERVER, "Content-Type": "text/plain"}
EMPTY = {**SERVER}


class Refused(Exception):
    """A request that the lifecycle server refuses: status and `{code, message}`."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Invalid(Exception):
    """A request that does not validate: 422 with `{"detail": [...]}`."""

    def __init__(self, kind: str, location: list[str | int], message: str, given: Any, **context: Any) -> None:
        super().__init__(message)
        self.detail: dict[str, Any] = {"type": kind, "loc": location, "msg": message, "input": given}
        if context:
            self.detail["ctx"] = context


def lifecycle(status: int, value: Any) -> web.Response:
    """An answer of the lifecycle server."""
    return web.Response(status=status, body=wire.compact_json(value), headers=LIFECYCLE_JSON)


def lifecycle_empty(status: int) -> web.Response:
    """An answer of the lifecycle server without a body."""
    return web.Response(status=status, headers={**EMPTY, "Vary": "Origin"})


def refusal(error: Refused) -> web.Response:
    """`{code, message}` with its status."""
    return lifecycle(error.status, {"code": error.code, "message": str(error)})


def invalid(error: Invalid) -> web.Response:
    """422 in the form of the framework that the real server is built on."""
    return lifecycle(422, {"detail": [error.detail]})


def execd(status: int, body: bytes, headers: Mapping[str, str] = EXECD_JSON) -> web.Response:
    """An answer of execd with a JSON body."""
    return web.Response(status=status, body=body, headers=headers)


def execd_error(status: int, code: str, message: str) -> web.Response:
    """`{code, message}` as execd writes it."""
    return execd(status, wire.go_json({"code": code, "message": message} if message else {"code": code}))


def execd_not_found() -> web.Response:
    """The answer of execd's router to a path or method that it does not know, HEAD included."""
    return web.Response(status=404, body=b"404 page not found", headers=PLAIN)
