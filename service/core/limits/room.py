"""Room for bytes that wait for callers: bounded for each tenant and for the replica.

What is read for an answer stays in memory until its caller has taken it, and a caller may take nothing. So a request
takes room before the store or the engine is asked, for the most that can come, and gives it back when the answer is
over. No tenant gets more than what it leaves free, so that whoever comes next finds room: one may hold a half of all,
two a third each, and so on.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import NamedTuple

from service.core.model.cursors import PIECE
from service.errors import OnceboxError, RateLimited

CAPACITY = 128 * 1024 * 1024
"""Bytes of one replica."""
ROW = 32 * 1024
"""Bytes for one job or sandbox of a list: 64 labels of the longest kind."""
PATIENCE = 5.0
"""Seconds for which a request waits for room; less than balancers give a silent connection."""
RETRY = 2
"""Seconds after which trying again makes sense."""
ESCAPED = 6
"""Bytes of JSON that one byte of the log may become: a control character."""

Guard = Callable[[asyncio.Future[None]], Awaitable[bool]]
"""Waits; False where waiting has become pointless."""


def of_output(length: int) -> int:
    """Bytes of room for ``length`` bytes of the log that are written a piece at a time."""
    return length + ESCAPED * min(length, PIECE)


class Share:
    """The room of one request. ``close`` gives all of it back."""

    def __init__(self, room: Room, tenant: str | None, guard: Guard | None = None) -> None:
        self._room = room
        self._guard = guard
        self.tenant = tenant
        self.held = 0
        """Bytes."""

    def __enter__(self) -> Share:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def take(self, size: int) -> bool:
        """Hold ``size`` bytes from now on, if there is room for them at once."""
        return self._room.grow(self, size - self.held)

    async def hold(self, size: int, *, patience: float | None = PATIENCE) -> None:
        """Hold ``size`` bytes from now on, in place of what was held.

        More is waited for, ``patience`` seconds at most (None: for as long as it takes). Raises ``RateLimited``, or
        what else the room refuses with.
        """
        if not self.take(size):
            await self._room.wait(self, size - self.held, patience, self._guard)

    async def add(self, size: int) -> None:
        """Hold ``size`` bytes more. Raises ``RateLimited``."""
        await self.hold(self.held + size)

    def shrink(self, size: int) -> None:
        """Hold ``size`` bytes from now on, if that is less."""
        self.take(min(size, self.held))

    def close(self) -> None:
        """Nothing is held any more."""
        self.shrink(0)


class _Waiting(NamedTuple):
    share: Share
    more: int
    granted: asyncio.Future[None]


class Room:
    """The room of one replica: ``capacity`` bytes. ``refusal``: what is raised where there is none."""

    def __init__(self, capacity: int = CAPACITY, *, refusal: Callable[[], OnceboxError] | None = None) -> None:
        self.capacity = capacity
        self._refusal = refusal or _unread
        self.used = 0
        self._held: dict[str | None, int] = {}
        self._waiting: dict[str | None, deque[_Waiting]] = {}

    def share(self, tenant: str | None, guard: Guard | None = None) -> Share:
        """The share of a new request, empty yet. ``guard``: what it waits under."""
        return Share(self, tenant, guard)

    def grow(self, share: Share, more: int) -> bool:
        """``more`` bytes (or fewer, below 0) for ``share``; False where there is no room, or others wait for it."""
        if more > 0 and (share.tenant in self._waiting or not self._fits(share.tenant, more)):
            return False
        self._note(share, more)
        if more < 0:
            self._admit()
        return True

    async def wait(self, share: Share, more: int, patience: float | None, guard: Guard | None) -> None:
        """Wait for room. Raises the refusal."""
        waiting = _Waiting(share, more, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(share.tenant, deque()).append(waiting)
        try:
            async with asyncio.timeout(patience):
                if guard is None or await guard(waiting.granted):
                    return await waiting.granted
        except TimeoutError:
            pass
        finally:
            self._forget(waiting)
        raise self._refusal()

    def _fits(self, tenant: str | None, more: int) -> bool:
        """What a tenant holds is at most what is left for others; its first request has all that is free."""
        held, free = self._held.get(tenant, 0), self.capacity - self.used
        return more <= free and (not held or held + more <= free - more)

    def _note(self, share: Share, more: int) -> None:
        share.held += more
        self.used += more
        self._held[share.tenant] = self._held.get(share.tenant, 0) + more
        if not self._held[share.tenant]:
            del self._held[share.tenant]

    def _admit(self) -> None:
        """Let in who fits, the tenants in turn, those of one tenant as they came."""
        admitted = True
        while admitted:
            admitted = False
            for tenant, queue in list(self._waiting.items()):
                if queue[0].granted.cancelled() or self._fits(tenant, queue[0].more):
                    self._let_in(queue.popleft())
                    admitted = True
                    del self._waiting[tenant]
                    if queue:  # it is the last to have its turn again
                        self._waiting[tenant] = queue

    def _let_in(self, waiting: _Waiting) -> None:
        if not waiting.granted.cancelled():
            self._note(waiting.share, waiting.more)
            waiting.granted.set_result(None)

    def _forget(self, waiting: _Waiting) -> None:
        if waiting.granted.done() and not waiting.granted.cancelled():
            return
        queue = self._waiting.get(waiting.share.tenant)
        if queue is not None and waiting in queue:
            queue.remove(waiting)
            if not queue:
                del self._waiting[waiting.share.tenant]
        self._admit()


def _unread() -> RateLimited:
    return RateLimited(
        "The answers that wait for this tenant's callers take all the room there is; nothing was done. "
        "Read those that have begun, or come back later.",
        retry_after=RETRY,
    )


UNBOUNDED = Room(sys.maxsize).share(None)
"""For whoever takes what comes at once, within this process."""
