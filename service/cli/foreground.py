"""A job that somebody waits for: from a target that is found or started, over its output, to one left tidy.

Ctrl-C may come at any moment of this. The first one cancels the job and leaves everything in request within
seconds; the second leaves at once, whatever that leaves behind, and says how to get back.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import TYPE_CHECKING, NoReturn

import msgspec

from service.cli.creating import UNDO, create_or_undo, print_or_undo
from service.cli.exit_codes import exit_code, in_words
from service.cli.following import BytesPrinter, EventPrinter, follow
from service.cli.ids import full_sandbox_id
from service.cli.input import taken_from
from service.cli.interrupts import Interrupts
from service.cli.output.progress import Progress
from service.cli.output.terminal import OutputWriter, Unwritable, print_json, put, say
from service.cli.problems import Trouble, sentence
from service.cli.target import Target, connect, open_target
from service.errors import OnceboxError
from service.messages import JobState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO

    from service.client import AsyncClient, AsyncJob, AsyncSandbox
    from service.settings import Settings

GRACE = 5.0
"""Seconds that a cancelled job has to end before it is left to itself."""
TIDY = 5.0
"""Seconds for what is done at the end."""
REQUEST_DEADLINE = 120.0
"""Seconds in which creating and submitting are tried again."""
DEFAULT_TIMEOUT = 3600
"""Seconds: the service's own default for a job."""
MARGIN = 600
"""Seconds that a sandbox lives on after its job's deadline, in case nobody is there to delete it."""


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and where; None is the service's own default."""

    command: str
    sandbox: str | None = None
    image: str | None = None
    remove: bool = False
    """Delete the sandbox at the end, although it was there before."""
    timeout: int | None = None
    cwd: str | None = None
    env: Mapping[str, str] | None = None
    key: str | None = None
    user: str | None = None
    stdin: int | None = None
    """A descriptor from which the command is given all that comes."""
    detach: bool = False
    as_json: bool = False

    @property
    def sandbox_timeout(self) -> int:
        """Seconds that a sandbox made for this lives, should nobody delete it."""
        return min((self.timeout or DEFAULT_TIMEOUT) + MARGIN, 86_400)


async def run_in_foreground(request: RunRequest, settings: Settings) -> int:
    """Carry the request out, until the job has ended or was handed over; the exit code."""
    run = ForegroundRun(request, settings)
    with Interrupts(run.leave, hangup_leaves=lambda: run.started) as interrupts:
        run.interrupts = interrupts
        async with run.progress:
            return await run.run()


