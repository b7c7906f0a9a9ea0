"""Ids as people type them: a job's last characters do, where they name one job."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from service.cli.problems import Trouble

if TYPE_CHECKING:
    from service.client import AsyncClient

SHORT = 12
"""Characters of a job's id that stand for it where there is little room: 72 bits."""
LOOKED_AT = 1000
"""Jobs, newest first, among which a short id is looked for."""

_SHORT = re.compile(r"(?!cmd_)[A-Za-z0-9_-]{6,40}")


def short_id(id: str) -> str:
    """The end of a job's id: at least ``SHORT`` characters, and none that begins as an option does."""
    length = SHORT
    while id[-length:].startswith("-") and length < len(id):
        length += 1
    return id[-length:]


async def full_id(client: AsyncClient, text: str) -> str:
    """The ``command_id`` that ``text`` is, or is the end of. Raises ``Trouble`` unless that is one job's."""
    if not _SHORT.fullmatch(text):
        return text
    found = []
    looked_at = 0
    async for job in client.jobs():
        looked_at += 1
        if job.id.endswith(text):
            found.append(job.id)
        if looked_at == LOOKED_AT:
            break
    if len(found) == 1:
        return found[0]
    if not found:
        raise Trouble(f"no job's id ends with {text}; `oncebox ps` lists the jobs that are known.")
    raise Trouble(f"{len(found)} jobs' ids end with {text}; give more of the id.")
