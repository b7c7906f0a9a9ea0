"""The stores that the contract is kept by: in the process, the simulated one, a server, a Sentinel's, a Cluster."""

import asyncio
import contextvars
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from service.settings import Settings
from service.store import RedisStore, open_store
from tests.contract.store_rig import RECORD_OUTPUT, RETENTION, StoreRig
from tests.simulation.loop import Host
from tests.simulation.store import Node, store_of

_IN_PROCESS = ("memory", "simulated")
_FIXTURES = {"server": "redis_server", "sentinel": "redis_sentinel", "cluster": "redis_cluster"}


@pytest.fixture(autouse=True)
def _patient(patient_store: None) -> None:
    """No test here is about a Redis that does not answer."""


@pytest.fixture(params=[*_IN_PROCESS, *(pytest.param(kind, marks=pytest.mark.integration) for kind in _FIXTURES)])
def store_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store of each kind."""
    if request.param in _IN_PROCESS:
        return f"{request.param}://"
    url: str = request.getfixturevalue(_FIXTURES[request.param]).url
    return url


@pytest.fixture
async def rig(store_url: str) -> AsyncIterator[StoreRig]:
    """An empty store of each kind."""
    store = (
        _simulated()
        if store_url == "simulated://"
        else open_store(store_url, retention=RETENTION, record_output=RECORD_OUTPUT, max_connections=16)
    )
    yield StoreRig(store)
    await store.close()


def _simulated() -> RedisStore:
    """The Redis of the simulation, on the real clock."""
    loop = RealTime()
    return store_of(
        Node(loop, random.Random(1)),
        Host("test", loop),
        Settings(retention=RETENTION, record_output=RECORD_OUTPUT),
    )


class RealTime:
    """Of a virtual loop what connections need of it, on the running one."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return self._loop.time() - self._began

    def at(self, when: float, callback: Callable[..., Any], *args: Any) -> None:
        """Call something at a time."""
        self._loop.call_later(when - self.now, callback, *args)

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: contextvars.Context) -> None:
        """Call something in its context."""
        self._loop.call_soon(callback, *args, context=context)
