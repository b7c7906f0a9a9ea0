"""What ``ps`` and ``sandboxes ls`` have in common: the filters, the limit, and what is said where there is more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from service.cli.arguments import pairs_option
from service.cli.output.terminal import print_json, say
from service.cli.target import configured_target, connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from enum import Enum

    from service.client import AsyncClient

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Info = TypeVar("Info")
Info_co = TypeVar("Info_co", covariant=True)


class Handle(Protocol[Info_co]):
    """A job or a sandbox of the SDK."""

    @property
    def info(self) -> Info_co | None:
        """What was listed of it."""


def filter_options(states: type[Enum], *, limit: int) -> Callable[[Decorated], Decorated]:
    """``--metadata``, ``--state`` (the arguments ``metadata`` and ``states``) and ``--limit``."""
    options = (
        pairs_option("--metadata", help="Only those with this metadata; may be given several times."),
        click.option(
            "--state",
            "states",
            multiple=True,
            type=click.Choice([state.value for state in states]),
            help="Only those in this state; may be given several times.",
        ),
        click.option(
            "--limit",
            metavar="N",
            type=click.IntRange(min=1),
            default=limit,
            show_default=True,
            help="At most this many.",
        ),
    )

    def decorate(command: Decorated) -> Decorated:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def print_first(
    limit: int,
    find: Callable[[AsyncClient], AsyncIterator[Handle[Info]]],
    print_them: Callable[[list[Info]], None],
    *,
    as_json: bool,
) -> None:
    """Print the first ``limit`` of what ``find`` finds; a line on stderr says where there are more."""
    found = asyncio.run(_first(limit + 1, find))
    shown = found[:limit]
    (print_json if as_json else print_them)(shown)
    if len(found) > limit:
        say(f"there are more; --limit shows more than {limit}.")


async def _first(count: int, find: Callable[[AsyncClient], AsyncIterator[Handle[Info]]]) -> list[Info]:
    found: list[Info] = []
    async with connect(configured_target()) as client:
        async for handle in find(client):
            assert handle.info is not None, "listed"
            found.append(handle.info)
            if len(found) == count:
                break
    return found
