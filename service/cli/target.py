"""Where the commands find a service: the one that ``ONCEBOX_URL`` names, or a stack in this process."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from service.cli.problems import Trouble
from service.settings import Settings, load

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from service.client import AsyncClient

DEFAULT_URL = "http://127.0.0.1:8700"
"""Where ``oncebox serve`` listens unless told otherwise."""

DEADLINE = 30.0
"""Seconds for which a person waits without knowing why."""
CONNECT = 5.0


class Target(msgspec.Struct, frozen=True):
    """A service to talk to. ``embedded``: it ends with this process, and all of its sandboxes with it."""

    url: str
    api_key: str | None = None
    embedded: bool = False


def configured_target(settings: Settings | None = None) -> Target:
    """The service of the settings, or the one on this machine."""
    settings = settings or load()
    return Target(settings.url or DEFAULT_URL, settings.api_key)


@asynccontextmanager
async def open_target(settings: Settings) -> AsyncIterator[Target]:
    """The service of the settings, or an embedded stack for as long as the context lasts."""
    if settings.url:
        yield configured_target(settings)
        return
    from service.cli.stack import stack

    async with stack(settings) as url:
        yield Target(url, embedded=True)


@asynccontextmanager
async def connect(target: Target, *, deadline: float = DEADLINE) -> AsyncIterator[AsyncClient]:
    """A client of the service. ``deadline``: seconds in which a request is tried again.

    Raises ``Trouble`` where nobody listens: the SDK waits for a service to come back, a person checks the URL.
    """
    from service.client import AsyncClient

    await _listened_at(target.url)
    try:
        client = AsyncClient(target.url, api_key=target.api_key or "", deadline=deadline)
    except ValueError as error:
        raise Trouble(f"{error}; correct ONCEBOX_URL or ONCEBOX_API_KEY.") from None
    async with client:
        yield client


async def _listened_at(url: str) -> None:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(CONNECT):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except UnicodeError:
        raise Trouble("ONCEBOX_URL names no host that there can be.") from None
    except OSError as error:  # a TimeoutError as well
        said = os.strerror(error.errno).lower() if error.errno else "no connection"
        raise Trouble(
            f"no service at {parts.scheme}://{parts.hostname}:{port} ({said}): "
            "start one with `oncebox serve`, or set ONCEBOX_URL."
        ) from None
    writer.close()
