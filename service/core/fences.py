"""Fences in their sandboxes: what `core.fence` says, carried out through the engine.

Every method raises ``EngineError`` when the sandbox's daemon does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from weakref import WeakValueDictionary

from service.core import fence, identity
from service.core.fence import Boot, End, Fence, Look, Ready, Voided
from service.ports.engine import Engine, FileMissing

FENCE_SIZE = 4096
"""Bytes of a fence or mark that are read: an honest one has some 200."""
SHORT = 10.0
"""Seconds for one of our own small commands."""
AT_ONCE = 8
"""Of them under way at once in one sandbox. More would wait in a slow daemon past their deadline, and be tried again:
with a thousand answers lost at once, none would ever be settled."""


class Fences:
    """The fences of every sandbox, in one directory each."""

    def __init__(self, engine: Engine, directory: str) -> None:
        self._engine = engine
        self._directory = directory
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def boot(self, sandbox_id: str) -> Boot | None:
        """The sandbox's boot mark, made anew where it is missing; None where none can be made.

        One ranged read where it is there; it shows that the daemon is alive as well.
        """
        try:
            found = await self._engine.read_file(sandbox_id, fence.boot_path(self._directory), 0, FENCE_SIZE)
        except FileMissing:
            return (await self.ready(sandbox_id)).boot
        return fence.parse_boot(found.data) or (await self.ready(sandbox_id)).boot

    async def ready(self, sandbox_id: str) -> Ready:
        """Run the readiness command: it makes the mark where there is none, and tells it."""
        return fence.parse_ready(await self._run(sandbox_id, fence.ready(self._directory, identity.random_token())))

    def wrapped(
        self, command: str, env: Mapping[str, str], *, token: str, fingerprint: str, boot: str | None, timeout: int
    ) -> tuple[str, dict[str, str]]:
        """The text and the environment to send to execd."""
        return fence.wrapper(
            command,
            env,
            directory=self._directory,
            token=token,
            fingerprint=fingerprint,
            boot=boot,
            timeout=timeout,
        )

    async def read(self, sandbox_id: str, token: str) -> Fence | None:
        """The fence; None where there is none."""
        try:
            found = await self._engine.read_file(sandbox_id, fence.fence_path(self._directory, token), 0, FENCE_SIZE)
        except FileMissing:
            return None
        return fence.parse_fence(found.data)

    async def void(self, sandbox_id: str, token: str, boot: str) -> Voided:
        """Make the fence as a void, unless it is there."""
        text = fence.void(self._directory, token, boot, identity.random_token())
        return fence.parse_void(await self._run(sandbox_id, text))

    async def look(self, sandbox_id: str, token: str) -> Look:
        """The fence, the mark, and the processes that carry the token."""
        return fence.parse_look(await self._run(sandbox_id, fence.look(self._directory, token)))

    async def end(self, sandbox_id: str, token: str) -> End:
        """End the run's process group."""
        return fence.parse_end(await self._run(sandbox_id, fence.end(self._directory, token)))

    async def clean(self, sandbox_id: str, tokens: list[str], *, age: int) -> None:
        """Remove the fences and outputs of ended, recorded jobs that are older than ``age`` seconds."""
        await self._run(sandbox_id, fence.clean(self._directory, tokens, age=age))

    async def _run(self, sandbox_id: str, text: str) -> str:
        turn = self._turns.setdefault(sandbox_id, asyncio.Semaphore(AT_ONCE))
        async with turn:
            return (await self._engine.run_short(sandbox_id, text, timeout=SHORT)).stdout
