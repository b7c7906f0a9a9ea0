"""Replicas whose clocks are wrong, and replicas of another release, on one Redis."""

import asyncio
import os
import time
from datetime import datetime
from pathlib import Path

import pytest

from service.store import keys
from tests.faults.rig import CLAIM_WAIT, LEASE, LONG_LEASE, OWNER, Rig
from tests.faults.tally import Tally, tries
from tests.support.waiting import PATIENCE

SHIFT = """
import time
_real, _real_ns = time.time, time.time_ns
time.time = lambda: _real() + {seconds}
time.time_ns = lambda: _real_ns() + {seconds} * 10**9
"""

HOUR = 3600


def clock_off_by(folder: Path, seconds: int) -> dict[str, str]:
    """The environment of a Python process whose wall clock is wrong."""
    place = folder / f"clock{seconds}"
    place.mkdir()
    (place / "sitecustomize.py").write_text(SHIFT.format(seconds=seconds))
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH")]))}


def seconds_of(shown: str) -> float:
    """Unix seconds of a time in an answer."""
    return datetime.fromisoformat(shown).timestamp()


async def rig_with_wrong_clocks(
    rig: Rig, folder: Path, *, lease: float = LONG_LEASE, claim_wait: float = CLAIM_WAIT
) -> None:
    """The first replica's clock is an hour fast, the second one's an hour slow."""
    await rig.start(replicas=0)
    for name, seconds in (("fast", HOUR), ("slow", -HOUR)):
        times = {"ONCEBOX_LEASE": str(lease), "ONCEBOX_CLAIM_WAIT": str(claim_wait)}
        await rig.add_replica(name, {**clock_off_by(folder, seconds), **times}).start()


async def test_the_clocks_of_the_test_are_wrong(rig: Rig, tmp_path: Path) -> None:
    await rig_with_wrong_clocks(rig, tmp_path)
    await rig.sandbox()
    line = await asyncio.to_thread(rig.replicas[0].process.wait_for_line, r'"time":"([^"]+)"')
    assert seconds_of(line[1]) - time.time() == pytest.approx(HOUR, abs=PATIENCE)


@tries(short=4, long=60)  # at each of two replicas: of one tenant, a replica has 64 submissions under way at most
async def test_clocks_an_hour_apart__leases_hold_and_are_taken_over(rig: Rig, tmp_path: Path, tries: int) -> None:
    tally = Tally("replica clocks an hour fast and an hour slow")
    # On a busy machine a lease of 1 s runs out on a living replica; and who asks again has to wait, as by default, for
    # longer than a lease: a claim that is taken over while nobody waits for it ends as `failed`, `replica_lost`.
    lease, claim_wait = (15, 25) if tries > 10 else (5, 8)
    await rig_with_wrong_clocks(rig, tmp_path, lease=lease, claim_wait=claim_wait)
    for doomed, other in (rig.replicas, rig.replicas[::-1]):
        sandbox_id = await rig.sandbox(other)
        marks = [f"{doomed.name}{number}" for number in range(tries)]
        doomed.points.hold("dispatched")
        calls = [asyncio.create_task(rig.caller.submit(doomed.url, sandbox_id, rig.command(m), key=m)) for m in marks]
        await doomed.points.reached("dispatched", times=tries)
        waiting = [
            asyncio.create_task(rig.caller.submit(other.url, sandbox_id, rig.command(m), key=m, patience=90))
            for m in marks
        ]
        told = await asyncio.gather(*waiting)
        assert {(answer.status, answer.body["state"]) for answer in told} == {(202, "pending")}, "the lease is renewed"
        assert not rig.runs().keys() & set(marks)
        shown = seconds_of(told[0].body["submitted_at"])
        assert shown == pytest.approx(time.time(), abs=PATIENCE), "times are Redis's"
        doomed.kill()
        await asyncio.gather(*calls)
        answers = await asyncio.gather(
            *(
                rig.caller.submit_until_answered([other.url], sandbox_id, rig.command(m), key=m, within=90)
                for m in marks
            )
        )
        jobs = {m: a.command_id if a.status == 202 else None for m, a in zip(marks, answers, strict=True)}
        await tally.audit(rig, other.url, jobs)
        doomed.points.forget()
        await doomed.start()
    tally.check()


