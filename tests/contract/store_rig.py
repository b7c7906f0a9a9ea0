"""A store under test, and a way past its adapter: what the tests set up and look at in Redis itself."""

import itertools
from collections.abc import Mapping
from typing import Any

from service.core.model.identity import command_id
from service.core.model.states import ClaimState
from service.ports.store import Record
from service.store import RedisStore, keys

RETENTION = 1000.0
RECORD_OUTPUT = 100
TTL = 500.0
LEASE = 60.0

BOX = "sb"
"""The sandbox of ``JOB``."""
JOB = command_id(BOX, "A" * 22)
SANDBOX = "0123456789abcdef0123456789abcdef"
BODY = bytes(range(256)) + b"\n1 claimed 9 9 9 9 9 x y\n"
"""Bytes that a form which is not careful would trip over."""

_tokens = itertools.count(1)


def new_token() -> str:
    """A token that was not used before."""
    return f"token{next(_tokens)}"


class StoreRig:
    """Redis behind a store, without its rules."""

    def __init__(self, store: RedisStore) -> None:
        self.store = store

    async def command(self, *args: bytes | str | int) -> Any:
        """Any command, over the store's own connections."""
        return await self.store._redis.command(*args)

    async def put(self, id: str, state: ClaimState | None, *, ttl: float | None = None, **fields: Any) -> None:
        """Write a claim in ``state`` as if it had got there, its lease over; None takes it away."""
        if state is None:
            await self.command("DEL", *keys.of_claim(id)[:4])
            await self.command("ZREM", keys.looks(id), id)
            await self.command("SREM", keys.active(keys.sandbox_of(id)), id)
            return
        known: dict[str, Any] = {
            "version": 1, "epoch": 3, "attempt": 2, "revision": 7, "lease": 1, "cancel": 0,
            "token": "old", "owner": "replica", "body": b"body",
        }  # fmt: skip
        known |= fields
        order = ("epoch", "attempt", "revision", "lease", "cancel", "token", "owner")
        header = f"{known['version']} {state.value} " + " ".join(str(known[name]) for name in order) + "\n"
        expiry = ("PX", round(ttl * 1000)) if ttl is not None else ()
        await self.command("SET", keys.claim(id), header.encode() + known["body"], *expiry)

    async def put_raw(self, id: str, raw: bytes) -> None:
        """Write any bytes where a claim stands."""
        await self.command("SET", keys.claim(id), raw)

    async def raw(self, id: str) -> bytes | None:
        """The claim as it stands in Redis."""
        found: bytes | None = await self.command("GET", keys.claim(id))
        return found

    async def end_lease(self, id: str) -> None:
        """Let a lease run out, without waiting for it."""
        raw = await self.raw(id)
        assert raw is not None
        header, _, body = raw.partition(b"\n")
        fields = header.split(b" ")
        fields[5] = b"1"
        await self.put_raw(id, b" ".join(fields) + b"\n" + body)

    async def ttls(self, id: str) -> Mapping[str, float | None]:
        """Seconds that each thing of a claim has left; None: no end. What is not there is left out."""
        found: dict[str, float | None] = {}
        for name, key in zip(("claim", "output", "request", "streams"), keys.of_claim(id)[:4], strict=True):
            left = await self.command("PTTL", key)
            if left != -2:
                found[name] = None if left == -1 else left / 1000
        return found

    async def record(self, id: str) -> Record:
        """The record that stands."""
        found = await self.store.get(id)
        assert found is not None
        return found

    async def claimed(self, id: str = JOB, **fields: Any) -> Record:
        """A fresh claim of ours."""
        given: dict[str, Any] = {"token": new_token(), "owner": "replica", "lease": LEASE, "body": BODY}
        done, record, _ = await self.store.claim(id, **(given | fields))
        assert done
        return record

    async def running(self, id: str = JOB, **fields: Any) -> Record:
        """A job that runs."""
        record = await self.claimed(id, **fields)
        return await self.walk(record, ClaimState.DISPATCHED, ClaimState.ACCEPTED, ClaimState.RUNNING)

    async def walk(self, record: Record, *states: ClaimState, ttl: float | None = TTL) -> Record:
        """Take a claim through states, as its owner and its poller would."""
        for state in states:
            if state is ClaimState.DISPATCHED:
                done, now = await self.store.dispatch(record, lease=LEASE, body=record.body)
            elif record.state in (ClaimState.CLAIMED, ClaimState.DISPATCHED):
                done, now = await self.store.settle(record, state, body=record.body, ttl=ttl)
            else:
                done, now = await self.follow(record, state, body=record.body, ttl=ttl)
            assert done
            assert now is not None
            record = now
        return record

    async def follow(
        self, seen: Record, state: ClaimState, *, body: bytes = b"", ttl: float | None = TTL, **more: Any
    ) -> tuple[bool, Record | None]:
        """What a poller writes: with one script while the job is active, with another at its end."""
        if state.active:
            return await self.store.advance(seen, state, body=body, **more)
        return await self.store.finish(seen, state, body=body, ttl=ttl or TTL, **more)
