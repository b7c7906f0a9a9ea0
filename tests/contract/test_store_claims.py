"""Claims: who gets one, who may change it, and for how long it stands."""

import asyncio

import pytest

from service.core.model.states import ClaimState
from service.errors import StoreUnavailable
from service.ports.store import Appended, Record
from tests.contract.store_rig import BODY, JOB, LEASE, RETENTION, SANDBOX, TTL, StoreRig, new_token

S = ClaimState


async def test_a_claim_is_made_once_and_shows_itself_to_the_next(rig: StoreRig) -> None:
    done, record, _ = await rig.store.claim(JOB, token="a", owner="replica-1", lease=15, body=BODY)

    assert done
    assert record == Record(
        id=JOB, state=S.CLAIMED, epoch=1, attempt=1, revision=1, lease_until=record.now + 15_000, token="a",
        owner="replica-1", cancel=False, body=BODY, now=record.now,
    )  # fmt: skip
    assert not record.lease_expired

    again, met, _ = await rig.store.claim(JOB, token="b", owner="replica-2", lease=15, body=b"other")
    assert not again
    assert (met.token, met.owner, met.body, met.revision) == ("a", "replica-1", BODY, 1)


async def test_of_many_at_once_one_gets_the_claim(rig: StoreRig) -> None:
    tries = [rig.store.claim(JOB, token=f"t{n}", owner=f"r{n}", lease=15, body=b"%d" % n) for n in range(50)]
    answers = await asyncio.gather(*tries)

    assert sum(claimed.done for claimed in answers) == 1
    assert len({claimed.record.token for claimed in answers}) == 1


async def test_our_own_claim_sent_again_is_ours(rig: StoreRig) -> None:
    _, first, _ = await rig.store.claim(JOB, token="a", owner="r", lease=15, body=BODY, request=b"asked")
    done, second, _ = await rig.store.claim(JOB, token="a", owner="r", lease=15, body=BODY, request=b"asked")

    assert done
    assert (second.epoch, second.attempt, second.body) == (1, 1, BODY)
    assert second.lease_until >= first.lease_until
    assert await rig.store.request(JOB) == b"asked"


async def test_our_own_token_on_a_claim_that_went_on_is_no_claim(rig: StoreRig) -> None:
    mine = await rig.claimed(token="a")
    await rig.walk(mine, S.DISPATCHED)
    done, record, _ = await rig.store.claim(JOB, token="a", owner="replica", lease=15, body=BODY)
    assert not done
    assert record.state is S.DISPATCHED


async def test_a_claim_that_is_dispatched_in_one_write_is_ours_when_it_is_sent_again_and_nobody_else_s(
    rig: StoreRig,
) -> None:
    """Nothing is sent before it is answered, so whoever asks again with its token may send."""
    mine = await rig.claimed(token="a", dispatched=True, request=b"asked")
    assert (mine.state, mine.epoch, mine.attempt) == (S.DISPATCHED, 1, 1)
    again = {"owner": "replica", "lease": LEASE, "body": BODY, "dispatched": True}
    done, record, _ = await rig.store.claim(JOB, token="a", **again)  # type: ignore[arg-type]
    assert done
    assert (record.state, record.epoch) == (S.DISPATCHED, 1)
    assert not (await rig.store.claim(JOB, token="b", **again))[0]  # type: ignore[arg-type]
    # What is dispatched is never taken over: the way out is to abandon it, make a void, and send the next attempt.
    await rig.end_lease(JOB)
    assert not (await rig.store.take_over(await rig.record(JOB), token="c", owner="r", lease=LEASE))[0]
    assert not (await rig.store.release(mine))[0]
    # An owner whose request has not left says so.
    done, refused = await rig.store.settle(mine, S.REFUSED, body=b"", ttl=TTL)
    assert done
    assert refused is not None
    assert not (await rig.store.claim(JOB, token="a", **again))[0]  # type: ignore[arg-type]


async def test_what_is_not_there_is_none(rig: StoreRig) -> None:
    assert await rig.store.get(JOB) is None
    assert await rig.store.get_many([]) == []
    assert await rig.store.request_cancel(JOB) == (False, None)


