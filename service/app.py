"""The composition root: which store and which engine the core works with, and the application around it.

``oncebox serve`` does all this by itself. To run the service under another ASGI server::

    # replica.py
    from service.app import app_of
    from service.settings import load

    app = app_of(load())

``uvicorn replica:app`` then serves it. The core starts and shuts down with the ASGI lifespan, so the server
must support that, and each of its processes is a replica. Limits on headers, slow readers and the time
between requests are then the server's to keep, and so is refusing to listen where anybody could reach it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from service.api.application import Application
from service.core.app import Core
from service.engine import OpenSandboxEngine
from service.engine.local import OWN_VOLUME, EngineChild, LocalEngine
from service.observability import Observability
from service.store import open_store
from service.tenants import Tenants, tenants_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from service.ports.engine import Engine
    from service.ports.store import Store
    from service.settings import Settings


async def build_core(settings: Settings, observability: Observability | None = None) -> Core:
    """The core, not yet started, with its store and its engine; for ``local://`` the engine is started here.

    ``Core.shutdown`` closes both. Raises ``SettingsError`` and ``EngineDidNotStart``.
    """
    tenants = tenants_of(settings)
    if settings.engine_url == "local://" and settings.volume is None:
        settings = msgspec.structs.replace(settings, volume=OWN_VOLUME)
    store = build_store(settings, observability)
    telemetry = observability.metrics.core if observability else None
    try:
        engine = await build_engine(settings, observability)
        return Core(store, engine, settings, policy=tenants, telemetry=telemetry)
    except BaseException:
        await store.close()
        raise


def build_store(settings: Settings, observability: Observability | None = None) -> Store:
    """The store that ``settings`` name. Nothing is connected yet."""
    return open_store(
        settings.redis_url,
        retention=settings.retention,
        record_output=settings.record_output,
        claim_replicas=settings.claim_replicas,
        observer=observability.metrics.store if observability else None,
    )


async def build_engine(settings: Settings, observability: Observability | None = None) -> Engine:
    """The client of the engine that ``settings`` name; for ``local://`` that engine too."""
    observe = observability.engine_observe if observability else None
    trace = observability.engine_trace if observability else None
    if settings.engine_url == "local://":
        return LocalEngine(await EngineChild.start(volume=settings.volume), observe=observe, trace=trace)
    return OpenSandboxEngine(
        settings.engine_url,
        api_key=settings.engine_api_key or "",
        proxy=settings.engine_proxy,
        networks=settings.engine_networks,
        runtime=None if settings.engine_runtime == "auto" else settings.engine_runtime,
        observe=observe,
        trace=trace,
    )


def create_app(
    core: Core, settings: Settings, *, manages_core: bool = True, observability: Observability | None = None
) -> Application:
    """The ASGI application of ``core``, which starts and shuts down with the application's lifespan.

    ``manages_core=False``: somebody else starts it and shuts it down. ``observability``: that of ``core``; without
    it there are no metrics.
    """
    authenticator = core.policy if isinstance(core.policy, Tenants) else None
    return Application(core, settings, manages_core=manages_core, authenticator=authenticator, observed=observability)


def app_of(settings: Settings) -> ASGIApp:
    """An ASGI application that builds its core when its lifespan begins: for other ASGI servers."""
    serving: Application | None = None

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal serving
        if serving is None:
            if scope["type"] != "lifespan":
                raise RuntimeError("this application needs a server that supports the ASGI lifespan")
            observability = Observability()
            core = await build_core(settings, observability)
            serving = create_app(core, settings, observability=observability)
        await serving(scope, receive, send)

    return app
