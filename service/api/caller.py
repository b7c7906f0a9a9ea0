"""Work against the caller's disconnect: what nobody waits for any more is not gone on with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from starlette.types import Receive

T = TypeVar("T")

HALF_CLOSED_SECONDS = 0.5
"""For which a stream goes on after its reader has closed its own side: it may be gone, or may read what is there."""


class CallerGone(Exception):
    """The caller closed the connection before there was an answer. ``begun``: what it asked for goes on."""

    def __init__(self, *, begun: bool = False) -> None:
        super().__init__()
        self.begun = begun


class Caller:
    """The other end of one request whose body has been read: watched from the first wait on, until ``close``."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone: asyncio.Task[None] | None = None
        self.stays = 0.0
        """Seconds for which it counts as there after it closed the connection, or only its own side of it. Set before
        the first wait."""

    async def waits(self, work: asyncio.Future[Any], timeout: float | None = None) -> bool:
        """Whether ``work`` is done, within ``timeout`` seconds. Raises ``CallerGone`` where nobody waits for it."""
        if self._gone is None:
            self._gone = asyncio.ensure_future(self._leave())
        elif self._gone.done():
            raise CallerGone
        either: set[asyncio.Future[Any]] = {work, self._gone}
        await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if not work.done() and self._gone.done():
            raise CallerGone
        return work.done()

    async def unless_gone(self, answer: Awaitable[T]) -> T:
        """``answer``, or ``CallerGone`` once nobody waits for it any more; it is then cancelled."""
        work = asyncio.ensure_future(answer)
        try:
            await self.waits(work)
            return work.result()
        except CallerGone:
            raise CallerGone(begun=True) from None
        finally:
            await end(work)

    async def close(self) -> None:
        """The answer is over."""
        if self._gone is not None:
            await end(self._gone)

    async def _leave(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        await asyncio.sleep(self.stays)


async def end(task: asyncio.Future[Any]) -> None:
    """Cancel ``task`` if it still runs, and wait for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
