"""Submissions are let in as far as they can be carried out; the others hear so before anything is done."""

import asyncio
import contextlib

import pytest

from service.core.limits import admission
from service.core.limits.admission import SUBMISSIONS, Admission
from service.errors import EngineUnavailable
from tests.support.waiting import PATIENCE

MOST = SUBMISSIONS // 2
"""Of one tenant."""


async def full(door: Admission, stack: contextlib.AsyncExitStack, tenant: str = "a") -> None:
    for _ in range(MOST):
        await stack.enter_async_context(door.of(tenant, known=False))


async def test_more_than_can_be_carried_out_are_told_when_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "PATIENCE", 0.01)
    door = Admission()
    async with contextlib.AsyncExitStack() as stack:
        await full(door, stack)
        with pytest.raises(EngineUnavailable) as caught:
            async with door.of("a", known=False):
                raise AssertionError("let in")
        assert caught.value.retry_after
        assert caught.value.retryable
        async with door.of("b", known=False):
            pass  # another tenant is let in
    async with door.of("a", known=False):
        pass


async def test_one_that_waits_is_let_in_when_another_is_over() -> None:
    door = Admission()
    async with contextlib.AsyncExitStack() as stack:
        await full(door, stack)
        entered = stack.enter_async_context(door.of("a", known=False))
        waiting = asyncio.ensure_future(entered)
        await asyncio.sleep(0)
        assert not waiting.done()
        async with asyncio.timeout(PATIENCE):
            await stack.aclose()
            await waiting


async def test_replays_never_wait() -> None:
    door = Admission()
    async with contextlib.AsyncExitStack() as stack:
        await full(door, stack)
        async with asyncio.timeout(PATIENCE), door.of("a", known=True):
            pass


async def test_one_that_is_stuck_does_not_count_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "HELD", 0.01)
    door = Admission()
    async with contextlib.AsyncExitStack() as stack:
        await full(door, stack)
        async with asyncio.timeout(PATIENCE), door.of("a", known=False):
            pass
