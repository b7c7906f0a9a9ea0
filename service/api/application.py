"""The ASGI application: the routes with everything around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Router

from service.api import openapi, routes, scraping, system
from service.api.auditing import Audit
from service.api.auth import Authenticator, NoKeys
from service.api.middleware import Auth, Body, Edge, Guard, Keys
from service.api.observing import Observed, RequestObserver
from service.api.rates import RateLimits
from service.api.turns import Turns
from service.errors import NotFound
from service.settings import SettingsError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from service.core.app import Core
    from service.settings import Settings


class Application:
    """``draining`` is set by whoever serves it, when the replica is to get no more requests.

    ``manages_core``: the core starts and shuts down with the ASGI lifespan. ``observed``: told of requests; None:
    there are no metrics.
    """

    def __init__(
        self,
        core: Core,
        settings: Settings,
        *,
        manages_core: bool,
        authenticator: Authenticator | None = None,
        observed: Observed | None = None,
    ) -> None:
        self.core = core
        self.settings = settings
        self.authenticator = authenticator or authenticator_of(settings)
        self.manages_core = manages_core
        self.draining = False
        self.observer: RequestObserver = observed.observer if observed else RequestObserver()
        self.endpoints = routes.table(
            system.ReadyHandler(self._is_draining, self.observer.readiness),
            system.Documents(*openapi.documents()),
            scraping.Scrape(observed.render if observed else None, settings.metrics_token),
        )
        if not settings.console:
            self.endpoints = [each for each in self.endpoints if not each.path.startswith(routes.CONSOLE)]
        self._http = observed.traced(self._assembled()) if observed else self._assembled()

    def stop_waiting(self) -> None:
        """The replica ends: nobody is waited for any longer than must be."""
        self.draining = True
        self.core.stop_waiting()
        self._body.hurry()

    def _is_draining(self) -> bool:
        return self.draining

    def _assembled(self) -> ASGIApp:
        served = routes.starlette_routes(self.core, self.endpoints)
        router = Router(served, redirect_slashes=False, default=_no_such_route)
        settings = self.settings
        local = None if settings.has_keys else not settings.insecure
        makes = [path for endpoint in self.endpoints if endpoint.makes for path in endpoint.paths]
        public = [path for endpoint in self.endpoints if not endpoint.tenant for path in endpoint.paths]
        raw = {(endpoint.method, endpoint.shown_path) for endpoint in self.endpoints if endpoint.raw}
        self._body = Body(
            router, room=self.core.room, raw=lambda method, path: (method, routes.route_of(served, path)) in raw
        )
        limited = RateLimits(self._body, core=self.core, makes=makes)
        app: ASGIApp = Auth(Turns(limited), authenticator=self.authenticator, public=public)
        app = Keys(Guard(app, local=local), makes=makes)

        def route_of(path: str) -> str | None:
            return routes.route_of(served, path)

        return Edge(
            Audit(app, route_of=route_of),
            draining=self._is_draining,
            route_of=route_of,
            observer=self.observer,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:  # no WebSockets here; the server answers 403
            await receive()
            await send({"type": "websocket.close", "code": 1008})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        if self.manages_core:
            await self.core.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.draining = True
        if self.manages_core:
            await self.core.shutdown(self.settings.shutdown_grace)
        await send({"type": "lifespan.shutdown.complete"})


def authenticator_of(settings: Settings) -> Authenticator:
    """How callers are told apart where there are no keys.

    Raises ``SettingsError`` rather than ignore keys that were asked for.
    """
    if settings.has_keys:
        raise SettingsError("ONCEBOX_TENANTS names keys, and the application was given nobody who reads them")
    return NoKeys()


async def _no_such_route(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotFound
