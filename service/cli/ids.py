"""Ids as people type them: the last characters do, where they name one job, or one sandbox."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

from service.cli.problems import Trouble

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from service.client import AsyncClient


class Handle(Protocol):
    """A job or a sandbox of the SDK."""

    @property
    def id(self) -> str:
        """By which the service knows it."""


SHORT = 12
"""Characters of an id that stand for it where there is little room: of a job's 72 bits, of a sandbox's 48."""
LOOKED_AT = 1000
"""Jobs, or sandboxes, newest first, among which a short id is looked for."""

_SHORT = re.compile(r"(?!cmd_)[A-Za-z0-9_-]{6,40}")
_SHORT_SANDBOX = re.compile(r"[A-Za-z0-9_.-]{6,35}")
"""Shorter than the ids that engines make, which are UUIDs."""


def short_id(id: str) -> str:
    """The end of an id: at least ``SHORT`` characters, and none that begins as an option does."""
    length = SHORT
    while id[-length:].startswith("-") and length < len(id):
        length += 1
    return id[-length:]


async def full_id(client: AsyncClient, text: str) -> str:
    """The ``command_id`` that ``text`` is, or is the end of. Raises ``Trouble`` unless that is one job's."""
    return (await full_ids(client, [text]))[0]


async def full_ids(client: AsyncClient, texts: Sequence[str]) -> list[str]:
    """The same for several, which are all looked for in one go."""
    short = [text for text in texts if _SHORT.fullmatch(text)]
    ids = await _first_ids(client.jobs()) if short else []
    return [_the_one(text, ids, "jobs", "`oncebox ps`") if text in short else text for text in texts]


async def full_sandbox_ids(client: AsyncClient, texts: Sequence[str]) -> list[str]:
    """The ids of sandboxes that ``texts`` are, or are the ends of. One that no sandbox's id ends with stays as it is.

    Raises ``Trouble`` where one is the end of several.
    """
    short = [text for text in texts if _SHORT_SANDBOX.fullmatch(text)]
    ids = await _first_ids(client.sandboxes()) if short else []
    known = [text for text in short if any(id.endswith(text) for id in ids)]
    return [_the_one(text, ids, "sandboxes", "`oncebox sandboxes ls`") if text in known else text for text in texts]


async def full_sandbox_id(client: AsyncClient, text: str) -> str:
    """The same for one."""
    return (await full_sandbox_ids(client, [text]))[0]


async def _first_ids(handles: AsyncIterator[Handle]) -> list[str]:
    ids = []
    async for handle in handles:
        ids.append(handle.id)
        if len(ids) == LOOKED_AT:
            break
    return ids


def _the_one(text: str, ids: Sequence[str], kind: str, listed_by: str) -> str:
    if text in ids:
        return text
    found = [id for id in ids if id.endswith(text)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise Trouble(f"no id of the {kind} ends with {text}; {listed_by} lists those that are known.")
    raise Trouble(f"{len(found)} {kind}' ids end with {text}; give more of the id.")
