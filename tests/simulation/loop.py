"""An event loop on virtual time, for hosts that can be killed and frozen between any two steps.

Everything that runs belongs to a host (a replica, a caller) or to the world itself: a task and a callback inherit it by
their context. The clock jumps to the next timer as soon as nothing is ready. ``time()`` is the clock of whoever asks:
a host's monotonic clock may run faster or slower than the world's.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_HOST: contextvars.ContextVar[Host | None] = contextvars.ContextVar("host", default=None)


_ROUNDS = 50
"""Turns in which cancelled work comes to its end, and how often it is cancelled."""


class Stuck(Exception):
    """Nothing is ready, no timer is set, and what was waited for has not come."""


class Host:
    """What dies and freezes as one. ``rate``: seconds of its monotonic clock in one of the world's."""

    def __init__(self, name: str, loop: Any, *, rate: float = 1.0) -> None:
        self.name = name
        self.alive = True
        self.frozen = False
        self.steps = 0
        """Steps that it has taken: callbacks, and pieces of tasks from one await to the next."""
        self.rate = rate
        self.offset = 0.0
        self.at_step: tuple[int, Callable[[], None]] | None = None
        """What happens to it before the step of this number."""
        self._loop = loop
        self._held: list[asyncio.Handle] = []
        self._tasks: dict[SimTask[Any], None] = {}

    def clock(self, now: float) -> float:
        """Its monotonic clock when the world's is at ``now``."""
        return now * self.rate + self.offset

    def drift(self, rate: float) -> None:
        """Its clock runs at another rate from now on."""
        now = self._loop.now
        self.offset = self.clock(now) - now * rate
        self.rate = rate

    def kill(self) -> None:
        """As SIGKILL: it takes no further step, no ``finally`` either."""
        self.alive = False

    def freeze(self) -> None:
        """As SIGSTOP."""
        self.frozen = True

    def thaw(self) -> None:
        """As SIGCONT: what was due meanwhile is done at once."""
        self.frozen = False
        if self.alive:
            self._loop.put_back(self._held)
            self._held = []

    def hold(self, handle: asyncio.Handle) -> None:
        """Keep a step for when it is thawed; a dead one's for the end of the world."""
        self._held.append(handle)

    def adopt(self, task: SimTask[Any]) -> None:
        """Keep a task, so that a dead host's coroutines are not closed (which runs their ``finally``) meanwhile."""
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def tasks(self) -> list[SimTask[Any]]:
        """Its tasks that are not done."""
        return list(self._tasks)

    def run(self, work: Callable[..., T], *args: Any) -> T:
        """Call ``work`` as this host."""
        context = contextvars.copy_context()
        context.run(_HOST.set, self)
        return context.run(work, *args)

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """A task of this host."""
        return self.run(lambda: self._loop.create_task(work, name=name))


class SimTask(asyncio.Task[T]):
    """A task whose place in a set does not depend on its address."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class VirtualLoop(asyncio.AbstractEventLoop):
    """See the module. ``now``: the world's time, seconds from 0."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = 0
        self._running = False
        self._over = False
        self.unexpected: list[dict[str, Any]] = []
        """What an event loop would have logged: exceptions that nobody took."""

    # -- time

    def time(self) -> float:
        """The monotonic clock of whoever asks."""
        host = _HOST.get()
        return self.now if host is None else host.clock(self.now)

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        host = _HOST.get()
        return self._at(self.now + max(0.0, delay) / (host.rate if host else 1.0), callback, args, context)

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return self.call_later(when - self.time(), callback, *args, context=context)

    def _at(self, when: float, callback: Callable[..., Any], args: tuple[Any, ...], context: Any) -> Any:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._numbers += 1
        heapq.heappush(self._timers, (when, self._numbers, handle))
        return handle

    def at(self, when: float, callback: Callable[..., Any], *args: Any) -> Any:
        """Call something of the world's, at a time of the world's."""
        context = contextvars.Context()
        return self._at(max(when, self.now), callback, args, context)

    def put_back(self, handles: list[asyncio.Handle]) -> None:
        """Steps that were held."""
        self._ready.extend(handles)

    # -- running

    def run_until_complete(self, future: Any) -> Any:
        """Run until the future is done. Raises ``Stuck``."""
        asyncio._set_running_loop(self)
        self._running = True
        try:
            future = asyncio.ensure_future(future, loop=self)
            while not future.done():
                self._turn()
            return future.result()
        finally:
            self._running = False
            asyncio._set_running_loop(None)

    def _turn(self) -> None:
        ready = self._ready
        if not ready:
            timers = self._timers
            while timers and timers[0][2].cancelled():
                heapq.heappop(timers)
            if not timers:
                raise Stuck
            when = timers[0][0]
            self.now = max(self.now, when)
            while timers and timers[0][0] <= when:
                ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            self._step(ready.popleft())

    def _step(self, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        host = handle._context.get(_HOST)  # type: ignore[attr-defined]
        if host is not None:
            if host.at_step is not None and host.steps >= host.at_step[0]:
                _, happens = host.at_step
                host.at_step = None
                happens()
            if host.frozen or not host.alive:
                host.hold(handle)
                return
            host.steps += 1
        self.steps += 1
        handle._run()

    # -- tasks and futures

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> Any:
        task: SimTask[Any] = SimTask(coro, loop=self, name=name or "task", context=context)
        self._numbers += 1
        task.number = self._numbers
        host = (_HOST.get() if context is None else context.get(_HOST)) or None
        if host is not None:
            host.adopt(task)
        return task

    def get_task_factory(self) -> None:
        return None

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """In place of a thread: at once."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whoever waits for the future gets it
            future.set_exception(error)
        return future

    # -- what asyncio asks of a loop

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._over

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._over:
            self.unexpected.append(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def end(self, hosts: list[Host]) -> None:
        """The world is over: what is left is cancelled, in dead hosts too, and runs to its end."""
        self._timers = [timer for timer in self._timers if timer[2]._context.get(_HOST) is not None]  # type: ignore[attr-defined]
        heapq.heapify(self._timers)
        for host in hosts:
            host.alive, host.at_step = True, None
            host.thaw()
        for _ in range(_ROUNDS):
            left = [task for host in hosts for task in host.tasks()]
            if not left:
                break
            for task in left:
                task.cancel()
            asyncio._set_running_loop(self)
            with contextlib.suppress(Stuck):
                for _ in range(_ROUNDS):
                    self._turn()
            asyncio._set_running_loop(None)
        self._over = True
        self._ready.clear()
        self._timers.clear()
