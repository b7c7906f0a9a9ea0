"""Fixtures that tests of every layer use. What they stand on is in `tests/support`."""

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.missing import missing
from tests.support.processes import Spawner, end_in_order, take_signals
from tests.support.redis_server import (
    Option,
    RedisCluster,
    RedisSentinel,
    RedisServer,
    redis_executable,
)
from tests.support.waiting import PATIENCE

LONG_RUNS = ("ONCEBOX_TEST_FUZZ_SECONDS", "ONCEBOX_TEST_FAULTS_REPORT")
"""What `make fuzz` and `make faults` set, which look for other examples; in all other runs they are the same."""

settings.register_profile(
    "tests",
    derandomize=not any(name in os.environ for name in LONG_RUNS),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tests")

_spawner = pytest.StashKey[Spawner]()


def pytest_configure() -> None:
    """The tests, and all that they start, take signals as at a terminal, however the run itself was started.

    Whatever ends the run, what it started ends with it.
    """
    take_signals()
    end_in_order()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Puts the output of a failed test's processes under its traceback."""
    report = yield
    if report.failed and (spawner := item.stash.get(_spawner, None)):
        report.sections.extend((f"Process {each.name}", each.report()) for each in spawner.processes)
    return report


@pytest.fixture
def spawn(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Spawner]:
    """Starts processes: `spawn([program, argument, ...], name=..., env=...)`, see `ManagedProcess`.

    At the end of the test they are killed, with their process groups. A failed test shows their output.
    """
    folder = tmp_path / "processes"
    folder.mkdir()
    spawner = Spawner(folder)
    request.node.stash[_spawner] = spawner
    yield spawner
    spawner.kill_all()


@pytest.fixture(scope="session")
def _redis_is_there() -> None:
    """Without a Redis server, tests that need one fail in CI and are skipped elsewhere."""
    if redis_executable() is None:
        missing("no Redis server of version 7 or newer; `make test` installs one")


@pytest.fixture(scope="session")
def _shared_redis_server(_redis_is_there: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_server(_shared_redis_server: RedisServer) -> RedisServer:
    """A running, empty Redis: one process a test worker. It may be killed and paused, not configured."""
    _shared_redis_server.reset()
    return _shared_redis_server


@pytest.fixture
def patient_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores wait for Redis for as long as a machine may stand still."""
    monkeypatch.setattr("service.store.redis_client.DEADLINE", PATIENCE)
    for name in ("REPLY_TIMEOUT", "CONNECT_TIMEOUT"):
        monkeypatch.setattr(f"service.store.urls.{name}", PATIENCE)


class RedisStarter:
    """Starts Redis servers of a test's own: `start_redis(appendonly=True, ...)`, see `RedisServer`."""

    def __init__(self, folder: Path) -> None:
        self.servers: list[RedisServer] = []
        self._folder = folder

    def __call__(self, **options: Option) -> RedisServer:
        server = RedisServer(self._folder / f"redis{len(self.servers)}", **options)
        self.servers.append(server)
        server.start()
        return server


@pytest.fixture
def start_redis(_redis_is_there: None, tmp_path: Path) -> Iterator[RedisStarter]:
    """Starts Redis servers with options of a test's own; they are gone at its end."""
    starter = RedisStarter(tmp_path)
    yield starter
    for server in starter.servers:
        server.kill()


@pytest.fixture(scope="session")
def _shared_redis_sentinel(_redis_is_there: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisSentinel]:
    with RedisSentinel(tmp_path_factory.mktemp("sentinel")) as sentinel:
        yield sentinel


@pytest.fixture
def redis_sentinel(_shared_redis_sentinel: RedisSentinel) -> RedisSentinel:
    """A running, empty Redis behind a Sentinel: one pair of processes a test worker."""
    _shared_redis_sentinel.reset()
    return _shared_redis_sentinel


@pytest.fixture(scope="session")
def _shared_redis_cluster(_redis_is_there: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with RedisCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def redis_cluster(_shared_redis_cluster: RedisCluster) -> RedisCluster:
    """A running, empty Redis Cluster of three masters: three processes a test worker."""
    _shared_redis_cluster.reset()
    return _shared_redis_cluster
