"""``oncebox logs``: a job's output, now and as it comes."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Literal

import click

from service.cli.arguments import Command
from service.cli.following import MOST_LINES, BytesPrinter, EventPrinter, follow, show_tail
from service.cli.ids import full_id
from service.cli.interrupts import Interrupts
from service.cli.output.progress import Progress
from service.cli.output.terminal import OutputWriter, say
from service.cli.state import json_option
from service.cli.target import configured_target, connect

if TYPE_CHECKING:
    from service.client import AsyncJob
    from service.messages import Stream


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  oncebox logs cmd_...                # what is there now
  oncebox logs --tail 20 cmd_...      # its last 20 lines; with -f, and then what comes
  oncebox logs -f cmd_...             # until the job is over; Ctrl-C leaves the job alone
  oncebox logs -f cmd_... --cursor C  # goes on where an interrupted one stopped
  oncebox logs cmd_... > build.log    # the bytes as they are
  oncebox logs --stream stderr cmd_...    # of a job that has its streams apart
""",
)
@click.argument("command_id")
@click.option("-f", "--follow", "following", is_flag=True, help="Go on until the job is over.")
@click.option("--cursor", metavar="C", help="Begin there, as an interrupted `logs -f` said.")
@click.option("-n", "--tail", metavar="N", type=click.IntRange(0, MOST_LINES), help="Only the last N lines.")
@click.option("--stream", type=click.Choice(("stdout", "stderr")), help="Which, of a job that has them apart.")
@json_option
def logs(
    command_id: str,
    following: bool,
    cursor: str | None,
    tail: int | None,
    stream: Literal["stdout", "stderr"] | None,
    as_json: bool,
) -> int:
    """Print a job's output, stdout and stderr merged or one of them, as the bytes that the command wrote."""
    if tail is not None and (as_json or cursor):
        raise click.UsageError("--tail goes with neither --json nor --cursor.")
    return asyncio.run(_Logs(command_id, cursor, tail, stream, as_json=as_json).run(following=following))


class _Logs:
    def __init__(
        self, command_id: str, cursor: str | None, tail: int | None, stream: Stream | None, *, as_json: bool
    ) -> None:
        self._id = command_id
        self._cursor = cursor
        self._tail = tail
        self._stream = stream
        self._progress = Progress(OutputWriter())
        self._printer = (EventPrinter if as_json else BytesPrinter)(self._progress)

    async def run(self, *, following: bool) -> int:
        with Interrupts(self._leave) as self._interrupts:
            async with self._progress, connect(configured_target()) as client:
                self._id = await full_id(client, self._id)
                job = client.job(self._id)
                work = asyncio.create_task(self._show(job, following=following))
                await self._interrupts.outlasted_by(work)
                if work.done():
                    work.result()
                    return 0
                work.cancel()
                await asyncio.wait({work})
                self._cursor = job.cursor or self._cursor
                self._say_how_to_go_on()
                return self._interrupts.exit_code

    async def _show(self, job: AsyncJob, *, following: bool) -> None:
        if self._tail is not None:
            self._cursor = await show_tail(job, self._tail, self._printer, self._progress, stream=self._stream)
        if self._tail is None or following:
            await follow(
                job, self._printer, self._progress, stream=self._stream, cursor=self._cursor, until_over=following
            )

    def _say_how_to_go_on(self) -> None:
        place = f" --cursor {self._cursor}" if self._cursor else ""
        place += f" --stream {self._stream}" if self._stream else ""
        say(f"the job goes on; go on reading with: oncebox logs -f{place} {self._id}")

    def _leave(self) -> None:
        """The second interrupt, or a terminal that went away: stdout may take nothing any more."""
        os._exit(self._interrupts.exit_code)
