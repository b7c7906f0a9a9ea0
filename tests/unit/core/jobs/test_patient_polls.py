"""Long polls while the store is away for a moment."""

import asyncio
from typing import Any, cast

import pytest

from service.core.jobs import service
from service.core.jobs.service import Jobs
from service.errors import StoreUnavailable
from service.ports.store import Record

FOUND = cast(Record, object())


class Flaky:
    """The store is away for the first `away` tries."""

    def __init__(self, away: int) -> None:
        self.away = away

    async def find(self, tenant: str, command_id: str) -> Record:
        self.away -= 1
        if self.away >= 0:
            raise StoreUnavailable
        return FOUND


def on(store: Flaky) -> Jobs:
    """Jobs that find through it, and have nothing else."""
    rest: Any = None
    finder: Any = store
    return Jobs(rest, rest, rest, rest, finder, rest, rest, rest, rest, asyncio.Event())


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "STORE_RETRY", 0.001)


async def test_a_long_poll_outlasts_a_store_that_restarts() -> None:
    assert await on(Flaky(3))._find_patiently("default", "cmd_x", wait=5) is FOUND


async def test_a_poll_that_does_not_wait_hears_of_it_at_once() -> None:
    flaky = on(Flaky(1))
    with pytest.raises(StoreUnavailable):
        await flaky._find_patiently("default", "cmd_x", wait=0)


async def test_a_long_poll_hears_of_it_when_its_patience_is_over() -> None:
    with pytest.raises(StoreUnavailable):
        await on(Flaky(10_000))._find_patiently("default", "cmd_x", wait=0.01)
