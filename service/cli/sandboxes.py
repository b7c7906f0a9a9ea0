"""``oncebox sandboxes``: list, create and delete them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from service.cli.place import configured, connected
from service.cli.problems import sentence
from service.cli.state import json_option, pairs_option
from service.cli.tables import Column, ago, print_table
from service.cli.terminal import print_json, say
from service.errors import OnceboxError
from service.messages import Sandbox, SandboxState

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.group(
    epilog="""\b
Examples:
  oncebox sandboxes ls
  ID=$(oncebox sandboxes create)
  oncebox run --sandbox "$ID" -- make test
  oncebox sandboxes rm "$ID"
"""
)
def sandboxes() -> None:
    """List, create and delete sandboxes."""


@sandboxes.command(
    "ls",
    epilog="""\b
Examples:
  oncebox sandboxes ls
  oncebox sandboxes ls --metadata team=red --state running
  oncebox sandboxes ls --json | jq -r '.[].sandbox_id'
""",
)
@pairs_option("--metadata", help="Only those with this metadata; may be given several times.")
@click.option("--state", "states", multiple=True, type=click.Choice([state.value for state in SandboxState]),
              help="Only those in this state; may be given several times.")  # fmt: skip
@click.option("--limit", metavar="N", type=click.IntRange(min=1), default=200, show_default=True,
              help="At most this many.")  # fmt: skip
@json_option
def ls(metadata: dict[str, str], states: tuple[str, ...], limit: int, as_json: bool) -> None:
    """List sandboxes."""
    found = asyncio.run(_list(metadata, states, limit + 1))
    shown = found[:limit]
    if as_json:
        print_json(shown)
    else:
        _print(shown)
    if len(found) > limit:
        say(f"there are more; --limit shows more than {limit}.")


async def _list(metadata: dict[str, str], states: Sequence[str], limit: int) -> list[Sandbox]:
    found: list[Sandbox] = []
    async with connected(configured()) as client:
        async for sandbox in client.sandboxes(metadata=metadata or None, state=states or None):
            assert sandbox.info is not None, "listed"
            found.append(sandbox.info)
            if len(found) == limit:
                break
    return found


def _print(found: Sequence[Sandbox]) -> None:
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
            sandbox.sandbox_id,
            sandbox.state.value,
            ago(sandbox.created_at),
            ago(sandbox.expires_at),
            sandbox.image or "",
            sandbox.workspace_owner or "",
            ",".join(f"{name}={value}" for name, value in sandbox.metadata.items()),
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
  oncebox sandboxes create --image node:22 --timeout 7200 --cpu 500m --memory 1Gi
  ID=$(oncebox sandboxes create --key task-17 --owner alice)    # again: the same sandbox
"""
)
@click.option("--image", metavar="I", help="The image; default: the service's.")
@click.option("--timeout", metavar="S", type=click.IntRange(60, 86_400), help="Seconds to live; default 3600.")
@pairs_option("--env", help="A variable of all its commands; may be given several times.")
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
) -> None:
    """Create a sandbox, and print its id."""
    resources = {name: value for name, value in (("cpu", cpu), ("memory", memory)) if value}
    sandbox = asyncio.run(
        _create(
            image=image,
            timeout=timeout,
            env=env or None,
            metadata=metadata or None,
            resources=resources or None,
            workspace_owner=owner,
            idempotency_key=key,
        )
    )
    if as_json:
        print_json(sandbox)
        return
    click.echo(sandbox.sandbox_id)
    if not sandbox.ready:
        say("it is not ready yet; `oncebox sandboxes ls` shows its state.")


async def _create(**fields: object) -> Sandbox:
    async with connected(configured()) as client:
        sandbox = await client.create_sandbox(**fields)  # type: ignore[arg-type]
        assert sandbox.info is not None, "just created"
        return sandbox.info


@sandboxes.command(
    epilog="""\b
Examples:
  oncebox sandboxes rm ID
  oncebox sandboxes ls --metadata team=red --json | jq -r '.[].sandbox_id' | xargs oncebox sandboxes rm
"""
)
@click.argument("sandbox_ids", metavar="ID...", nargs=-1, required=True)
@json_option
def rm(sandbox_ids: tuple[str, ...], as_json: bool) -> int:
    """Delete sandboxes, with all that runs in them; recorded results stay."""
    failed = asyncio.run(_delete(sandbox_ids))
    gone = [sandbox_id for sandbox_id in sandbox_ids if sandbox_id not in failed]
    if as_json:
        print_json({"deleted": gone, "failed": failed})
    else:
        for sandbox_id in gone:
            click.echo(sandbox_id)
        for sandbox_id, why in failed.items():
            say(f"{sandbox_id}: {why}")
    return 1 if failed else 0


async def _delete(sandbox_ids: Sequence[str]) -> dict[str, str]:
    """Those that could not be deleted, and why."""
    failed: dict[str, str] = {}
    async with connected(configured()) as client:
        for sandbox_id in sandbox_ids:
            try:
                await client.sandbox(sandbox_id).delete()
            except OnceboxError as error:
                failed[sandbox_id] = sentence(error)
    return failed
