"""Long polls that outlive the patience of the hops in between."""

import asyncio
import base64

import msgspec
import pytest

from service.api import waiting
from tests.support.waiting import PATIENCE
from tests.unit.api.fakes import Connection, FakeCore, ask

JOB = "/v1/exec-jobs/cmd_x?wait=30"


async def test_a_long_poll_that_is_answered_soon_says_how_long_it_is() -> None:
    got = await ask(FakeCore().app(), "GET", JOB)
    assert got.status == 200
    assert int(got.headers["content-length"]) == len(got.body)


async def test_a_long_poll_without_news_shows_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SIGN_OF_LIFE_SECONDS", 0.01)
    core = FakeCore(pending=asyncio.Event())
    sent = Connection(core.app(), "GET", JOB)
    async with asyncio.timeout(PATIENCE):
        while sent.got.parts.count(b" ") < 3:
            await asyncio.sleep(0.001)
        assert core.pending is not None
        core.pending.set()
        got = await sent.answer()
    assert (got.status, got.headers["content-type"]) == (200, "application/json")
    assert msgspec.json.decode(got.body)["state"] == "running"


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("encoding", ["utf8", "base64"])
async def test_long_output_is_written_in_pieces_and_is_the_same(
    monkeypatch: pytest.MonkeyPatch, slow: bool, encoding: str
) -> None:
    monkeypatch.setattr(waiting, "SIGN_OF_LIFE_SECONDS", 0.01)
    log = 'aé€𝄞\n\x01"\\'.encode() * 20_000
    core = FakeCore(pending=asyncio.Event() if slow else None, output=log)
    sent = Connection(core.app(), "GET", f"{JOB}&encoding={encoding}")
    async with asyncio.timeout(PATIENCE):
        while slow and not sent.got.parts:
            await asyncio.sleep(0.001)
        if core.pending is not None:
            core.pending.set()
        got = await sent.answer()
    wanted = log.decode() if encoding == "utf8" else base64.b64encode(log).decode()
    assert msgspec.json.decode(got.body)["output"] == wanted
    assert max(map(len, got.parts)) <= 64 * 1024
    assert core.room.used == 0


async def test_a_caller_that_leaves_a_begun_answer_ends_its_long_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SIGN_OF_LIFE_SECONDS", 0.01)
    core = FakeCore(pending=asyncio.Event())
    sent = Connection(core.app(), "GET", JOB)
    async with asyncio.timeout(PATIENCE):
        while not sent.got.parts:
            await asyncio.sleep(0.001)
        sent.disconnect()
        got = await sent.answer()
    assert core.poll_cancelled
    assert msgspec.json.decode(got.body)["state"] == "running", "what there is"