async def test_many_are_read_in_the_order_asked_for(rig: StoreRig) -> None:
    ids = [f"cmd_x_{n}" for n in range(230)]
    for id in ids[::3]:
        await rig.claimed(id)
    found = await rig.store.get_many(ids)
    assert [record.id if record else None for record in found] == [
        id if n % 3 == 0 else None for n, id in enumerate(ids)
    ]


async def test_a_lease_that_ran_out_is_taken_over_by_one_and_the_old_owner_changes_nothing(
    rig: StoreRig,
) -> None:
    old = await rig.claimed()
    assert (await rig.store.take_over(old, token="b", owner="r", lease=LEASE))[0] is False
    await rig.end_lease(JOB)
    seen = await rig.record(JOB)
    assert seen.lease_expired

    tries = [rig.store.take_over(seen, token=f"n{n}", owner=f"r{n}", lease=LEASE) for n in range(10)]
    answers = await asyncio.gather(*tries)
    winners = [record for done, record in answers if done]
    assert len(winners) == 1
    new = winners[0]
    assert new is not None
    assert (new.epoch, new.attempt, new.body, new.cancel) == (2, 1, BODY, False)
    assert not new.lease_expired

    assert not (await rig.store.dispatch(old, lease=LEASE, body=b""))[0]
    assert not (await rig.store.renew(old, lease=LEASE))[0]
    assert not (await rig.store.release(old))[0]
    assert not (await rig.store.settle(old, S.REFUSED, body=b"", ttl=TTL))[0]
    assert not (await rig.store.abandon(old, body=b"", ttl=TTL))[0]
    assert (await rig.record(JOB)).revision == new.revision


async def test_a_take_over_sent_again_is_ours(rig: StoreRig) -> None:
    seen = await rig.claimed()
    await rig.end_lease(JOB)
    await rig.store.take_over(seen, token="b", owner="r", lease=LEASE)
    done, record = await rig.store.take_over(seen, token="b", owner="r", lease=LEASE)
    assert done
    assert record is not None
    assert record.epoch == 2


async def test_a_renewed_lease_lasts(rig: StoreRig) -> None:
    mine = await rig.claimed(lease=1.0)
    done, renewed = await rig.store.renew(mine, lease=100.0)
    assert done
    assert renewed is not None
    assert renewed.lease_until >= renewed.now + 99_000
    assert renewed.revision == mine.revision + 1

    # An abandonment that was decided on before the renewal comes too late, also once that lease is over.
    await rig.end_lease(JOB)
    assert not (await rig.store.abandon(mine, body=b"", ttl=TTL))[0]
    # The owner is the owner for as long as nobody took over.
    assert (await rig.store.renew(renewed, lease=100.0))[0]


async def test_a_released_claim_can_be_taken_over_at_once(rig: StoreRig) -> None:
    mine = await rig.claimed()
    done, released = await rig.store.release(mine)
    assert done
    assert released is not None
    assert released.lease_expired
    assert (await rig.store.take_over(released, token=new_token(), owner="r", lease=LEASE))[0]


async def test_an_epoch_dispatches_once(rig: StoreRig) -> None:
    mine = await rig.claimed()
    answers = await asyncio.gather(*(rig.store.dispatch(mine, lease=LEASE, body=b"sent") for _ in range(10)))
    assert sum(done for done, _ in answers) == 1
    record = await rig.record(JOB)
    assert (record.state, record.body, record.epoch) == (S.DISPATCHED, b"sent", 1)


async def test_a_cancelled_claim_is_not_dispatched(rig: StoreRig) -> None:
    mine = await rig.claimed()
    done, wished = await rig.store.request_cancel(JOB)
    assert done
    assert wished is not None
    assert wished.cancel

    done, record = await rig.store.dispatch(mine, lease=LEASE, body=b"")
    assert not done
    assert record is not None
    assert record.state is S.CLAIMED
    assert (await rig.store.settle(mine, S.CLOSED, body=b"cancelled", ttl=TTL))[0]


