"""What is kept beside a claim: output, requests, streams, and the budget over them."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.core.model.states import ClaimState
from service.ports.store import Appended, Record
from service.store import keys
from tests.contract.store_rig import JOB, RECORD_OUTPUT, RETENTION, TTL, StoreRig

S = ClaimState


async def _append(rig: StoreRig, record: Record, offset: int, data: bytes, to: S = S.RUNNING) -> Record:
    done, now = await rig.follow(record, to, body=b"", ttl=TTL, append=Appended(offset, data))
    assert done
    assert now is not None
    return now


async def test_nothing_is_kept_at_first(rig: StoreRig) -> None:
    record = await rig.running()
    assert await rig.store.output(JOB, 0, 10) is None
    assert await rig.store.output_span(JOB) is None
    await rig.walk(record, S.CLOSED)
    assert await rig.store.output_span(JOB) is None


async def test_output_grows_and_is_read_in_slices(rig: StoreRig) -> None:
    record = await rig.running()
    record = await _append(rig, record, 0, b"\x00\xff\r\n")
    await _append(rig, record, 4, b"abc")
    assert await rig.store.output_span(JOB) == (0, 7)
    assert await rig.store.output(JOB, 0, 100) == Appended(0, b"\x00\xff\r\nabc")
    assert await rig.store.output(JOB, 3, 5) == Appended(3, b"\na")
    assert await rig.store.output(JOB, 7, 9) == Appended(7, b"")
    assert await rig.store.output(JOB, 90, 99) == Appended(7, b"")
    assert await rig.store.output(JOB, 5, 2) == Appended(5, b"")


async def test_a_gap_begins_anew(rig: StoreRig) -> None:
    record = await _append(rig, await rig.running(), 0, b"first")
    record = await _append(rig, record, 50, b"later")
    assert await rig.store.output(JOB, 0, 100) == Appended(50, b"later")
    await _append(rig, record, 0, b"from the start")
    assert await rig.store.output(JOB, 0, 100) == Appended(0, b"from the start")


async def test_a_stale_follower_adds_no_output(rig: StoreRig) -> None:
    old = await rig.running()
    await _append(rig, old, 0, b"good")
    done, _ = await rig.follow(old, S.RUNNING, body=b"", append=Appended(4, b"twice"))
    assert not done
    done, _ = await rig.follow(old, S.CLOSED, body=b"", ttl=TTL, append=Appended(4, b"twice"))
    assert not done
    assert await rig.store.output(JOB, 0, 100) == Appended(0, b"good")
    assert (await rig.record(JOB)).state is S.RUNNING


@pytest.mark.parametrize("size", [13, 99, 100, 101, 250, 1000])
async def test_the_end_of_the_output_is_kept_within_bounds(rig: StoreRig, size: int) -> None:
    log = random.Random(size).randbytes(1000)
    record = await rig.running()
    for start in range(0, len(log), size):
        record = await _append(rig, record, start, log[start : start + size])
        first, last = await rig.store.output_span(JOB) or (0, 0)
        assert last == min(start + size, len(log))
        assert min(last, RECORD_OUTPUT) <= last - first <= 2 * RECORD_OUTPUT
        assert await rig.store.output(JOB, 0, last) == Appended(first, log[first:last])

    await rig.walk(record, S.ENDED, S.CLOSED)
    first = len(log) - RECORD_OUTPUT
    assert await rig.store.output_span(JOB) == (first, len(log))
    assert await rig.store.output(JOB, 0, 9999) == Appended(first, log[first:])
    assert await rig.store.output(JOB, first + 3, first + 5) == Appended(first + 3, log[first + 3 : first + 5])
    assert await rig.store.output(JOB, 5, 1) == Appended(first, b"")


async def test_the_last_output_comes_with_the_closing(rig: StoreRig) -> None:
    record = await _append(rig, await rig.running(), 0, b"a" * 60)
    await _append(rig, record, 60, b"b" * 60, S.CLOSED)
    assert await rig.store.output(JOB, 0, 999) == Appended(20, b"a" * 40 + b"b" * 60)
    ttls = await rig.ttls(JOB)
    assert all(left is not None for left in ttls.values())


async def test_all_output_may_come_with_the_closing(rig: StoreRig) -> None:
    await _append(rig, await rig.running(), 0, b"x" * 5, S.CLOSED)
    assert await rig.store.output(JOB, 0, 999) == Appended(0, b"xxxxx")


async def test_closed_output_is_compressed(rig: StoreRig) -> None:
    record = await rig.running()
    await _append(rig, record, 0, b"a" * RECORD_OUTPUT, S.CLOSED)
    assert await rig.command("STRLEN", keys.output(JOB)) < 38 + 30


async def test_a_retry_starts_with_no_output(rig: StoreRig) -> None:
    mine = await rig.walk(await rig.claimed(), S.DISPATCHED, S.ACCEPTED)
    mine = await _append(rig, mine, 0, b"of the old attempt", S.VOIDED)
    await rig.store.reopen(mine, token="n", owner="r", lease=9.0, next_attempt=True, body=b"")
    assert await rig.store.output(JOB, 0, 99) is None


@pytest.mark.parametrize("asked", [b"x", b"x" * 100_000, random.Random(1).randbytes(50_000)])
async def test_the_request_is_kept_as_it_was(rig: StoreRig, asked: bytes) -> None:
    await rig.claimed(request=asked)
    assert await rig.store.request(JOB) == asked
    assert await rig.store.request("cmd_other") is None


async def test_a_claim_without_a_request_keeps_none(rig: StoreRig) -> None:
    await rig.claimed()
    assert await rig.store.request(JOB) is None


async def test_streams_are_kept_apart(rig: StoreRig) -> None:
    assert await rig.store.streams(JOB) is None
    streams = {"stdout": random.Random(2).randbytes(40_000), "stderr": b""}
    await rig.store.put_streams(JOB, streams, ttl=TTL)
    assert await rig.store.streams(JOB) == streams


async def test_over_budget_the_oldest_outputs_go_and_their_records_stay(rig: StoreRig) -> None:
    for n in range(10):
        record = await rig.running(f"cmd_{n}")
        await _append(rig, record, 0, random.Random(n).randbytes(RECORD_OUTPUT), S.CLOSED)
    size = await rig.command("STRLEN", keys.output("cmd_0"))

    assert await rig.store.trim_outputs(10 * size) == 0
    assert await rig.store.trim_outputs(4 * size) == 6
    assert await rig.store.trim_outputs(4 * size) == 0
    kept = [await rig.store.output_span(f"cmd_{n}") is not None for n in range(10)]
    assert kept == [False] * 6 + [True] * 4
    assert all(record is not None for record in await rig.store.get_many([f"cmd_{n}" for n in range(10)]))
    assert await rig.store.trim_outputs(0) == 4
    assert await rig.store.trim_outputs(0) == 0


async def test_streams_count_for_the_budget(rig: StoreRig) -> None:
    await rig.store.put_streams(JOB, {"stdout": b"x"}, ttl=TTL)
    assert await rig.store.trim_outputs(0) == 1
    assert await rig.store.streams(JOB) is None


async def test_what_is_written_again_counts_once_for_the_budget(rig: StoreRig) -> None:
    streams = {"stdout": random.Random(3).randbytes(1000)}
    for _ in range(3):
        await rig.store.put_streams(JOB, streams, ttl=TTL)
    assert await rig.store.trim_outputs(2000) == 0
    assert await rig.store.streams(JOB) == streams


async def test_output_of_a_live_job_never_goes_for_the_budget(rig: StoreRig) -> None:
    # Given a closing that lost its race after it had been listed
    old = await _append(rig, await rig.running(), 0, b"good")
    await _append(rig, old, 4, b" more")
    assert not (await rig.follow(old, S.CLOSED, body=b"", ttl=TTL))[0]

    await rig.store.trim_outputs(0)
    assert await rig.store.output(JOB, 0, 99) == Appended(0, b"good more")


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 5), st.binary(max_size=150)), max_size=8), st.booleans())
async def test_what_is_kept_is_what_was_added(rig: StoreRig, added: list[tuple[int, bytes]], closing: bool) -> None:
    await rig.put(JOB, None)
    record = await rig.running()
    base, log = 0, b""
    for skipped, data in added:
        offset = base + len(log) + skipped
        record = await _append(rig, record, offset, data)
        base, log = (offset, data) if skipped else (base, log + data)
        if len(log) > 2 * RECORD_OUTPUT:
            base, log = base + len(log) - RECORD_OUTPUT, log[-RECORD_OUTPUT:]
    if closing:
        await rig.walk(record, S.CLOSED)
        cut = max(0, len(log) - RECORD_OUTPUT)
        base, log = base + cut, log[cut:]
    assert await rig.store.output_span(JOB) == ((base, base + len(log)) if added else None)
    assert await rig.store.output(JOB, 0, 10**6) == (Appended(base, log) if added else None)


async def test_the_lists_of_recorded_outputs_end_where_nothing_more_is_recorded(rig: StoreRig) -> None:
    await _append(rig, await rig.running(), 0, b"x", S.CLOSED)

    left = [await rig.command("PTTL", key) for key in keys.outputs(JOB)]

    assert all(0 < each <= 1000 * RETENTION for each in left), left
