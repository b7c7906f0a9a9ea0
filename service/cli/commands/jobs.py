"""``oncebox status``, ``cancel`` and ``ps``: jobs, wherever they were started."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from service.cli.arguments import Command
from service.cli.commands.listing import filter_options, print_first
from service.cli.exit_codes import because, in_words
from service.cli.ids import full_id, short_id
from service.cli.output.tables import Column, ago, between, print_details, print_table, terminal_width
from service.cli.output.terminal import print_json, put
from service.cli.state import json_option
from service.cli.target import configured_target, connect
from service.messages import Job, JobState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from service.client import AsyncClient, AsyncJob


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  oncebox status cmd_...
  oncebox status --json cmd_... | jq -r .state
""",
)
@click.argument("command_id")
@json_option
def status(command_id: str, as_json: bool) -> None:
    """Show a job: its state, its exit code, and when and where it ran."""
    job = asyncio.run(_with_job(command_id, lambda job: job.status()))
    if as_json:
        print_json(job)
        return
    print_details(
        job.command_id,
        {
            "state": in_words(job),
            "because": because(job),
            "command": job.command,
            "sandbox": job.sandbox_id,
            "submitted": _when(job.submitted_at),
            "started": _when(job.started_at),
            "took" if job.state.terminal else "so far": between(job.started_at, job.finished_at),
            "metadata": ", ".join(f"{name}={value}" for name, value in job.metadata.items()),
            "note": "" if job.fenced else "ran unfenced: the sandbox could not hold its fence",
        },
    )


def _when(text: str | None) -> str:
    return f"{text} ({ago(text)} ago)" if text else ""


async def _with_job(command_id: str, act: Callable[[AsyncJob], Awaitable[Job]]) -> Job:
    async with connect(configured_target()) as client:
        return await act(client.job(await full_id(client, command_id)))


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  oncebox cancel cmd_...
""",
)
@click.argument("command_id")
@json_option
def cancel(command_id: str, as_json: bool) -> None:
    """Cancel a job; answers at once, while the command may take seconds to end."""
    job = asyncio.run(_with_job(command_id, lambda job: job.cancel()))
    if as_json:
        print_json(job)
    elif job.state.terminal:
        put(f"{job.command_id} was over: {in_words(job)}")
    else:
        put(f"{job.command_id} is being cancelled")


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  oncebox ps
  oncebox ps --state running --state pending
  oncebox ps --json | jq -r '.[].command_id'

\b
Where an id does not fit the terminal its last digits are shown; every command takes them instead.
""",
)
@click.option("--sandbox", metavar="ID", help="Only the jobs of this sandbox.")
@filter_options(JobState, limit=50)
@json_option
def ps(
    sandbox: str | None,
    states: tuple[str, ...],
    metadata: dict[str, str],
    limit: int,
    as_json: bool,
) -> None:
    """List jobs, newest first."""

    def find(client: AsyncClient) -> AsyncIterator[AsyncJob]:
        return client.jobs(sandbox_id=sandbox, state=states or None, metadata=metadata or None)

    print_first(limit, find, _print_jobs, as_json=as_json)


def _print_jobs(jobs: Sequence[Job]) -> None:
    longest = max((len(job.command_id) for job in jobs), default=0)
    narrow = sys.stdout.isatty() and longest + 50 > terminal_width()
    columns = (
        Column("JOB"),
        Column("STATE"),
        Column("EXIT", right=True),
        Column("AGE", right=True),
        Column("TOOK", right=True),
        Column("COMMAND", shrinks=True),
    )
    rows = [
        [
            short_id(job.command_id) if narrow else job.command_id,
            job.state.value,
            "" if job.exit_code is None else str(job.exit_code),
            ago(job.submitted_at),
            between(job.started_at, job.finished_at),
            job.command,
        ]
        for job in jobs
    ]
    print_table(columns, rows)
