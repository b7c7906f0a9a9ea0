"""The deployment: a sandbox, made and deleted."""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Literal, Self

from pydantic import BaseModel, Field
from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex.exceptions import DeploymentNotStartedError, DeploymentStartupError
from swerex.runtime.abstract import IsAliveResponse
from swerex.utils.log import get_logger

from service.adapters.swerex.runtime import OnceboxRuntime
from service.client import AsyncClient, OnceboxError, SandboxNotFound

OURS = {"swe_rex": "deployment"}
"""The label of every sandbox that was made here."""


class OnceboxDeploymentConfig(BaseModel, extra="forbid"):
    """For ``swerex.deployment.get_deployment``. The API key comes from ``ONCEBOX_API_KEY``."""

    type: Literal["oncebox"] = "oncebox"
    """SWE-ReX's own word for the kind of deployment."""
    url: str | None = None
    """Of the service; None: ``ONCEBOX_URL``, else ``http://127.0.0.1:8700``."""
    image: str | None = None
    """None: the service's."""
    cpu: str | None = None
    """In the engine's words, such as ``"500m"``."""
    memory: str | None = None
    """In the engine's words, such as ``"4Gi"``."""
    startup_timeout: float = Field(default=120, ge=0, le=120)
    """Seconds to wait until commands can run."""
    deployment_timeout: int = Field(default=3600, ge=60, le=86_400)
    """Seconds after which the sandbox is gone, no matter what."""
    key: str | None = Field(default=None, max_length=200)
    """A name for this deployment. A program that was killed and is started again with the same key finds its sandbox
    while that lives, and what it executes as it did before is not run again: the result is fetched.
    """

    def get_deployment(self) -> OnceboxDeployment:
        """As SWE-ReX's own configs have it."""
        return OnceboxDeployment.from_config(self)


class OnceboxDeployment(AbstractDeployment):
    """A sandbox from ``start()`` to ``stop()``. Takes what ``OnceboxDeploymentConfig`` has."""

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Any) -> None:
        self._config = OnceboxDeploymentConfig(**kwargs)
        self._client = AsyncClient(self._config.url)
        self._runtime: OnceboxRuntime | None = None
        self._hooks = CombinedDeploymentHook()
        self.logger = logger or get_logger("rex-deploy")

    @classmethod
    def from_config(cls, config: OnceboxDeploymentConfig) -> Self:
        """As SWE-ReX's own deployments have it."""
        return cls(**config.model_dump())

    def add_hook(self, hook: DeploymentHook) -> None:
        """``hook`` is told of each step of the start."""
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether commands can run; before the start: not."""
        if self._runtime is None:
            return IsAliveResponse(is_alive=False, message="The deployment is not started.")
        return await self._runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        """Makes the sandbox.

        Raises:
            DeploymentStartupError: no command can run in it.
        """
        self._hooks.on_custom_step("Starting sandbox")
        wanted = self._config
        try:
            sandbox = await self._client.create_sandbox(
                image=wanted.image,
                resources={name: size for name in ("cpu", "memory") if (size := getattr(wanted, name))} or None,
                metadata=OURS,
                timeout=wanted.deployment_timeout,
                idempotency_key=wanted.key,
                wait_ready=int(wanted.startup_timeout),
            )
        except OnceboxError as error:
            raise DeploymentStartupError(str(error)) from error
        self._runtime = OnceboxRuntime(sandbox, key=wanted.key, logger=self.logger)
        if not (alive := await self._runtime.is_alive()):
            if wanted.key is None:
                await self.stop()
            self._runtime = None  # with a key the sandbox stays for who comes again
            await self._client.close()
            raise DeploymentStartupError(alive.message)

    async def stop(self) -> None:
        """Deletes the sandbox, with a key too."""
        if self._runtime is not None:
            with contextlib.suppress(SandboxNotFound):
                await self._runtime.sandbox.delete()
            self._runtime = None
        await self._client.close()

    @property
    def runtime(self) -> OnceboxRuntime:
        """What runs commands.

        Raises:
            DeploymentNotStartedError: before ``start()``, and after ``stop()``.
        """
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime

    def __del__(self) -> None:
        """Stops, as other deployments do; with a key the sandbox stays for who comes again."""
        if self._config.key is None:
            super().__del__()
