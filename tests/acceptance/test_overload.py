"""More submissions than can be carried out in time: each is taken or told when to come back, and none is lost."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from service.client import AsyncClient
from tests.acceptance.http_rig import SERVE, Replica
from tests.integration.core_rig import KEY, local_engine
from tests.support.processes import Spawner

pytestmark = pytest.mark.acceptance

AT_ONCE, SUBMISSIONS, SLOW = 8, 24, 1.0
"""Carried out at once by this replica (a half of it for one tenant); sent at once; seconds that the engine takes for
each."""
FEW = SERVE.replace(
    "if __name__", f"from service.core.limits import admission\nadmission.SUBMISSIONS = {AT_ONCE}\nif __name__"
)


@pytest.fixture
def engine(tmp_path: Path) -> str:
    (tmp_path / "engine").mkdir()
    return str(tmp_path / "engine")


async def slow_engine(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        order = {"submit_delay": SLOW, "count": 10_000}
        async with session.post(f"{url}/_dev/faults", json=order) as answer:
            assert answer.status < 300


async def submitted(session: aiohttp.ClientSession, replica: Replica, sandbox: str, number: int) -> tuple[int, str]:
    """The status of a submission, and its Retry-After."""
    body = {"sandbox_id": sandbox, "command": f"echo {number} >>ran"}
    async with session.post(
        f"{replica.url}/v1/exec-jobs", json=body, headers={"Idempotency-Key": f"n-{number}"}
    ) as answer:
        problem = await answer.json(content_type=None)
        assert answer.status == 202 or problem["retryable"], problem
        return answer.status, answer.headers.get("Retry-After", "")


async def test_more_submissions_than_can_be_served_are_taken_or_told_when_to_come_back(
    spawn: Spawner, engine: str
) -> None:
    with local_engine(engine) as url:
        replica = Replica(spawn, {"ONCEBOX_ENGINE_URL": url, "ONCEBOX_ENGINE_API_KEY": KEY}, program=FEW)
        sandbox = await asyncio.to_thread(replica.sandbox)
        first = await asyncio.to_thread(replica.submit, sandbox, "true", "first")
        await slow_engine(url)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            sending = [
                asyncio.ensure_future(submitted(session, replica, sandbox, number)) for number in range(SUBMISSIONS)
            ]
            await asyncio.sleep(1)
            again = await asyncio.to_thread(replica.submit, sandbox, "true", "first")
            assert again == first, "replays go on"
            assert (await asyncio.to_thread(replica.ask, "GET", f"/v1/exec-jobs/{first}")).status == 200
            answers = await asyncio.gather(*sending)
        statuses = [status for status, _ in answers]
        assert set(statuses) == {202, 503}
        assert all(int(after) >= 1 for status, after in answers if status == 503)
        async with AsyncClient(replica.url) as client:
            box = client.sandbox(sandbox)
            jobs = await asyncio.gather(
                *(box.submit(f"echo {n} >>ran", idempotency_key=f"n-{n}") for n in range(SUBMISSIONS))
            )
            await asyncio.gather(*(job.result(timeout=120) for job in jobs))
            ran = (await box.run("sort -n ran")).stdout or ""
    assert ran.split() == [str(number) for number in range(SUBMISSIONS)], "each once"
