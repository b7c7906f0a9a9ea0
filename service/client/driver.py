"""The two drivers of flows: they do what a step asks for, and send back what came of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from .rules import Terms
from .steps import Answer, Dropped, Flow, Pause, Reply, Request, Reset, Step
from .transport import Target

T = TypeVar("T")


class SyncSender(Protocol):
    """A synchronous transport."""

    def send(self, request: Request) -> Answer | Dropped:
        """Sends once."""

    def reset(self) -> None:
        """Forgets idle connections."""

    def close(self) -> None:
        """Closes all connections."""


class AsyncSender(Protocol):
    """An asynchronous transport."""

    async def send(self, request: Request) -> Answer | Dropped:
        """Sends once."""

    async def reset(self) -> None:
        """Forgets idle connections."""

    async def close(self) -> None:
        """Closes all connections."""


@dataclass
class Hooks:
    """Where a client gets time, chance and its transport from. For tests; no part of the public interface."""

    terms: Terms = field(default_factory=Terms)
    sleep: Callable[[float], None] | None = None
    async_sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    sync_transport: Callable[[Target], SyncSender] | None = None
    async_transport: Callable[[Target], AsyncSender] | None = None

    def sync_sender(self, target: Target) -> SyncSender:
        """The transport of a synchronous client."""
        from .transport_sync import SyncTransport

        return (self.sync_transport or SyncTransport)(target)

    def async_sender(self, target: Target) -> AsyncSender:
        """The transport of an asynchronous client."""
        from .transport_async import AsyncTransport

        return (self.async_transport or AsyncTransport)(target)


class Stopped(Exception):
    """Nobody wants the outcome of this flow any more."""


class SyncDriver:
    """Carries flows through, one step after the other, in the caller's thread."""

    def __init__(self, sender: SyncSender, sleep: Callable[[float], None] | None = None) -> None:
        self.sender = sender
        self._sleep = sleep

    def run(self, flow: Flow[T], stop: threading.Event | None = None) -> T:
        """The outcome of ``flow``.

        Raises:
            Stopped: ``stop`` was set before the flow was through.
        """
        reply: Reply = None
        try:
            while True:
                if stop is not None and stop.is_set():
                    raise Stopped
                try:
                    step = flow.send(reply)
                except StopIteration as end:
                    outcome: T = end.value
                    return outcome
                reply = self._do(step, stop)
        finally:
            flow.close()

    def _do(self, step: Step, stop: threading.Event | None) -> Reply:
        if isinstance(step, Request):
            return self.sender.send(step)
        if isinstance(step, Pause):
            if self._sleep is not None:
                self._sleep(step.seconds)
            elif stop is not None:
                stop.wait(step.seconds)
            else:
                time.sleep(step.seconds)
        elif isinstance(step, Reset):
            self.sender.reset()
        return None


class AsyncDriver:
    """Carries flows through, in the caller's task."""

    def __init__(self, sender: AsyncSender, sleep: Callable[[float], Awaitable[None]]) -> None:
        self.sender = sender
        self._sleep = sleep

    async def run(self, flow: Flow[T]) -> T:
        """The outcome of ``flow``."""
        reply: Reply = None
        try:
            while True:
                try:
                    step = flow.send(reply)
                except StopIteration as end:
                    outcome: T = end.value
                    return outcome
                reply = await self._do(step)
        finally:
            flow.close()

    async def _do(self, step: Step) -> Reply:
        if isinstance(step, Request):
            return await self.sender.send(step)
        if isinstance(step, Pause):
            await self._sleep(step.seconds)
        elif isinstance(step, Reset):
            await self.sender.reset()
        return None
