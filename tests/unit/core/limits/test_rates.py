"""What counting requests costs the store: nothing without a limit, and nothing for a flood that is refused."""

import asyncio
from typing import cast

import pytest

from service.core.limits.rates import ASKING, Kind, Rates
from service.core.model.policy import OneTenant, Quota
from service.ports.store import Admission, Store


class CountingStore:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.says = Admission(True, 1, 0.0, 0.5)

    async def admit(self, name: str, *, interval: float, burst: int) -> Admission:
        self.asked.append(f"{name} {interval:g} {burst}")
        await asyncio.sleep(0)
        return self.says


class Limited(OneTenant):
    def __init__(self) -> None:
        self.limits = Quota(submits_per_second=4, polls_per_second=None)

    def quota(self, tenant: str) -> Quota:
        return self.limits


async def test_a_tenant_without_a_limit_costs_nothing() -> None:
    store = CountingStore()
    rates = Rates(cast(Store, store), Limited())
    assert await rates.admit("acme", "polls") is None
    assert store.asked == []


async def test_a_limit_is_asked_of_the_store() -> None:
    store = CountingStore()
    rate = await Rates(cast(Store, store), Limited()).admit("acme", "submits")
    assert rate is not None
    assert (rate.kind, rate.quota, rate.window, rate.admission) == ("submits", 4, 1, store.says)
    assert store.asked == ["submits:acme 0.25 4"]


async def test_a_flood_that_is_refused_costs_the_store_nothing_until_its_wait_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now[0])
    store, policy = CountingStore(), Limited()
    rates = Rates(cast(Store, store), policy)
    store.says = Admission(False, 0, 0.2, 1.0)
    for _ in range(3):
        rate = await rates.admit("acme", "submits")
        assert rate is not None
        assert not rate.admission.let_through
    assert len(store.asked) == 1
    now[0] += 0.15
    assert (rate := await rates.admit("acme", "submits")) is not None
    assert rate.remembered
    assert rate.admission.wait == pytest.approx(0.05)
    assert rate.admission.reset == pytest.approx(0.8)
    await rates.admit("other", "submits")
    assert len(store.asked) == 2
    now[0] += 0.06
    await rates.admit("acme", "submits")
    assert len(store.asked) == 3
    policy.limits = Quota(submits_per_second=100)
    await rates.admit("acme", "submits")
    assert len(store.asked) == 4, "a limit that was changed counts at once"


async def test_of_a_flood_that_comes_at_once_the_first_answer_refuses_the_rest() -> None:
    store = CountingStore()
    store.says = Admission(False, 0, 60.0, 60.0)
    rates = Rates(cast(Store, store), Limited())
    said = await asyncio.gather(*(rates.admit("acme", "submits") for _ in range(64)))
    assert all(rate is not None and not rate.admission.let_through for rate in said)
    assert len(store.asked) <= ASKING


async def test_both_kinds_are_apart() -> None:
    store, policy = CountingStore(), Limited()
    policy.limits = Quota(submits_per_second=1, polls_per_second=1)
    store.says = Admission(False, 0, 60, 60)
    rates = Rates(cast(Store, store), policy)
    kinds: tuple[Kind, ...] = ("submits", "polls", "submits", "polls")
    for kind in kinds:
        await rates.admit("acme", kind)
    assert store.asked == ["submits:acme 1 1", "polls:acme 1 1"]
