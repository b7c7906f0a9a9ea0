"""The environment, over the SDK's client. mini-swe-agent waits for each command before it asks for the next."""

from __future__ import annotations

import os
import re
import weakref
from functools import cache, cached_property
from typing import Any

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel, Field

from service.adapters.keys import Series, digest
from service.client import Client, JobResult, OnceboxError

OURS = {"mini_swe_agent": "environment"}
"""The label of every sandbox that was made here."""
MAX_OUTPUT = 10 * 1024 * 1024
"""Characters of a command's output above which it is cancelled: what it printed goes into the trajectory, whole."""
DONE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""What an agent prints first when its task is done; mini-swe-agent's own word."""
LONGEST = 14_400
"""Seconds that a command may take, at most; the service's own limit."""
UNAME = {"system": "-s", "node": "-n", "release": "-r", "version": "-v", "machine": "-m"}
"""What prompts may say of the machine, and the option of ``uname`` that tells it."""


class OnceboxEnvironmentConfig(BaseModel, extra="forbid"):
    """Of the names that ``DockerEnvironmentConfig`` has too, each means the same. The API key is never a part of it,
    since it is written into trajectories: it comes from ``ONCEBOX_API_KEY``.
    """

    url: str | None = None
    """Of the service; None: ``ONCEBOX_URL``, else ``http://127.0.0.1:8700``."""
    image: str | None = None
    """None: the service's."""
    cpu: str | None = None
    """In the engine's words, such as ``"500m"``."""
    memory: str | None = None
    """In the engine's words, such as ``"4Gi"``."""
    cwd: str = ""
    """Where commands start; empty: the sandbox's working directory."""
    env: dict[str, str] = {}
    """Environment variables of every command."""
    forward_env: list[str] = []
    """Variables that commands get as they are set here, where they are, and ``env`` does not set them."""
    timeout: int = Field(default=30, ge=1, le=LONGEST)
    """Seconds after which a command is killed."""
    container_timeout: str = Field(default="2h", pattern=r"^\d+[smhd]?$")
    """How long the sandbox lives, as ``sleep`` takes it: 60 s to 24 h."""
    interpreter: list[str] = ["bash", "-lc"]
    """The command is its last argument."""
    key: str | None = Field(default=None, max_length=200)
    """A name for this run of an agent. Killed and started again with the same key and config, it finds its sandbox
    while that lives, and what it asks for as it did before is not run again: the result is fetched.
    """


class TooMuchOutput(Exception):
    """The command was cancelled, since it printed more than ``MAX_OUTPUT`` characters."""


class OnceboxEnvironment:
    """``environment_class: service.adapters.minisweagent.OnceboxEnvironment``."""

    def __init__(self, **kwargs: Any) -> None:
        self.config = OnceboxEnvironmentConfig(**kwargs)
        wanted, key = self.config, self.config.key
        self.sandbox = client(wanted.url).create_sandbox(
            image=wanted.image,
            resources={name: size for name in ("cpu", "memory") if (size := getattr(wanted, name))} or None,
            metadata=OURS,
            timeout=seconds(wanted.container_timeout),
            idempotency_key=key and f"{key}-{digest(wanted.model_dump())}",
            wait_ready=120,
        )
        self._series = Series(key, self.sandbox.id)
        if key is None:
            self._delete_at_the_end()

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Runs a command, once: its ``output`` (stdout and stderr merged), ``returncode`` and ``exception_info``.

        Raises:
            Submitted: the command says that the task is done.
        """
        forwarded = {name: os.environ[name] for name in self.config.forward_env if name in os.environ}
        printed: list[str] = []
        output: dict[str, Any]
        try:
            result = self._run(
                printed,
                command=[*self.config.interpreter, action.get("command", "")],
                cwd=cwd or self.config.cwd or None,
                env=forwarded | self.config.env,
                timeout=timeout or self.config.timeout,
            )
            output = {"output": "".join(printed), "returncode": result.exit_code, "exception_info": ""}
        except Exception as error:  # noqa: BLE001 - as mini-swe-agent's own environments do: the agent is told
            output = {
                "output": "".join(printed),
                "returncode": -1,
                "exception_info": f"An error occurred while executing the command: {error}",
                "extra": {"exception_type": type(error).__name__, "exception": str(error)},
            }
        self._check_finished(output)
        return output

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """What prompts may name: the config, and the sandbox's own system."""
        named: dict[str, Any] = recursive_merge(self.config.model_dump(), self._system, kwargs)
        return named

    def serialize(self) -> dict[str, Any]:
        """What a trajectory says of its environment."""
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return {"info": {"config": {"environment": self.config.model_dump(mode="json"), "environment_type": kind}}}

    def cleanup(self) -> None:
        """Deletes the sandbox, with a key too."""
        delete(self.config.url, self.sandbox.id)

    @cached_property
    def _system(self) -> dict[str, str]:
        ran = self.sandbox.run("; ".join(f"uname {option}" for option in UNAME.values()))
        return dict(zip(UNAME, (ran.stdout or "").splitlines(), strict=False))

    def _run(self, printed: list[str], *, command: list[str], timeout: int, **more: Any) -> JobResult:
        """Runs ``command``, and puts what it prints into ``printed`` as it comes."""

        room = MAX_OUTPUT

        def take(text: str) -> None:
            nonlocal room
            printed.append(text)
            room -= len(text)
            if room < 0:
                raise TooMuchOutput(f"it printed more than {MAX_OUTPUT:,} characters, and was ended")

        key = self._series.next(command, timeout, more)
        job = self.sandbox.submit(command, timeout=timeout, idempotency_key=key, **more)
        try:
            result = job.output_to(take, text=True)
        except (TooMuchOutput, KeyboardInterrupt):
            job.cancel()
            raise
        if result.timed_out:
            raise TimeoutError(f"it timed out after {timeout} seconds")
        return result if result.exit_code is not None else result.check()

    def _check_finished(self, output: dict[str, Any]) -> None:
        first, _, submission = output["output"].lstrip().partition("\n")
        if first.strip() != DONE or output["returncode"] != 0:
            return
        self._delete_at_the_end()
        extra = {"exit_status": "Submitted", "submission": submission}
        raise Submitted({"role": "exit", "content": submission, "extra": extra})

    def _delete_at_the_end(self) -> None:
        """Deletes the sandbox once nobody holds this any more."""
        weakref.finalize(self, delete, self.config.url, self.sandbox.id)


@cache
def client(url: str | None) -> Client:
    """The client of a service."""
    return Client(url)


def delete(url: str | None, sandbox_id: str) -> None:
    """Deletes a sandbox that may be gone. One whose service is away for ten seconds is left to expire."""
    try:
        with Client(url, deadline=10) as quick:
            quick.sandbox(sandbox_id).delete()
    except OnceboxError:
        pass


def seconds(duration: str) -> int:
    """What ``sleep`` takes, in seconds: ``"90"``, ``"90s"``, ``"2h"``."""
    number, unit = re.fullmatch(r"(\d+)([smhd]?)", duration).groups()  # type: ignore[union-attr]  # as the config says
    return int(number) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}[unit]
