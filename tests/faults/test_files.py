"""Uploads whose replica, engine, disk or sandbox fails: each leaves what was there, or all that was sent."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from urllib.parse import urlencode

import aiohttp

from service.core.files.scripts import UPLOAD
from tests.faults.rig import Rig
from tests.faults.tally import Tally, batches, tries
from tests.support.tcp_proxy import Action, Fault

AT_ONCE = 5
"""Uploads that one fault meets."""
OLD, NEW = b"old" * 30_000, b"new!" * 100_000


class Uploads:
    """Files of one sandbox, over any replica."""

    def __init__(self, rig: Rig, sandbox_id: str, tally: Tally) -> None:
        self.rig = rig
        self.sandbox_id = sandbox_id
        self.tally = tally

    async def ask(self, method: str, url: str, path: str, body: object = None) -> tuple[int, bytes]:
        """Status and body; status 0: the connection ended first. A body that comes slowly is ``NEW``, and has its
        length in one half of all requests: then it is sent on as one piece.
        """
        target = f"{url}/v1/sandboxes/{self.sandbox_id}/files?{urlencode({'path': path})}"
        timeout = aiohttp.ClientTimeout(total=60)
        told = isinstance(body, AsyncIterator) and random.random() < 0.5
        headers = {"Content-Length": str(len(NEW))} if told else {}
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.request(method, target, data=body, headers=headers) as reply,
            ):
                return reply.status, await reply.read()
        except (aiohttp.ClientError, TimeoutError):
            return 0, b""

    async def put(self, url: str, name: str, content: bytes) -> None:
        """A PUT until it is answered; it must be in the end."""
        for _ in range(50):
            status, _ = await self.ask("PUT", url, name, content)
            if status in (200, 201):
                return
            await asyncio.sleep(0.2)
        self.tally.wrong("stuck", f"{name} can't be written")

    async def check(self, url: str, name: str, status: int) -> None:
        """What a PUT with this status has left; and the same again completes it."""
        self.tally.tries += 1
        found, content = await self.read(url, name)
        if found != 200 or content not in (OLD, NEW) or (status in (200, 201) and content != NEW):
            self.tally.wrong("lost", f"{name}: {status}, then {found} with {len(content)} bytes")
        await self.put(url, name, NEW)
        if (await self.read(url, name))[1] != NEW:
            self.tally.wrong("lost", f"{name} again")

    async def read(self, url: str, name: str) -> tuple[int, bytes]:
        """A GET until it is answered with something else than "try again"."""
        for _ in range(49):
            status, content = await self.ask("GET", url, name)
            if status not in (0, 503):
                return status, content
            await asyncio.sleep(0.2)
        return await self.ask("GET", url, name)

    async def hidden(self, url: str) -> int:
        """Directories of uploads in the working directory."""
        asked = {"sandbox_id": self.sandbox_id, "command": f"ls -a | grep -c '^{UPLOAD}'"}
        answer = await self.rig.caller.send("POST", f"{url}/v1/exec", json=asked)
        return int(answer.body["stdout"])


async def slowly(content: bytes, at: asyncio.Event | None, cut: int) -> AsyncIterator[bytes]:
    """A body, of which only ``cut`` bytes come until ``at`` is set."""
    yield content[:cut]
    if at is not None:
        await at.wait()
    yield content[cut:]


@tries(short=5, long=100)
async def test_killed_in_the_middle_of_uploads__they_leave_what_was_there(rig: Rig, tries: int) -> None:
    tally = Tally("upload, replica killed")
    await rig.start(replicas=2)
    other, doomed = rig.replicas
    uploads = Uploads(rig, await rig.sandbox(other), tally)
    for names in batches("k", tries, AT_ONCE):
        if not doomed.process.alive:
            await doomed.start()
        for name in names:
            await uploads.put(other.url, name, OLD)
        never = asyncio.Event()
        putting = [
            asyncio.create_task(uploads.ask("PUT", doomed.url, name, slowly(NEW, never, random.randrange(len(NEW)))))
            for name in names
        ]
        await asyncio.sleep(random.uniform(0.1, 1.0))
        doomed.kill()
        never.set()
        answers = await asyncio.gather(*putting)
        for name, (status, _) in zip(names, answers, strict=True):
            await uploads.check(other.url, name, status)
    tally.check()


@tries(short=10, long=300)
async def test_the_engine_s_network_is_cut_in_uploads__whole_or_unchanged(rig: Rig, tries: int) -> None:
    tally = Tally("upload, the engine's network cut")
    await rig.start(replicas=1, networks=True)
    (replica,) = rig.replicas
    uploads = Uploads(rig, await rig.sandbox(), tally)
    for name in [mark for some in batches("n", tries, AT_ONCE) for mark in some]:
        await uploads.put(replica.url, name, OLD)
        where = random.choice([b"/files/upload", b"/command"])
        action, side = random.choice([Action.RESET, Action.CLOSE]), random.choice(["reply", "request"])
        after = random.randrange(len(NEW)) if side == "request" else random.randrange(200)
        setattr(rig.engine_net.plan, side, Fault(action, when=where, after=after))
        status, _ = await uploads.ask("PUT", replica.url, name, NEW)
        rig.engine_net.plan.reply = rig.engine_net.plan.request = None
        await uploads.check(replica.url, name, status)
    tally.check()


@tries(short=3, long=50)
async def test_a_disk_that_is_full__is_507_and_leaves_nothing(rig: Rig, tries: int) -> None:
    tally = Tally("upload, the disk is full")
    await rig.start(replicas=1)
    (replica,) = rig.replicas
    uploads = Uploads(rig, await rig.sandbox(), tally)
    full = {"code": "RUNTIME_ERROR", "message": "error copying file x. write x: no space left on device"}
    for name in [mark for some in batches("d", tries, AT_ONCE) for mark in some]:
        await uploads.put(replica.url, name, OLD)
        await rig.order_fault(upload_status=500, upload_body=json.dumps(full))
        status, body = await uploads.ask("PUT", replica.url, name, NEW)
        if (status, json.loads(body)["code"]) != (507, "DISK_FULL"):
            tally.wrong("lost", f"{name}: {status}")
        if await uploads.hidden(replica.url):
            tally.wrong("stuck", f"{name} has left something")
        await uploads.check(replica.url, name, status)
    tally.check()


@tries(short=2, long=20)
async def test_a_sandbox_is_paused_in_uploads__they_end_and_leave_what_was_there(rig: Rig, tries: int) -> None:
    tally = Tally("upload, the sandbox paused")
    await rig.start(replicas=1)
    (replica,) = rig.replicas
    sandbox_id = await rig.sandbox()
    uploads = Uploads(rig, sandbox_id, tally)
    switch = f"{replica.url}/v1/sandboxes/{sandbox_id}"
    for name in [mark for some in batches("p", tries, AT_ONCE) for mark in some]:
        await uploads.put(replica.url, name, OLD)
        never = asyncio.Event()
        body = slowly(NEW, never, random.randrange(len(NEW)))
        putting = asyncio.create_task(uploads.ask("PUT", replica.url, name, body))
        await asyncio.sleep(0.3)
        assert (await rig.caller.send("POST", f"{switch}/pause", json={})).status == 202
        status, _ = await putting
        never.set()
        if status != 409:
            tally.wrong("stuck", f"{name}: {status}")
        assert (await rig.caller.send("POST", f"{switch}/resume", json={})).status == 202
        await uploads.check(replica.url, name, status)
    tally.check()
