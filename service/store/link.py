"""The one way to Redis: bounded, with a deadline, and with one kind of error."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from redis.asyncio import Redis, RedisCluster
from redis.exceptions import AskError, NoScriptError, ReadOnlyError

from service.errors import StoreUnavailable
from service.store.scripts import Call
from service.store.trouble import CAUGHT, unavailable
from service.store.urls import Server

DEADLINE = 4.0
"""Seconds for one command, the wait for a connection included."""
ACKNOWLEDGE = 1.0
"""Seconds that Redis replicas get for acknowledging a write."""

T = TypeVar("T")


class Link:
    """Runs commands and scripts. Any failure is ``StoreUnavailable``; nothing is sent again by itself.

    The number of commands in flight is bounded here and not in the pools of redis-py: its pools for Sentinel
    and Cluster raise where they are empty instead of waiting.
    """

    def __init__(self, server: Server, *, max_connections: int, replicas: int = 0) -> None:
        self.server = server
        self.client: Redis | RedisCluster = server.open()
        self._gate = asyncio.Semaphore(max_connections)
        self._replicas = replicas

    async def command(self, *args: bytes | str | int) -> Any:
        """One command."""
        return await self._run(lambda: self.client.execute_command(*args))

    async def script(self, call: Call, *, acknowledged: bool = False) -> Any:
        """One script. ``acknowledged``: by as many Redis replicas as the adapter was told to wait for."""
        if acknowledged and self._replicas:
            return await self._run(lambda: self._acknowledged(call))
        return await self._run(lambda: self._script(call))

    async def scripts(self, calls: Sequence[Call]) -> list[Any]:
        """Several scripts, in one round trip but on a cluster. Any of them may have been run when this raises."""
        if len(calls) == 1 or self.server.cluster:
            return list(await asyncio.gather(*(self.script(call) for call in calls)))
        return await self._run(lambda: self._pipelined(calls))

    async def close(self) -> None:
        """Close every connection."""
        await self.client.aclose()

    async def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(DEADLINE), self._gate:
                return await work()
        except StoreUnavailable:
            raise
        except CAUGHT as error:
            if isinstance(error, ReadOnlyError):
                await self._forget_connections()
            raise unavailable(error) from error

    async def _script(self, call: Call) -> Any:
        tail = (len(call.keys), *call.keys, *call.args)
        try:
            return await self.client.execute_command("EVALSHA", call.script.sha, *tail)
        except NoScriptError:
            return await self.client.execute_command("EVAL", call.script.text, *tail)

    async def _pipelined(self, calls: Sequence[Call]) -> list[Any]:
        assert isinstance(self.client, Redis)
        pipeline = self.client.pipeline(transaction=False)
        for call in calls:
            pipeline.execute_command("EVALSHA", call.script.sha, len(call.keys), *call.keys, *call.args)
        answers = await pipeline.execute(raise_on_error=False)
        for index, answer in enumerate(answers):
            if isinstance(answer, NoScriptError):
                answers[index] = await self._script(calls[index])
            elif isinstance(answer, Exception):
                raise answer
        return list(answers)

    async def _acknowledged(self, call: Call) -> Any:
        """The script and ``WAIT``, on one connection: ``WAIT`` counts for the writes of its own."""
        wait = ("WAIT", self._replicas, int(ACKNOWLEDGE * 1000))
        tail = (len(call.keys), *call.keys, *call.args)
        answer, count = await self._together(call.keys[0], ("EVALSHA", call.script.sha, *tail), wait)
        if isinstance(answer, NoScriptError):
            answer, count = await self._together(call.keys[0], ("EVAL", call.script.text, *tail), wait)
        for reply in (answer, count):
            if isinstance(reply, Exception):
                raise reply
        if count < self._replicas:
            raise StoreUnavailable(
                f"{count} of {self._replicas} Redis replicas acknowledged the claim.", retry_after=1
            )
        return answer

    async def _together(self, key: str, first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Any, Any]:
        if isinstance(self.client, RedisCluster):
            return await self._together_on_node(self.client, key, first, second)
        pipeline = self.client.pipeline(transaction=False)
        pipeline.execute_command(*first)
        pipeline.execute_command(*second)
        one, two = await pipeline.execute(raise_on_error=False)
        return one, two

    @staticmethod
    async def _together_on_node(
        client: RedisCluster, key: str, first: tuple[Any, ...], second: tuple[Any, ...]
    ) -> tuple[Any, Any]:
        """On a node of the cluster. Redirections aren't followed one by one: both must go to one node."""
        one: Any = None
        two: Any = None
        for _ in range(2):
            # Follows a redirection, so that the map is right.
            await client.execute_command("EXISTS", key)
            node = client.get_node_from_key(key)
            pipeline = client.pipeline()
            for args in (first, second):
                pipeline.execute_command(*args, target_nodes=node)
            one, two = await pipeline.execute(raise_on_error=False, allow_redirections=False)
            if not isinstance(one, AskError):
                break
        return one, two

    async def _forget_connections(self) -> None:
        """What answered as a replica was the master once: look it up anew."""
        if isinstance(self.client, Redis):
            await self.client.connection_pool.disconnect(inuse_connections=False)