async def test_a_wish_is_noted_once_and_outlives_what_others_write(rig: StoreRig) -> None:
    mine = await rig.walk(await rig.claimed(), S.DISPATCHED)
    _, wished = await rig.store.request_cancel(JOB)
    assert await rig.store.request_cancel(JOB) == (True, wished) or (await rig.record(JOB)).revision == 3

    done, settled = await rig.store.settle(mine, S.ACCEPTED, body=b"", ttl=None)
    assert done
    assert settled is not None
    assert settled.cancel


@pytest.mark.parametrize("state", [S.REFUSED, S.UNKNOWN, S.ACCEPTED, S.DONE])
async def test_the_owner_settles_what_it_dispatched(rig: StoreRig, state: S) -> None:
    mine = await rig.walk(await rig.claimed(), S.DISPATCHED)
    done, settled = await rig.store.settle(mine, state, body=b"how it went", ttl=TTL)
    assert done
    assert settled is not None
    assert (settled.state, settled.body, settled.lease_until) == (state, b"how it went", 0)


async def test_a_late_answer_still_counts_while_the_outcome_is_unknown(rig: StoreRig) -> None:
    mine = await rig.walk(await rig.claimed(), S.DISPATCHED)
    await rig.end_lease(JOB)
    done, left = await rig.store.abandon(await rig.record(JOB), body=b"", ttl=TTL)
    assert done
    assert left is not None
    assert left.state is S.UNKNOWN

    done, settled = await rig.store.settle(mine, S.ACCEPTED, body=b"late", ttl=None)
    assert done
    assert settled is not None
    assert settled.state is S.ACCEPTED


async def test_only_a_lease_that_ran_out_is_abandoned(rig: StoreRig) -> None:
    mine = await rig.claimed()
    assert not (await rig.store.abandon(mine, body=b"", ttl=TTL))[0]
    await rig.end_lease(JOB)
    done, left = await rig.store.abandon(mine, body=b"nobody", ttl=TTL)
    assert done
    assert left is not None
    assert (left.state, left.body) == (S.REFUSED, b"nobody")
    assert not (await rig.store.dispatch(mine, lease=LEASE, body=b""))[0]


@pytest.mark.parametrize(
    ("id", "state", "asked", "attempt"),
    [
        (JOB, S.REFUSED, False, 2),
        (JOB, S.REFUSED, True, 2),
        (JOB, S.VOIDED, False, 3),
        (JOB, S.VOIDED, True, 3),
        (JOB, S.ACCEPTED, False, 3),
        (SANDBOX, S.UNKNOWN, False, 2),
        (SANDBOX, S.UNKNOWN, True, 3),
        (SANDBOX, S.DONE, False, 2),
        (SANDBOX, S.DONE, True, 3),
    ],
)
async def test_a_retry_reopens_and_the_attempt_goes_up_past_a_void(
    rig: StoreRig, id: str, state: S, asked: bool, attempt: int
) -> None:
    await rig.put(id, state, cancel=1, ttl=TTL)
    seen = await rig.record(id)
    fields = {"token": new_token(), "owner": "r", "lease": LEASE, "body": b"again"}
    answers = await asyncio.gather(
        *(rig.store.reopen(seen, **(fields | {"token": new_token()}), next_attempt=asked) for _ in range(5))  # type: ignore[arg-type]
    )
    assert sum(done for done, _ in answers) == 1
    record = await rig.record(id)
    assert (record.state, record.epoch, record.attempt) == (S.CLAIMED, 4, attempt)
    # Where a submission met a void, it is the same job still, and the wish holds.
    assert (record.cancel, record.body) == (state is S.ACCEPTED, b"again")
    assert not record.lease_expired
    stands = await rig.ttls(id)
    assert (stands["claim"] is None) is (id == JOB), "only a sandbox's ends by itself, long after"


@pytest.mark.parametrize("state", [S.UNKNOWN, S.DONE])
async def test_a_job_that_may_have_run_is_never_reopened(rig: StoreRig, state: S) -> None:
    await rig.put(JOB, state)
    seen = await rig.record(JOB)
    done, record = await rig.store.reopen(seen, token=new_token(), owner="r", lease=LEASE, next_attempt=True, body=b"")
    assert not done
    assert record is not None
    assert (record.state, record.revision) == (state, seen.revision)


