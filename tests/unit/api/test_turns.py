"""A burst of one tenant's requests begins little by little, and another tenant's does not wait for its end."""

import asyncio
from typing import Any

from service.api.exchange import Exchange
from service.api.turns import BEGUN_AT_ONCE, Turns

BURST = 540


def scope_of(tenant: str | None) -> dict[str, Any]:
    scope: dict[str, Any] = {"method": "GET", "headers": []}
    Exchange.begin(scope).tenant = tenant
    return scope


class Begun:
    """An application that notes whose requests have begun."""

    def __init__(self) -> None:
        self.tenants: list[str | None] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.tenants.append(Exchange.of(scope).tenant)


def start(turns: Turns, tenant: str | None, count: int = 1) -> list[asyncio.Task[None]]:
    async def ask() -> None:
        await turns(scope_of(tenant), None, None)  # type: ignore[arg-type]

    return [asyncio.create_task(ask()) for _ in range(count)]


async def test_a_burst_begins_a_few_in_each_turn_of_the_loop() -> None:
    begun = Begun()
    turns = Turns(begun)
    burst, most = start(turns, "greedy", BURST), 0
    while not all(task.done() for task in burst):
        before = len(begun.tenants)
        await asyncio.sleep(0)
        most = max(most, len(begun.tenants) - before)
    assert len(begun.tenants) == BURST
    assert most <= BEGUN_AT_ONCE


async def test_the_other_tenant_does_not_wait_for_the_end_of_a_burst() -> None:
    begun = Begun()
    turns = Turns(begun)
    burst = [*start(turns, "greedy", BURST), *start(turns, "quiet"), *start(turns, "greedy", BURST)]
    await asyncio.gather(*burst)
    assert begun.tenants.index("quiet") <= 3 * BEGUN_AT_ONCE
    assert len(begun.tenants) == 2 * BURST + 1


async def test_whoever_leaves_meanwhile_takes_nobodys_turn() -> None:
    begun = Begun()
    turns = Turns(begun)
    burst = start(turns, "greedy", BURST)
    await asyncio.sleep(0)
    for task in burst:
        task.cancel()
    await asyncio.gather(*burst, return_exceptions=True)
    assert len(begun.tenants) <= 2 * BEGUN_AT_ONCE
    await asyncio.gather(*start(turns, "greedy", 3))
    await asyncio.gather(*start(turns, "quiet", 3))
    assert begun.tenants[-3:] == ["quiet"] * 3


async def test_probes_wait_for_nobody() -> None:
    begun = Begun()
    turns = Turns(begun)
    burst = [*start(turns, "greedy", BURST), *start(turns, None)]
    await asyncio.sleep(0)
    assert None in begun.tenants
    await asyncio.gather(*burst)
