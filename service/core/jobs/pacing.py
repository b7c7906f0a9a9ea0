"""How often the engine is asked for news of jobs, over all replicas together.

A job that somebody watches is looked at every ``max(0.5 s, interval x active / 500)``, at most every ``interval``.
Looks come one after the other from a queue in the store that moves a little faster than that at most. Reads besides
(a job's first, its last ones) are not held up by the queue, but it moves on by as many: the looks make room for them.
"""

from __future__ import annotations

import random
import zlib

from service.core.model.states import ClaimState
from service.core.records import JobBody
from service.ports.store import Record, Store

QUICKEST = 0.5
"""Seconds between two looks at a watched job, at the least."""
JOBS_AT_INTERVAL = 500
"""Active jobs at which watched ones are looked at every ``interval``."""
SHARE = 0.96
"""Of the looks that these jobs would get, how many the queue has places for: the rest is for what comes unevenly."""
BURST = 16
"""Looks at once after a quiet time."""
JOBS_A_QUEUE = 4000
"""From twice as many active jobs on there are several queues, since each stands on one node of a Redis Cluster."""

FIRST, SLOWEST, GROWTH = 2.0, 15.0, 1.4
"""Seconds between polls of a job that nobody watches, and how fast they grow without news."""
TROUBLED = 60.0
"""Seconds that they grow to while its sandbox does not answer."""
CONFIRM_AFTER = 0.3
"""Seconds until a command that was accepted is polled again, where its run was not seen yet; they grow as fast."""


def next_poll(record: Record, state: ClaimState, body: JobBody) -> float:
    """Seconds until a job that nobody watches is polled again, where ``state`` and ``body`` are the record's."""
    if state.pending:
        return max(0.1, (record.lease_until - record.now) / 1000 + 0.1)
    quiet, slowest = body.quiet_polls, SLOWEST if body.troubled_since is None else TROUBLED
    match state:
        case ClaimState.ACCEPTED:
            return CONFIRM_AFTER * GROWTH**quiet if quiet < 10 else SLOWEST
        case ClaimState.ENDED:
            return 1.0
        case ClaimState.UNKNOWN:
            return min(slowest, 0.5 * GROWTH ** min(quiet, 20)) * random.uniform(0.8, 1.2)
    return min(slowest, FIRST * GROWTH ** min(quiet, 20))


class Pace:
    """The pace of one replica's looks, in step with the others'."""

    def __init__(self, store: Store, interval: float) -> None:
        self._store = store
        self._interval = interval
        self._more = 0
        self.active = 0
        """Jobs that are active, over all replicas."""

    def seconds(self) -> float:
        """Between two looks at a watched job."""
        return min(self._interval, max(QUICKEST, self._interval * self.active / JOBS_AT_INTERVAL))

    def charge(self, reads: int = 1) -> None:
        """So many reads were made beside a look's one of the state and one of the output."""
        self._more += reads

    async def poll_slot(self, id: str) -> float | None:
        """Seconds until our look at ``id`` is to begin; None: somebody looks, or did within the pace."""
        more, self._more = self._more, 0
        queues = max(1, self.active // JOBS_A_QUEUE)
        return await self._store.poll_slot(
            f"news{zlib.crc32(id.encode()) % queues}",
            id,
            lease=self.seconds() * 0.9,
            interval=self._interval * queues / (SHARE * max(JOBS_AT_INTERVAL, self.active)),
            burst=BURST,
            most=self._interval,
            more=more,
        )
