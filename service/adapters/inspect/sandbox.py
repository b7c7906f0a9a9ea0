"""The sandbox provider, over the SDK's asynchronous client."""

from __future__ import annotations

import asyncio
import errno
import io
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, overload
from uuid import uuid4

from anyio import CancelScope
from inspect_ai.log._samples import sample_active
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)

from service.adapters.inspect.config import OnceboxConfig
from service.adapters.keys import digest
from service.adapters.os_errors import as_os_errors
from service.client import (
    AsyncClient,
    AsyncSandbox,
    InvalidRequest,
    JobResult,
    JobState,
    OutputTooLarge,
    SandboxNotFound,
    SandboxNotRunning,
)

OURS = {"inspect_ai": "sandbox"}
"""The label of every sandbox that was made here."""
LONG_COMMAND = 64 * 1024
"""Bytes of a command's words above which they are sent as a file."""


@cache
def client(url: str | None) -> AsyncClient:
    """The client of a service. It keeps connections for each event loop apart."""
    return AsyncClient(url)


@sandboxenv(name="oncebox")
class OnceboxSandboxEnvironment(SandboxEnvironment):
    """A sandbox of one sample."""

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """A sandbox for a sample, which lives as long as the sample is worked on."""
        wanted = config_of(config)
        active = sample_active()
        sample = (task_name, *((str(active.sample.id), active.epoch) if active else ()))
        made = await client(wanted.url).create_sandbox(
            image=wanted.image,
            resources={name: size for name in ("cpu", "memory") if (size := getattr(wanted, name))} or None,
            metadata={**OURS, "inspect_ai_task": label(task_name)},
            timeout=wanted.timeout,
            idempotency_key=wanted.key and f"{wanted.key}-{digest(sample)}",
            wait_ready=120,
        )
        return {"default": cls(made, wanted)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Deletes the sample's sandbox; one with a key stays for ``timeout`` seconds after an interrupt or an error."""
        for environment in environments.values():
            ours = environment.as_type(cls)
            ours.renewals.cancel()
            if not (interrupted and ours.config.key):
                await delete(ours.sandbox)

    @classmethod
    async def task_cleanup(cls, task_name: str, config: SandboxEnvironmentConfigType | None, cleanup: bool) -> None:
        """Ends idle connections."""
        await client(config_of(config).url).close()

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """``inspect sandbox cleanup oncebox [SANDBOX_ID]``: deletes it, or all that were made here."""
        service = client(None)
        found = [service.sandbox(id)] if id else [each async for each in service.sandboxes(metadata=OURS)]
        for sandbox in found:
            await delete(sandbox)
        await service.close()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> OnceboxConfig:
        """As it stands in a log."""
        return OnceboxConfig(**config)

    def __init__(self, sandbox: AsyncSandbox, config: OnceboxConfig) -> None:
        super().__init__()
        self.sandbox = sandbox
        self.config = config
        self.renewals = asyncio.create_task(self._renew())
        self._ran: Counter[str] = Counter()

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Runs a command, once: one that timed out is not run again, whatever ``timeout_retry`` says."""
        user = user or self.config.user
        arguments: dict[str, Any] = {
            "stdin": input,
            "cwd": cwd,
            "env": env,
            "user": user,
            "timeout": self.config.command_timeout if timeout is None else max(1, timeout),
            "idempotency_key": self._key(cmd, input, cwd, env, user, timeout),
        }
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        with told_as_inspect_does(cmd[0]):
            words = await self._words(cmd, user)
            try:
                result = await self.sandbox.run(words, max_output=2 * limit, **arguments)
            except OutputTooLarge as error:
                await error.job.cancel()
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, None) from None
            except asyncio.CancelledError:
                with CancelScope(shield=True):
                    job = await self.sandbox.submit(words, stderr="apart", **arguments)  # the same one, by its key
                    await job.cancel()
                raise
        return result_of(result, cmd, limit)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Writes a file, whole or not at all."""
        with told_as_inspect_does(file):
            await self.sandbox.files.write(file, contents, user=self.config.user)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Reads a file. One that is too large is left after its first block."""

        def check(received: int, size: int | None) -> None:
            if max(received, size or 0) > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)

        into = io.BytesIO()
        with told_as_inspect_does(file):
            await self.sandbox.files.download(file, into, user=self.config.user, progress=check)
        return into.getvalue().decode() if text else into.getvalue()

    def default_polling_interval(self) -> float:
        """Seconds between two looks at what Inspect's own tools do."""
        return 0.5

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self.config.timeout / 3)
            await self.sandbox.renew(self.config.timeout)

    def _key(self, *command: object) -> str:
        if self.config.key is None:
            return uuid4().hex
        name = digest((self.sandbox.id, *command))
        self._ran[name] += 1
        return f"{self.config.key}-{name}-{self._ran[name]}"

    async def _words(self, cmd: list[str], user: str | None) -> list[str]:
        """The command's words; those of a long one are in a script, as no request and no argument holds them."""
        if sum(len(word.encode()) for word in cmd) <= LONG_COMMAND:
            return cmd
        quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in cmd)
        script = f"/tmp/oncebox-command-{digest(cmd)}"  # noqa: S108 - in the sandbox
        await self.sandbox.files.write(script, f"exec {quoted}\n", mode="0600", user=user)
        return ["/bin/sh", script]


def config_of(config: SandboxEnvironmentConfigType | None) -> OnceboxConfig:
    """What a task asks for. Raises ``ValueError`` for what is no ``OnceboxConfig``."""
    if config is None:
        return OnceboxConfig()
    if not isinstance(config, OnceboxConfig):
        raise ValueError('the sandbox "oncebox" takes an OnceboxConfig (from service.adapters.inspect), and no file')
    return config


def label(text: str) -> str:
    """As much of a text as a label can hold."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)[:63].strip("._-") or "none"


async def delete(sandbox: AsyncSandbox) -> None:
    """Deletes a sandbox that may be gone."""
    try:
        await sandbox.delete()
    except SandboxNotFound:
        pass


def result_of(result: JobResult, cmd: list[str], limit: int) -> ExecResult[str]:
    """How a command ended, as Inspect tells it."""
    stdout, stderr = result.stdout or "", result.stderr or ""
    if any(len(each.encode()) > limit for each in (stdout, stderr)):
        raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, None)
    if result.timed_out:
        error = TimeoutError("the command timed out")
        error.truncated_output = stdout + stderr  # type: ignore[attr-defined]
        raise error
    if result.exit_code is None or result.state is not JobState.EXITED:
        raise SandboxUnavailableError(f"the command is {result.state.value} ({result.reason or 'no reason is known'})")
    if result.exit_code == 126 and not stdout and "permission denied" in stderr.lower():
        raise PermissionError(errno.EACCES, stderr.strip(), cmd[0])
    return ExecResult(result.exit_code == 0, result.exit_code, stdout, stderr)


@contextmanager
def told_as_inspect_does(subject: str) -> Iterator[None]:
    """Failures as Inspect tells them; ``subject``: the file or program."""
    try:
        with as_os_errors(subject):
            yield
    except (SandboxNotFound, SandboxNotRunning) as error:
        raise SandboxUnavailableError(error.detail) from error
    except InvalidRequest as error:
        if any(each.field == "user" for each in error.errors or ()):
            raise SandboxUserUnsupportedError(error.detail) from error
        raise
