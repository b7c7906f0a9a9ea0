"""Owning a claim: work in flight, its lease, its answer, and waiting for somebody else's.

Work belongs to the application: a caller who goes away stops nothing. One task an id in a process; its waiters
share it, and a waiter's cancellation never reaches it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from service.core import identity, pauses
from service.core.states import ClaimState
from service.core.tasks import Tasks
from service.core.telemetry import ClaimOutcome, Kind, Telemetry
from service.core.watching import POLL, Watches
from service.errors import StoreUnavailable
from service.ports.store import Record, Store

T = TypeVar("T")
log = logging.getLogger("oncebox.claims")

PERSIST = 120.0
"""Seconds for which an answer that is known is tried to be written while the store is away."""

GIVEN_BACK = 3600.0
"""Seconds for which a claim stands whose request a stopping replica did not begin; a retry takes it over."""

Work = Callable[[Record], Awaitable[Record | None]]
Make = Callable[[str], Awaitable[tuple[bool, Record]]]
"""Make the claim where there is none, with a token: (ours, the record there)."""
Take = Callable[[Record, str], Awaitable[tuple[bool, Record | None] | None]]
"""Take over what may be taken over, with a token: (ours, the record now). None: it stands, as it is."""


@dataclass(frozen=True, eq=False)
class Flight:
    """Work in flight: ``answered`` has the record once it settles the claim; cancelled where the work ended without."""

    mine: Record
    task: asyncio.Task[Record | None]
    answered: asyncio.Future[Record]


class Claims:
    """The claims that this replica owns or waits for."""

    def __init__(
        self, store: Store, watches: Watches, tasks: Tasks, *, owner: str, lease: float, telemetry: Telemetry
    ) -> None:
        self.store = store
        self.watches = watches
        self.tasks = tasks
        self.owner = owner
        self.lease = lease
        self.telemetry = telemetry
        self._flights: dict[str, Flight] = {}
        self._drained = False
        """The grace is over: nothing is taken any more, least of all what was just given back."""

    async def once(
        self, id: str, *, make: Make, take: Take, work: Work, wait: float, seen: Record | None = None
    ) -> tuple[Record, bool]:
        """Claim ``id`` and do ``work``, or wait for whoever does, for ``wait`` seconds at most.

        ``make`` makes the claim, unless it was ``seen`` there a moment ago.

        Returns the record as far as it got, and whether somebody else's work answered. An attempt that was waited
        for is an answer, whatever came of it; one that had failed before is tried again (``take``).

        It runs in a task of the application: a caller who leaves in the middle leaves no claim without an owner.
        """
        once = self._once(id, make=make, take=take, work=work, wait=wait, seen=seen)
        return await asyncio.shield(self.tasks.start(once, f"once {id}", told=False))

    async def _once(
        self, id: str, *, make: Make, take: Take, work: Work, wait: float, seen: Record | None
    ) -> tuple[Record, bool]:
        kind = self._kind(id)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        token = identity.random_token()
        ours, record = (False, seen) if seen is not None else await make(token)
        replayed = not ours
        outcome: ClaimOutcome = "won" if ours else "replayed"
        while True:
            if ours:
                await pauses.reach(pauses.AFTER_CLAIM)
                if self._drained:
                    await self._give_back(record)
                    raise StoreUnavailable("The replica is stopping.", retry_after=1)
                answer = await self._answer(self.own(record, work), deadline - loop.time())
                replayed = False
                if answer is not None and not answer.state.pending:
                    self.telemetry.claim(kind, outcome)
                    return answer, replayed
            else:
                if self._drained:
                    return record, replayed
                taken = await take(record, token)
                if taken is not None:
                    ours, now = taken
                    if ours:
                        outcome = "taken_over" if record.state is ClaimState.CLAIMED else "reopened"
                    record = self._there(now)
                    continue
                if not record.state.pending:
                    self.telemetry.claim(kind, outcome)
                    return record, replayed
                outcome = "waited"
            record = self._there(await self.wait(id, _answered_or_abandoned, deadline - loop.time()))
            if not record.state.pending or loop.time() >= deadline:
                self.telemetry.claim(kind, outcome)
                return record, replayed
            ours = False

    @property
    def drained(self) -> bool:
        """The grace of a stop is over: nothing is taken or sent any more."""
        return self._drained

    async def take_up(self, mine: Record, work: Work) -> None:
        """Own what was just reopened by this replica itself; give it back where the grace was over meanwhile."""
        if self._drained:
            await self._give_back(mine)
        else:
            self.own(mine, work)

    async def _give_back(self, mine: Record) -> None:
        """Nothing was sent: somebody else may begin at once."""
        if mine.state is ClaimState.DISPATCHED:  # never taken over, so it says what became of it
            await self.store.settle(mine, ClaimState.REFUSED, body=mine.body, ttl=GIVEN_BACK)
        else:
            await self.store.release(mine)

    @staticmethod
    def _kind(id: str) -> Kind:
        return "sandbox" if identity.parse_command_id(id) is None else "job"

    @staticmethod
    def _there(record: Record | None) -> Record:
        if record is None:
            raise StoreUnavailable("The claim vanished from the store.")
        return record

    def own(self, mine: Record, work: Work) -> Flight:
        """Do ``work`` under the lease of ``mine``, in a task of the application."""
        task = self.tasks.start(self._leased(mine, work), f"claim {mine.id}")
        flight = Flight(mine, task, asyncio.get_running_loop().create_future())
        self._flights[mine.id] = flight
        task.add_done_callback(lambda _: self._landed(flight))
        return flight

    def _landed(self, flight: Flight) -> None:
        if self._flights.get(flight.mine.id) is flight:
            del self._flights[flight.mine.id]
        if not flight.answered.done():
            flight.answered.cancel()

    @staticmethod
    async def _answer(flight: Flight, timeout: float) -> Record | None:
        """What our own work came to, if it settles its claim within ``timeout`` seconds."""
        await asyncio.wait({flight.answered}, timeout=max(0.0, timeout))
        if flight.answered.done() and not flight.answered.cancelled():
            return flight.answered.result()
        return None

    def tell(self, record: Record, *, quiet: bool = False) -> None:
        """This replica wrote ``record``: who waits for it here need not ask the store, nor hear of it if ``quiet``."""
        flight = self._flights.get(record.id)
        ours = flight is not None and flight.mine.token == record.token
        if flight is not None and ours and not record.state.pending and not flight.answered.done():
            flight.answered.set_result(record)
        self.watches.tell(record, quiet=quiet)

    async def _leased(self, mine: Record, work: Work) -> Record | None:
        renewal = self.tasks.start(self._renew(mine), f"lease {mine.id}")
        try:
            return await work(mine)
        finally:
            renewal.cancel()

    async def _renew(self, mine: Record) -> None:
        while True:
            await asyncio.sleep(self.lease / 3)
            try:
                ours, record = await self.store.renew(mine, lease=self.lease)
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
        sent, record = await self.persist(lambda: self.store.dispatch(mine, lease=self.lease, body=body))
        if record is not None and not sent:
            ours = (record.token, record.epoch) == (mine.token, mine.epoch)
            sent = ours and record.state is ClaimState.DISPATCHED
        return sent, record

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

    async def wait(
        self, id: str, until: Callable[[Record], bool], timeout: float, *, known: Record | None = None
    ) -> Record | None:
        """The record as soon as ``until`` holds, or as it is after ``timeout`` seconds; None: there is none.

        ``known``: it was read or written this moment.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        async with self.watches.of(id, known) as watch:
            while True:
                record = watch.record
                left = deadline - loop.time()
                if record is not None and until(record):
                    return record
                if left <= 0:
                    return record or await self.store.get(id)
                await watch.change(min(left, POLL))

    async def drain(self, grace: float) -> None:
        """Finish what is owned, for ``grace`` seconds at most; give back what was not dispatched by then."""
        flights = dict(self._flights)
        if flights:
            await asyncio.wait([flight.task for flight in flights.values()], timeout=grace)
        self._drained = True
        for flight in list(self._flights.values()):
            if not flight.task.done():
                flight.task.cancel()
                with contextlib.suppress(StoreUnavailable):
                    await self.store.release(flight.mine)


def _answered_or_abandoned(record: Record) -> bool:
    return not record.state.pending or record.lease_expired
