"""From a URL to a redis-py client. Every setting that the promises of the store hang on is made here."""

import random
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec
from redis.asyncio import ConnectionPool, Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff

CONNECT_TIMEOUT = 1.0
"""Seconds for making a connection."""
REPLY_TIMEOUT = 2.5
"""Seconds of silence on a connection that owes a reply."""
SENTINEL_TIMEOUT = 0.5
"""Seconds for one Sentinel; the next is asked then."""

_PORT = 6379
_SENTINEL_PORT = 26379


class Server(msgspec.Struct, frozen=True):
    """How to reach Redis. ``open`` makes the client for commands, ``subscriber`` one for a subscription."""

    cluster: bool
    open: Callable[[], Redis | RedisCluster]
    subscriber: Callable[[Redis | RedisCluster], Redis]
    memory: bool = False


def server(url: str, max_connections: int) -> Server:
    """What ``url`` names. Raises ``ValueError`` with a sentence for one that is not understood."""
    parts = urlsplit(url)
    match parts.scheme:
        case "memory":
            return _in_process()
        case "redis" | "rediss":
            return _standalone(url, max_connections)
        case "redis+sentinel" | "rediss+sentinel":
            return _sentinel(parts, max_connections)
        case "redis+cluster" | "rediss+cluster":
            return _cluster(parts, max_connections)
        case _:
            raise ValueError(
                "a Redis URL begins with memory://, redis://, rediss://, redis+sentinel:// or"
                f" redis+cluster://, not {parts.scheme or url!r}"
            )


async def close(client: Redis | RedisCluster) -> None:
    """Close a client's connections, those too that redis-py leaves open."""
    await client.aclose()
    if isinstance(client, RedisCluster):
        # After a failure `aclose` takes the client for one that was never opened.
        await client.nodes_manager.aclose()
        await client.nodes_manager.aclose("startup_nodes")
    elif isinstance(pool := client.connection_pool, SentinelConnectionPool):
        for sentinel in pool.sentinel_manager.sentinels:
            await sentinel.aclose()


def _settings(max_connections: int) -> dict[str, Any]:
    """The client library sends nothing twice: a write whose reply was lost is the caller's to repeat."""
    return {
        "retry": Retry(NoBackoff(), 0),
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_timeout": REPLY_TIMEOUT,
        "socket_keepalive": True,
        "health_check_interval": 0,
        "protocol": 2,
        "decode_responses": False,
        "client_name": "oncebox",
        "max_connections": max_connections,
    }


def _in_process() -> Server:
    from fakeredis import FakeAsyncRedis, FakeServer

    shared = FakeServer(version=(7,))

    def client() -> Redis:
        made: Redis = FakeAsyncRedis(server=shared, protocol=2)
        return made

    return Server(cluster=False, open=client, subscriber=lambda _: client(), memory=True)


def _standalone(url: str, max_connections: int) -> Server:
    options: dict[str, Any] = dict(parse_url(url))

    def client(connections: int) -> Redis:
        return Redis.from_pool(ConnectionPool(**(options | _settings(connections))))

    return Server(cluster=False, open=lambda: client(max_connections), subscriber=lambda _: client(1))


def _hosts(netloc: str, port: int) -> list[tuple[str, int]]:
    found = []
    for host in netloc.rpartition("@")[2].split(","):
        one = urlsplit(f"//{host}")
        if not one.hostname:
            raise ValueError("a Redis URL of several hosts reads host:port,host:port")
        found.append((one.hostname, one.port or port))
    return found


def _credentials(parts: SplitResult) -> dict[str, Any]:
    userinfo, at, _ = parts.netloc.rpartition("@")
    name, colon, password = userinfo.partition(":")
    if not at:
        return {}
    if not colon:
        return {"username": unquote(name)}
    return {"username": unquote(name) or None, "password": unquote(password)}


def _tls(parts: SplitResult) -> dict[str, Any]:
    return {"ssl": True} if parts.scheme.startswith("rediss+") else {}


def _sentinel(parts: SplitResult, max_connections: int) -> Server:
    hosts = _hosts(parts.netloc, _SENTINEL_PORT)
    name, _, db = parts.path.strip("/").partition("/")
    if not name or not re.fullmatch(r"[0-9]{1,9}", db or "0"):
        raise ValueError("a Sentinel URL reads redis+sentinel://host:port,host:port/name/db")
    common = _credentials(parts) | _tls(parts)
    # A Sentinel has no database, and knows nothing of the server's password.
    asked = (
        _settings(max_connections)
        | _tls(parts)
        | {
            "socket_connect_timeout": SENTINEL_TIMEOUT,
            "socket_timeout": SENTINEL_TIMEOUT,
        }
    )

    def client(connections: int) -> Redis:
        sentinels = random.sample(hosts, len(hosts))
        guide = Sentinel(sentinels, sentinel_kwargs=asked)
        found: Redis = guide.master_for(name, **(_settings(connections) | common | {"db": int(db or 0)}))
        return found

    return Server(cluster=False, open=lambda: client(max_connections), subscriber=lambda _: client(1))


def _cluster(parts: SplitResult, max_connections: int) -> Server:
    hosts = _hosts(parts.netloc, _PORT)
    if parts.path.strip("/") not in ("", "0"):
        raise ValueError("a Redis cluster has one database, so its URL has no path")
    common = _credentials(parts) | _tls(parts)

    def client() -> RedisCluster:
        return RedisCluster(
            startup_nodes=[ClusterNode(host, port) for host, port in hosts],
            # A moved slot is mended in the map. Reading the map anew would close every connection in use.
            reinitialize_steps=0,
            require_full_coverage=False,
            **(_settings(max_connections) | common),
        )

    def subscriber(over: Redis | RedisCluster) -> Redis:
        """Any node of the cluster hears what is published on any other."""
        known = over.get_primaries() if isinstance(over, RedisCluster) else []
        host, port = random.choice([(node.host, int(node.port)) for node in known] or hosts)
        return Redis(host=host, port=port, **(_settings(1) | common))

    return Server(cluster=True, open=client, subscriber=subscriber)
