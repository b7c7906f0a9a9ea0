"""``oncebox status``, ``cancel``, ``wait`` and ``ps``: jobs, wherever they were started."""

from __future__ import annotations

import asyncio
import sys
from itertools import chain, repeat
from typing import TYPE_CHECKING

import click

from service.cli.arguments import Command, Duration
from service.cli.commands.listing import filter_options, print_first, watch_first
from service.cli.exit_codes import because, exit_code, in_words
from service.cli.ids import full_id, full_ids, full_sandbox_id, short_id
from service.cli.output.tables import Column, ago, between, print_details, print_table, terminal_width
from service.cli.output.terminal import is_terminal, print_json, put, say
from service.cli.problems import TROUBLE, Trouble, sentence
from service.cli.state import State, json_option
from service.cli.target import configured_target, connect
from service.errors import OnceboxError
from service.messages import Job, JobState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from service.client import AsyncClient, AsyncJob

PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between two looks at a job that is waited for; the last one goes on."""
AT_ONCE = 8
"""Jobs that are asked for at one time."""
FOR_EVER = 30 * 86_400
"""Seconds that can be waited."""


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
  oncebox ps -q --state running --sandbox ID | xargs oncebox cancel
""",
)
@click.argument("command_ids", metavar="COMMAND_ID...", nargs=-1, required=True)
@json_option
def cancel(command_ids: tuple[str, ...], as_json: bool) -> int:
    """Cancel jobs; answers at once, while the commands may take seconds to end."""
    done, failed = asyncio.run(_cancel(command_ids))
    if as_json:
        print_json({"jobs": done, "failed": failed} if len(command_ids) > 1 else done[0])
        return 1 if failed else 0
    for job in done:
        put(f"{job.command_id} " + (f"was over: {in_words(job)}" if job.state.terminal else "is being cancelled"))
    for command_id, why in failed.items():
        say(f"{command_id}: {why}")
    return 1 if failed else 0


async def _cancel(texts: Sequence[str]) -> tuple[list[Job], dict[str, str]]:
    """The jobs, and why others could not be cancelled. The only one's error is the command's."""
    done, failed = [], {}
    async with connect(configured_target()) as client:
        for command_id in await full_ids(client, texts):
            try:
                done.append(await client.job(command_id).cancel())
            except OnceboxError as error:
                if len(texts) == 1:
                    raise
                failed[command_id] = sentence(error)
    return done, failed


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  oncebox wait cmd_...
  oncebox wait --timeout 10m $(oncebox ps -q --state running)
  oncebox wait cmd_... && oncebox logs --tail 20 cmd_...

\b
Exit codes: the job's own, as of `oncebox run`; of several that of the first, in the order given, whose
is not 0. 125 where they are not all over within --timeout.
""",
)
@click.argument("command_ids", metavar="COMMAND_ID...", nargs=-1, required=True)
@click.option("--timeout", metavar="T", type=Duration(1, FOR_EVER), help="Wait so long at the most, such as 90s.")
@json_option
@click.pass_obj
def wait(state: State, command_ids: tuple[str, ...], timeout: int | None, as_json: bool) -> int:
    """Wait until jobs are over, say how each ended, and exit with the job's code."""
    state.failed = TROUBLE
    jobs = asyncio.run(_wait(command_ids, timeout, show=not as_json))
    if as_json:
        print_json(jobs)
    return next((code for job in jobs if (code := exit_code(job)[0])), 0)


async def _wait(texts: Sequence[str], timeout: int | None, *, show: bool) -> list[Job]:
    at_once = asyncio.Semaphore(AT_ONCE)

    async def over(job: AsyncJob) -> Job:
        async with asyncio.timeout(timeout):
            for pause in chain(PAUSES, repeat(PAUSES[-1])):
                async with at_once:
                    info = await job.status()
                if info.state.terminal:
                    break
                await asyncio.sleep(pause)
        assert job.info is not None, "asked for"
        if show:
            put(f"{job.id} {in_words(job.info)}")
        return job.info

    async with connect(configured_target()) as client:
        jobs = [client.job(command_id) for command_id in await full_ids(client, texts)]
        try:
            return await asyncio.gather(*map(over, jobs))
        except TimeoutError:
            raise Trouble(f"not all of it is over after {timeout} s; it goes on.") from None


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  oncebox ps
  oncebox ps --watch                       # a live view; Ctrl-C ends it
  oncebox ps --state running --state pending
  oncebox cancel $(oncebox ps -q --sandbox ID)
  oncebox ps --json | jq -r '.[].command_id'

\b
Where an id does not fit the terminal its last characters are shown; every command takes them instead.
""",
)
@click.option("--sandbox", metavar="ID", help="Only the jobs of this sandbox.")
@filter_options(JobState, limit=50)
@click.option("--kind", type=click.Choice(["job", "exec"]), help="Only those of this kind.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the ids, whole.")
@click.option("--watch", is_flag=True, help="Show them anew every two seconds, until Ctrl-C.")
@json_option
def ps(
    sandbox: str | None,
    states: tuple[str, ...],
    metadata: dict[str, str],
    limit: int,
    kind: str | None,
    quiet: bool,
    watch: bool,
    as_json: bool,
) -> int:
    """List jobs, newest first."""
    if watch and (as_json or quiet or not is_terminal(sys.stdout)):
        raise click.UsageError("--watch needs a terminal, and neither --json nor --quiet.")

    async def find(client: AsyncClient) -> AsyncIterator[AsyncJob]:
        wanted = sandbox and await full_sandbox_id(client, sandbox)
        found = client.jobs(sandbox_id=wanted, state=states or None, metadata=metadata or None, kind=kind)
        async for job in found:
            yield job

    if watch:
        return watch_first(limit, find, job_table)
    print_first(limit, find, print_ids if quiet else _print_jobs, as_json=as_json)
    return 0


def print_ids(jobs: Sequence[Job]) -> None:
    """An id a line, as programs want them."""
    for job in jobs:
        put(job.command_id)


def _print_jobs(jobs: Sequence[Job]) -> None:
    print_table(*job_table(jobs))


def job_table(jobs: Sequence[Job]) -> tuple[Sequence[Column], Sequence[Sequence[str]]]:
    """The columns and the rows of a list of jobs."""
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
    return columns, rows
