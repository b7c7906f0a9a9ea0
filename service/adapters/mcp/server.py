"""The tools, over the SDK's asynchronous client."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Annotated, Any, Literal, TypeVar

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from service import __version__
from service.adapters.mcp.results import (
    MOST,
    Done,
    Excerpt,
    Files,
    Job,
    Jobs,
    Output,
    Sandbox,
    Sandboxes,
    Text,
    file_of,
    job_of,
    sandbox_of,
)
from service.client import AsyncClient, AsyncJob, JobState, OnceboxError

Tool = TypeVar("Tool", bound=Callable[..., Awaitable[Any]])

INSTRUCTIONS = """\
Sandboxes, and commands that run in them exactly once, in the background. A command goes on when this conversation
ends: `run` with the same sandbox, command and key gives the same job, and `job_status` finds it by its command_id.
Make a sandbox first (`create_sandbox`), delete it when you are done (`delete_sandbox`)."""

WAIT = 30
"""Seconds for which `run` waits for the end, unless it is told otherwise."""
MOST_WAIT = 300
NEWS_EVERY = 2.0
"""Seconds between two notifications of progress."""
LISTED = 50
"""Entries of one list."""
OVER = {JobState.EXITED, JobState.TIMED_OUT, JobState.CANCELLED, JobState.FAILED, JobState.LOST}

READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
MAKES = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False)
ONCE = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=True)
REMOVES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)

Key = Annotated[
    str | None,
    Field(description="A name of your own for this request: the same key gives the same result, and nothing twice."),
]


def server(client: AsyncClient) -> MCPServer:
    """The server of one client of the service."""
    made = MCPServer("oncebox", instructions=INSTRUCTIONS, version=__version__)
    _sandboxes(made, client)
    _jobs(made, client)
    _files(made, client)
    return made


def _tool(tools: MCPServer, annotations: ToolAnnotations) -> Callable[[Tool], Tool]:
    """A tool whose failures say what is wrong, to the model."""

    def decorated(function: Tool) -> Tool:
        @wraps(function)
        async def call(*args: Any, **arguments: Any) -> Any:
            try:
                return await function(*args, **arguments)
            except OnceboxError as error:
                retry = " Trying again may help." if error.retryable else ""
                raise ToolError(f"{error.detail}{retry}") from error
            except ValueError as error:
                raise ToolError(str(error)) from error

        return tools.tool(annotations=annotations)(call)  # type: ignore[return-value]

    return decorated


def _sandboxes(tools: MCPServer, client: AsyncClient) -> None:
    @_tool(tools, MAKES)
    async def create_sandbox(
        image: str | None = None,
        timeout: Annotated[
            int | None, Field(description="Seconds that it lives, 60 to 86400; 3600 by default.")
        ] = None,
        env: dict[str, str] | None = None,
        key: Key = None,
    ) -> Sandbox:
        """Make a sandbox: a place of its own for commands and files."""
        made = await client.create_sandbox(image=image, timeout=timeout, env=env, idempotency_key=key)
        return sandbox_of(made.info or await made.refresh())

    @_tool(tools, READS)
    async def list_sandboxes() -> Sandboxes:
        """List the sandboxes that there are."""
        found = Sandboxes()
        async for sandbox in client.sandboxes(page_size=LISTED):
            if len(found.sandboxes) == LISTED:
                found.more = True
                break
            if sandbox.info is not None:
                found.sandboxes.append(sandbox_of(sandbox.info))
        return found

    @_tool(tools, REMOVES)
    async def delete_sandbox(sandbox_id: str) -> Done:
        """Delete a sandbox with its files and all that runs in it; recorded results of its jobs stay."""
        await client.sandbox(sandbox_id).delete()
        return Done(f"deleted {sandbox_id}")


def _jobs(tools: MCPServer, client: AsyncClient) -> None:
    @_tool(tools, ONCE)
    async def run(
        sandbox_id: str,
        command: Annotated[str, Field(description="For the sandbox's shell.")],
        context: Context,
        key: Key = None,
        cwd: str | None = None,
        timeout: Annotated[int, Field(description="Seconds after which it is killed, 1 to 14400.")] = 3600,
        wait: Annotated[int, Field(description="Seconds to wait for its end, 0 to 300.", ge=0, le=MOST_WAIT)] = WAIT,
    ) -> Job:
        """Run a command, once. Not over after `wait` seconds, it goes on, and is asked for by its command_id."""
        job = await client.sandbox(sandbox_id).submit(command, cwd=cwd, timeout=timeout, idempotency_key=key)
        return await _waited_for(job, wait, context)

    @_tool(tools, READS)
    async def job_status(
        command_id: str,
        context: Context,
        wait: Annotated[int, Field(description="Seconds to wait for its end, 0 to 300.", ge=0, le=MOST_WAIT)] = 0,
    ) -> Job:
        """How a command stands; once it is over, with its output."""
        return await _waited_for(client.job(command_id), wait, context)

    @_tool(tools, READS)
    async def job_output(
        command_id: str,
        cursor: Annotated[str | None, Field(description="From an earlier answer; none: from the beginning.")] = None,
        stream: Annotated[
            Literal["stdout", "stderr"] | None,
            Field(description="Which, of a command whose outputs are apart; each has cursors of its own."),
        ] = None,
    ) -> Output:
        """A part of a command's output, from a cursor on."""
        read = await client.job(command_id).read(stream, cursor=cursor, limit=MOST)
        state, code = read.job.state.value, read.job.exit_code
        return Output(command_id, state, code, read.text, read.cursor, skipped_bytes=read.skipped_bytes)

    @_tool(tools, REMOVES)
    async def cancel_job(command_id: str) -> Job:
        """Ask for a command to be ended. One that is over stays as it is."""
        return job_of(await client.job(command_id).cancel())

    @_tool(tools, READS)
    async def list_jobs(
        sandbox_id: str | None = None,
        state: Annotated[JobState | None, Field(description="Only those in this state.")] = None,
    ) -> Jobs:
        """List commands, newest first."""
        found = Jobs()
        async for job in client.jobs(sandbox_id=sandbox_id, state=state, page_size=LISTED):
            if len(found.jobs) == LISTED:
                found.more = True
                break
            if job.info is not None:
                found.jobs.append(job_of(job.info))
        return found


