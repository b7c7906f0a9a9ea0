"""The one way to Redis: bounded, with a deadline, and with one kind of error."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from redis.asyncio import Redis, RedisCluster
from redis.exceptions import NoScriptError, ReadOnlyError

from service.errors import StoreUnavailable
from service.store.acknowledge import acknowledged
from service.store.observing import PoolObserver
from service.store.scripts import Args, ScriptCall
from service.store.trouble import CAUGHT, kind_of, unavailable
from service.store.urls import Server, close
from service.store.wire import Wire

CLOSED = "The store is closed."
"""What whoever still asks is told after ``close``."""

log = logging.getLogger(__name__)

DEADLINE = 4.0
"""Seconds for one command, the wait for a connection included."""
TOGETHER = 32
"""Commands at most that go out as one write: those that are asked for in one turn of the event loop."""


class PendingCommand:
    """A command that waits for its turn, and the future of its reply."""

    __slots__ = ("args", "deadline", "exclusive", "fallback", "reply", "since")

    def __init__(
        self,
        args: Args,
        fallback: Args,
        exclusive: Callable[[], Awaitable[Any]] | None,
        late: Callable[[PendingCommand], None],
    ) -> None:
        self.args = args
        self.fallback = fallback
        """What to send where the server does not know the script."""
        self.exclusive = exclusive
        """Work that needs a connection for itself, in place of a command."""
        loop = asyncio.get_running_loop()
        self.reply: asyncio.Future[Any] = loop.create_future()
        self.deadline = loop.call_later(DEADLINE, late, self)
        self.since: float | None = None
        """When it began to wait for a connection; None: there was one."""

    def answer(self, answer: Any) -> None:
        """Give the reply, or the error, to whoever still waits."""
        self.deadline.cancel()
        if self.reply.done():
            return
        if isinstance(answer, StoreUnavailable):
            self.reply.set_exception(answer)
        elif isinstance(answer, Exception):
            self.reply.set_exception(unavailable(answer))
        else:
            self.reply.set_result(answer)


class RedisClient:
    """Runs commands and scripts. Any failure is ``StoreUnavailable``; nothing is sent again by itself.

    What is asked for waits here for one of ``max_connections`` turns, and not in the pools of redis-py: those
    for Sentinel and Cluster raise where they are empty. One that nobody waits for any more is not sent. One
    that was sent is read to its end although its caller has gone: a connection that is broken off in the
    middle would hand the reply to the next.
    """

    def __init__(
        self, server: Server, *, max_connections: int, replicas: int = 0, observer: PoolObserver | None = None
    ) -> None:
        self.server = server
        self.client: Redis | RedisCluster = server.open()
        self._replicas = replicas
        self._limit = self._free = max_connections
        self._observer = observer or PoolObserver()
        self._observer.limit(max_connections)
        self._waiting: deque[PendingCommand] = deque()
        self._flush_is_due = False
        self._serving: set[asyncio.Task[None]] = set()
        self._wired = not (server.cluster or server.memory)
        """Commands go over ``Wire``; else redis-py sends each."""
        self._idle: list[Wire] = []
        """The one that was used last is the next."""
        self._address: object = None
        """Of the server that was found last: where it is another, the former's connections are not used again."""
        self._closed = False

    async def command(self, *args: bytes | str | int) -> Any:
        """One command."""
        return await self._enqueue(args).reply

    async def parsed(self, *args: str) -> Any:
        """One command, its reply in the form that redis-py gives it."""
        return await self._enqueue((), exclusive=lambda: self.client.execute_command(*args)).reply

    async def script(self, call: ScriptCall, *, acknowledge: bool = False) -> Any:
        """One script. ``acknowledge``: by as many Redis replicas as the adapter was told to wait for."""
        if acknowledge and self._replicas:
            return await self._enqueue((), exclusive=lambda: self._acknowledged(call)).reply
        return await self._enqueue(call.by_sha(), call.by_text()).reply

    async def scripts(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Several scripts, side by side. Any may have been run when it raises."""
        return await asyncio.gather(*(self._enqueue(call.by_sha(), call.by_text()).reply for call in calls))

    async def close(self) -> None:
        """Close every connection. What is under way gets its time, what waits is told so."""
        self._closed = True
        for pending in self._waiting:
            pending.answer(StoreUnavailable(CLOSED))
        if self._serving:
            _, late = await asyncio.wait(self._serving, timeout=DEADLINE)
            for task in late:
                task.cancel()
        self._close_idle()
        await close(self.client)

    def _enqueue(
        self, args: Args, fallback: Args = (), *, exclusive: Callable[[], Awaitable[Any]] | None = None
    ) -> PendingCommand:
        if self._closed:
            raise StoreUnavailable(CLOSED)
        pending = PendingCommand(args, fallback, exclusive, self._late)
        if not self._free:
            pending.since = asyncio.get_running_loop().time()
        self._waiting.append(pending)
        if not self._flush_is_due:
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self._flush)
        return pending

    def _late(self, pending: PendingCommand) -> None:
        if not pending.reply.done():
            error = TimeoutError()
            self._observer.failed(kind_of(error))
            pending.answer(error)

    def _flush(self) -> None:
        """Send what waits, as far as there are connections."""
        self._flush_is_due = False
        while self._free and (batch := self._take()):
            self._free -= 1
            task = asyncio.get_running_loop().create_task(self._serve(batch))
            self._serving.add(task)
            task.add_done_callback(self._served)
        self._observer.pool(self._limit - self._free, len(self._waiting))

    def _take(self) -> list[PendingCommand]:
        most = TOGETHER if self._wired else 1
        batch: list[PendingCommand] = []
        while self._waiting and len(batch) < most:
            if batch and self._waiting[0].exclusive:
                break
            pending = self._waiting.popleft()
            if pending.reply.done():
                pending.deadline.cancel()
                continue
            if pending.since is not None:
                self._observer.waited(asyncio.get_running_loop().time() - pending.since)
            batch.append(pending)
            if pending.exclusive:
                break
        return batch

    def _served(self, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        self._free += 1
        if self._waiting:
            self._flush()
        else:
            self._observer.pool(self._limit - self._free, 0)

    async def _serve(self, batch: list[PendingCommand]) -> None:
        """Send, and answer everybody: no failure is left in this task."""
        answers: Sequence[Any]
        began = asyncio.get_running_loop().time()
        try:
            answers = await self._send(batch)
        except CAUGHT as error:
            answers = [error] * len(batch)
        except Exception as error:
            # redis-py uses a connection while another task closes it, and stumbles over what is None by then.
            log.warning("unexpected from the Redis client", exc_info=error)
            answers = [error] * len(batch)
        except asyncio.CancelledError:
            for pending in batch:
                pending.answer(StoreUnavailable(CLOSED))
            raise
        self._observer.trip(asyncio.get_running_loop().time() - began)
        for pending, answer in zip(batch, answers, strict=True):
            if isinstance(answer, Exception) and not pending.reply.done():
                self._observer.failed(kind_of(answer))
            pending.answer(answer)
        if any(isinstance(answer, ReadOnlyError) for answer in answers):
            await self._forget_connections()

    async def _send(self, batch: list[PendingCommand]) -> Sequence[Any]:
        if isinstance(self.client, RedisCluster):
            # Before it has the map, redis-py sends a script to any node.
            await self.client.initialize()
        if batch[0].exclusive or not self._wired:
            return [await self._send_one(batch[0])]
        wire = await self._wire()
        try:
            answers = await wire.ask([pending.args for pending in batch])
            unknown = [n for n, answer in enumerate(answers) if isinstance(answer, NoScriptError) and batch[n].fallback]
            if unknown:
                texts = await wire.ask([batch[n].fallback for n in unknown])
                for n, answer in zip(unknown, texts, strict=True):
                    answers[n] = answer
        except BaseException:
            wire.close()
            raise
        self._idle.append(wire)
        return answers

    async def _wire(self) -> Wire:
        while self._idle:
            wire = self._idle.pop()
            if not wire.lost and wire.address == self._address:
                return wire
            wire.close()
        assert isinstance(self.client, Redis)
        made = await Wire.open(self.client.connection_pool)
        self._address = made.address
        return made

    def _close_idle(self) -> None:
        for wire in self._idle:
            wire.close()
        self._idle.clear()

    async def _send_one(self, pending: PendingCommand) -> Any:
        if pending.exclusive:
            return await pending.exclusive()
        try:
            return await self.client.execute_command(*pending.args)
        except NoScriptError:
            if not pending.fallback:
                raise
            return await self.client.execute_command(*pending.fallback)

    async def _acknowledged(self, call: ScriptCall) -> Any:
        return await acknowledged(self.client, call, self._replicas)

    async def _forget_connections(self) -> None:
        """What answers as a replica was the master once: look it up anew."""
        self._close_idle()
        if isinstance(self.client, Redis):
            await self.client.connection_pool.disconnect(inuse_connections=False)
