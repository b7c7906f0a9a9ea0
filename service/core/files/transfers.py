"""Transfers under way: a sandbox is kept for as long as one lasts, and one ends soon after its sandbox is paused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from service import errors
from service.core.files.shell import paused
from service.core.sandboxes.access import Access
from service.core.sandboxes.expiry import Expiry
from service.core.sandboxes.liveness import Liveness

EVERY = 2.0
"""Seconds between two looks at whether the sandbox is paused. What the engine said is believed for as long."""
KEEP_EVERY = 15
"""Looks between two at its expiry."""


class Transfers:
    """Watches over transfers, for one replica."""

    def __init__(self, access: Access, liveness: Liveness, expiry: Expiry) -> None:
        self._access = access
        self._liveness = liveness
        self._expiry = expiry

    @contextlib.asynccontextmanager
    async def of(self, tenant: str, sandbox_id: str) -> AsyncIterator[None]:
        """One transfer, while the block lasts. Raises ``SandboxNotFound``; ``SandboxNotRunning`` once it is paused."""
        record = await self._access.known(tenant, sandbox_id)
        kept = [await self._expiry.keep_for_transfer(sandbox_id, record)]
        cut = asyncio.timeout(None)
        try:
            async with cut:
                watch = asyncio.ensure_future(self._watch(sandbox_id, cut, kept))
                try:
                    yield
                finally:
                    watch.cancel()
        except TimeoutError:
            if cut.expired():
                raise paused(sandbox_id) from None
            raise
        finally:
            if any(kept):
                self._expiry.job_ended(sandbox_id)

    async def _watch(self, sandbox_id: str, cut: asyncio.Timeout, kept: list[bool]) -> None:
        rounds = 0
        while True:
            await asyncio.sleep(EVERY)
            rounds += 1
            if await self._liveness.asleep(sandbox_id):
                cut.reschedule(asyncio.get_running_loop().time())
                return
            if rounds % KEEP_EVERY == 0:
                kept.append(True)  # before it is known: the transfer may end while it is asked for
                with contextlib.suppress(errors.OnceboxError):
                    await self._expiry.keep_for_transfer(sandbox_id, None)
