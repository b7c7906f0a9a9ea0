"""The whole stack for one command."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec

from service.server.replica import Replica

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from service.settings import Settings


@contextlib.asynccontextmanager
async def embedded(settings: Settings) -> AsyncIterator[str]:
    """The whole stack in this process, on a free loopback port: its URL. At the end all of it is gone.

    The store, the engine and the address are those of the embedded default; all else is as in ``settings``.
    """
    own = msgspec.structs.replace(
        settings,
        redis_url="memory://",
        engine_url="local://",
        bind="127.0.0.1:0",
        tenants=None,
        insecure=False,
        shutdown_delay=0.0,
    )
    replica = await Replica.start(own)
    serving = asyncio.create_task(replica.serve())
    try:
        yield replica.url
    finally:
        replica.stop()
        await serving
