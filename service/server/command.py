"""``oncebox serve``: one replica, or several."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from service.engine.local import EngineDidNotStart
from service.server.listening import announce
from service.server.logs import configure_logging
from service.server.replica import run_replica
from service.server.workers import serve_workers
from service.tenants import tenants_of

if TYPE_CHECKING:
    from service.settings import Settings

log = logging.getLogger("oncebox")


def serve(settings: Settings, *, workers: int = 1) -> int:
    """Serve until a signal; the exit code. When ready, prints ``{"url": ...}`` on a line of standard output.

    Each of several ``workers`` is a replica. Raises ``SettingsError`` where ``settings`` don't allow it.
    """
    settings.check_serving(workers)
    configure_logging()
    tenants_of(settings)  # a broken file stops the start here, before there are workers
    if workers > 1:
        return serve_workers(settings, workers)
    try:
        return asyncio.run(run_replica(settings, announce))
    except KeyboardInterrupt:
        return 130
    except EngineDidNotStart as error:
        log.error("%s", error)
        return 1
    except OSError as error:
        log.error("can't listen on %s: %s", settings.bind, error.strerror)
        return 1
