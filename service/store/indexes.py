"""Jobs as lists, leases and small values. The scripts of a claim put a job on its lists and take it off again."""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Sequence

from service.ports.store import JobRow, Minute
from service.store import keys
from service.store.base import Part, call, expiry_ms, is_text, ms, texts

COUNT_AGE = 1.0
"""Seconds for which the number of active jobs is remembered."""


_LATEST = 1e15
"""Milliseconds: no entry is later."""

log = logging.getLogger("oncebox.store")


class Indexes(Part):
    """Jobs by tenant, by sandbox and by next look."""

    _counted: tuple[float, int] | None = None

    async def unlist_job(self, command_id: str, *, tenant: str) -> None:
        """Take a job out of its tenant's lists."""
        await self._redis.script(call("unlist", keys.lists(tenant, command_id), command_id))

    async def jobs(self, *, tenant: str, sandbox_id: str | None, before: JobRow | None, limit: int) -> list[JobRow]:
        """A tenant's jobs, newest first, after ``before``."""
        shards = tuple(keys.jobs(tenant, shard) for shard in range(keys.SHARDS))
        lists = self._together(shards) if sandbox_id is None else [(keys.jobs_of(tenant, sandbox_id),)]
        what = ("" if before is None else before.at, max(0, limit))
        pages = [call("page_jobs", some, *what) for some in lists]
        while True:
            answers = await self._redis.scripts(pages)
            parts = [part for answer in answers for part in answer]
            members = [member for same, older in parts for member in (*same, *older[::2])]
            if not await self._drop_foreign([key for some in lists for key in some], members):
                break
        rows: list[JobRow] = []
        for same, older in parts:
            rows += [JobRow(_ms_of(at), id.decode()) for id, at in zip(older[::2], older[1::2], strict=True)]
            if before is not None:
                last = before.command_id.encode()
                rows += [JobRow(before.at, id.decode()) for id in same if id < last]
        rows.sort(key=lambda row: (row.at, row.command_id), reverse=True)
        return rows[:limit]

    async def minutes(self, tenant: str) -> tuple[int, list[Minute]]:
        """What happened to a tenant's jobs in the last hour."""
        names = tuple(keys.minutes(tenant, shard) for shard in range(keys.SHARDS))
        answers = await self._redis.scripts([call("minutes", some) for some in self._together(names)])
        sums: Counter[tuple[int, str]] = Counter()
        for _, *words in answers:
            for field, count in zip(words[::2], words[1::2], strict=True):
                minute, _, what = field.decode().partition(" ")
                sums[int(minute) * 60_000, what] += int(count)
        now = self._told(answers[-1][0])
        first = now - 61 * 60_000
        return now, [Minute(at, what, count) for (at, what), count in sorted(sums.items()) if at > first]

    async def active_of(self, sandbox_id: str) -> list[str]:
        """The active jobs of a sandbox."""
        members: list[bytes] = await self._redis.script(call("active", (keys.active(sandbox_id),)))
        return sorted(texts(members))

    async def due(self, *, limit: int, lease: float) -> list[str]:
        """Active jobs whose look is due, set back by ``lease``."""
        # Begins at any shard, so that none is always last.
        first = random.randrange(keys.SHARDS)
        shards = keys.LOOKS[first:] + keys.LOOKS[:first]
        found: list[str] = []
        for some in self._together(shards):
            if len(found) >= limit:
                break
            ids: list[bytes] = await self._redis.script(call("due", some, limit - len(found), ms(lease)))
            await self._drop_foreign(some, ids)
            found += texts(ids)
        return found

    async def schedule(self, command_id: str, *, after: float) -> None:
        """Set the next look of an active job."""
        await self._redis.script(call("schedule", (keys.looks(command_id),), command_id, ms(after), "XX"))

    async def active_count(self) -> int:
        """How many jobs are active, over all replicas; as it was a second ago at most."""
        now = asyncio.get_running_loop().time()
        if self._counted is not None and now - self._counted[0] < COUNT_AGE:
            return self._counted[1]
        counts = await self._redis.scripts([call("count", some) for some in self._together(keys.LOOKS)])
        self._counted = (now, sum(counts))
        return self._counted[1]

    async def _drop_foreign(self, lists: Sequence[str], members: list[bytes]) -> int:
        """Take out of sorted sets what no release of Oncebox has put there; how many that were."""
        foreign = [member for member in members if not is_text(member)]
        for member in foreign:
            log.warning("an entry of an index is no id, and is dropped: %r", member[:80])
            await self._redis.scripts([call("unlist", (key,), member) for key in lists])
        return len(foreign)

    async def lease(self, name: str, seconds: float) -> bool:
        """Take the named lease."""
        taken = await self._redis.command("SET", keys.lease(name), "1", "NX", "PX", expiry_ms(seconds))
        return bool(taken)

    async def remember(self, name: str, value: bytes, *, ttl: float) -> None:
        """Keep a small named value."""
        await self._redis.command("SET", keys.memo(name), value, "PX", expiry_ms(ttl))

    async def recall(self, name: str) -> bytes | None:
        """A value kept by ``remember``."""
        value: bytes | None = await self._redis.command("GET", keys.memo(name))
        return value

    async def put_sandbox(self, sandbox_id: str, body: bytes, *, ttl: float) -> None:
        """Remember a sandbox."""
        await self._redis.command("SET", keys.sandbox(sandbox_id), body, "PX", expiry_ms(ttl))

    async def swap_sandbox(self, sandbox_id: str, seen: bytes | None, body: bytes, *, ttl: float) -> bool:
        """Remember a sandbox, where it still stands as it was ``seen``."""
        step = call("swap_sandbox", (keys.sandbox(sandbox_id),), seen or b"", body, expiry_ms(ttl))
        return bool(await self._redis.script(step))

    async def get_sandbox(self, sandbox_id: str) -> bytes | None:
        """What was remembered of a sandbox."""
        body: bytes | None = await self._redis.command("GET", keys.sandbox(sandbox_id))
        return body


def _ms_of(score: bytes) -> int:
    """A score as whole milliseconds that a page's token can hold."""
    return int(min(max(float(score), 0.0), _LATEST))
