"""``oncebox sandboxes show``, ``renew``, ``pause``, ``resume`` and ``rm``: sandboxes that there are."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from service.cli.arguments import pairs_option
from service.cli.commands.sandboxes import LIFETIME, sandboxes
from service.cli.creating import delete_one
from service.cli.ids import full_sandbox_id, full_sandbox_ids
from service.cli.output.tables import ago, labels, print_details
from service.cli.output.terminal import print_json, printable, put, say
from service.cli.state import json_option
from service.cli.target import configured_target, connect

__all__ = ["sandboxes"]

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from service.client import AsyncClient, AsyncSandbox
    from service.messages import Sandbox

SHOWN = 5
"""Sandboxes that are named in a question about many."""


def _act(sandbox_id: str, act: Callable[[AsyncSandbox], Awaitable[Sandbox]], *, as_json: bool) -> None:
    """Do something with one sandbox, and show it as it is then."""

    async def done() -> Sandbox:
        async with connect(configured_target()) as client:
            return await act(client.sandbox(await full_sandbox_id(client, sandbox_id)))

    sandbox = asyncio.run(done())
    (print_json if as_json else _show)(sandbox)


def _show(sandbox: Sandbox) -> None:
    resources = sandbox.resources
    print_details(
        sandbox.sandbox_id,
        {
            "state": sandbox.state.value + ("" if sandbox.ready or sandbox.state.over else " (not ready)"),
            "because": sandbox.reason or "",
            "image": sandbox.image or "",
            "cpu": (resources.cpu if resources else None) or "",
            "memory": (resources.memory if resources else None) or "",
            "owner": sandbox.workspace_owner or "",
            "created": f"{sandbox.created_at} ({ago(sandbox.created_at)} ago)" if sandbox.created_at else "",
            "expires": f"{sandbox.expires_at} (in {ago(sandbox.expires_at)})" if sandbox.expires_at else "",
            "metadata": labels(sandbox.metadata),
        },
    )


@sandboxes.command(
    epilog="""\b
Examples:
  oncebox sandboxes show ID
  oncebox sandboxes show --json ID | jq -r .expires_at
"""
)
@click.argument("sandbox_id", metavar="ID")
@json_option
def show(sandbox_id: str, as_json: bool) -> None:
    """Show a sandbox: its state, its image and resources, and when it expires."""
    _act(sandbox_id, lambda sandbox: sandbox.refresh(), as_json=as_json)


@sandboxes.command(
    epilog="""\b
Examples:
  oncebox sandboxes renew ID 2h
  oncebox sandboxes renew ID 90m
"""
)
@click.argument("sandbox_id", metavar="ID")
@click.argument("timeout", metavar="T", type=LIFETIME)
@json_option
def renew(sandbox_id: str, timeout: int, as_json: bool) -> None:
    """Let a sandbox live for T from now: seconds, or such as 90m; at most a day."""
    _act(sandbox_id, lambda sandbox: sandbox.renew(timeout), as_json=as_json)


@sandboxes.command(
    epilog="""\b
Examples:
  oncebox sandboxes pause ID
"""
)
@click.argument("sandbox_id", metavar="ID")
@json_option
def pause(sandbox_id: str, as_json: bool) -> None:
    """Ask for a sandbox to be frozen. Its time to live runs on."""
    _act(sandbox_id, lambda sandbox: sandbox.pause(), as_json=as_json)


@sandboxes.command(
    epilog="""\b
Examples:
  oncebox sandboxes resume ID
"""
)
@click.argument("sandbox_id", metavar="ID")
@json_option
def resume(sandbox_id: str, as_json: bool) -> None:
    """Ask for a paused sandbox to go on."""
    _act(sandbox_id, lambda sandbox: sandbox.resume(), as_json=as_json)


@sandboxes.command(
    epilog="""\b
Examples:
  oncebox sandboxes rm ID OTHER
  oncebox sandboxes rm --metadata team=red
  oncebox sandboxes rm --all --yes         # without the question

\b
Those of --metadata and --all are counted first, and on a terminal there is a question; elsewhere --yes is needed.
"""
)
@click.argument("sandbox_ids", metavar="[ID...]", nargs=-1)
@pairs_option("--metadata", help="All with this metadata; several times: with all of it.")
@click.option("--all", "everything", is_flag=True, help="All that your key sees.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@json_option
def rm(sandbox_ids: tuple[str, ...], metadata: dict[str, str], everything: bool, yes: bool, as_json: bool) -> int:
    """Delete sandboxes, with all that runs in them; recorded results stay."""
    if sum(map(bool, (sandbox_ids, metadata, everything))) != 1:
        raise click.UsageError("Say which: ids, --metadata or --all, one of the three.")
    asks = not (sandbox_ids or yes)
    if asks and not _somebody_is_there():
        raise click.UsageError("Nobody is there to ask whether all of them: --yes says so.")
    gone, failed = asyncio.run(_remove(sandbox_ids, metadata, asks=asks))
    if as_json:
        print_json({"deleted": gone, "failed": failed})
    else:
        for sandbox_id in gone:
            put(sandbox_id)
        for sandbox_id, why in failed.items():
            say(f"{sandbox_id}: {why}")
    return 1 if failed else 0


def _somebody_is_there() -> bool:
    return sys.stdin.isatty()


async def _remove(texts: Sequence[str], metadata: dict[str, str], *, asks: bool) -> tuple[list[str], dict[str, str]]:
    """Those that were deleted; and those that could not be, and why."""
    gone: list[str] = []
    failed: dict[str, str] = {}
    async with connect(configured_target()) as client:
        ids = await full_sandbox_ids(client, texts) if texts else await _found(client, metadata)
        if asks and ids:
            click.confirm(_question(ids), abort=True, err=True)
        if not ids:
            say("there are none.")
        for sandbox_id in ids:
            if why := await delete_one(client, sandbox_id):
                failed[sandbox_id] = why
            else:
                gone.append(sandbox_id)
    return gone, failed


async def _found(client: AsyncClient, metadata: dict[str, str]) -> list[str]:
    """Those that are not over yet."""
    found = client.sandboxes(metadata=metadata or None)
    return [sandbox.id async for sandbox in found if sandbox.info is None or not sandbox.info.state.over]


def _question(ids: Sequence[str]) -> str:
    named = ", ".join(printable(id) for id in ids[:SHOWN])
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    return f"Delete {len(ids)} sandbox{'es' if len(ids) > 1 else ''} ({named}{more}), with all that runs there?"
