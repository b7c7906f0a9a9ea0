from pathlib import Path

import pytest
import redis
import redis.cluster
import redis.sentinel

from tests.conftest import RedisStarter
from tests.support.redis_server import (
    SERVICE_NAME,
    RedisCluster,
    RedisSentinel,
    RedisServer,
    redis_executable,
)
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.integration


def test_the_server_answers_at_its_url(redis_server: RedisServer) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.set("left-over", "x")


def test_the_server_is_empty_in_each_test(redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        assert client.dbsize() == 0
        client.set("left-over", "x")


@pytest.mark.parametrize("trouble", ["kill", "pause", "stop"])
def test_a_server_that_a_test_stopped_is_back_in_the_next(start_redis: RedisStarter, trouble: str) -> None:
    server = start_redis()

    getattr(server, trouble)()
    server.reset()

    with server.client() as client:
        assert client.ping()


def test_a_paused_server_answers_when_it_is_resumed(start_redis: RedisStarter) -> None:
    server = start_redis()
    server.pause()
    with server.client(timeout=0.1) as impatient, pytest.raises(redis.TimeoutError):
        impatient.ping()

    server.resume()
    with server.client() as client:
        assert client.ping()


def test_acknowledged_writes_survive_a_kill_where_the_options_say_so(start_redis: RedisStarter) -> None:
    server = start_redis(appendonly=True, appendfsync="always", requirepass="secret")
    url = server.url
    with server.client() as client:
        client.set("key", "kept")

    server.kill()
    assert not server.alive
    server.restart()

    assert server.url == url
    with server.client() as client:
        assert client.get("key") == "kept"


def test_without_persistence_a_restart_loses_everything(start_redis: RedisStarter) -> None:
    server = start_redis()
    with server.client() as client:
        client.set("key", "lost")

    server.restart()

    with server.client() as client:
        assert client.get("key") is None


def test_a_full_server_refuses_writes(start_redis: RedisStarter) -> None:
    server = start_redis(maxmemory="1mb", maxmemory_policy="noeviction")

    def fill(client: redis.Redis) -> None:
        for number in range(100):
            client.set(f"key{number}", "x" * 100_000)

    with server.client() as client, pytest.raises(redis.exceptions.OutOfMemoryError):
        fill(client)


def test_a_replica_follows_its_master(start_redis: RedisStarter) -> None:
    master = start_redis(repl_diskless_sync_delay=0)
    start_redis(replicaof=f"{master.host} {master.port}")

    with master.client() as client:
        client.set("key", "x")
        assert client.wait(1, round(PATIENCE * 500)) == 1


def test_a_server_that_can_t_start_says_why(start_redis: RedisStarter) -> None:
    with pytest.raises(AssertionError, match="no-such-option"):
        start_redis(no_such_option="x")


def test_the_sentinel_knows_its_master(redis_sentinel: RedisSentinel) -> None:
    sentinel = redis_sentinel.sentinel
    assert redis_sentinel.url == f"redis+sentinel://{sentinel.address}/{SERVICE_NAME}/0"

    directory = redis.sentinel.Sentinel([(sentinel.host, sentinel.port)])
    master = directory.master_for(SERVICE_NAME)

    assert master.set("key", "x")
    with redis_sentinel.master.client() as client:
        assert client.get("key") == "x"
    master.close()
    for each in directory.sentinels:
        each.close()


def test_the_sentinel_is_reset_after_trouble(redis_sentinel: RedisSentinel) -> None:
    redis_sentinel.sentinel.kill()
    redis_sentinel.master.kill()

    redis_sentinel.reset()

    with redis_sentinel.sentinel.client() as client:
        host, port = client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", SERVICE_NAME)
    assert (host, int(port)) == (redis_sentinel.master.host, redis_sentinel.master.port)


def test_the_cluster_spreads_keys_over_its_masters(redis_cluster: RedisCluster) -> None:
    first = redis_cluster.nodes[0]
    with redis.cluster.RedisCluster(host=first.host, port=first.port) as client:
        for number in range(30):
            client.set(f"key{number}", "x")

    for node in redis_cluster.nodes:
        with node.client() as client:
            assert client.dbsize() > 0


def test_the_cluster_is_empty_and_complete_again_after_a_reset(redis_cluster: RedisCluster) -> None:
    redis_cluster.nodes[1].kill()

    redis_cluster.reset()

    for node in redis_cluster.nodes:
        with node.client() as client:
            assert client.dbsize() == 0


def test_the_executable_is_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = tmp_path / "server"
    server.write_text("#!/bin/sh\necho 'Valkey server v=9.1.2 sha=0'\n")
    server.chmod(0o755)
    monkeypatch.setenv("ONCEBOX_TEST_REDIS_SERVER", str(server))

    redis_executable.cache_clear()
    try:
        assert redis_executable() == server
    finally:
        redis_executable.cache_clear()


def test_an_old_server_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = tmp_path / "redis-server"
    server.write_text("#!/bin/sh\necho 'Redis server v=6.0.16 sha=0'\n")
    server.chmod(0o755)
    monkeypatch.setenv("ONCEBOX_TEST_REDIS_SERVER", str(server))
    monkeypatch.setenv("PATH", str(tmp_path))

    redis_executable.cache_clear()
    try:
        assert redis_executable() is None
    finally:
        redis_executable.cache_clear()
