"""The asynchronous handle of a sandbox."""

# ruff: noqa: TID252  (relative, so that the client also works under the name that `oncebox.py` gives it)
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from hashlib import sha256
from types import TracebackType
from typing import Any, Literal

from ...errors import SandboxNotFound
from ...messages import ExecResult, JobState
from ...messages import Sandbox as SandboxInfo
from ..calls import Calls, checked_key
from ..driver import AsyncDriver
from ..inputs import Stdin, done_with, given
from ..output import Full, Joined, Room
from ..results import JobResult, OutputTooLarge
from ..transfers import content_of
from ..views import MAX_OUTPUT, RUN_TIMEOUT, SandboxView
from .files import AsyncFiles
from .job import AsyncJob


class AsyncSandbox(SandboxView):
    """A sandbox: from ``client.create_sandbox()``, or, without a request, from ``client.sandbox(id)``.

    ``async with await client.create_sandbox(...) as sandbox:`` deletes it at the end of the block. Otherwise it lives
    until ``delete()`` or its expiry.
    """

    def __init__(
        self,
        calls: Calls,
        driver: AsyncDriver,
        sandbox_id: str,
        info: SandboxInfo | None = None,
        *,
        replayed: bool = False,
    ) -> None:
        super().__init__(calls, sandbox_id, info, replayed=replayed)
        self._driver = driver

    @property
    def files(self) -> AsyncFiles:
        """Its files. Makes no request."""
        return AsyncFiles(self._calls, self._driver, self._id)

    async def refresh(self) -> SandboxInfo:
        """Asks for the sandbox as it is now.

        Raises:
            SandboxNotFound: the service does not know the id (any more).
        """
        self._info = await self._driver.run(self._calls.sandbox(self._id))
        return self._info

    async def submit(
        self,
        command: str | Sequence[str],
        *,
        stdin: Stdin | None = None,
        stdin_path: str | None = None,
        user: str | None = None,
        stderr: Literal["merged", "apart"] | None = None,
        timeout: int | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncJob:
        """Starts ``command`` as a job, once, however often this is tried with one key; returns at once.

        Args:
            command: a text for the sandbox's shell, or a list: a program and its arguments, run without a shell. At
                most 96 KiB.
            stdin: what it reads: text, bytes, or an open binary file, of any size. One of more than 256 KiB is
                uploaded first, to ``/tmp`` in the sandbox, under the sha256 of its content; it stays there as long as
                the sandbox, for the same call with the same key reads it again.
            stdin_path: a file in the sandbox that it reads instead.
            user: whose rights it has: a name in the sandbox, ``"uid"`` or ``"uid:gid"``; None: the daemon's.
            stderr: ``"apart"``: two outputs, each read by itself; None: merged, in order.
            timeout: seconds after which the command is killed, 1 to 14400; None: 3600.
            cwd: the directory to start in.
            env: environment variables on top of the sandbox's.
            metadata: labels to find the job by, with ``client.jobs()``.
            idempotency_key: 1 to 255 visible ASCII characters. Give one that you can make again, and a caller
                that died finds its job by submitting anew. None: one is made, which covers lost connections
                only.

        Raises:
            SandboxNotFound, SandboxNotRunning: not executed.
            IdempotencyKeyReused: the key belongs to another command; not executed.
            InvalidRequest, PayloadTooLarge, EngineRejected: not executed.
            OutcomeUnknown: the deadline passed, and it may have been executed; its ``command_id`` leads to
                the job.
            ConnectionFailed: the deadline passed without an answer; the same key is safe to try again.
        """
        read = await self._input(stdin, stdin_path)
        body = {**self._body(command, timeout, cwd, env, metadata), "user": user, "stderr": stderr, **read}
        return await self._submitted(body, idempotency_key)

    async def _submitted(self, body: dict[str, Any], key: str | None) -> AsyncJob:
        made = await self._driver.run(self._calls.submit(body, key=key))
        job = AsyncJob(self._calls, self._driver, made.message.command_id, made.message, replayed=made.replayed)
        job._idempotency_key = made.idempotency_key
        return job

    async def _input(self, stdin: Stdin | None, stdin_path: str | None, mark: str = "") -> dict[str, str | None]:
        """What a command is to read, as it is sent; a long one is uploaded."""
        with nullcontext() if stdin is None else content_of(stdin, None) as content:
            return await self._driver.run(given(self._calls.terms, self._id, content, stdin_path, mark=mark))

    def _keyed(self, given: str | None) -> tuple[str, str]:
        """The key of a call, and what the name of its input's file ends with: who repeats it with its key reads that
        file again, and nobody else does.
        """
        key = self._calls.terms.new_id() if given is None else checked_key(given)
        return key, f"-{sha256(key.encode()).hexdigest()[:16]}"

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: Stdin | None = None,
        stdin_path: str | None = None,
        user: str | None = None,
        timeout: int | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> ExecResult:
        """Runs ``command`` and returns its result in one round trip. For commands of less than a minute.

        The command does not depend on the connection: a try that is lost is repeated with the same key and
        gets the same result. Of each output the end is kept (``truncated``); :meth:`run` has all of it.

        Args:
            command, stdin, stdin_path, user: as in :meth:`submit`. Without a key of one's own, an uploaded input is
                removed when the command has ended.
            timeout: seconds after which the command is killed, 1 to 7200; None: 60.
            cwd: the directory to start in.
            env: environment variables on top of the sandbox's.
            metadata: labels to find it by, with ``client.jobs()``.
            idempotency_key: as in :meth:`submit`.

        Raises:
            OnceboxError: as in :meth:`submit`. A command that fails is a result, not an error.
        """
        key, mark = self._keyed(idempotency_key)
        read = await self._input(stdin, stdin_path, mark)
        body = {**self._body(command, timeout, cwd, env, metadata), "user": user, **read}
        made = await self._driver.run(self._calls.exec(body, key=key))
        if idempotency_key is None:
            await self._driver.run(done_with(self._calls.terms, self._id, read, mark, JobState.EXITED))
        return made.message

    async def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: Stdin | None = None,
        stdin_path: str | None = None,
        user: str | None = None,
        timeout: int | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        check: bool = False,
        max_output: int = MAX_OUTPUT,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
    ) -> JobResult:
        """Runs ``command`` as a job and waits for its result: ``stdout`` and ``stderr``, apart and whole.

        Args:
            command, stdin, stdin_path, user: as in :meth:`submit`. Without a key of one's own, an uploaded input is
                removed when the command has ended.
            timeout: seconds after which the command is killed, 1 to 14400; None: 60.
            cwd: the directory to start in.
            env: environment variables on top of the sandbox's.
            metadata: labels to find the job by.
            idempotency_key: as in :meth:`submit`.
            check: raise unless the command exited with 0 and its output is whole (``result.ok``).
            max_output: bytes of both outputs together that are taken, as UTF-8.
            on_stdout, on_stderr: functions that are called with text as it comes.

        Raises:
            OutputTooLarge: more than ``max_output`` was printed. The command goes on, and ``error.job`` is its handle.
            CommandFailed: only with ``check``.
            OnceboxError: as in :meth:`submit`.
        """
        key, mark = self._keyed(idempotency_key)
        read = await self._input(stdin, stdin_path, mark)
        timeout = RUN_TIMEOUT if timeout is None else timeout
        body = {**self._body(command, timeout, cwd, env, metadata), "user": user, "stderr": "apart", **read}
        job = await self._submitted(body, key)
        room = Room(max_output)
        stdout, stderr = Joined(room, on_stdout), Joined(room, on_stderr)
        try:
            result = await job._both(stdout, stderr, None, live=bool(on_stdout or on_stderr), check=False)
        except Full:
            raise OutputTooLarge(
                f"the command printed more than {max_output:,} bytes",
                job=job,
                command_id=job.id,
                sandbox_id=self._id,
            ) from None
        if idempotency_key is None:
            await self._driver.run(done_with(self._calls.terms, self._id, read, mark, result.state))
        return result.check() if check else result

    async def renew(self, timeout: int) -> SandboxInfo:
        """Lets the sandbox live for ``timeout`` seconds from now, 60 to 86400."""
        self._info = await self._driver.run(self._calls.renew(self._id, timeout))
        return self._info

    async def pause(self) -> SandboxInfo:
        """Asks for the sandbox to be frozen. Its expiry clock runs on."""
        self._info = await self._driver.run(self._calls.pause(self._id))
        return self._info

    async def resume(self) -> SandboxInfo:
        """Asks for the sandbox to go on."""
        self._info = await self._driver.run(self._calls.resume(self._id))
        return self._info

    async def delete(self) -> None:
        """Deletes the sandbox. Its running jobs are lost; recorded results stay.

        Raises:
            SandboxNotFound: the service does not know the id.
        """
        await self._driver.run(self._calls.delete_sandbox(self._id))

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        flow = self._calls.delete_sandbox(self._id) if error is None else self._calls.remove_sandbox(self._id)
        try:
            await self._driver.run(flow, clean_up=lambda: self._calls.remove_sandbox(self._id))
        except SandboxNotFound:
            pass
