"""Every script tried on every state: what the table allows is done, and nothing else changes anything."""

from collections.abc import Awaitable, Callable

import pytest
from msgspec import structs

from service.core.model.states import SCRIPTS, ClaimState
from service.ports.store import Record
from tests.contract.store_rig import JOB, LEASE, SANDBOX, TTL, StoreRig, new_token

S = ClaimState
Try = Callable[[StoreRig, Record, S], Awaitable[tuple[bool, Record | None]]]

ABSENT = Record(
    id=JOB, state=S.CLAIMED, epoch=3, attempt=2, revision=7, lease_until=1, token="old", owner="replica",
    cancel=False, body=b"", now=2,
)  # fmt: skip
"""What somebody remembers of a claim that is gone."""


async def _claim(rig: StoreRig, seen: Record, to: S) -> tuple[bool, Record]:
    how = {"owner": "r", "lease": LEASE, "body": b"", "dispatched": to is S.DISPATCHED}
    return (await rig.store.claim(seen.id, token=new_token(), **how))[:2]  # type: ignore[arg-type]


TRIES: dict[str, Try] = {
    "claim": _claim,
    "take_over": lambda rig, seen, _: rig.store.take_over(seen, token=new_token(), owner="r", lease=LEASE),
    "renew": lambda rig, seen, _: rig.store.renew(seen, lease=LEASE),
    "release": lambda rig, seen, _: rig.store.release(seen),
    "dispatch": lambda rig, seen, _: rig.store.dispatch(seen, lease=LEASE, body=b""),
    "settle": lambda rig, seen, to: rig.store.settle(seen, to, body=b"", ttl=TTL),
    "abandon": lambda rig, seen, _: rig.store.abandon(seen, body=b"", ttl=TTL),
    "reopen": lambda rig, seen, _: rig.store.reopen(
        seen, token=new_token(), owner="r", lease=LEASE, next_attempt=True, body=b""
    ),
    "advance": lambda rig, seen, to: rig.store.advance(seen, to, body=b""),
    "finish": lambda rig, seen, to: rig.store.finish(seen, to, body=b"", ttl=TTL),
    "request_cancel": lambda rig, seen, _: rig.store.request_cancel(seen.id),
    "restore": lambda rig, seen, to: rig.store.restore(seen.id, to, attempt=1, token=new_token(), body=b""),
}
CHOOSES = ("settle", "advance", "finish", "restore")
"""Scripts that are told the state to go to."""

STATES: list[S | None] = [None, *S]


def test_every_script_of_the_table_is_tried() -> None:
    assert set(TRIES) == set(SCRIPTS)


@pytest.mark.parametrize("script", TRIES)
async def test_only_what_the_table_allows_is_done(rig: StoreRig, script: str) -> None:
    wanted: list[S] = list(S) if script in CHOOSES else [S.CLAIMED, S.DISPATCHED] if script == "claim" else [S.CLAIMED]
    id = JOB if script == "finish" else SANDBOX
    for state in STATES:
        for to in wanted:
            await rig.put(id, None)
            await rig.put(id, state)
            before = await rig.raw(id)
            allowed = SCRIPTS[script].get(state, frozenset())
            if script == "restore" and state is None and to not in allowed:
                with pytest.raises(ValueError, match="not restored"):
                    await TRIES[script](rig, await _seen(rig, id), to)
                assert await rig.raw(id) is None
                continue
            done, record = await TRIES[script](rig, await _seen(rig, id), to)

            if script in CHOOSES:
                assert done == (to in allowed), (state, to)
            else:
                assert done == bool(allowed), state
            if done:
                assert record is not None
                assert record.state in allowed
                assert record.state is to or script not in CHOOSES
                assert record == structs.replace(await rig.record(id), now=record.now)
            else:
                assert await rig.raw(id) == before, (state, to)
                assert (record is None) == (state is None)


@pytest.mark.parametrize("script", [name for name in TRIES if None not in SCRIPTS[name] and name != "request_cancel"])
@pytest.mark.parametrize("stale", ["token", "count"])
async def test_nobody_else_changes_anything(rig: StoreRig, script: str, stale: str) -> None:
    id = JOB if script == "finish" else SANDBOX
    for state in S:
        for to in S if script in CHOOSES else [S.CLAIMED]:
            changed = {"token": "newer"} if stale == "token" else {"epoch": 4, "revision": 8}
            await rig.put(id, state)
            seen = await _seen(rig, id)
            await rig.put(id, state, **changed)
            before = await rig.raw(id)
            done, record = await TRIES[script](rig, seen, to)
            assert not done, (state, to)
            assert record is not None
            assert await rig.raw(id) == before


@pytest.mark.parametrize("script", ["take_over", "abandon"])
async def test_a_lease_that_lasts_is_respected(rig: StoreRig, script: str) -> None:
    for state in S:
        await rig.put(SANDBOX, state, lease=10**13)
        before = await rig.raw(SANDBOX)
        done, _ = await TRIES[script](rig, await _seen(rig, SANDBOX), S.CLAIMED)
        assert not done
        assert await rig.raw(SANDBOX) == before


async def test_what_is_closed_never_changes(rig: StoreRig) -> None:
    await rig.put(JOB, S.CLOSED, ttl=TTL)
    before = await rig.raw(JOB)
    seen = await rig.record(JOB)
    for script, attempt in TRIES.items():
        for to in S:
            done, _ = await attempt(rig, seen, to)
            assert not done, (script, to)
    assert await rig.raw(JOB) == before


async def _seen(rig: StoreRig, id: str) -> Record:
    return await rig.store.get(id) or structs.replace(ABSENT, id=id)