async def test_clocks_an_hour_apart__expiry_and_timeout_are_right(rig: Rig, tmp_path: Path) -> None:
    await rig_with_wrong_clocks(rig, tmp_path)
    fast, slow = rig.replicas
    for replica, other in ((fast, slow), (slow, fast)):
        made = await rig.caller.create(replica.url, key=replica.name, workspace_owner=OWNER, timeout=600)
        id = made.body["sandbox_id"]
        assert seconds_of(made.body["expires_at"]) == pytest.approx(time.time() + 600, abs=PATIENCE)
        renewed = await rig.caller.send("POST", f"{other.url}/v1/sandboxes/{id}/renew", json={"timeout": 900})
        assert seconds_of(renewed.body["expires_at"]) == pytest.approx(time.time() + 900, abs=PATIENCE)
        killed = await rig.caller.submit(replica.url, id, "echo begun; exec sleep 60", key="k", timeout=1)
        job = await rig.caller.ended(other.url, killed.command_id)
        assert (job["state"], job["output"], job["timed_out"]) == ("timed_out", "begun\n", True)


def rewrite(rig: Rig, id: str, old: bytes, new: bytes) -> None:
    """Changes a claim as it stands in Redis."""
    with rig.redis.client() as client:
        client.connection_pool.connection_kwargs["decode_responses"] = False
        raw = client.get(keys.claim(id))
        assert isinstance(raw, bytes)
        assert old in raw
        client.set(keys.claim(id), raw.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"1 closed", b"2 closed"), (b"1 closed", b"1 postponed"), (b'"timeout":60', b'"timeout":{"soft":60}')],
    ids=["version", "state", "body"],
)
async def test_a_record_of_a_newer_release__503_and_left_alone(rig: Rig, old: bytes, new: bytes) -> None:
    await rig.start(replicas=1)
    url = rig.urls[0]
    sandbox_id = await rig.sandbox()
    job = await rig.caller.submit(url, sandbox_id, rig.command("m"), key="m")
    await rig.caller.ended(url, job.command_id)
    rewrite(rig, job.command_id, old, new)

    answers = {
        "GET": await rig.caller.job(url, job.command_id),
        "POST": await rig.caller.submit(url, sandbox_id, rig.command("m"), key="m"),
        "DELETE": await rig.caller.send("DELETE", f"{url}/v1/exec-jobs/{job.command_id}"),
        "output": await rig.caller.send("GET", f"{url}/v1/exec-jobs/{job.command_id}/output"),
    }

    assert {name: (a.status, a.code) for name, a in answers.items()} == dict.fromkeys(
        answers, (503, "STORE_UNAVAILABLE")
    )
    other = await rig.caller.submit(url, sandbox_id, rig.command("other"), key="other")
    listed = await rig.caller.send("GET", f"{url}/v1/exec-jobs?sandbox_id={sandbox_id}")
    assert listed.status in (200, 503)
    tally = Tally("a record of a newer release")
    await tally.audit(rig, url, {"other": other.command_id})
    assert rig.runs()["m"] == 1
    tally.check()


async def test_an_active_record_of_a_newer_release__does_not_stop_the_follower(rig: Rig) -> None:
    await rig.start(replicas=1)
    url = rig.urls[0]
    sandbox_id = await rig.sandbox()
    long = await rig.caller.submit(url, sandbox_id, rig.command("long", then="sleep 30"), key="long")
    rewrite(rig, long.command_id, b"1 ", b"2 ")
    tally = Tally("an active record of a newer release")
    jobs: dict[str, str | None] = {}
    for number in range(3):
        answer = await rig.caller.submit(
            url, sandbox_id, rig.command(f"m{number}", then=f"sleep {LEASE}"), key=f"m{number}"
        )
        jobs[f"m{number}"] = answer.command_id
    await tally.audit(rig, url, jobs)
    assert (await rig.caller.job(url, long.command_id)).status == 503
    rewrite(rig, long.command_id, b"2 ", b"1 ")
    assert (await rig.caller.job(url, long.command_id)).body["state"] == "running"
    tally.check()


async def test_a_sandbox_claim_of_a_newer_release__503_and_no_second_sandbox(rig: Rig) -> None:
    await rig.start(replicas=1)
    made = await rig.caller.create(rig.urls[0], key="k", workspace_owner=OWNER)
    assert made.status == 201
    with rig.redis.client() as client:
        claims = list(client.scan_iter(match="oncebox:*:claim:*"))
    assert len(claims) == 1
    digest = str(claims[0]).rpartition(":")[2].rstrip("'")
    rewrite(rig, digest, b"1 ", b"2 ")
    answer = await rig.caller.create(rig.urls[0], key="k", workspace_owner=OWNER)
    assert (answer.status, answer.code) == (503, "STORE_UNAVAILABLE")
    assert (await rig.engine_counts())["create"] == 1
