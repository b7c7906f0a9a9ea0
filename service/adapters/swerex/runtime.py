"""The runtime: commands and files of a sandbox."""

from __future__ import annotations

import asyncio
import io
import logging
import math
from typing import NoReturn

from swerex.exceptions import CommandTimeoutError, NonZeroExitCodeError, SwerexException
from swerex.runtime.abstract import (
    AbstractRuntime,
    Action,
    CloseResponse,
    CloseSessionRequest,
    Command,
    CommandResponse,
    CreateSessionRequest,
    IsAliveResponse,
    ReadFileRequest,
    ReadFileResponse,
    UploadRequest,
    UploadResponse,
    WriteFileRequest,
    WriteFileResponse,
)
from swerex.utils.log import get_logger

from service.adapters.keys import Series
from service.adapters.os_errors import as_os_errors
from service.client import AsyncSandbox, OnceboxError, OutputTooLarge

LONGEST = 14_400
"""Seconds that a command may take, at most; the service's own limit."""


class OnceboxRuntime(AbstractRuntime):
    """Each command runs by itself: what needs a session that lives on between commands is refused."""

    def __init__(self, sandbox: AsyncSandbox, *, key: str | None = None, logger: logging.Logger | None = None) -> None:
        self.sandbox = sandbox
        self._series = Series(key, sandbox.id)
        self.logger = logger or get_logger("rex-runtime")

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether commands can run. ``timeout``: seconds to wait for an answer."""
        try:
            info = await asyncio.wait_for(self.sandbox.refresh(), timeout)
        except (OnceboxError, TimeoutError) as error:
            return IsAliveResponse(is_alive=False, message=str(error) or "The service does not answer.")
        return IsAliveResponse(
            is_alive=info.ready, message="" if info.ready else f"The sandbox is {info.state.value}, and not ready."
        )

    async def execute(self, command: Command) -> CommandResponse:
        """Runs a command as ``subprocess.run()`` would, but that ``env`` is on top of the sandbox's, that its timeout
        is in whole seconds, rounded up, and that a program which is not there is exit code 127.

        Raises:
            CommandTimeoutError: it was killed at its timeout.
            NonZeroExitCodeError: only with ``check``.
            OnceboxError: it could not be run, or nobody knows its end; ``OutputTooLarge``: it was cancelled.
        """
        words = [command.command] if isinstance(command.command, str) else command.command
        if command.shell:
            words = ["/bin/sh", "-c", *words]
        if command.merge_output_streams:
            words = ["/bin/sh", "-c", 'exec "$@" 2>&1', "sh", *words]
        timeout = LONGEST if command.timeout is None else max(1, math.ceil(command.timeout))
        key = self._series.next(words, timeout, command.cwd, command.env)
        try:
            result = await self.sandbox.run(
                words, timeout=timeout, cwd=command.cwd, env=command.env, idempotency_key=key
            )
        except OutputTooLarge as error:
            await error.job.cancel()
            raise
        if result.timed_out:
            raise CommandTimeoutError(f"Timeout ({timeout}s) exceeded while running command")
        if result.exit_code is None:
            result.check()
        said = CommandResponse(stdout=result.stdout or "", stderr=result.stderr or "", exit_code=result.exit_code)
        if command.check and result.exit_code != 0:
            what = f"Command {command.command!r} failed with exit code {result.exit_code}."
            raise NonZeroExitCodeError(
                f"{command.error_msg and command.error_msg + ': '}{what} "
                f"Stdout:\n{said.stdout!r}\nStderr:\n{said.stderr!r}"
            )
        return said

    async def read_file(self, request: ReadFileRequest) -> ReadFileResponse:
        """Reads a file as ``Path.read_text()`` does; the default encoding is UTF-8."""
        with as_os_errors(request.path):
            data = await self.sandbox.files.read(request.path)
        text = io.TextIOWrapper(io.BytesIO(data), encoding=request.encoding or "utf-8", errors=request.errors)
        return ReadFileResponse(content=text.read())

    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        """Writes a file, whole or not at all, as UTF-8; directories on the way are made."""
        with as_os_errors(request.path):
            await self.sandbox.files.write(request.path, request.content)
        return WriteFileResponse()

    async def upload(self, request: UploadRequest) -> UploadResponse:
        """Sends a local file, or what lies in a local directory; ``target_path`` is its name in the sandbox."""
        with as_os_errors(request.target_path):
            await self.sandbox.files.upload(request.source_path, request.target_path)
        return UploadResponse()

    async def create_session(self, request: CreateSessionRequest) -> NoReturn:
        """Refused."""
        raise SessionsUnsupported

    async def run_in_session(self, action: Action) -> NoReturn:
        """Refused."""
        raise SessionsUnsupported

    async def close_session(self, request: CloseSessionRequest) -> NoReturn:
        """Refused."""
        raise SessionsUnsupported

    async def close(self) -> CloseResponse:
        """Nothing is left to close: the sandbox is the deployment's."""
        return CloseResponse()


class SessionsUnsupported(SwerexException, NotImplementedError):
    """What is asked needs a shell that lives on between commands."""

    def __init__(self) -> None:
        super().__init__("Oncebox has no interactive sessions: use execute(), which runs each command by itself.")
