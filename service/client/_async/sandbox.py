"""The asynchronous handle of a sandbox."""

# ruff: noqa: TID252  (relative, so that the client also works under the name that `oncebox.py` gives it)
from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from ...errors import SandboxNotFound
from ...messages import ExecResult
from ...messages import Sandbox as SandboxInfo
from ..calls import Calls
from ..driver import AsyncDriver
from ..results import JobResult, result_of_exec
from ..views import SandboxView, runs_as_exec
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
        command: str,
        *,
        timeout: int | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncJob:
        """Starts ``command`` as a job, once, however often this is tried with one key; returns at once.

        Args:
            command: for the sandbox's shell, at most 96 KiB.
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
        body = self._body(command, timeout, cwd, env, metadata)
        made = await self._driver.run(self._calls.submit(body, key=idempotency_key))
        job = AsyncJob(self._calls, self._driver, made.message.command_id, made.message, replayed=made.replayed)
        job._idempotency_key = made.idempotency_key
        return job

    async def exec(
        self,
        command: str,
        *,
        timeout: int | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> ExecResult:
        """Runs ``command`` and returns its result in one round trip. For commands of less than a minute.

        The command does not depend on the connection: a try that is lost is repeated with the same key and
        gets the same result.

        Args:
            command: for the sandbox's shell, at most 96 KiB.
            timeout: seconds after which the command is killed, 1 to 7200; None: 60.
            cwd: the directory to start in.
            env: environment variables on top of the sandbox's.
            idempotency_key: as in :meth:`submit`.

        Raises:
            OnceboxError: as in :meth:`submit`. A command that fails is a result, not an error.
        """
        body = self._body(command, timeout, cwd, env)
        made = await self._driver.run(self._calls.exec(body, key=idempotency_key))
        return made.message

    async def run(
        self,
        command: str,
        *,
        timeout: int | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        check: bool = False,
    ) -> JobResult:
        """Runs ``command`` and waits for its result: an exec if ``timeout`` is at most 60 s, else a job.

        Args:
            command: for the sandbox's shell, at most 96 KiB.
            timeout: seconds after which the command is killed, 1 to 14400; None: 60.
            cwd: the directory to start in.
            env: environment variables on top of the sandbox's.
            metadata: labels to find the job by; makes it a job.
            idempotency_key: as in :meth:`submit`.
            check: raise unless the command exited with 0 and its output is whole (``result.ok``).

        Raises:
            CommandFailed: only with ``check``.
            OnceboxError: as in :meth:`submit`.
        """
        if runs_as_exec(timeout, metadata):
            done = await self.exec(command, timeout=timeout, cwd=cwd, env=env, idempotency_key=idempotency_key)
            result = result_of_exec(done, self._id)
            return result.check() if check else result
        job = await self.submit(
            command,
            timeout=timeout,
            cwd=cwd,
            env=env,
            metadata=metadata,
            idempotency_key=idempotency_key,
        )
        return await job.result(check=check)

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
