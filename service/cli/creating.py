"""What is made for somebody who may go away, or be out of reach, before its id is known: then it is undone."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

from service.cli.output.terminal import Unwritable, say
from service.cli.problems import Trouble, sentence
from service.errors import OnceboxError, SandboxNotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from service.client import AsyncClient, AsyncSandbox

UNDO = 15.0
"""Seconds for finding out what an interrupted creation made, and for deleting it."""


async def create_or_undo(client: AsyncClient, *, key: str | None = None, **fields: Any) -> AsyncSandbox:
    """A new sandbox. Cancelled, it deletes what was made, and is over within ``UNDO`` seconds.

    What was made is found by the key of the request, which is made here where the caller has none.
    """
    sure = key or uuid.uuid4().hex
    try:
        return await client.create_sandbox(**fields, idempotency_key=sure)
    except asyncio.CancelledError:
        await _undo(client, {**fields, "wait_ready": 0, "idempotency_key": sure})
        raise


async def _undo(client: AsyncClient, request: dict[str, Any]) -> None:
    try:
        async with asyncio.timeout(UNDO):
            sandbox = await client.create_sandbox(**request)  # the same key: the same sandbox
            await sandbox.delete()
    except SandboxNotFound:
        pass
    except (OnceboxError, TimeoutError) as error:
        if isinstance(error, TimeoutError) or error.retryable:
            say("the service does not say whether the sandbox was made; see `oncebox sandboxes ls`.")


async def delete_one(client: AsyncClient, sandbox_id: str) -> str:
    """Delete a sandbox; why it could not be deleted, or nothing where it was."""
    try:
        await client.sandbox(sandbox_id).delete()
    except OnceboxError as error:
        return sentence(error)
    return ""


async def print_or_undo(printing: Callable[[], None], undo: Callable[[], Awaitable[str]]) -> None:
    """Print the id of what was made. Where that fails nobody would know it: ``undo`` it, and say what it says.

    Raises ``Trouble``.
    """
    try:
        printing()
    except (Unwritable, BrokenPipeError) as error:
        said = str(error) if isinstance(error, Unwritable) else "nobody reads stdout"
        raise Trouble(f"{said}, {await undo()}.") from None
