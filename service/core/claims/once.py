"""Do something once: claim it and do it, or wait for whoever does.

A claim's waiters share one watch, and a waiter's cancellation never reaches the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from service.core.claims import failpoints
from service.core.claims.ownership import InFlight, Ownership, Work
from service.core.claims.tasks import Tasks
from service.core.claims.watches import POLL, Watches
from service.core.model import identity
from service.core.model.states import ClaimState
from service.core.telemetry import ClaimOutcome, Kind, Telemetry
from service.errors import StoreUnavailable
from service.ports.store import Record, Store

Make = Callable[[str], Awaitable[tuple[bool, Record]]]
"""Make the claim where there is none, with a token: (ours, the record there)."""
Take = Callable[[Record, str], Awaitable[tuple[bool, Record | None] | None]]
"""Take over what may be taken over, with a token: (ours, the record now). None: it stands, as it is."""


class Claims:
    """The claims that this replica makes or waits for."""

    def __init__(
        self, store: Store, ownership: Ownership, watches: Watches, tasks: Tasks, telemetry: Telemetry
    ) -> None:
        self._store = store
        self._ownership = ownership
        self._watches = watches
        self._tasks = tasks
        self._telemetry = telemetry

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
        return await asyncio.shield(self._tasks.start(once, f"once {id}", told=False))

    async def _once(
        self, id: str, *, make: Make, take: Take, work: Work, wait: float, seen: Record | None
    ) -> tuple[Record, bool]:
        kind: Kind = "sandbox" if identity.parse_command_id(id) is None else "job"
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        token = identity.random_token()
        ours, record = (False, seen) if seen is not None else await make(token)
        replayed = not ours
        outcome: ClaimOutcome = "won" if ours else "replayed"
        while True:
            if ours:
                await failpoints.reach(failpoints.AFTER_CLAIM)
                if self._ownership.drained:
                    await self._ownership.give_back(record)
                    raise StoreUnavailable("The replica is stopping.", retry_after=1)
                answer = await _answer(self._ownership.own(record, work), deadline - loop.time())
                replayed = False
                if answer is not None and not answer.state.pending:
                    self._telemetry.claim(kind, outcome)
                    return answer, replayed
            else:
                if self._ownership.drained:
                    return record, replayed
                taken = await take(record, token)
                if taken is not None:
                    ours, now = taken
                    if ours:
                        outcome = "taken_over" if record.state is ClaimState.CLAIMED else "reopened"
                    record = _there(now)
                    continue
                if not record.state.pending:
                    self._telemetry.claim(kind, outcome)
                    return record, replayed
                outcome = "waited"
            record = _there(await self.wait(id, _answered_or_abandoned, deadline - loop.time()))
            if not record.state.pending or loop.time() >= deadline:
                self._telemetry.claim(kind, outcome)
                return record, replayed
            ours = False

    async def wait(
        self, id: str, until: Callable[[Record], bool], timeout: float, *, known: Record | None = None
    ) -> Record | None:
        """The record as soon as ``until`` holds, or as it is after ``timeout`` seconds; None: there is none.

        ``known``: it was read or written this moment.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        async with self._watches.of(id, known) as watch:
            while True:
                record = watch.record
                left = deadline - loop.time()
                if record is not None and until(record):
                    return record
                if left <= 0:
                    return record or await self._store.get(id)
                await watch.change(min(left, POLL))


async def _answer(begun: InFlight, timeout: float) -> Record | None:
    """What our own work came to, if it settles its claim within ``timeout`` seconds."""
    await asyncio.wait({begun.answered}, timeout=max(0.0, timeout))
    if begun.answered.done() and not begun.answered.cancelled():
        return begun.answered.result()
    return None


def _there(record: Record | None) -> Record:
    if record is None:
        raise StoreUnavailable("The claim vanished from the store.")
    return record


def _answered_or_abandoned(record: Record) -> bool:
    return not record.state.pending or record.lease_expired
