"""The stores that the contract is kept by: in the process, a server, one behind a Sentinel, and a Cluster."""

from collections.abc import AsyncIterator

import pytest

from service.store import open_store
from tests.contract.store_rig import RECORD_OUTPUT, RETENTION, StoreRig

_FIXTURES = {"server": "redis_server", "sentinel": "redis_sentinel", "cluster": "redis_cluster"}


@pytest.fixture(params=["memory", *(pytest.param(kind, marks=pytest.mark.integration) for kind in _FIXTURES)])
def store_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store of each kind."""
    if request.param == "memory":
        return "memory://"
    url: str = request.getfixturevalue(_FIXTURES[request.param]).url
    return url


@pytest.fixture
async def rig(store_url: str) -> AsyncIterator[StoreRig]:
    """An empty store of each kind."""
    store = open_store(store_url, retention=RETENTION, record_output=RECORD_OUTPUT, max_connections=16)
    yield StoreRig(store)
    await store.close()
