"""What ``ps`` and ``sandboxes ls`` have in common: the filters, the limit, and what is said where there is more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from service.cli.arguments import pairs_option
from service.cli.interrupts import Interrupts
from service.cli.output.screen import Screen
from service.cli.output.tables import drawn_table
from service.cli.output.terminal import print_json, say
from service.cli.target import configured_target, connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from enum import Enum

    from service.cli.output.tables import Column
    from service.client import AsyncClient

EVERY = 2.0
"""Seconds between two lists of a live view."""

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


def watch_first(
    limit: int,
    find: Callable[[AsyncClient], AsyncIterator[Handle[Info]]],
    table: Callable[[list[Info]], tuple[Sequence[Column], Sequence[Sequence[str]]]],
) -> int:
    """Show the first ``limit`` of what ``find`` finds, anew every ``EVERY`` seconds, until an interrupt; its code."""
    return asyncio.run(_watch(limit, find, table))


async def _watch(
    limit: int,
    find: Callable[[AsyncClient], AsyncIterator[Handle[Info]]],
    table: Callable[[list[Info]], tuple[Sequence[Column], Sequence[Sequence[str]]]],
) -> int:
    async def show() -> None:
        async with connect(configured_target()) as client:
            while True:
                found = await _taken(find(client), limit)
                screen.show(drawn_table(*table(found)).splitlines())
                await asyncio.sleep(EVERY)

    with Screen() as screen, Interrupts(screen.leave) as interrupts:
        work = asyncio.create_task(show())
        await interrupts.outlasted_by(work)
        if work.done():
            work.result()
        work.cancel()
        await asyncio.wait({work})
    return 0


async def _first(count: int, find: Callable[[AsyncClient], AsyncIterator[Handle[Info]]]) -> list[Info]:
    async with connect(configured_target()) as client:
        return await _taken(find(client), count)


async def _taken(handles: AsyncIterator[Handle[Info]], count: int) -> list[Info]:
    found: list[Info] = []
    async for handle in handles:
        assert handle.info is not None, "listed"
        found.append(handle.info)
        if len(found) == count:
            break
    return found
