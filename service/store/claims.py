"""Claims: one script a transition. This is the only module that changes a claim."""

from collections.abc import Sequence
from typing import Any

from service.core.states import ClaimState
from service.errors import StoreUnavailable
from service.ports.store import Appended, Record, Unreadable
from service.store import keys, packing
from service.store.base import Part, call, expiry_ms, ms
from service.store.indexes import next_look
from service.store.kept import Kept
from service.store.record import parse, unreadable, word
from service.store.scripts import Call

_DONE = 1
_UNREADABLE = -1
_EVERYTHING = 2**53
"""More bytes than any log has."""
_UNFINISHED = 86_400
"""Seconds beyond the retention for which a sandbox's claim stands that no owner finishes and no retry takes over: far
longer than an engine is at a create."""
_AT_ONCE = 100
"""Claims read in one go."""


class Claims(Kept, Part):
    """The transitions of ``service.core.states.SCRIPTS``."""

    async def get(self, id: str) -> Record | None:
        """The record, or None."""
        now, raw = await self._link.script(call("get", (keys.claim(id),)))
        return None if raw is None else parse(id, raw, now)

    async def get_many(self, ids: Sequence[str]) -> list[Record | None]:
        """Several at once, in the order asked for."""
        found: list[Record | None] = []
        for record in await self.get_readable(ids):
            if isinstance(record, Unreadable):
                raise unreadable(record.id)
            found.append(record)
        return found

    async def get_readable(self, ids: Sequence[str]) -> list[Record | Unreadable | None]:
        """Several at once, those that can't be read marked as such."""
        found: list[Record | Unreadable | None] = []
        for start in range(0, len(ids), _AT_ONCE):
            found += await self._read(ids[start : start + _AT_ONCE])
        return found

    async def _read(self, ids: Sequence[str]) -> list[Record | Unreadable | None]:
        """In one script, or one each on a cluster."""
        parts = [[id] for id in ids] if self._link.server.cluster else [ids]
        calls = [call("get", tuple(keys.claim(id) for id in some)) for some in parts]
        found: list[Record | Unreadable | None] = []
        for some, (now, *raws) in zip(parts, await self._link.scripts(calls), strict=True):
            found += [_parsed(id, raw, now) for id, raw in zip(some, raws, strict=True)]
        return found

    async def claim(
        self, id: str, *, token: str, owner: str, lease: float, body: bytes, request: bytes = b""
    ) -> tuple[bool, Record]:
        """Make the claim where there is none."""
        kept = await packing.pack(request)
        who = (word("token", token), word("owner", owner))
        done, record = await self._move("claim", id, *who, ms(lease), body, kept, acknowledge=True)
        assert record is not None
        return done, record

    async def take_over(self, seen: Record, *, token: str, owner: str, lease: float) -> tuple[bool, Record | None]:
        """Become the owner of a CLAIMED claim whose lease ran out."""
        who = (word("token", token), word("owner", owner))
        return await self._move("take_over", seen.id, seen.token, seen.epoch, *who, ms(lease), acknowledge=True)

    async def reopen(
        self,
        seen: Record,
        *,
        token: str,
        owner: str,
        lease: float,
        next_attempt: bool,
        body: bytes,
        request: bytes = b"",
    ) -> tuple[bool, Record | None]:
        """Try again what was not executed (for sandboxes: what was given up, or is gone)."""
        kept = await packing.pack(request)
        who = (word("token", token), word("owner", owner))
        what = (ms(lease), int(next_attempt), body, kept)
        return await self._move("reopen", seen.id, seen.token, seen.revision, *who, *what, acknowledge=True)

    async def dispatch(self, mine: Record, *, lease: float, body: bytes) -> tuple[bool, Record | None]:
        """CLAIMED becomes DISPATCHED, once an epoch."""
        return await self._move("dispatch", mine.id, mine.token, mine.epoch, ms(lease), body, acknowledge=True)

    async def renew(self, mine: Record, *, lease: float) -> tuple[bool, Record | None]:
        """A fresh lease."""
        return await self._move("renew", mine.id, mine.token, mine.epoch, ms(lease))

    async def release(self, mine: Record) -> tuple[bool, Record | None]:
        """Give a CLAIMED claim back."""
        return await self._move("release", mine.id, mine.token, mine.epoch)

    async def settle(
        self, mine: Record, state: ClaimState, *, body: bytes, ttl: float | None
    ) -> tuple[bool, Record | None]:
        """The owner writes how it went."""
        return await self._move("settle", mine.id, mine.token, mine.epoch, state.value, expiry_ms(ttl), body)

    async def abandon(self, seen: Record, *, body: bytes, ttl: float | None) -> tuple[bool, Record | None]:
        """Note that the owner's lease ran out."""
        return await self._move("abandon", seen.id, seen.token, seen.revision, expiry_ms(ttl), body)

    async def advance(
        self,
        seen: Record,
        state: ClaimState,
        *,
        body: bytes,
        ttl: float | None = None,
        append: Appended | None = None,
        quiet: bool = False,
        look_in: float | None = None,
    ) -> tuple[bool, Record | None]:
        """Whoever follows writes what it saw, and the output that it read."""
        offset: int | str = ""
        data = final = b""
        if state is ClaimState.CLOSED:
            final = await self._final_output(seen.id, append)
        elif append is not None:
            offset, data = append.offset, append.data
        what = (state.value, expiry_ms(ttl), int(quiet), body, offset, data, self._record_output, final)
        steps = [self._step("advance", seen.id, seen.token, seen.revision, *what)]
        if look_in is not None:
            steps.append(next_look(seen.id, look_in))
        return _answer(seen.id, (await self._link.scripts(steps))[0])

    async def wish_cancel(self, id: str) -> tuple[bool, Record | None]:
        """Note that a caller wants the job cancelled."""
        return await self._move("wish", id)

    async def restore(
        self, id: str, state: ClaimState, *, attempt: int, token: str, body: bytes
    ) -> tuple[bool, Record]:
        """Write the record of a job that was found by its fence."""
        done, record = await self._move("restore", id, word("token", token), state.value, attempt, body)
        if record is None:
            raise ValueError(f"a job is not restored as {state.value}")
        return done, record

    async def _move(
        self, name: str, id: str, *args: bytes | str | int, acknowledge: bool = False
    ) -> tuple[bool, Record | None]:
        return _answer(id, await self._link.script(self._step(name, id, *args), acknowledge=acknowledge))

    def _step(self, name: str, id: str, *args: bytes | str | int) -> Call:
        unfinished = 0 if keys.is_job(id) else ms(self._retention + _UNFINISHED)
        return call(name, keys.of_claim(id), id, *args, unfinished)

    async def _final_output(self, id: str, append: Appended | None) -> bytes:
        """What is kept, with ``append``, in its last form.

        Read before the closing script, which compares the revision: nothing can have been added in between,
        since everything that adds raises it.
        """
        kept = await self._slice(id, 0, _EVERYTHING)
        if kept is None and append is None:
            return b""
        offset, data = (kept.offset, kept.data) if kept is not None else (0, b"")
        if append is not None:
            offset, data = packing.joined(offset, data, append.offset, append.data)
        final = await packing.final_output(*packing.last_part(offset, data, self._record_output))
        await self._note(keys.output(id), len(final))
        return final


def _parsed(id: str, raw: bytes | None, now: int) -> Record | Unreadable | None:
    try:
        return None if raw is None else parse(id, raw, now)
    except StoreUnavailable:
        return Unreadable(id)


def _answer(id: str, answer: Any) -> tuple[bool, Record | None]:
    outcome, now, raw = answer
    if outcome == _UNREADABLE:
        raise unreadable(id)
    return outcome == _DONE, None if raw is None else parse(id, raw, now)
