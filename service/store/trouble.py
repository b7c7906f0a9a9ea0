"""Every way in which Redis can fail, as one sentence each. To a caller each is a 503."""

import builtins

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    ClusterError,
    ConnectionError,
    MaxConnectionsError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TimeoutError,
)

from service.errors import StoreUnavailable

CAUGHT: tuple[type[Exception], ...] = (RedisError, RedisClusterException, OSError, EOFError, RuntimeError)
"""What a call to redis-py raises when the server, the network or the connection is at fault.
``RuntimeError``: a transport that was closed underneath."""

RETRY_AFTER = 1.0
"""Seconds; most of these end by themselves."""

_SENTENCES: tuple[tuple[tuple[type[BaseException], ...], str], ...] = (
    ((BusyLoadingError,), "Redis is still loading its data."),
    ((ReadOnlyError,), "This Redis server is a replica and takes no writes."),
    ((OutOfMemoryError,), "Redis is out of memory."),
    ((NoPermissionError,), "Redis does not allow this user what Oncebox needs."),
    ((AuthenticationError, AuthorizationError), "Redis refuses the credentials of ONCEBOX_REDIS_URL."),
    ((MaxConnectionsError,), "Too many connections to Redis are in use."),
    ((ClusterDownError, ClusterError, RedisClusterException), "The Redis cluster can't serve this key."),
    ((TimeoutError, builtins.TimeoutError), "Redis did not answer in time."),
    ((ConnectionError, OSError, EOFError, RuntimeError), "Redis can't be reached."),
    ((RedisError,), "Redis refused the command."),
    ((BaseException,), "The Redis client failed."),
)

_CODES: dict[str, str] = {
    "OOM": "Redis is out of memory.",
    "READONLY": "This Redis server is a replica and takes no writes.",
    "LOADING": "Redis is still loading its data.",
    "MASTERDOWN": "This Redis server has lost its master.",
    "NOREPLICAS": "Too few Redis replicas are connected.",
    "MISCONF": "Redis can't save its data to disk, and takes no writes.",
    "BUSY": "Redis is busy with a script.",
    "CLUSTERDOWN": "The Redis cluster is down.",
    "DENIED": "Redis runs in protected mode: it has no password, and refuses other machines.",
    "NOAUTH": "Redis wants a password, and ONCEBOX_REDIS_URL has none.",
    "WRONGPASS": "Redis refuses the credentials of ONCEBOX_REDIS_URL.",
    "NOPERM": "Redis does not allow this user what Oncebox needs.",
    "WRONGTYPE": "A key of Oncebox in Redis holds something else.",
}
"""By the word with which Redis begins an error: redis-py has no class for some of them."""


KINDS: tuple[tuple[str, tuple[type[BaseException], ...]], ...] = (
    ("read_only", (ReadOnlyError,)),
    ("timeout", (TimeoutError, builtins.TimeoutError)),
    ("refused", (AuthenticationError, AuthorizationError, BusyLoadingError, ResponseError)),
    ("connection", (ConnectionError, OSError, EOFError, RuntimeError)),
    ("other", (BaseException,)),
)
"""Names of failures for metrics; the first that fits."""


def kind_of(error: BaseException) -> str:
    """The name of a failure."""
    return next(name for name, kinds in KINDS if isinstance(error, kinds))


def code_of(error: BaseException) -> str:
    """The word with which Redis began its error, or nothing."""
    if not isinstance(error, ResponseError | AuthenticationError):
        return ""
    status = getattr(error, "status_code", None)
    if isinstance(status, str) and status:
        return status
    first = str(error).partition(" ")[0]
    return first if first.isupper() else ""


def unavailable(error: BaseException) -> StoreUnavailable:
    """``error`` as what callers are told. The sentence names no host and no credential."""
    sentence = _CODES.get(code_of(error))
    if sentence is None:
        sentence = next(said for kinds, said in _SENTENCES if isinstance(error, kinds))
    said = StoreUnavailable(sentence, retry_after=RETRY_AFTER)
    said.__cause__ = error
    return said
