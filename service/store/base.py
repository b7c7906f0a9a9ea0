"""What the parts of the adapter stand on."""

import asyncio

from service.store.redis_client import RedisClient
from service.store.scripts import ScriptCall, scripts


class Part:
    """A part of the adapter: it has the redis, and whatever one part needs to know."""

    def __init__(self, redis: RedisClient, *, retention: float, record_output: int) -> None:
        self._redis = redis
        self._retention = retention
        self._record_output = record_output
        self._time: tuple[float, int] | None = None
        """The server's last word on the time, ms, and when it came by this process's steady clock."""

    def _told(self, now: int) -> int:
        """Note the server's time, which came with an answer."""
        self._time = (asyncio.get_running_loop().time(), now)
        return now

    def _together(self, names: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Keys of all shards as one call may take them: all of them, or one on a cluster."""
        return [(name,) for name in names] if self._redis.server.cluster else [names]


def call(name: str, keys: tuple[str, ...], *args: bytes | str | int) -> ScriptCall:
    """The script ``name`` with its keys and arguments."""
    return ScriptCall(scripts()[name], keys, args)


def ms(seconds: float) -> int:
    """Whole milliseconds."""
    return round(seconds * 1000)


def expiry_ms(seconds: float | None) -> int:
    """Whole milliseconds, 0 for None; else at least 1, since Redis refuses an expiry of 0."""
    return 0 if seconds is None else max(1, ms(seconds))


def texts(members: list[bytes]) -> list[str]:
    """Members of an index, without those that are no text."""
    return [member.decode() for member in members if is_text(member)]


def is_text(member: bytes) -> bool:
    """What Oncebox writes into an index is; what is not, somebody else put there."""
    try:
        member.decode()
    except UnicodeDecodeError:
        return False
    return True
