"""Claims: one script a transition. This is the only module that changes a claim."""

from collections.abc import Mapping, Sequence
from typing import Any

from service.core.model.states import ClaimState
from service.errors import StoreUnavailable
from service.messages import Stream
from service.ports.store import Appended, Claimed, Ended, Record, Unreadable
from service.store import keys, packing
from service.store.base import Part, call, expiry_ms, ms
from service.store.kept import Kept
from service.store.record import parse, unreadable, word
from service.store.scripts import ScriptCall

_DONE = 1
_UNREADABLE = -1
_EVERYTHING = 2**53
"""More bytes than any log has."""
LONGEST_JOB = 14_400
"""Seconds; a job's record lives for the retention after its end."""
SLACK = 3_600
"""Seconds for everything between the submission and the final record that is not the job's own time."""
_UNFINISHED = 86_400
"""Seconds beyond the retention for which a sandbox's claim stands that no owner finishes and no retry takes over: far
longer than an engine is at a create."""
_AT_ONCE = 100
"""Claims read in one go."""


class Transitions(Kept, Part):
    """The transitions of ``service.core.model.states.SCRIPTS``."""

    async def get(self, id: str) -> Record | None:
        """The record, or None."""
        now, raw = await self._redis.script(call("get", (keys.claim(id),)))
        return None if raw is None else parse(id, raw, self._told(now))

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
        parts = [[id] for id in ids] if self._redis.server.cluster else [ids]
        calls = [call("get", tuple(keys.claim(id) for id in some)) for some in parts]
        found: list[Record | Unreadable | None] = []
        for some, (now, *raws) in zip(parts, await self._redis.scripts(calls), strict=True):
            found += [_parsed(id, raw, now) for id, raw in zip(some, raws, strict=True)]
        return found

    async def claim(
        self,
        id: str,
        *,
        token: str,
        owner: str,
        lease: float,
        body: bytes,
        request: bytes = b"",
        tenant: str | None = None,
        dispatched: bool = False,
    ) -> Claimed:
        """Make the claim where there is none."""
        kept = await packing.pack(request)
        who = (word("token", token), word("owner", owner))
        state = ClaimState.DISPATCHED if dispatched else ClaimState.CLAIMED
        what = (ms(lease), body, kept, state.value, self._horizon)
        step = self._step("claim", id, *who, *what, tenant=tenant, more=(keys.sandbox(keys.sandbox_of(id)),))
        *answer, known = await self._redis.script(step, acknowledge=True)
        done, record = self._answer(id, answer)
        assert record is not None
        return Claimed(done, record, known)

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
        tenant: str | None = None,
    ) -> tuple[bool, Record | None]:
        """Try again what was not executed (for sandboxes: what was given up, or is gone)."""
        kept = await packing.pack(request)
        who = (word("token", token), word("owner", owner))
        what = (seen.token, seen.revision, *who, ms(lease), int(next_attempt), body, kept, self._horizon)
        return await self._move("reopen", seen.id, *what, tenant=tenant, acknowledge=True)

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
        self,
        mine: Record,
        state: ClaimState,
        *,
        body: bytes,
        ttl: float | None,
        look_in: float = 0.0,
        ended: Ended | None = None,
    ) -> tuple[bool, Record | None]:
        """The owner writes how it went."""
        what = (mine.token, mine.epoch, state.value, expiry_ms(ttl), body, ms(look_in), ended.state if ended else "")
        return await self._move("settle", mine.id, *what, more=_counted(mine.id, ended and ended.tenant))

    async def abandon(
        self, seen: Record, *, body: bytes, ttl: float | None, tenant: str | None = None
    ) -> tuple[bool, Record | None]:
        """Note that the owner's lease ran out."""
        what = (seen.token, seen.revision, expiry_ms(ttl), body)
        return await self._move("abandon", seen.id, *what, more=_counted(seen.id, tenant))

    async def advance(
        self,
        seen: Record,
        state: ClaimState,
        *,
        body: bytes,
        append: Appended | None = None,
        append_stderr: Appended | None = None,
        notify: bool = True,
        look_in: float = 0.0,
    ) -> tuple[bool, Record | None]:
        """Whoever follows writes what it saw, and the output that it read."""
        news = (*_place_and_data(append), *_place_and_data(append_stderr))
        what = (state.value, int(notify), body, ms(look_in), *news, self._record_output)
        return await self._move("advance", seen.id, seen.token, seen.revision, *what)

    async def finish(
        self,
        seen: Record,
        state: ClaimState,
        *,
        body: bytes,
        ttl: float,
        append: Appended | None = None,
        append_stderr: Appended | None = None,
        kept: bool = True,
        kept_stderr: bool = False,
        streams: Mapping[str, bytes] | None = None,
        clean_in: float | None = None,
        ended: Ended | None = None,
    ) -> tuple[bool, Record | None]:
        """Whoever follows writes the end."""
        final = packed = b""
        if state is ClaimState.CLOSED:
            final = await self._final_output(seen.id, append, "stdout", kept=kept)
            packed = await self._final_output(seen.id, append_stderr, "stderr", kept=kept_stderr)
        if streams is not None:
            packed = await packing.pack_streams(streams)
        left = ("", 0) if clean_in is None else (f"{seen.id} {seen.attempt}", ms(clean_in))
        chores = keys.chores("fences", keys.shard(keys.sandbox_of(seen.id)))
        more = (*keys.outputs(seen.id), chores, *_counted(seen.id, ended and ended.tenant))
        what = (
            state.value,
            expiry_ms(ttl),
            body,
            final,
            packed,
            ms(self._retention),
            *left,
            ended.state if ended else "",
            0,
        )
        step = call("finish", (*keys.of_claim(seen.id), *more), seen.id, seen.token, seen.revision, *what)
        return self._answer(seen.id, await self._redis.script(step))

    async def request_cancel(self, id: str) -> tuple[bool, Record | None]:
        """Note that a caller wants the job cancelled."""
        return await self._move("request_cancel", id)

    async def restore(
        self, id: str, state: ClaimState, *, attempt: int, token: str, body: bytes, tenant: str | None = None
    ) -> tuple[bool, Record]:
        """Write the record of a job that was found by its fence."""
        what = (word("token", token), state.value, attempt, body, self._horizon)
        done, record = await self._move("restore", id, *what, tenant=tenant)
        if record is None:
            raise ValueError(f"a job is not restored as {state.value}")
        return done, record

    async def forget(self, id: str) -> None:
        """Drop a job from the lists of active ones, where its claim is gone or over."""
        await self._redis.script(call("forget", keys.of_claim(id), id))

    @property
    def _horizon(self) -> int:
        return ms(self._retention + LONGEST_JOB + SLACK)

    async def _move(
        self,
        name: str,
        id: str,
        *args: bytes | str | int,
        tenant: str | None = None,
        more: tuple[str, ...] = (),
        acknowledge: bool = False,
    ) -> tuple[bool, Record | None]:
        step = self._step(name, id, *args, tenant=tenant, more=more)
        return self._answer(id, await self._redis.script(step, acknowledge=acknowledge))

    def _step(
        self, name: str, id: str, *args: bytes | str | int, tenant: str | None = None, more: tuple[str, ...] = ()
    ) -> ScriptCall:
        """``tenant``: whose lists a job is put on besides."""
        lists = () if tenant is None else (*keys.lists(tenant, id), keys.minutes_of(tenant, id))
        unfinished = 0 if keys.is_job(id) else ms(self._retention + _UNFINISHED)
        return call(name, (*keys.of_claim(id), *lists, *more), id, *args, unfinished)

    async def _final_output(self, id: str, append: Appended | None, stream: Stream, *, kept: bool) -> bytes:
        """What is kept, with ``append``, in its last form. ``kept``: there may be something.

        Read before the closing script, which compares the revision: nothing can have been added in between,
        since everything that adds raises it.
        """
        found = await self._slice(id, 0, _EVERYTHING, stream) if kept else None
        if found is None and append is None:
            return b""
        offset, data = (found.offset, found.data) if found is not None else (0, b"")
        if append is not None:
            offset, data = packing.joined(offset, data, append.offset, append.data)
        return await packing.final_output(*packing.last_part(offset, data, self._record_output))

    def _answer(self, id: str, answer: Any) -> tuple[bool, Record | None]:
        outcome, now, raw = answer
        if outcome == _UNREADABLE:
            raise unreadable(id)
        return outcome == _DONE, None if raw is None else parse(id, raw, self._told(now))


def _counted(id: str, tenant: str | None) -> tuple[str, ...]:
    """Where a job is counted for its tenant."""
    return () if tenant is None else (keys.minutes_of(tenant, id),)


def _place_and_data(append: Appended | None) -> tuple[str | int, bytes]:
    return ("", b"") if append is None else (append.offset, append.data)


def _parsed(id: str, raw: bytes | None, now: int) -> Record | Unreadable | None:
    try:
        return None if raw is None else parse(id, raw, now)
    except StoreUnavailable:
        return Unreadable(id)
