"""Counted slots (quotas), rates, and chores that come due later."""

from service.core.model.identity import parse_command_id
from service.ports.store import Admission
from service.store import keys
from service.store.base import Part, call, expiry_ms, ms, texts

UNLIMITED = 2**52


class Slots(Part):
    """Slots and rates end by themselves; chores are taken by one replica at a time."""

    async def reserve(self, name: str, member: str, *, limit: int | None, ttl: float) -> bool:
        """Take or keep a slot."""
        what = (UNLIMITED if limit is None else limit, expiry_ms(ttl), int(limit is not None))
        taken = await self._redis.script(call("reserve", (keys.slots(name),), member, *what))
        return bool(taken)

    async def holders(self, name: str) -> dict[str, float]:
        """Who has a slot, and for how many seconds."""
        found = await self._redis.script(call("holders", (keys.slots(name),)))
        return {member.decode(): left / 1000 for member, left in zip(found[::2], found[1::2], strict=True)}

    async def vacate(self, name: str, member: str) -> None:
        """Give a slot back."""
        await self._redis.script(call("unlist", (keys.slots(name),), member))

    async def admit(self, name: str, *, interval: float, burst: int) -> Admission:
        """Count one request against a rate, where it allows it."""
        through, left, wait, reset = await self._redis.script(
            call("admit", (keys.rate(name),), f"{interval * 1000:.6f}", burst)
        )
        return Admission(through == 1, left, wait / 1000, reset / 1000)

    async def poll_slot(
        self, queue: str, name: str, *, lease: float, interval: float, burst: int, most: float, more: int
    ) -> float | None:
        """Take the right to ``name``, and the next place of ``queue``."""
        what = (expiry_ms(lease), f"{interval * 1000:.6f}", burst, ms(most), more)
        wait = await self._redis.script(call("poll_slot", keys.poll_slot(queue, name), *what))
        return None if wait < 0 else wait / 1000

    async def plan(self, chore: str, sandbox_id: str, *, after: float) -> None:
        """List a chore of a sandbox, to be due no later than that."""
        list_ = keys.chores(chore, keys.shard(sandbox_id))
        await self._redis.script(call("schedule", (list_,), sandbox_id, ms(after), "LT"))

    async def due_chores(self, chore: str, *, limit: int, lease: float) -> list[str]:
        """Chores that are due, set back by the lease."""
        found: list[str] = []
        for some in self._together(tuple(keys.chores(chore, shard) for shard in range(keys.SHARDS))):
            if len(found) < limit:
                members: list[bytes] = await self._redis.script(call("due", some, limit - len(found), ms(lease)))
                found += texts(members)
        return found

    async def complete(self, chore: str, member: str) -> None:
        """Take a chore off the list."""
        lists = [keys.chores(chore, shard) for shard in range(keys.SHARDS)]
        id = member.partition(" ")[0]
        if parse_command_id(id) is not None:
            lists = [keys.chores(chore, keys.shard(keys.sandbox_of(id)))]
        await self._redis.scripts([call("unlist", (key,), member) for key in lists])