class ForegroundRun:
    """One request, being carried out."""

    interrupts: Interrupts

    def __init__(self, request: RunRequest, settings: Settings) -> None:
        self._request = request
        self._settings = settings
        self.progress = Progress(OutputWriter())
        printer = EventPrinter if request.as_json else BytesPrinter
        self._printer = printer(self.progress)
        self._target: Target | None = None
        self._sandbox: AsyncSandbox | None = None
        self._job: AsyncJob | None = None
        self._stdin: IO[bytes] | None = None
        self._keep = request.sandbox is not None and not request.remove
        """The sandbox stays when this is over."""

    @property
    def started(self) -> bool:
        """The job is known to be the service's."""
        return self._job is not None

    async def run(self) -> int:
        """To the end, or to the first interrupt and what that takes."""
        work = asyncio.create_task(self._work())
        if await self.interrupts.outlasted_by(work):
            return work.result()
        await self._stop(work)
        return self.interrupts.exit_code

    # -- the request itself

    async def _work(self) -> int:
        self.progress.state = lambda: "reading stdin"
        async with taken_from(self._request.stdin) as self._stdin:
            return await self._work_with_input()

    async def _work_with_input(self) -> int:
        self.progress.state = lambda: "looking for the service" if self._settings.url else "starting"
        async with (
            open_target(self._settings) as self._target,
            connect(self._target, deadline=REQUEST_DEADLINE) as client,
        ):
            self.progress.state = lambda: "making a sandbox"
            self._sandbox = await self._have_sandbox(client)
            try:
                return await self._run_in(self._sandbox)
            finally:
                await self._tidy(self._sandbox)

    async def _have_sandbox(self, client: AsyncClient) -> AsyncSandbox:
        request = self._request
        if request.sandbox is not None:
            return client.sandbox(await full_sandbox_id(client, request.sandbox))
        # With the job's key: a job's key counts within its sandbox, so the same job needs the same sandbox.
        return await create_or_undo(client, image=request.image, timeout=request.sandbox_timeout, key=request.key)

    async def _run_in(self, sandbox: AsyncSandbox) -> int:
        request = self._request
        if self._stopping():
            return self.interrupts.exit_code
        self.progress.state = lambda: "submitting"
        self._job = job = await sandbox.submit(
            request.command,
            stdin=self._stdin,
            user=request.user,
            timeout=request.timeout,
            cwd=request.cwd,
            env=request.env,
            idempotency_key=request.key,
        )
        if request.key and job.replayed:
            say("the job of this key was there already; this is its output.")
        if request.detach and (request.key is not None or not self._stopping()):
            return await self._hand_over(job)
        if self._stopping():
            await self._cancel(job)
        return await self._follow(job)

    async def _follow(self, job: AsyncJob) -> int:
        assert job.info is not None, "just submitted"
        try:
            await self._printer.began(job.info)
            ended = await follow(job, self._printer, self.progress)
        except OnceboxError:
            self._keep |= not self._embedded
            if not self._embedded:
                say(f"the job goes on; get back to it with: oncebox logs -f {job.id}")
            raise
        except BrokenPipeError:
            await self._give_up(job)
            raise
        except Unwritable as error:
            await self._give_up(job)
            raise Trouble(f"{error}, so the job was cancelled.") from None
        code, said = exit_code(ended)
        if said and not self._stopping():
            say(said)
        return code

    def _stopping(self) -> bool:
        """An interrupt came."""
        return self.interrupts.first.is_set()

    @property
    def _embedded(self) -> bool:
        return self._target is None or self._target.embedded

    async def _hand_over(self, job: AsyncJob) -> int:
        """Print the id by which the job is found. Where nobody gets it the job and its sandbox go, but with a key."""

        async def undo() -> str:
            if self._request.key is not None:
                return f"but the job goes on: {job.id}"
            self._keep = self._request.sandbox is not None and not self._request.remove
            await self._give_up(job)
            return "so the job was cancelled"

        self._keep = True
        await print_or_undo(lambda: print_json(job.info) if self._request.as_json else put(job.id), undo)
        if sys.stderr.isatty():
            say(f"follow it with: oncebox logs -f {job.id}")
        return 0

    async def _give_up(self, job: AsyncJob) -> None:
        """Nobody can be shown what comes of it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE):
                await self._cancel(job)

    async def _tidy(self, sandbox: AsyncSandbox) -> None:
        if self._keep:
            return
        self.progress.state = lambda: "cleaning up"
        try:
            async with asyncio.timeout(TIDY):
                await sandbox.delete()
        except (OnceboxError, TimeoutError):
            if not self._embedded:
                say(f"the sandbox could not be deleted; try again later: oncebox sandboxes rm {sandbox.id}")

    # -- the interrupts

    async def _stop(self, work: asyncio.Task[int]) -> None:
        """After the first one: cancel, wait a little, tidy up."""
        cancelling = None if work.done() else self._begin_to_stop(work)
        await asyncio.wait({work}, timeout=GRACE if self._sandbox else UNDO + TIDY)
        if cancelling is not None and not cancelling.done():
            cancelling.cancel()
            if not work.done() and self._job is not None:
                say(f"the service does not answer; try again later: oncebox cancel {self._job.id}")
        if not work.done():
            work.cancel()
            await asyncio.wait({work}, timeout=TIDY + 1)
        if not work.done():
            self.leave()
        self._say_how_it_stopped(work)

    def _begin_to_stop(self, work: asyncio.Task[int]) -> asyncio.Task[None] | None:
        """The task that cancels the job, where there is one already; else ``_run_in`` will do it."""
        if self._job is not None:
            say("cancelling the job; Ctrl-C again leaves at once.")
            return asyncio.create_task(self._cancel(self._job))
        if self._embedded:
            say("stopped before the command was started.")
            work.cancel()
        else:
            say("stopping; Ctrl-C again leaves at once.")
            if self._sandbox is None:
                work.cancel()
        return None

    async def _cancel(self, job: AsyncJob) -> None:
        try:
            await job.cancel()
        except OnceboxError as error:
            say(f"the job could not be cancelled: {sentence(error)}")

    def _say_how_it_stopped(self, work: asyncio.Task[int]) -> None:
        if not work.cancelled() and (error := work.exception()):
            if isinstance(error, OnceboxError):
                say(sentence(error))
            return
        job = self._job
        if job is None or job.info is None:
            if self._keep and self._sandbox is not None:
                say(f"see whether the command was started: oncebox ps --sandbox {self._sandbox.id}")
            return
        if job.info.state is JobState.CANCELLED:
            say("cancelled.")
        elif job.info.state.terminal:
            say(f"the command had ended by itself: {in_words(job.info)}.")
        elif self._keep:
            say(f"it has not ended yet; see it with: oncebox status {job.id}")
        else:
            say("it had not ended, and went with its sandbox.")

    def leave(self) -> NoReturn:
        """Leave this very moment, and say how to get back."""
        job = self._job
        if self._embedded:
            say("left at once; the command went with the service in this process.")
        elif job is None:
            say("left at once; `oncebox ps` shows whether the job was started.")
        else:
            say(f"left at once; get back to the job with: oncebox logs -f {job.id}")
            if not self._keep:
                sandbox = self._sandbox.id if self._sandbox else ""
                say(f"its sandbox stays until it expires, or: oncebox sandboxes rm {sandbox}")
        os._exit(self.interrupts.exit_code)
