"""What a task may ask of its sandboxes."""

from __future__ import annotations

from pydantic import BaseModel, Field


class OnceboxConfig(BaseModel, frozen=True, extra="forbid"):
    """``sandbox=SandboxEnvironmentSpec("oncebox", OnceboxConfig(...))``. The API key is never a part of it, since
    Inspect writes it into logs: it comes from ``ONCEBOX_API_KEY``.
    """

    url: str | None = None
    """Of the service; None: ``ONCEBOX_URL``, else ``http://127.0.0.1:8700``."""
    image: str | None = None
    """None: the service's."""
    cpu: str | None = None
    """In the engine's words, such as ``"500m"``."""
    memory: str | None = None
    """In the engine's words, such as ``"4Gi"``."""
    timeout: int = Field(default=900, ge=60, le=86_400)
    """Seconds that a sandbox outlives an evaluation that was killed. While its sample is worked on it is renewed."""
    command_timeout: int = Field(default=14_400, ge=1, le=14_400)
    """Seconds after which a command is killed that was given no timeout."""
    user: str | None = None
    """Who commands and files are run and written as, where Inspect names nobody: a name, ``uid`` or ``uid:gid``."""
    key: str | None = Field(default=None, max_length=200)
    """A name for this evaluation. Killed and run again with the same key, each sample finds its sandbox while that
    lives, and a command that ran is not run again: its result is fetched.
    """
