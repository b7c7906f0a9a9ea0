"""A caller whose connection ends at any byte of the exchange: a retry gets the same job, and it ran once."""

import asyncio
import json
import socket
import struct
from typing import Any

from tests.faults.inputs import submission
from tests.faults.rig import OWNER, Replica, Rig
from tests.faults.tally import Tally, batches, tries
from tests.support.ports import LOOPBACK

REPLY_BYTES = 1100
"""A little more than the length of an answer."""

AT_ONCE = 50
"""Submissions under way: fewer than a replica takes of one tenant."""


def job_bytes(rig: Rig, sandbox_id: str, mark: str) -> bytes:
    """The whole submission of a mark, which is its key as well."""
    body = submission(sandbox_id, rig.command(mark), 60)
    return request_bytes("/v1/exec-jobs", body, mark)


def request_bytes(path: str, body: dict[str, object], key: str) -> bytes:
    """A whole POST."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {LOOPBACK}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return f"{head}Idempotency-Key: {key}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


async def exchange(replica: Replica, request: bytes, *, reply: int | None) -> bytes:
    """Sends the bytes, reads so many of the answer (None: waits for none), and resets the connection."""
    reader, writer = await asyncio.open_connection(LOOPBACK, replica.port)
    got = b""
    try:
        writer.write(request)
        await writer.drain()
        if reply is not None:
            async with asyncio.timeout(60):
                while len(got) < reply and (more := await reader.read(reply - len(got))):
                    got += more
    finally:
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    return got


@tries(short=12, long=400)
async def test_cut_at_any_byte_of_the_exchange__a_retry_gets_the_same_job(rig: Rig, tries: int) -> None:
    tally = Tally("caller cut off at a byte of the exchange, then a retry")
    await rig.start(replicas=2)
    sandbox_id = await rig.sandbox()
    length = len(job_bytes(rig, sandbox_id, "m0"))
    jobs: dict[str, str | None] = {}
    for number in range(tries):
        mark = f"m{number}"
        whole = job_bytes(rig, sandbox_id, mark)
        place = (number + 1) * (length + REPLY_BYTES) // tries
        first = rig.replicas[number % 2]
        if place <= len(whole):
            got = await exchange(first, whole[:place], reply=None)
        else:
            got = await exchange(first, whole, reply=place - len(whole))
        answer = await rig.caller.submit(rig.urls[(number + 1) % 2], sandbox_id, rig.command(mark), key=mark)
        retried = await rig.caller.submit(first.url, sandbox_id, rig.command(mark), key=mark)
        assert retried.command_id == answer.command_id
        jobs[mark] = answer.command_id if answer.status == 202 else None
        if b'"command_id":"' in got and b'","sandbox_id"' in got:
            assert answer.command_id.encode() in got
            assert answer.replayed
    await tally.audit(rig, rig.urls[0], jobs)
    tally.check()


@tries(short=10, long=200)
async def test_a_caller_who_leaves_stops_nothing(rig: Rig, tries: int) -> None:
    """Nobody retries: what was wholly sent is executed all the same."""
    tally = Tally("caller gone right after its request, no retry")
    await rig.start(replicas=1, env={"ONCEBOX_LEASE": "60"})
    sandbox_id = await rig.sandbox()
    points = rig.replicas[0].points
    for marks in batches("m", tries, AT_ONCE):
        points.hold("after_claim")
        for number, mark in enumerate(marks):
            gone = asyncio.create_task(exchange(rig.replicas[0], job_bytes(rig, sandbox_id, mark), reply=1))
            await points.reached("after_claim", times=number + 1)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
        assert not set(marks) & set(rig.runs())
        points.release("after_claim")
        commands = {rig.command(mark): mark for mark in marks}
        jobs: dict[str, str | None] = {}
        while len(jobs) < len(marks):
            listed = await rig.caller.jobs(rig.urls[0], sandbox_id)
            jobs = {commands[job["command"]]: job["command_id"] for job in listed if job["command"] in commands}
        await tally.audit(rig, rig.urls[0], jobs)
        points.forget()
    tally.check()


@tries(short=8, long=100)
async def test_cut_at_any_byte_of_a_create__a_retry_gets_the_same_sandbox(rig: Rig, tries: int) -> None:
    tally = Tally("caller of a create cut off at a byte of the exchange, then a retry")
    await rig.start(replicas=2)
    fields: dict[str, Any] = {"workspace_owner": OWNER}
    length = len(request_bytes("/v1/sandboxes", dict(fields), "k0"))
    for number in range(tries):
        key = f"k{number}"
        before = (await rig.engine_counts())["create"]
        whole = request_bytes("/v1/sandboxes", dict(fields), key)
        place = (number + 1) * (length + REPLY_BYTES) // tries
        await exchange(rig.replicas[0], whole[:place], reply=place - len(whole) if place > len(whole) else None)
        answers = [await rig.caller.create(url, key=key, **fields) for url in reversed(rig.urls)]
        tally.tries += 1
        if (await rig.engine_counts())["create"] - before != 1:
            tally.wrong("duplicates", f"{key}, cut at {place}")
        if {(answer.status, answer.body.get("sandbox_id")) for answer in answers} != {
            (201, answers[0].body.get("sandbox_id"))
        }:
            tally.wrong("lost", f"{key}, cut at {place}: {answers}")
    tally.check()
