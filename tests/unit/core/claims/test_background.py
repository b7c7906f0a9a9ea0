"""Loops that must run all the time: one that fails is started again, and one that goes on failing is named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from service.core.claims import background
from service.core.claims.background import Background
from service.core.claims.tasks import Tasks
from tests.support.waiting import PATIENCE


@pytest.fixture
async def tasks(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Tasks]:
    monkeypatch.setattr(background, "BACKOFF", (0.001, 0.01))
    made = Tasks()
    yield made
    await made.cancel_all()


class Failing:
    """A loop that raises as often as it is told to, and then runs on."""

    def __init__(self, error: BaseException, times: int) -> None:
        self.error = error
        self.left = times
        self.runs = 0
        self.steady = asyncio.Event()

    async def __call__(self) -> None:
        self.runs += 1
        if self.left:
            self.left -= 1
            raise self.error
        self.steady.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("error", [ValueError("²"), UnicodeError("x"), asyncio.CancelledError(), StopAsyncIteration()])
async def test_a_loop_that_ends_with_an_error_is_started_again__and_counted(tasks: Tasks, error: BaseException) -> None:
    restarted: list[str] = []
    loop = Failing(error, times=2)
    Background(tasks, restarted.append).start("sweeper", loop)
    await asyncio.wait_for(loop.steady.wait(), PATIENCE)
    assert restarted == ["sweeper", "sweeper"]


async def test_a_loop_that_goes_on_failing_is_named__until_it_has_run_for_a_while(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Background(tasks)
    loop, well = Failing(ValueError(), times=background.GOES_ON), Failing(ValueError(), times=1)
    kept.start("poller", loop)
    kept.start("sweeper", well)
    await asyncio.wait_for(asyncio.gather(loop.steady.wait(), well.steady.wait()), PATIENCE)
    assert kept.failing() == ["poller"], "it runs now, as it did each time before"
    monkeypatch.setattr(background, "STEADY", 0.0)
    assert kept.failing() == []


async def test_the_waits_grow_and_are_bounded(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "BACKOFF", (1.0, 8.0))
    monkeypatch.setattr("service.core.claims.background.random.uniform", lambda low, high: high)
    waits: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr("service.core.claims.background.asyncio.sleep", noted)
    loop = Failing(ValueError(), times=100)
    Background(tasks).start("x", loop)
    await asyncio.wait_for(loop.steady.wait(), PATIENCE)
    assert waits[:6] == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert set(waits[3:]) == {8.0}


async def test_one_that_returns_is_done__and_one_that_is_cancelled_stays_so(tasks: Tasks) -> None:
    runs: list[Any] = []

    async def once() -> None:
        runs.append(None)

    loop = Failing(ValueError(), times=0)
    kept = Background(tasks)
    kept.start("policy", once)
    kept.start("changes", loop)
    await asyncio.wait_for(loop.steady.wait(), PATIENCE)
    await tasks.cancel_all()
    assert len(runs) == 1
    assert loop.runs == 1
