"""``oncebox sandboxes``: list and create them; what is done to those that there are, `sandbox_acts` adds."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from service.cli.arguments import Duration, Group, pairs_option
from service.cli.commands.listing import filter_options, print_first
from service.cli.creating import create_or_undo, delete_one, print_or_undo
from service.cli.ids import short_id
from service.cli.interrupts import INTERRUPTED, Interrupts
from service.cli.output.tables import Column, ago, labels, print_table, terminal_width
from service.cli.output.terminal import print_json, put, say
from service.cli.state import json_option
from service.cli.target import configured_target, connect
from service.messages import Sandbox, SandboxState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from service.client import AsyncClient, AsyncSandbox

LIFETIME = Duration(60, 86_400)
"""How long a sandbox may be asked to live."""
ROOM_FOR_IDS = 100
"""Columns of a terminal on which ids are shown whole."""


@click.group(
    cls=Group,
    epilog="""\b
Examples:
  oncebox sandboxes ls
  ID=$(oncebox sandboxes create)
  oncebox exec "$ID" -- make test
  oncebox sandboxes show "$ID"
  oncebox sandboxes rm "$ID"
""",
)
def sandboxes() -> None:
    """List, create, change and delete sandboxes."""


@sandboxes.command(
    "ls",
    epilog="""\b
Examples:
  oncebox sandboxes ls
  oncebox sandboxes ls --metadata team=red --state running
  oncebox sandboxes ls --json | jq -r '.[].sandbox_id'

\b
Where an id does not fit the terminal its last characters are shown; every command takes them instead.
""",
)
@filter_options(SandboxState, limit=200)
@click.option("-q", "--quiet", is_flag=True, help="Print only the ids, whole.")
@json_option
def ls(metadata: dict[str, str], states: tuple[str, ...], limit: int, quiet: bool, as_json: bool) -> None:
    """List sandboxes."""

    def find(client: AsyncClient) -> AsyncIterator[AsyncSandbox]:
        return client.sandboxes(metadata=metadata or None, state=states or None)

    print_first(limit, find, _print_ids if quiet else _print, as_json=as_json)


def _print_ids(found: Sequence[Sandbox]) -> None:
    for sandbox in found:
        put(sandbox.sandbox_id)


def _print(found: Sequence[Sandbox]) -> None:
    narrow = sys.stdout.isatty() and terminal_width() < ROOM_FOR_IDS
    columns = (
        Column("SANDBOX"),
        Column("STATE"),
        Column("AGE", right=True),
        Column("EXPIRES", right=True),
        Column("IMAGE", shrinks=True),
        Column("OWNER", shrinks=True),
        Column("METADATA", shrinks=True),
    )
    rows = [
        [
            short_id(sandbox.sandbox_id) if narrow else sandbox.sandbox_id,
            sandbox.state.value,
            ago(sandbox.created_at),
            ago(sandbox.expires_at),
            sandbox.image or "",
            sandbox.workspace_owner or "",
            labels(sandbox.metadata),
        ]
        for sandbox in found
    ]
    # What no sandbox has takes no room.
    used = [at for at in range(len(columns)) if at < 5 or any(row[at] for row in rows)]
    print_table([columns[at] for at in used], [[row[at] for at in used] for row in rows])


@sandboxes.command(
    epilog="""\b
Examples:
  oncebox sandboxes create
  oncebox sandboxes create --image node:22 --timeout 2h --cpu 500m --memory 1Gi
  ID=$(oncebox sandboxes create --key task-17 --owner alice)    # again: the same sandbox
"""
)
@click.option("--image", metavar="I", help="The image; default: the service's.")
@click.option("--timeout", metavar="T", type=LIFETIME, help="Seconds to live, or such as 2h; default 3600.")
@pairs_option("-e", "--env", help="A variable of all its commands; may be given several times.")
@pairs_option("--metadata", help="A label to find it by; may be given several times.")
@click.option("--cpu", metavar="C", help="Such as 500m or 2.")
@click.option("--memory", metavar="M", help="Such as 512Mi or 4Gi.")
@click.option("--owner", metavar="O", help="Whose workspace directories are mounted.")
@click.option("--key", metavar="K", help="Create once for this key, however often it is asked for.")
@json_option
def create(
    image: str | None,
    timeout: int | None,
    env: dict[str, str],
    metadata: dict[str, str],
    cpu: str | None,
    memory: str | None,
    owner: str | None,
    key: str | None,
    as_json: bool,
) -> int:
    """Create a sandbox, and print its id. Where that can't be printed, or at Ctrl-C, none is left, but with --key."""
    resources = {name: value for name, value in (("cpu", cpu), ("memory", memory)) if value is not None}
    fields = {
        "image": image,
        "timeout": timeout,
        "env": env or None,
        "metadata": metadata or None,
        "resources": resources or None,
        "workspace_owner": owner,
    }
    return asyncio.run(_create(fields, key, as_json=as_json))


async def _create(fields: dict[str, Any], key: str | None, *, as_json: bool) -> int:
    """The exit code. Interrupted, it leaves no sandbox but one that the caller's own key leads back to."""
    with Interrupts(_leave_creation, hangup_leaves=lambda: False) as interrupts:
        work = asyncio.create_task(_create_and_print(fields, key, as_json=as_json))
        if not await interrupts.outlasted_by(work) and not work.done():
            say("stopping; Ctrl-C again leaves at once.")
            work.cancel()
            await asyncio.wait({work})
        if not work.cancelled():
            work.result()
            return 0
        if key is not None:
            say("if the sandbox was made, the same command with its key prints its id.")
        return interrupts.exit_code


def _leave_creation() -> None:
    """The second interrupt."""
    say("left at once; `oncebox sandboxes ls` shows whether the sandbox was made.")
    os._exit(INTERRUPTED)


async def _create_and_print(fields: dict[str, Any], key: str | None, *, as_json: bool) -> None:
    async with connect(configured_target()) as client:
        if key is None:
            sandbox = await create_or_undo(client, **fields)
        else:
            sandbox = await client.create_sandbox(**fields, idempotency_key=key)
        info = sandbox.info
        assert info is not None, "just created"

        async def undo() -> str:
            if key is not None:
                return f"but the sandbox is there: {sandbox.id}"
            failed = await delete_one(client, sandbox.id)
            return f"but could not be deleted: {sandbox.id}: {failed}" if failed else "so the sandbox was deleted again"

        await print_or_undo(lambda: print_json(info) if as_json else put(info.sandbox_id), undo)
        if not info.ready:
            say("it is not ready yet; `oncebox sandboxes ls` shows its state.")
