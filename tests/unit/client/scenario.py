"""One caller's day, for the synchronous and for the asynchronous client: what it saw must be the same, always."""

from __future__ import annotations

import io
from typing import Any

from service.client import AsyncClient, Client, JobResult
from tests.unit.client.fake_service import FakeService, Script

WORDS = "Straße, 東京, 🙂 and plain text\n"
SCRIPTS = {
    "build": Script(
        # The last block comes after the terminal state: a child that outlived its parent.
        blocks=(*((at * 7.0, f"{at}: {WORDS}".encode() * 3) for at in range(6)), (41.0, b"late\n")),
        ends=40.0,
        exit_code=3,
    ),
    "binary": Script(blocks=((0.5, bytes(range(256)) * 2), (20.0, b"\xff\xfe\xf0\x9f")), ends=21.0, exit_code=137),
    "slow": Script(blocks=((0.0, b"begin"),), ends=100.0, exit_code=None, state="timed_out"),
    "endless": Script(ends=1e9),
    "lost": Script(ends=30.0, exit_code=None, state="lost", reason="sandbox_gone"),
    "quick": Script(blocks=((0.0, "hé\n".encode()),)),
}


def service() -> FakeService:
    return FakeService(SCRIPTS)


def seen(result: JobResult) -> dict[str, Any]:
    """A result, without its id: after a lost answer, ids may be numbered in another order."""
    return {
        "state": result.state.value,
        "exit_code": result.exit_code,
        "timed_out": result.timed_out,
        "reason": result.reason and result.reason.value,
        "output": result.output,
        "output_complete": result.output_complete,
        "sandbox": result.sandbox_id,
    }


def day(client: Client) -> dict[str, Any]:
    sandbox = client.create_sandbox(image="i", metadata={"run": "7"}, idempotency_key="task-17")
    saw: dict[str, Any] = {"sandbox": sandbox.id, "ready": sandbox.info and sandbox.info.ready}
    job = sandbox.submit("build", timeout=3600, idempotency_key="build-1")
    saw["stream"] = "".join(job.stream())
    saw["build"] = seen(job.result())
    saw["again"] = seen(client.job(job.id).result())
    binary = sandbox.submit("binary")
    saw["bytes"] = b"".join(binary.stream_bytes())
    file = io.BytesIO()
    saw["to file"] = seen(binary.output_to(file)), file.getvalue()
    for command in ("slow", "lost"):
        saw[command] = seen(sandbox.submit(command).result())
    saw["exec"] = seen(sandbox.run("quick"))
    saw["run"] = seen(sandbox.run("quick", timeout=61))
    cancelled = sandbox.submit("endless")
    cancelled.cancel()
    saw["cancelled"] = cancelled.result().state.value
    others = [client.create_sandbox(idempotency_key=f"other-{number}") for number in range(3)]
    mapped = client.map("quick", [sandbox, *others], concurrency=1, key="map")
    saw["map"] = sorted((item.sandbox_id, item.exit_code, item.output) for item in mapped)
    saw["jobs"] = sorted(item.info.command for item in client.jobs(sandbox_id=sandbox.id) if item.info)
    saw["sandboxes"] = [item.id for item in client.sandboxes(metadata={"run": "7"})]
    saw["renewed"] = sandbox.renew(600).expires_at
    saw["paused"] = sandbox.pause().state.value, sandbox.resume().state.value, sandbox.refresh().state.value
    sandbox.delete()
    saw["left"] = sorted(item.id for item in client.sandboxes())
    return saw


async def async_day(client: AsyncClient) -> dict[str, Any]:
    sandbox = await client.create_sandbox(image="i", metadata={"run": "7"}, idempotency_key="task-17")
    saw: dict[str, Any] = {"sandbox": sandbox.id, "ready": sandbox.info and sandbox.info.ready}
    job = await sandbox.submit("build", timeout=3600, idempotency_key="build-1")
    saw["stream"] = "".join([chunk async for chunk in job.stream()])
    saw["build"] = seen(await job.result())
    saw["again"] = seen(await client.job(job.id).result())
    binary = await sandbox.submit("binary")
    saw["bytes"] = b"".join([chunk async for chunk in binary.stream_bytes()])
    file = io.BytesIO()
    saw["to file"] = seen(await binary.output_to(file)), file.getvalue()
    for command in ("slow", "lost"):
        saw[command] = seen(await (await sandbox.submit(command)).result())
    saw["exec"] = seen(await sandbox.run("quick"))
    saw["run"] = seen(await sandbox.run("quick", timeout=61))
    cancelled = await sandbox.submit("endless")
    await cancelled.cancel()
    saw["cancelled"] = (await cancelled.result()).state.value
    others = [await client.create_sandbox(idempotency_key=f"other-{number}") for number in range(3)]
    mapped = client.map("quick", [sandbox, *others], concurrency=2, key="map")
    saw["map"] = sorted([(item.sandbox_id, item.exit_code, item.output) async for item in mapped])
    jobs = client.jobs(sandbox_id=sandbox.id)
    saw["jobs"] = sorted([item.info.command async for item in jobs if item.info])
    saw["sandboxes"] = [item.id async for item in client.sandboxes(metadata={"run": "7"})]
    saw["renewed"] = (await sandbox.renew(600)).expires_at
    saw["paused"] = (
        (await sandbox.pause()).state.value,
        (await sandbox.resume()).state.value,
        (await sandbox.refresh()).state.value,
    )
    await sandbox.delete()
    saw["left"] = sorted([item.id async for item in client.sandboxes()])
    return saw
