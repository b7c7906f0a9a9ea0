"""Indexes, leases and small values. Index entries are written before the claim and dropped after the end."""

import logging
import random
import time

from service.ports.store import JobRow
from service.store import keys
from service.store.base import Part, call, expiry_ms, is_text, ms, texts
from service.store.scripts import Call

LONGEST_JOB = 14_400
"""Seconds; a job's record lives for the retention after its end."""
SLACK = 3_600
"""Seconds for everything between the submission and the final record that is not the job's own time."""
COUNT_AGE = 1.0
"""Seconds for which the number of active jobs is remembered."""


_LATEST = 1e15
"""Milliseconds: no entry is later."""

log = logging.getLogger("oncebox.store")


class Indexes(Part):
    """Jobs by tenant, by sandbox and by next look."""

    _counted: tuple[float, int] | None = None

    async def index_job(self, command_id: str, *, tenant: str, sandbox_id: str, look_in: float) -> None:
        """List a job under its tenant and its sandbox, and as active."""
        horizon = ms(self._retention + LONGEST_JOB + SLACK)
        await self._link.scripts(
            [
                call("look", (keys.looks(command_id),), command_id, ms(look_in), "LT"),
                call("list_active", (keys.active(sandbox_id),), command_id),
                call("list_job", (keys.jobs(tenant), keys.jobs(tenant, sandbox_id)), command_id, horizon),
            ]
        )

    async def unindex_job(self, command_id: str, *, tenant: str, sandbox_id: str) -> None:
        """Take a job out of every index."""
        lists = (keys.jobs(tenant), keys.jobs(tenant, sandbox_id))
        await self._link.scripts([*self._end(command_id, sandbox_id), call("unlist", lists, command_id)])

    async def jobs(self, *, tenant: str, sandbox_id: str | None, before: JobRow | None, limit: int) -> list[JobRow]:
        """A tenant's jobs, newest first, after ``before``."""
        page = call("page_jobs", (keys.jobs(tenant, sandbox_id),), "" if before is None else before.at, max(0, limit))
        same: list[bytes]
        older: list[bytes]
        while True:
            same, older = await self._link.script(page)
            if not await self._drop_foreign(page.keys, [*same, *older[::2]]):
                break
        rows = []
        if before is not None:
            last = before.command_id.encode()
            rows = [JobRow(before.at, id.decode()) for id in same if id < last]
        rows += [JobRow(_ms_of(at), id.decode()) for id, at in zip(older[::2], older[1::2], strict=True)]
        return rows[:limit]

    async def active_of(self, sandbox_id: str) -> list[str]:
        """The active jobs of a sandbox."""
        members: list[bytes] = await self._link.script(call("active", (keys.active(sandbox_id),)))
        return sorted(texts(members))

    async def due(self, *, limit: int, lease: float) -> list[str]:
        """Active jobs whose look is due, set back by ``lease``."""
        # Begins at any shard, so that none is always last.
        first = random.randrange(keys.LOOK_SHARDS)
        shards = keys.LOOKS[first:] + keys.LOOKS[:first]
        found: list[str] = []
        for some in self._slots(shards):
            if len(found) >= limit:
                break
            ids: list[bytes] = await self._link.script(call("due", some, limit - len(found), ms(lease)))
            await self._drop_foreign(some, ids)
            found += texts(ids)
        return found

    async def next_look(self, command_id: str, *, after: float) -> None:
        """Set the next look of an active job."""
        await self._link.script(next_look(command_id, after))

    async def end_look(self, command_id: str, *, sandbox_id: str) -> None:
        """The job is no longer active."""
        await self._link.scripts(self._end(command_id, sandbox_id))

    async def active_count(self) -> int:
        """How many jobs are active, over all replicas; as it was a second ago at most."""
        now = time.monotonic()
        if self._counted is not None and now - self._counted[0] < COUNT_AGE:
            return self._counted[1]
        counts = await self._link.scripts([call("count", some) for some in self._slots(keys.LOOKS)])
        self._counted = (now, sum(counts))
        return self._counted[1]

    async def _drop_foreign(self, lists: tuple[str, ...], members: list[bytes]) -> int:
        """Take out of sorted sets what no release of Oncebox has put there; how many that were."""
        foreign = [member for member in members if not is_text(member)]
        for member in foreign:
            log.warning("an entry of an index is no id, and is dropped: %r", member[:80])
            await self._link.script(call("unlist", lists, member))
        return len(foreign)

    def _slots(self, shards: tuple[str, ...]) -> list[tuple[str, ...]]:
        """What one call may take together: everything, or one shard on a cluster."""
        return [(shard,) for shard in shards] if self._link.server.cluster else [shards]

    @staticmethod
    def _end(command_id: str, sandbox_id: str) -> list[Call]:
        return [
            call("unlist", (keys.looks(command_id),), command_id),
            call("unlist_active", (keys.active(sandbox_id),), command_id),
        ]

    async def lease(self, name: str, seconds: float) -> bool:
        """Take the named lease."""
        taken = await self._link.command("SET", keys.lease(name), "1", "NX", "PX", expiry_ms(seconds))
        return bool(taken)

    async def remember(self, name: str, value: bytes, *, ttl: float) -> None:
        """Keep a small named value."""
        await self._link.command("SET", keys.memo(name), value, "PX", expiry_ms(ttl))

    async def recall(self, name: str) -> bytes | None:
        """A value kept by ``remember``."""
        value: bytes | None = await self._link.command("GET", keys.memo(name))
        return value

    async def put_sandbox(self, sandbox_id: str, body: bytes, *, ttl: float) -> None:
        """Remember a sandbox."""
        await self._link.command("SET", keys.sandbox(sandbox_id), body, "PX", expiry_ms(ttl))

    async def swap_sandbox(self, sandbox_id: str, seen: bytes | None, body: bytes, *, ttl: float) -> bool:
        """Remember a sandbox, where it still stands as it was ``seen``."""
        step = call("swap_sandbox", (keys.sandbox(sandbox_id),), seen or b"", body, expiry_ms(ttl))
        return bool(await self._link.script(step))

    async def get_sandbox(self, sandbox_id: str) -> bytes | None:
        """What was remembered of a sandbox."""
        body: bytes | None = await self._link.command("GET", keys.sandbox(sandbox_id))
        return body


def _ms_of(score: bytes) -> int:
    """A score as whole milliseconds that a page's token can hold."""
    return int(min(max(float(score), 0.0), _LATEST))


def next_look(command_id: str, after: float) -> Call:
    """The step that sets the next look of an active job."""
    return call("look", (keys.looks(command_id),), command_id, ms(after), "XX")
