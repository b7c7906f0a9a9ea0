"""``GET /metrics``: for whoever has the metrics token; where none is set, for this machine alone.

"This machine" is said by the connection, never by a header: anybody can write those. Headers can only take away: a
Host that is no loopback name is a web page (DNS rebinding), and what a proxy sends on comes from somebody else.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from typing import TYPE_CHECKING

from starlette.responses import Response

from service.api.middleware import is_loopback_authority
from service.errors import Forbidden, NotFound, Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Callable

    from service.api.exchange import Call, Exchange
    from service.api.parameters import Nothing

SCRAPE_ROOM = 1024 * 1024
"""Bytes of one answer."""
_SENT_ON = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


class Scrape:
    """The handler. ``render``: the answer and its content type; None: this application keeps no metrics."""

    def __init__(self, render: Callable[[], tuple[bytes, str]] | None = None, token: str | None = None) -> None:
        self._render = render
        self._token = token

    async def metrics(self, call: Call, _: Nothing) -> Response:
        """Metrics in Prometheus's text format; with `ONCEBOX_METRICS_TOKEN` as bearer, else from loopback only."""
        if self._render is None:
            raise NotFound
        if self._token is not None:
            _check_token(call.exchange, self._token)
        else:
            _check_local(call.exchange)
        await call.share.hold(SCRAPE_ROOM)
        body, content_type = await asyncio.to_thread(self._render)  # tens of milliseconds that others need
        return Response(body, headers={"Content-Type": content_type})


def _check_token(exchange: Exchange, token: str) -> None:
    sent = exchange.headers.get("authorization", [])
    scheme, _, credentials = sent[0].partition(" ") if len(sent) == 1 else ("", "", "")
    given = credentials.strip().encode("latin-1", "replace")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given, token.encode()):
        raise Unauthenticated("Metrics need ONCEBOX_METRICS_TOKEN as bearer")


def _check_local(exchange: Exchange) -> None:
    hosts = exchange.headers.get("host", [])
    from_here = exchange.peer is not None and _is_loopback_peer(exchange.peer)
    sent_on = any(name in exchange.headers for name in _SENT_ON)
    if not from_here or sent_on or len(hosts) != 1 or not is_loopback_authority(hosts[0].strip().lower()):
        raise Forbidden("Without ONCEBOX_METRICS_TOKEN, metrics are for this machine alone")


def _is_loopback_peer(peer: str) -> bool:
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
