"""Engines, replicas and sandboxes that the tests here share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from service.core.app import Core
from tests.integration.core_rig import Rig, local_engine, rig
from tests.integration.tenants_rig import Replica, TenantsRig, tenants_file, tenants_rig
from tests.support.redis_server import RedisServer
from tests.support.waiting import PATIENCE


@pytest.fixture(scope="module")
def tenants_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The URL of a local engine and its root."""
    root = tmp_path_factory.mktemp("engine")
    with local_engine(str(root)) as url:
        yield url, root


@pytest.fixture
async def tenants(
    tenants_engine: tuple[str, Path], redis_server: RedisServer, patient_store: None, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[TenantsRig]:
    """No replicas yet, an empty Redis and an empty engine."""
    # A stream whose refusal takes long begins before it: what two requests are told differs by that alone.
    monkeypatch.setattr("service.api.sse.OPENING_SECONDS", PATIENCE)
    monkeypatch.setattr("service.api.waiting.SIGN_OF_LIFE_SECONDS", PATIENCE)
    url, root = tenants_engine
    async with tenants_rig(url, redis_server.url, root) as built:
        yield built


@pytest.fixture
async def one(tenants: TenantsRig, tmp_path: Path) -> Replica:
    """A replica of Alice's and Bob's."""
    return await tenants.replica(tenants_file(tmp_path))


@pytest.fixture
async def two(tenants: TenantsRig, tmp_path: Path) -> Replica:
    """Another replica of Alice's and Bob's."""
    return await tenants.replica(tenants_file(tmp_path))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The URL of a local engine and its root."""
    root = str(tmp_path_factory.mktemp("engine"))
    with local_engine(root) as url:
        yield url, root


@pytest.fixture
async def here(engine: tuple[str, str], redis_server: RedisServer, patient_store: None) -> AsyncIterator[Rig]:
    """No replicas yet, and an empty Redis."""
    url, root = engine
    async with rig(url, redis_server.url, root) as built:
        yield built


@pytest.fixture
async def core(here: Rig) -> Core:
    """A replica."""
    return await here.replica()


@pytest.fixture
async def other(here: Rig) -> Core:
    """Another replica."""
    return await here.replica()


@pytest.fixture
async def box(here: Rig, core: Core) -> str:
    """A sandbox that is ready."""
    return await here.sandbox(core)
