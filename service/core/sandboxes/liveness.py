"""Whether sandboxes still live, or are paused: as the engine says, believed for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from service.messages import SandboxState
from service.ports.engine import Engine, EngineError, NoAddress, NotReached, SandboxInfo, SandboxMissing

T = TypeVar("T")

LIVENESS = 2.0
"""Seconds for which what the engine said is believed."""
SLOW = 0.4
"""Seconds of silence after which a sandbox may be paused."""
ASLEEP = 2.0
"""Seconds for the engine to say whether it is."""
REMEMBERED = 10_000
"""Sandboxes of which it is remembered, at the most."""


class Liveness:
    """What the engine says of sandboxes, for one replica."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._over = _Memory()
        self._asleep = _Memory()

    async def gone(self, sandbox_id: str) -> bool:
        """The sandbox is certainly gone: so says the engine, or it calls it failed and its daemon's port refuses.

        No certainty: False.
        """
        return (await self.asked_if_gone(sandbox_id))[0]

    async def asked_if_gone(self, sandbox_id: str) -> tuple[bool, SandboxInfo | None]:
        """``gone``, and what the engine said of the sandbox, if it was asked for that."""
        if (known := self._over.recall(sandbox_id)) is not None:
            return known, None
        info = None
        try:
            info = await self._engine.get_sandbox(sandbox_id)
            over = info.over
            if info.state is SandboxState.FAILED and not over:  # it may come back: asked each time
                return await self.refuses(sandbox_id), info
        except SandboxMissing:
            over = True
        except EngineError:
            return False, None
        self._over.note(sandbox_id, over)
        return over, info

    async def refuses(self, sandbox_id: str) -> bool:
        """Nothing listens at the port of the sandbox's daemon. An answer, and silence: False."""
        try:
            await self._engine.ping(sandbox_id)
        except EngineError as error:
            return nobody_there(error)
        return False

    async def asleep(self, sandbox_id: str) -> bool:
        """The engine says that the sandbox is paused. No certainty: False."""
        if (known := self._asleep.recall(sandbox_id)) is not None:
            return known
        try:
            async with asyncio.timeout(ASLEEP):
                state = (await self._engine.get_sandbox(sandbox_id)).state
        except (EngineError, TimeoutError):
            return False
        asleep = state in (SandboxState.PAUSED, SandboxState.PAUSING)
        self._asleep.note(sandbox_id, asleep)
        return asleep

    async def while_awake(self, sandbox_id: str, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` inside a sandbox comes to.

        Raises ``NotReached`` where that takes longer than ``SLOW`` and the engine says that the sandbox is paused: its
        daemon would not answer until it is resumed.
        """
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task}, timeout=SLOW)
            if not task.done() and await self.asleep(sandbox_id):
                raise NotReached("the sandbox is paused")
            return await task
        finally:
            if not task.done():
                task.cancel()

    def note_over(self, sandbox_id: str) -> None:
        """It is gone."""
        self._over.note(sandbox_id, True)

    def forget(self, sandbox_id: str) -> None:
        """It was changed: the engine is asked again."""
        self._over.forget(sandbox_id)
        self._asleep.forget(sandbox_id)


def nobody_there(error: EngineError) -> bool:
    """A call said that nothing listens where the sandbox's daemon should be, or that it has no address at all."""
    return isinstance(error, SandboxMissing | NoAddress) or (isinstance(error, NotReached) and error.refused)


class _Memory:
    """Answers by sandbox, each for ``LIVENESS`` seconds."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, bool]] = {}

    def recall(self, sandbox_id: str) -> bool | None:
        until, answer = self._known.get(sandbox_id, (0.0, False))
        return answer if until > asyncio.get_running_loop().time() else None

    def note(self, sandbox_id: str, answer: bool) -> None:
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[sandbox_id] = (asyncio.get_running_loop().time() + LIVENESS, answer)

    def forget(self, sandbox_id: str) -> None:
        self._known.pop(sandbox_id, None)
