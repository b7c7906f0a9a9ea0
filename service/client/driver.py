"""The two drivers of flows: they do what a step asks for, and send back what came of it."""

# ruff: noqa: TID252
from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

from ..errors import OnceboxError
from .rules import Terms
from .steps import Answer, Dropped, Flow, Pause, Reply, Request, Reset, Step
from .transport import Target

T = TypeVar("T")

CANCELS = 3
"""Times that a clean-up is begun anew where it is cancelled itself."""


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

    def sync_driver(self, target: Target) -> SyncDriver:
        """The driver of a synchronous client."""
        from .transport_sync import SyncTransport

        return SyncDriver((self.sync_transport or SyncTransport)(target), self.sleep)

    def async_driver(self, target: Target) -> AsyncDriver:
        """The driver of an asynchronous client."""
        from .transport_async import AsyncTransport

        return AsyncDriver((self.async_transport or AsyncTransport)(target), self.async_sleep)


class Stopped(BaseException):
    """Nobody wants the outcome of this flow any more. No failure, so that nobody takes it for one."""


_stop: ContextVar[threading.Event | None] = ContextVar("oncebox_stop", default=None)


@contextlib.contextmanager
def stopping(stop: threading.Event) -> Iterator[None]:
    """Within the block, this thread's flows end with ``Stopped`` once ``stop`` is set."""
    token = _stop.set(stop)
    try:
        yield
    finally:
        _stop.reset(token)


CleanUp: TypeAlias = Callable[[], Flow[None]]
"""Makes the flow that undoes, or ends, what an interrupted one may have done. Its failures are its own to tell."""


class SyncDriver:
    """Carries flows through, one step after the other, in the caller's thread."""

    def __init__(self, sender: SyncSender, sleep: Callable[[float], None] | None = None) -> None:
        self.sender = sender
        self._sleep = sleep

    def run(self, flow: Flow[T], *, clean_up: CleanUp | None = None) -> T:
        """The outcome of ``flow``.

        Args:
            clean_up: carried through where an interrupt comes after something was sent. It runs in a thread of its
                own, which no interrupt reaches: a second one ends the waiting for it, and not the process before it.

        Raises:
            Stopped: see ``stopping``.
        """
        stop = _stop.get()
        reply: Reply = None
        arrived = False
        try:
            while True:
                if stop is not None and stop.is_set():
                    raise Stopped
                try:
                    step = flow.send(reply)
                except StopIteration as end:
                    outcome: T = end.value
                    return outcome
                before, arrived = arrived, arrived or isinstance(step, Request)
                reply = self._do(step, stop)
                arrived = before if _unsent(reply) else arrived
        except (OnceboxError, Stopped):
            raise
        except BaseException:
            if clean_up is not None and arrived:
                self._through(clean_up)
            raise
        finally:
            flow.close()

    def _through(self, clean_up: CleanUp) -> None:
        over = threading.Event()

        def clean() -> None:
            try:
                self.run(clean_up())
            finally:
                over.set()

        threading.Thread(target=clean, name="oncebox-clean-up").start()
        over.wait()  # an interrupted `join` makes Python 3.11 take the thread for one that has ended

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

    def settle(self, returned: Any) -> Any:
        """What a caller's function returned."""
        return returned

    def close(self) -> None:
        """Closes the idle connections."""
        self.sender.close()


class AsyncDriver:
    """Carries flows through, in the caller's task."""

    def __init__(self, sender: AsyncSender, sleep: Callable[[float], Awaitable[None]]) -> None:
        self.sender = sender
        self._sleep = sleep
        self._cleaning: set[asyncio.Task[None]] = set()
        self._closed = False

    async def run(self, flow: Flow[T], *, clean_up: CleanUp | None = None) -> T:
        """The outcome of ``flow``.

        Args:
            clean_up: carried through where a cancel comes after something was sent. It runs in a task of its own:
                a second cancel ends the waiting for it, and not the loop before it.
        """
        reply: Reply = None
        arrived = False
        try:
            while True:
                try:
                    step = flow.send(reply)
                except StopIteration as end:
                    outcome: T = end.value
                    return outcome
                before, arrived = arrived, arrived or isinstance(step, Request)
                reply = await self._do(step)
                arrived = before if _unsent(reply) else arrived
        except (OnceboxError, GeneratorExit):
            raise
        except BaseException:
            if clean_up is not None and arrived:
                task = asyncio.create_task(self._through(clean_up), name="oncebox-clean-up")
                self._cleaning.add(task)
                task.add_done_callback(self._cleaning.discard)
                await asyncio.shield(task)
            raise
        finally:
            flow.close()

    async def _through(self, clean_up: CleanUp) -> None:
        # The end of a loop cancels all of its tasks, and waits for them.
        for _ in range(CANCELS):
            try:
                return await self.run(clean_up())
            except asyncio.CancelledError:
                continue
            finally:
                if self._closed:
                    await self.sender.close()
        return None

    async def _do(self, step: Step) -> Reply:
        if isinstance(step, Request):
            return await self.sender.send(step)
        if isinstance(step, Pause):
            await self._sleep(step.seconds)
        elif isinstance(step, Reset):
            await self.sender.reset()
        return None

    async def settle(self, returned: Any) -> Any:
        """What a caller's function returned; awaited, if it can be."""
        return await returned if inspect.isawaitable(returned) else returned

    async def close(self) -> None:
        """Closes the idle connections of this loop, once what is cleaned up is through."""
        loop = asyncio.get_running_loop()
        if cleaning := [task for task in self._cleaning if task.get_loop() is loop]:
            self._closed = True
            await asyncio.wait(cleaning)
        self._closed = False
        await self.sender.close()


def _unsent(reply: Reply) -> bool:
    return isinstance(reply, Dropped) and reply.unsent
