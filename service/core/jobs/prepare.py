"""What an attempt must know of its sandbox before it is sent, and why one can't be sent."""

from __future__ import annotations

import asyncio

import msgspec

from service import errors
from service.core.fence.client import Fences, Surroundings
from service.core.jobs.restore import Restorer
from service.core.model import identity
from service.core.problems import refusal
from service.core.records import JobBody
from service.messages import SandboxState
from service.ports.engine import Engine, EngineError, SandboxInfo, SandboxMissing

SLOW_SANDBOX = 2.0
"""Seconds after which a sandbox that does not answer is asked about at the lifecycle server."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt must know before it is sent: read before the claim is made, or by its owner."""

    around: Surroundings
    earlier: JobBody | None = None
    """The run of another request with this key, where Redis forgot it and its fence stands."""

    @property
    def mark(self) -> str | None:
        """The boot mark's text."""
        return self.around.boot.text if self.around.boot is not None else None


class Preparation:
    """Reads what attempts must know."""

    def __init__(self, engine: Engine, fences: Fences, restorer: Restorer) -> None:
        self._engine = engine
        self._fences = fences
        self._restorer = restorer

    async def prepare(self, id: str, attempt: int, body: JobBody, *, first: bool = False) -> Prepared:
        """The attempt's surroundings; meanwhile, unless it is the first of its key, the fence of an earlier request.

        Raises ``EngineError``, ``SandboxNotRunning``.
        """
        if first:
            return Prepared(around=await self._surroundings(body.sandbox_id))
        around, earlier = await asyncio.gather(
            self._surroundings(body.sandbox_id), self._earlier(identity.token_of(id, attempt), body)
        )
        return Prepared(around=around, earlier=earlier)

    async def _earlier(self, token: str, body: JobBody) -> JobBody | None:
        found = await self._fences.read(body.sandbox_id, token)
        if found is None or found.fingerprint in (None, body.fingerprint):
            return None
        return await self._restorer.body_of(body.tenant, body.sandbox_id, found)

    async def _surroundings(self, sandbox_id: str) -> Surroundings:
        """What to know before a dispatch; a paused sandbox, silent for minutes, is noticed meanwhile."""
        reading = asyncio.ensure_future(self._fences.surroundings(sandbox_id))
        try:
            await asyncio.wait({reading}, timeout=SLOW_SANDBOX)
            if not reading.done() and (problem := _not_now(await self._engine.get_sandbox(sandbox_id))):
                raise problem
            return await reading
        finally:
            if not reading.done():
                reading.cancel()

    async def why(self, error: EngineError, sandbox_id: str) -> errors.OnceboxError:
        """What a call that was not executed means: the sandbox's own state tells more than a closed port."""
        problem = refusal(error, sandbox_id=sandbox_id)
        if not isinstance(problem, errors.EngineUnavailable):
            return problem
        try:
            info = await self._engine.get_sandbox(sandbox_id)
        except SandboxMissing:
            return errors.SandboxNotFound(sandbox_id=sandbox_id)
        except EngineError:
            return problem
        return _not_now(info) or problem


_COMES_BACK = (SandboxState.PENDING, SandboxState.FAILED)
"""On Kubernetes: a pod is being made, or made anew, and a container comes back."""


def _not_now(info: SandboxInfo) -> errors.OnceboxError | None:
    """Why nothing can be run in the sandbox now; None: its state does not say so."""
    if info.state in (SandboxState.RUNNING, SandboxState.UNKNOWN):
        return None
    if info.state in _COMES_BACK and not info.over:
        told = f"The sandbox is {info.state.value}: its daemon does not answer, and may come back."
        return errors.EngineUnavailable(told, sandbox_id=info.id, retry_after=5)
    return errors.SandboxNotRunning(f"The sandbox is {info.state.value}.", sandbox_id=info.id, retry_after=5)