async def test_a_reopening_sent_again_is_ours(rig: StoreRig) -> None:
    await rig.put(JOB, S.VOIDED)
    seen = await rig.record(JOB)
    for _ in range(2):
        done, record = await rig.store.reopen(
            seen, token="mine", owner="r", lease=LEASE, next_attempt=True, body=b"again"
        )
        assert done
        assert record is not None
        assert (record.epoch, record.attempt) == (4, 3)


async def test_a_follower_that_saw_an_older_revision_changes_nothing(rig: StoreRig) -> None:
    seen = await rig.running()
    done, newer = await rig.follow(seen, S.RUNNING, body=b"newer")
    assert done
    done, record = await rig.follow(seen, S.CLOSED, body=b"older", ttl=TTL)
    assert not done
    assert record is not None
    assert newer is not None
    assert (record.body, record.revision) == (b"newer", newer.revision)


async def test_a_follower_from_before_a_loss_of_data_changes_nothing(rig: StoreRig) -> None:
    seen = await rig.claimed()
    await rig.put(JOB, None)
    await rig.claimed()
    await rig.end_lease(JOB)
    assert not (await rig.store.abandon(seen, body=b"", ttl=TTL))[0]
    assert not (await rig.store.dispatch(seen, lease=LEASE, body=b""))[0]


async def test_only_what_is_over_ends_by_itself(rig: StoreRig) -> None:
    record = await rig.claimed(request=b"asked")
    assert await rig.ttls(JOB) == {"claim": None, "request": None}
    for state in (S.DISPATCHED, S.UNKNOWN, S.ACCEPTED, S.RUNNING, S.ENDED):
        record = await rig.walk(record, state, ttl=TTL)
        assert await rig.ttls(JOB) == {"claim": None, "request": None}, state

    append = Appended(0, b"output")
    await rig.store.put_streams(JOB, {"stdout": b"x"}, ttl=3.0)
    assert (await rig.follow(record, S.CLOSED, body=b"", ttl=TTL, append=append))[0]
    ttls = await rig.ttls(JOB)
    assert set(ttls) == {"claim", "output", "request", "streams"}
    assert all(left is not None and TTL - 30 < left <= TTL for left in ttls.values())


async def test_a_refusal_ends_by_itself_and_a_retry_keeps_it(rig: StoreRig) -> None:
    mine = await rig.claimed(request=b"asked")
    _, refused = await rig.store.settle(mine, S.REFUSED, body=b"no", ttl=TTL)
    assert refused is not None
    ttls = await rig.ttls(JOB)
    assert all(left is not None for left in ttls.values())
    fields = {"owner": "r", "lease": LEASE, "body": b"", "next_attempt": False}
    done, again = await rig.store.reopen(refused, token=new_token(), **fields)  # type: ignore[arg-type]
    assert done
    assert await rig.ttls(JOB) == {"claim": None, "request": None}
    assert await rig.store.request(JOB) == b"asked"

    assert again is not None
    _, refused = await rig.store.settle(again, S.REFUSED, body=b"no", ttl=TTL)
    assert refused is not None
    await rig.store.reopen(refused, token=new_token(), request=b"mended", **fields)  # type: ignore[arg-type]
    assert await rig.store.request(JOB) == b"mended"
    assert await rig.ttls(JOB) == {"claim": None, "request": None}


async def test_a_job_found_by_its_fence_is_written_where_there_is_none(rig: StoreRig) -> None:
    done, record = await rig.store.restore(JOB, S.RUNNING, attempt=4, token="found", body=b"found")
    assert done
    assert (record.state, record.attempt, record.epoch, record.owner) == (S.RUNNING, 4, 1, "")
    assert (await rig.store.restore(JOB, S.RUNNING, attempt=4, token="found", body=b"found"))[0]

    done, there = await rig.store.restore(JOB, S.ENDED, attempt=1, token="other", body=b"")
    assert not done
    assert there.token == "found"
    assert (await rig.follow(record, S.CLOSED, body=b"", ttl=TTL))[0]


