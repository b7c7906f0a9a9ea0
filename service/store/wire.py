"""One connection to Redis for commands: written and read here, made by redis-py (TLS, credentials, Sentinel).

redis-py spends four times as much of the processor on a command as this does: docs/decisions/processor-time.md.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Self, cast

import hiredis
from redis.asyncio import ConnectionPool
from redis.exceptions import ConnectionError, NoScriptError, ReadOnlyError, ResponseError, TimeoutError

from service.store import urls
from service.store.scripts import Args

_NOT_YET = object()
_ERRORS = {"NOSCRIPT": NoScriptError, "READONLY": ReadOnlyError}
"""Those that somebody tells apart by their class; of others the text says it."""


class Wire(asyncio.Protocol):
    """Some commands at a time, and then their replies."""

    def __init__(self, connection: Any) -> None:
        self.address = (connection.host, connection.port)
        self.lost = False
        self._connection = connection
        """redis-py's: it warns where it is collected open."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport = connection._writer.transport
        self._transport.set_protocol(self)
        self._reader = hiredis.Reader(protocolError=ConnectionError, replyError=_reply_error, notEnoughData=_NOT_YET)
        self._replies: list[Any] = []
        self._owed = 0
        self._answer: asyncio.Future[list[Any]] | None = None
        self._heard = 0.0
        self._timer: asyncio.TimerHandle | None = None
        """Set once for many commands: most are answered long before."""

    @classmethod
    async def open(cls, pool: ConnectionPool) -> Self:
        """A new one, as ``pool`` makes them."""
        connection = pool.make_connection()
        await connection.connect()
        return cls(connection)

    async def ask(self, commands: Sequence[Args]) -> list[Any]:
        """A reply for each command, errors among them. Raises redis-py's ``ConnectionError`` or ``TimeoutError``, and
        is ``lost`` then: any command may have been executed. So it is where the caller is cancelled.
        """
        if self.lost:
            raise ConnectionError("the connection is closed")
        self._replies, self._owed = [], len(commands)
        self._answer = self._loop.create_future()
        self._heard = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(urls.REPLY_TIMEOUT, self._look_at_the_clock)
        try:
            self._transport.write(b"".join([hiredis.pack_command(cast("Any", command)) for command in commands]))
            return await self._answer
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._answer = None

    def close(self) -> None:
        """Cut it off."""
        self._fail(ConnectionError("the connection was closed"))
        self._transport.abort()

    # -- called by the event loop

    def data_received(self, data: bytes) -> None:
        """Bytes of replies. Some that nobody waits for have gone astray: no more is believed of this connection."""
        self._heard = self._loop.time()
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not _NOT_YET:
                self._replies.append(reply)
        except ConnectionError as error:
            self._fail(error)
        if self._answer is None or len(self._replies) > self._owed:
            self.close()
        elif len(self._replies) == self._owed and not self._answer.done():
            self._answer.set_result(self._replies)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._fail(ConnectionError(f"the connection was lost: {exc}"))
        self._connection._reader = self._connection._writer = None
        if self._timer is not None:
            self._timer.cancel()

    def _look_at_the_clock(self) -> None:
        due = self._heard + urls.REPLY_TIMEOUT
        if self._answer is None or self.lost:
            self._timer = None
        elif self._loop.time() < due:
            self._timer = self._loop.call_at(due, self._look_at_the_clock)
        else:
            self._fail(TimeoutError("no reply in time"))
            self._transport.abort()

    def _fail(self, error: Exception) -> None:
        self.lost = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


def _reply_error(text: str) -> Exception:
    return _ERRORS.get(text.partition(" ")[0], ResponseError)(text)
