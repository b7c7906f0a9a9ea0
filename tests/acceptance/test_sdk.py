"""The SDK against a real service: what the fake ones of its unit tests only stand for."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from service.client import AsyncClient, Client, JobState, OutputTooLarge
from service.server.embedded import embedded
from service.settings import Settings

pytestmark = pytest.mark.acceptance

PRINTED = "".join(f"{n}\n" for n in range(1, 100_001))


@pytest.fixture
async def client() -> AsyncIterator[AsyncClient]:
    async with embedded(Settings()) as url, AsyncClient(url) as client:
        yield client


async def test_run_has_all_that_was_printed_at_every_timeout(client: AsyncClient) -> None:
    async with await client.create_sandbox(wait_ready=60) as box:
        for timeout in (None, 60, 61):
            whole = await box.run("seq 1 100000; seq 1 100000 >&2", timeout=timeout, check=True)
            assert (whole.stdout, whole.stderr, whole.truncated) == (PRINTED, PRINTED, False)
        with pytest.raises(OutputTooLarge) as caught:
            await box.run("seq 1 100000", max_output=len(PRINTED) - 1)
        assert "".join([text async for text in caught.value.job.stream("stdout")]) == PRINTED
        kept = await box.exec("seq 1 100000")
        assert kept.truncated
        assert PRINTED.endswith(kept.stdout)


async def test_a_command_reads_64_mib_and_a_rerun_with_the_key_is_the_same_request(
    client: AsyncClient, tmp_path: Path
) -> None:
    size = 64 * 1024 * 1024
    found = hashlib.sha256()
    with (tmp_path / "input").open("wb") as file:
        for number in range(size // 4096):
            piece = b"%08d" % number * 512
            file.write(piece)
            found.update(piece)
    async with await client.create_sandbox(wait_ready=60) as box:
        jobs = []
        for _ in range(2):
            with (tmp_path / "input").open("rb") as file:
                jobs.append(await box.submit(["sha256sum"], stdin=file, idempotency_key="read-it"))
        job, again = jobs
        assert (job.replayed, again.replayed, again.id) == (False, True, job.id)
        assert (await job.result(check=True)).output == f"{found.hexdigest()}  -\n"
        done = await box.run("id -u; cat", stdin=b"\xff\0", user=str(os.geteuid()))
        assert (done.exit_code, done.stdout) == (0, f"{os.geteuid()}\n\ufffd\0")


async def test_looks_in_a_loop_give_each_byte_once(client: AsyncClient) -> None:
    expected = b"caf\xc3\xa9 \xff" + PRINTED[:5000].encode() + b"end"
    async with await client.create_sandbox(wait_ready=60) as box:
        job = await box.submit(
            r"printf 'caf\303\251 \377'; sleep 1; seq 1 100000 | head -c 5000; sleep 0.3; printf end"
        )
        seen: list[bytes] = []
        after = 0
        while after < 3:
            seen += [chunk async for chunk in job.stream_bytes(cursor=job.cursor, follow=False)]
            after += job.output_complete
            await asyncio.sleep(0.1)
        assert b"".join(seen) == expected
        # Over before this handle looks for the first time; and the other client.
        late = client.job(job.id)
        assert [chunk async for chunk in late.stream_bytes(cursor=late.cursor, follow=False)] == [expected]
        assert [chunk async for chunk in late.stream_bytes(cursor=late.cursor, follow=False)] == []
        assert late.state is JobState.EXITED
        assert await asyncio.to_thread(looks, client.url, job.id) == [expected.decode("utf-8", "replace")]


def looks(url: str, command_id: str) -> list[str]:
    with Client(url) as client:
        job = client.job(command_id)
        return [chunk for _ in range(3) for chunk in job.stream(cursor=job.cursor, follow=False)]


async def test_a_create_that_is_cancelled_leaves_no_sandbox(client: AsyncClient) -> None:
    for seconds in (0.0, 0.002, 0.01, 0.05):
        task = asyncio.create_task(client.create_sandbox(wait_ready=60))
        await asyncio.sleep(seconds)
        if task.cancel():
            await asyncio.wait({task})
        if not task.cancelled():
            await (await task).delete()
    live = [box.id async for box in client.sandboxes() if box.info and box.info.state.live]
    assert live == []
