"""What an attempt must know of its sandbox before it is sent, and why one can't be sent."""

from __future__ import annotations

import asyncio

import msgspec

from service import errors
from service.core.fence.client import Fences, Surroundings
from service.core.jobs.orders import Submission
from service.core.jobs.restore import Restorer
from service.core.model import identity
from service.core.problems import refusal
from service.core.records import JobBody
from service.core.sandboxes import users
from service.core.sandboxes.users import User
from service.messages import SandboxState
from service.ports.engine import (
    Engine,
    EngineError,
    FileSystemError,
    SandboxInfo,
    SandboxMissing,
)

SLOW_SANDBOX = 2.0
"""Seconds after which a sandbox that does not answer is asked about at the lifecycle server."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt must know before it is sent: read before the claim is made, or by its owner."""

    around: Surroundings
    earlier: JobBody | None = None
    """The run of another request with this key, where Redis forgot it and its fence stands."""
    user: User | None = None
    home: str | None = None
    """Whose rights the command has, where it names a user, and the ``HOME`` that goes with them."""

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

    async def prepare(self, id: str, attempt: int, body: JobBody, user: str | None, *, first: bool = False) -> Prepared:
        """The attempt's surroundings; meanwhile who its ``user`` is, and, unless it is the first of its key, the fence
        of an earlier request.

        Raises ``EngineError``, ``SandboxNotRunning``, ``InvalidRequest`` where the sandbox has no such user.
        """
        around, earlier, account = await asyncio.gather(
            self._surroundings(body.sandbox_id),
            _nothing() if first else self._earlier(identity.token_of(id, attempt), body),
            _nothing() if user is None else users.account(self._engine, body.sandbox_id, user),
        )
        who, home = account or (None, None)
        return Prepared(around=around, earlier=earlier, user=who, home=home)

    async def feed(self, body: JobBody, submission: Submission, stdin: bytes | None) -> JobBody:
        """Write what the command is to read into its sandbox, before anything can be sent; the body that says where.

        ``stdin``: all of it, where the request is at hand. Else the next attempt has what is kept of it, or the file
        that the attempt before it has left. Raises ``EngineError``, ``EngineUnavailable``.
        """
        data = stdin or submission.stdin
        if not submission.fed or data is None:
            return body
        try:
            path = await self._fences.write_input(body.sandbox_id, data)
        except FileSystemError as error:
            raise errors.EngineUnavailable(
                f"The sandbox could not hold what the command is to read ({error.message}); nothing was run.",
                sandbox_id=body.sandbox_id,
                retry_after=5,
            ) from error
        return msgspec.structs.replace(body, stdin=path)

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
            if not reading.cancel() and not reading.cancelled():
                reading.exception()  # it failed while the engine was asked: nobody else takes that

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


async def _nothing() -> None:
    return None
