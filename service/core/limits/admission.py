"""Submissions under way in one replica: as many as it can carry out in time; more are told so before anything is done.

Without a bound a burst makes each submission slower, until balancers give all of them up together.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from service.core.limits.room import Room
from service.errors import EngineUnavailable

SUBMISSIONS = 128
"""Of one replica; a half of them of one tenant, see `core.limits.room`."""
PATIENCE = 3.0
"""Seconds for which one waits for its turn. With the time for carrying it out, less than balancers wait (12 s)."""
HELD = 5.0
"""Seconds after which one no longer counts: it waits for a sandbox that does not answer, and costs others nothing."""
RETRY = 2
"""Seconds after which trying again makes sense."""


class Admission:
    """Lets submissions in, the tenants in turn."""

    def __init__(self) -> None:
        self._turns = Room(SUBMISSIONS, refusal=_overloaded)

    @contextlib.asynccontextmanager
    async def of(self, tenant: str, *, known: bool) -> AsyncIterator[None]:
        """One submission, while the block lasts. ``known``: it is the replay of an earlier one, which never waits.

        Raises ``EngineUnavailable`` where there are too many; nothing was done then.
        """
        with self._turns.share(tenant) as turn:
            if not turn.take(1) and not known:
                await turn.hold(1, patience=PATIENCE)
            timer = asyncio.get_running_loop().call_later(HELD, turn.close)
            try:
                yield
            finally:
                timer.cancel()


def _overloaded() -> EngineUnavailable:
    return EngineUnavailable(
        "This replica has as many submissions under way as it can carry out in time; this one was not begun.",
        retry_after=RETRY,
    )
