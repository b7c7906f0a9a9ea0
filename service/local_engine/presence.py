"""Whether a sandbox's daemon is there to go on with a call: frozen with the rest of it, gone with it."""

from __future__ import annotations

import asyncio
import select
from typing import Protocol

from .execd import Execd

POLL_SECONDS = 0.05


class _Sandbox(Protocol):
    thawed: asyncio.Event
    execd: Execd

    @property
    def gone(self) -> bool: ...


class Presence:
    """The daemon that a call began with."""

    def __init__(self, sandbox: _Sandbox) -> None:
        self._sandbox = sandbox
        self._execd = sandbox.execd

    async def awake(self) -> None:
        """Wait while it is frozen. Raises `ConnectionResetError` when it is gone, as its port would."""
        await self._sandbox.thawed.wait()
        if self._sandbox.gone or not self._execd.alive:
            raise ConnectionResetError

    def kill(self) -> None:
        """The system kills it: it took too much memory."""
        self._execd.die()

    async def until_readable(self, descriptor: int) -> None:
        """Wait for bytes, or for the end, of what may have neither."""
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN | select.POLLHUP)
        while not waiting.poll(0):
            await asyncio.sleep(POLL_SECONDS)
            await self.awake()