async def _waited_for(job: AsyncJob, wait: int, context: Context) -> Job:
    """The job, as soon as it is over or ``wait`` seconds have passed; meanwhile it is told how far it is."""
    began = time.monotonic()
    info = await job.status()
    while info.state not in OVER and (left := began + wait - time.monotonic()) > 0:
        passed = time.monotonic() - began
        await context.report_progress(passed, wait, f"{info.state.value} for {passed:.0f} s")
        await asyncio.sleep(min(NEWS_EVERY, left))
        info = await job.status()
    if info.state not in OVER:
        return job_of(info, advice=f"It goes on. Ask for it later: job_status with command_id {info.command_id}.")
    streams: tuple[Literal["stdout", "stderr"] | None, ...] = (
        ("stdout", "stderr") if info.streams == "apart" else (None,)
    )
    output = Excerpt()
    for each in streams:
        async for chunk in job.stream(each, follow=False):
            output.add(chunk)
    return job_of(info, output)


def _files(tools: MCPServer, client: AsyncClient) -> None:
    @_tool(tools, READS)
    async def read_file(
        sandbox_id: str,
        path: str,
        offset: Annotated[int, Field(description="Bytes to leave out at its beginning.", ge=0)] = 0,
    ) -> Text:
        """Read a text file, or a part of it."""
        part = await client.sandbox(sandbox_id).files.read_part(path, offset=offset, length=MOST)
        return Text(path, part.data.decode("utf-8", "replace"), offset, part.size)

    @_tool(tools, REMOVES)
    async def write_file(
        sandbox_id: str,
        path: str,
        content: str,
        encoding: Annotated[str, Field(description="utf8, or base64 for bytes.", pattern="^(utf8|base64)$")] = "utf8",
        mode: Annotated[str | None, Field(description='Such as "0755".')] = None,
    ) -> Done:
        """Write a file, whole or not at all; directories on the way are made."""
        try:
            data = base64.b64decode(content, validate=True) if encoding == "base64" else content.encode()
        except ValueError:
            raise ValueError("content is no base64") from None
        written = await client.sandbox(sandbox_id).files.write(path, data, mode=mode)
        return Done(f"wrote {written.size} bytes to {written.path}")

    @_tool(tools, READS)
    async def list_files(sandbox_id: str, path: str = ".") -> Files:
        """List a directory."""
        found = Files()
        async for info in client.sandbox(sandbox_id).files.list(path, page_size=LISTED):
            if len(found.files) == LISTED:
                found.more = True
                break
            found.files.append(file_of(info))
        return found
