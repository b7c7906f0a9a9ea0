"""The SDK against a real service: what the fake ones of its unit tests only stand for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from service.client import AsyncClient, Client, CommandFailed, JobState
from service.server.embedded import embedded
from service.settings import Settings

pytestmark = pytest.mark.acceptance

PRINTED = "".join(f"{n}\n" for n in range(1, 100_001))


@pytest.fixture
async def client() -> AsyncIterator[AsyncClient]:
    async with embedded(Settings()) as url, AsyncClient(url) as client:
        yield client


async def test_a_result_whose_output_is_cut_says_by_how_much(client: AsyncClient) -> None:
    async with await client.create_sandbox(wait_ready=60) as box:
        cut = await box.run("seq 1 100000")
        assert (cut.exit_code, cut.truncated, cut.ok) == (0, True, False)
        assert cut.skipped_bytes == len(PRINTED) - len(cut.output) > 0
        assert PRINTED.endswith(cut.output)
        with pytest.raises(CommandFailed, match=f"{cut.skipped_bytes:,} bytes of its output are no longer kept"):
            await box.run("seq 1 100000", check=True)
        whole = await box.run("seq 1 100000", timeout=61, check=True)
        assert (whole.output, whole.truncated) == (PRINTED, False)


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
