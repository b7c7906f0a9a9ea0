"""Handlers that need no tenant: health, readiness, and the documentation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import HTMLResponse, Response

from service.api.replies import JSON, reply
from service.messages import Health

if TYPE_CHECKING:
    from collections.abc import Callable

    from service.api.exchange import Call
    from service.api.parameters import Nothing

_DOCS_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"


async def healthz(_call: Call, _: Nothing) -> Response:
    """The process serves."""
    return reply(Health(status="ok"))


class ReadyHandler:
    """``GET /readyz``."""

    def __init__(self, draining: Callable[[], bool], told: Callable[[bool], None] = lambda _: None) -> None:
        self.draining = draining
        self.told = told

    async def readyz(self, call: Call, _: Nothing) -> Response:
        """The replica wants requests; 503 with the reasons when it does not."""
        reasons = ["This replica is shutting down."] if self.draining() else await call.core.readiness()
        self.told(not reasons)
        if reasons:
            return reply(Health(status="not_ready", reasons=reasons), 503)
        return reply(Health(status="ok"))


class Documents:
    """``GET /openapi.json`` and ``/docs``, made once."""

    def __init__(self, openapi: bytes, page: str) -> None:
        self._openapi = openapi
        self._page = page

    async def openapi(self, _call: Call, _: Nothing) -> Response:
        """The OpenAPI document."""
        return Response(self._openapi, media_type=JSON)

    async def docs(self, _call: Call, _: Nothing) -> Response:
        """The same for people."""
        return HTMLResponse(self._page, headers={"Content-Security-Policy": _DOCS_POLICY})
