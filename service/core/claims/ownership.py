"""Owning claims: work in flight, its lease, and the writes that only an owner makes.

Work belongs to the application: a caller who goes away stops nothing. One task an id in a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from service.core.claims.tasks import Tasks
from service.core.claims.watches import Board
from service.core.model.states import ClaimState
from service.errors import StoreUnavailable
from service.ports.store import Claimed, Ended, Record, Store

T = TypeVar("T")
log = logging.getLogger("oncebox.claims")

PERSIST = 120.0
"""Seconds for which an answer that is known is tried to be written while the store is away."""

GIVEN_BACK = 3600.0
"""Seconds for which a claim stands whose request a stopping replica did not begin; a retry takes it over."""

Work = Callable[[Record], Awaitable[Record | None]]


@dataclass(frozen=True, eq=False)
class InFlight:
    """Work in flight: ``answered`` has the record once it settles the claim; cancelled where the work ended without."""

    mine: Record
    task: asyncio.Task[Record | None]
    answered: asyncio.Future[Record]


class Ownership:
    """The claims that this replica owns."""

    def __init__(self, store: Store, board: Board, tasks: Tasks, *, owner: str, lease: float) -> None:
        self._store = store
        self._board = board
        self._tasks = tasks
        self.owner = owner
        """This replica's name, as records have it."""
        self._lease = lease
        self._in_flight: dict[str, InFlight] = {}
        self._drained = False

    # -- to become the owner

    async def claim(
        self,
        id: str,
        token: str,
        body: bytes,
        *,
        request: bytes = b"",
        tenant: str | None = None,
        dispatched: bool = False,
    ) -> Claimed:
        """Make the claim where there is none; see ``Store.claim``."""
        return await self._store.claim(
            id,
            token=token,
            owner=self.owner,
            lease=self._lease,
            body=body,
            request=request,
            tenant=tenant,
            dispatched=dispatched,
        )

    async def take_over(self, seen: Record, token: str) -> tuple[bool, Record | None]:
        """Become the owner of what another one left before anything was sent; see ``Store.take_over``."""
        return await self._store.take_over(seen, token=token, owner=self.owner, lease=self._lease)

    async def reopen(
        self,
        seen: Record,
        token: str,
        body: bytes,
        *,
        next_attempt: bool,
        request: bytes = b"",
        tenant: str | None = None,
    ) -> tuple[bool, Record | None]:
        """Become the owner of what is to be tried again; see ``Store.reopen``."""
        return await self._store.reopen(
            seen,
            token=token,
            owner=self.owner,
            lease=self._lease,
            next_attempt=next_attempt,
            body=body,
            request=request,
            tenant=tenant,
        )

    # -- the owner's work

    @property
    def drained(self) -> bool:
        """The grace of a stop is over: nothing is taken or sent any more, least of all what was just given back."""
        return self._drained

    def own(self, mine: Record, work: Work) -> InFlight:
        """Do ``work`` under the lease of ``mine``, in a task of the application."""
        task = self._tasks.start(self._leased(mine, work), f"claim {mine.id}")
        begun = InFlight(mine, task, asyncio.get_running_loop().create_future())
        self._in_flight[mine.id] = begun
        task.add_done_callback(lambda _: self._landed(begun))
        return begun

    def _landed(self, begun: InFlight) -> None:
        if self._in_flight.get(begun.mine.id) is begun:
            del self._in_flight[begun.mine.id]
        if not begun.answered.done():
            begun.answered.cancel()

    async def take_up(self, mine: Record, work: Work) -> None:
        """Own what was just reopened by this replica itself; give it back where the grace was over meanwhile."""
        if self._drained:
            await self.give_back(mine)
        else:
            self.own(mine, work)

    async def give_back(self, mine: Record) -> None:
        """Nothing was sent: somebody else may begin at once."""
        if mine.state is ClaimState.DISPATCHED:  # never taken over, so it says what became of it
            await self._store.settle(mine, ClaimState.REFUSED, body=mine.body, ttl=GIVEN_BACK)
        else:
            await self._store.release(mine)

    async def _leased(self, mine: Record, work: Work) -> Record | None:
        renewal = self._tasks.start(self._renew(mine), f"lease {mine.id}")
        try:
            return await work(mine)
        finally:
            renewal.cancel()

    async def _renew(self, mine: Record) -> None:
        while True:
            await asyncio.sleep(self._lease / 3)
            try:
                ours, record = await self._store.renew(mine, lease=self._lease)
            except StoreUnavailable:
                continue
            except Exception as error:  # a lease that ends under its work lets another replica think it dead
                log.error("the lease of %s was not renewed", mine.id, exc_info=error)
                continue
            if not ours and (record is None or not record.state.pending or record.token != mine.token):
                return

    async def dispatch(self, mine: Record, body: bytes) -> tuple[bool, Record | None]:
        """Mark ``mine`` dispatched; True when its owner may send now. Only the owner's own work calls this, once.

        Where the answer of this very write was lost, the record shows it: our token, our epoch, dispatched. Nothing
        has been sent yet then, since this is where sending begins.
        """
        sent, record = await self.persist(lambda: self._store.dispatch(mine, lease=self._lease, body=body))
        if record is not None and not sent:
            ours = (record.token, record.epoch) == (mine.token, mine.epoch)
            sent = ours and record.state is ClaimState.DISPATCHED
        return sent, record

    async def settle(
        self,
        mine: Record,
        state: ClaimState,
        body: bytes,
        *,
        ttl: float | None,
        look_in: float = 0.0,
        ended: Ended | None = None,
    ) -> Record | None:
        """Write how the work went, tried for as long as the store is away; the record as it is then."""
        _, record = await self.persist(
            lambda: self._store.settle(mine, state, body=body, ttl=ttl, look_in=look_in, ended=ended)
        )
        if record is not None:
            self.tell(record)
        return record

    async def persist(self, write: Callable[[], Awaitable[T]]) -> T:
        """Write what is known by now, again and again while the store is away (``PERSIST`` at most)."""
        deadline = asyncio.get_running_loop().time() + PERSIST
        delay = 0.1
        while True:
            try:
                return await write()
            except StoreUnavailable:
                if asyncio.get_running_loop().time() + delay > deadline:
                    raise
                await asyncio.sleep(delay * random.uniform(0.5, 1.0))
                delay = min(delay * 2, 2.0)

    def tell(self, record: Record, *, notify: bool = True) -> None:
        """This replica wrote ``record``: who waits for it here need not ask the store; it hears of it if ``notify``."""
        begun = self._in_flight.get(record.id)
        ours = begun is not None and begun.mine.token == record.token
        if begun is not None and ours and not record.state.pending and not begun.answered.done():
            begun.answered.set_result(record)
        self._board.tell(record, notify=notify)

    async def drain(self, grace: float) -> None:
        """Finish what is owned, for ``grace`` seconds at most; give back what was not dispatched by then."""
        if self._in_flight:
            await asyncio.wait([begun.task for begun in self._in_flight.values()], timeout=grace)
        self._drained = True
        for begun in list(self._in_flight.values()):
            if not begun.task.done():
                begun.task.cancel()
                with contextlib.suppress(StoreUnavailable):
                    await self._store.release(begun.mine)
