"""URLs of Redis, and the client settings that the promises hang on."""

import pytest
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.connection import SSLConnection
from redis.asyncio.sentinel import SentinelConnectionPool

from service.store import open_store
from service.store.urls import close, server


def _settings(url: str) -> dict[str, object]:
    client = server(url, 7).open()
    return client.connection_pool.connection_kwargs if isinstance(client, Redis) else client.connection_kwargs


@pytest.mark.parametrize(
    "url", ["redis://h/0", "redis+sentinel://h:1,i:2/name/0", "redis+cluster://h:1,i:2", "rediss://h"]
)
def test_nothing_is_sent_twice_and_every_wait_has_an_end(url: str) -> None:
    settings = _settings(url)
    retry = settings.get("retry")
    if retry is not None:
        assert retry.get_retries() == 0  # type: ignore[attr-defined]
    assert settings["socket_timeout"] == 2.5
    assert settings["socket_connect_timeout"] == 1.0
    assert settings["protocol"] == 2
    assert not settings.get("decode_responses")


def test_a_cluster_sends_nothing_twice() -> None:
    client = server("redis+cluster://h", 7).open()
    assert isinstance(client, RedisCluster)
    assert client.retry.get_retries() == 0


def test_a_server_is_named_with_its_credentials_and_its_database() -> None:
    settings = _settings("redis://user:p%40ss@example:7000/3")
    named = {name: settings[name] for name in ("host", "port", "db", "username", "password")}
    assert named == {"host": "example", "port": 7000, "db": 3, "username": "user", "password": "p@ss"}


async def test_sentinels_are_named_with_their_service() -> None:
    client = server("redis+sentinel://:p%40ss@a:1,b/main/4", 7).open()
    assert isinstance(client, Redis)
    pool = client.connection_pool
    assert isinstance(pool, SentinelConnectionPool)
    assert pool.service_name == "main"
    assert (pool.connection_kwargs["db"], pool.connection_kwargs["password"]) == (4, "p@ss")
    asked = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
    assert {(one["host"], one["port"]) for one in asked} == {("a", 1), ("b", 26379)}
    assert all("password" not in one or one["password"] is None for one in asked)
    await close(client)


async def test_a_cluster_is_named_by_some_of_its_nodes() -> None:
    client = server("redis+cluster://user:secret@a:1,[::1]:2,c", 7).open()
    assert isinstance(client, RedisCluster)
    nodes = {(node.host, node.port) for node in client.startup_nodes}
    assert nodes == {("a", 1), ("::1", 2), ("c", 6379)}
    assert client.connection_kwargs["username"] == "user"
    await close(client)


@pytest.mark.parametrize("url", ["rediss://h", "rediss+sentinel://h/name", "rediss+cluster://h"])
def test_tls_is_asked_for_by_the_scheme(url: str) -> None:
    client = server(url, 7).open()
    if isinstance(client, Redis):
        assert issubclass(client.connection_pool.connection_class, SSLConnection)
    else:
        assert client.connection_kwargs["connection_class"] is SSLConnection


@pytest.mark.parametrize(
    "url",
    [
        "", "localhost", "unix:///run/redis", "http://h", "redis+sentinel://h", "redis+sentinel://h/name/x",
        "redis+sentinel://h/name/\u00b2", "redis+sentinel:///name",
        "redis+cluster://", "redis+cluster://a,,b", "redis+cluster://a/3", "redis://h:port", "redis+cluster://h:x",
    ],
)  # fmt: skip
def test_a_url_that_is_not_understood_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        open_store(url, retention=1.0, record_output=1)