@pytest.mark.parametrize(
    "raw",
    [
        b"2 claimed 1 1 1 1 0 t o\nbody",
        b"1 sleeping 1 1 1 1 0 t o\nbody",
        b"1 claimed 1 1 1 1 0 t o extra\nbody",
        b"1 claimed 1 1\n",
        b"{}",
        b"",
    ],
)
async def test_a_record_of_another_version_is_left_alone(rig: StoreRig, raw: bytes) -> None:
    await rig.put_raw(JOB, raw)
    seen = Record(
        id=JOB, state=S.CLAIMED, epoch=1, attempt=1, revision=1, lease_until=1, token="t", owner="o",
        cancel=False, body=b"", now=2,
    )  # fmt: skip
    again = {"token": "t", "owner": "o", "lease": LEASE}
    store = rig.store
    tries = [
        store.get(JOB),
        store.get_many([JOB]),
        store.claim(JOB, **again, body=b""),  # type: ignore[arg-type]
        store.take_over(seen, **again),  # type: ignore[arg-type]
        store.reopen(seen, **again, next_attempt=True, body=b""),  # type: ignore[arg-type]
        store.dispatch(seen, lease=LEASE, body=b""),
        store.renew(seen, lease=LEASE),
        store.release(seen),
        store.settle(seen, S.REFUSED, body=b"", ttl=TTL),
        store.abandon(seen, body=b"", ttl=TTL),
        store.advance(seen, S.RUNNING, body=b""),
        store.finish(seen, S.CLOSED, body=b"", ttl=TTL),
        store.request_cancel(JOB),
        store.restore(JOB, S.RUNNING, attempt=1, token="t", body=b""),
    ]
    for answer in await asyncio.gather(*tries, return_exceptions=True):
        assert isinstance(answer, StoreUnavailable)
        assert "another version" in answer.detail
    assert await rig.raw(JOB) == raw


@pytest.mark.parametrize("bad", ["", "a b", "a\n", "ä", "\x00"])
async def test_a_token_that_would_break_the_form_is_refused(rig: StoreRig, bad: str) -> None:
    with pytest.raises(ValueError, match="visible ASCII"):
        await rig.store.claim(JOB, token=bad, owner="r", lease=1, body=b"")
    with pytest.raises(ValueError, match="visible ASCII"):
        await rig.store.claim(JOB, token="t", owner=bad, lease=1, body=b"")
    assert await rig.raw(JOB) is None


async def test_a_sandbox_s_claim_that_nobody_finishes_ends_long_after_any_retry(rig: StoreRig) -> None:
    async def stands() -> None:
        ttls = await rig.ttls(SANDBOX)
        assert set(ttls) == {"claim"}
        assert ttls["claim"] is not None
        assert ttls["claim"] > RETENTION + 3600, "an engine may take long, and a retry may come late"

    mine = await rig.claimed(SANDBOX)
    await stands()
    assert (await rig.store.renew(mine, lease=LEASE))[0]
    await stands()
    assert (await rig.store.release(mine))[0]
    await stands()
    done, mine_now = await rig.store.take_over(await rig.record(SANDBOX), token="t2", owner="o", lease=LEASE)
    assert done
    assert mine_now is not None
    await stands()
    assert (await rig.store.dispatch(mine_now, lease=LEASE, body=b""))[0]
    await stands()
    await rig.end_lease(SANDBOX)
    assert (await rig.store.abandon(await rig.record(SANDBOX), body=b"", ttl=None))[0]
    await stands()
    reopened = await rig.store.reopen(
        await rig.record(SANDBOX), token="t3", owner="o", lease=LEASE, next_attempt=True, body=b""
    )
    assert reopened[0]
    await stands()
    assert (await rig.store.dispatch(await rig.record(SANDBOX), lease=LEASE, body=b""))[0]
    assert (await rig.store.settle(await rig.record(SANDBOX), S.UNKNOWN, body=b"", ttl=None))[0]
    await stands()


async def test_a_sandbox_s_claim_that_is_over_has_the_retention_it_is_given(rig: StoreRig) -> None:
    mine = await rig.claimed(SANDBOX)
    assert (await rig.store.dispatch(mine, lease=LEASE, body=b""))[0]
    assert (await rig.store.settle(await rig.record(SANDBOX), S.DONE, body=b"", ttl=TTL))[0]
    left = (await rig.ttls(SANDBOX))["claim"]
    assert left is not None
    assert TTL - 30 < left <= TTL
