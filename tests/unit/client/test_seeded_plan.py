"""A caller sees the same, whatever happens to its requests and answers on their way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from service.client import AsyncClient, Client
from tests.unit.client import scenario
from tests.unit.client.virtual import Clock, Disturbed, Undisturbed, hooks

SEEDS = 500
PART = 50


def undisturbed() -> dict[str, Any]:
    clock = Clock()
    network = Undisturbed(scenario.service(), clock)
    return scenario.day(Client("http://fake", _hooks=hooks(network, clock)))


def test_the_undisturbed_day_is_what_the_commands_did() -> None:
    saw = undisturbed()

    assert saw["stream"].encode() == scenario.SCRIPTS["build"].output
    assert saw["build"]["output"] == saw["stream"]
    assert saw["build"]["exit_code"] == 3
    assert saw["build"]["output_complete"]
    assert saw["again"] == saw["build"]
    assert saw["bytes"] == scenario.SCRIPTS["binary"].output == saw["to file"][1]
    assert saw["slow"]["timed_out"]
    assert saw["lost"]["reason"] == "sandbox_gone"
    assert saw["exec"]["output"] == saw["run"]["output"] == "hé\n"
    assert saw["cancelled"] == "cancelled"
    assert [code for _, code, _ in saw["map"]] == [0, 0, 0, 0]
    assert saw["left"] == ["sb-1", "sb-2", "sb-3"]


def each_ran_once(network: Disturbed) -> None:
    executions = network.service.executions
    assert set(executions.values()) == {1}
    assert len(executions) == 11


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_a_disturbed_day_looks_like_any_other(first: int) -> None:
    expected = undisturbed()
    for seed in range(first, first + PART):
        clock = Clock()
        network = Disturbed(scenario.service(), clock, seed)
        saw = scenario.day(Client("http://fake", _hooks=hooks(network, clock, seed)))
        assert saw == expected, f"seed {seed}"
        assert network.faults
        each_ran_once(network)


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_a_disturbed_asynchronous_day_looks_like_any_other(first: int) -> None:
    expected = undisturbed()

    async def disturbed_day(seed: int) -> None:
        clock = Clock()
        network = Disturbed(scenario.service(), clock, seed)
        saw = await scenario.async_day(AsyncClient("http://fake", _hooks=hooks(network, clock, seed)))
        assert saw == expected, f"seed {seed}"
        each_ran_once(network)

    for seed in range(first, first + PART):
        asyncio.run(disturbed_day(seed))


def test_the_plan_uses_every_kind_of_fault() -> None:
    used: set[str] = set()
    kinds: set[str] = set()
    for seed in range(30):
        clock = Clock()
        network = Disturbed(scenario.service(), clock, seed)
        scenario.day(Client("http://fake", _hooks=hooks(network, clock, seed)))
        used |= set(network.faults)
        kinds = {kind.__name__ for kind in network.kinds}

    assert used == kinds
