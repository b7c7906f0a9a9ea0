"""Counted slots (quotas), rates, and chores that come due later."""

from service.ports.store import Admission
from service.store import keys
from service.store.base import Part, call, expiry_ms, ms, texts

UNLIMITED = 2**52


class Slots(Part):
    """Slots and rates end by themselves; chores are taken by one replica at a time."""

    async def reserve(self, name: str, member: str, *, limit: int | None, ttl: float) -> bool:
        """Take or keep a slot."""
        most = UNLIMITED if limit is None else limit
        taken = await self._link.script(call("reserve", (keys.slots(name),), member, most, expiry_ms(ttl)))
        return bool(taken)

    async def vacate(self, name: str, member: str) -> None:
        """Give a slot back."""
        await self._link.script(call("unlist", (keys.slots(name),), member))

    async def admit(self, name: str, *, interval: float, burst: int) -> Admission:
        """Count one request against a rate, where it allows it."""
        through, left, wait, reset = await self._link.script(
            call("admit", (keys.rate(name),), f"{interval * 1000:.6f}", burst)
        )
        return Admission(through == 1, left, wait / 1000, reset / 1000)

    async def turn(
        self, queue: str, name: str, *, lease: float, interval: float, burst: int, most: float, more: int
    ) -> float | None:
        """Take the right to ``name``, and the next place of ``queue``."""
        what = (expiry_ms(lease), f"{interval * 1000:.6f}", burst, ms(most), more)
        wait = await self._link.script(call("turn", keys.turn(queue, name), *what))
        return None if wait < 0 else wait / 1000

    async def ripe(self, chore: str, *, limit: int, lease: float) -> list[str]:
        """Chores that are due, set back by the lease."""
        found: list[str] = []
        for some in self._together(tuple(keys.chores(chore, shard) for shard in range(keys.SHARDS))):
            if len(found) < limit:
                members: list[bytes] = await self._link.script(call("due", some, limit - len(found), ms(lease)))
                found += texts(members)
        return found

    async def done_with(self, chore: str, member: str) -> None:
        """Take a chore off the list."""
        shard = keys.shard(keys.sandbox_of(member.partition(" ")[0]))
        await self._link.script(call("unlist", (keys.chores(chore, shard),), member))
