"""Failures of Redis as sentences."""

import re

import pytest
from redis import exceptions

from service.store.trouble import CAUGHT, unavailable

ADDRESS = "redis-7.internal:6379"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (exceptions.ConnectionError(f"Error 111 connecting to {ADDRESS}"), "can't be reached"),
        (exceptions.TimeoutError(f"Timeout reading from {ADDRESS}"), "in time"),
        (TimeoutError(), "in time"),
        (ConnectionResetError(ADDRESS), "can't be reached"),
        (EOFError(ADDRESS), "can't be reached"),
        (RuntimeError("unable to perform operation on <TCPTransport closed=True>"), "can't be reached"),
        (exceptions.BusyLoadingError("Redis is loading"), "loading"),
        (exceptions.ReadOnlyError("You can't write"), "replica"),
        (exceptions.OutOfMemoryError("command not allowed"), "out of memory"),
        (exceptions.ResponseError("OOM command not allowed"), "out of memory"),
        (exceptions.ResponseError("MISCONF Redis is configured to save"), "save its data"),
        (exceptions.ResponseError("NOREPLICAS Not enough good replicas"), "Too few"),
        (exceptions.ResponseError("BUSY Redis is busy running a script"), "busy"),
        (exceptions.ResponseError("WRONGTYPE Operation against a key"), "something else"),
        (exceptions.MasterDownError("Link with MASTER is down"), "replica|lost its master|cluster"),
        (exceptions.AuthenticationError("invalid username-password pair"), "credentials"),
        (exceptions.AuthenticationError("Authentication required.", status_code="NOAUTH"), "wants a password"),
        (exceptions.AuthenticationError("invalid username-password pair", status_code="WRONGPASS"), "credentials"),
        (exceptions.NoPermissionError("no permissions to run evalsha"), "does not allow"),
        (exceptions.ResponseError("DENIED Redis is running in protected mode because ..."), "protected mode"),
        (exceptions.MaxConnectionsError(), "Too many connections"),
        (exceptions.ClusterDownError("CLUSTERDOWN The cluster is down"), "cluster"),
        (exceptions.RedisClusterException("no node"), "cluster"),
        (exceptions.ClusterError("TTL exhausted."), "cluster"),
        (exceptions.ResponseError(f"ERR something new at {ADDRESS}"), "refused the command"),
        (exceptions.DataError("Invalid input"), "refused the command"),
    ],
)
def test_a_failure_is_one_sentence_that_names_no_host(error: Exception, sentence: str) -> None:
    assert isinstance(error, CAUGHT)
    said = unavailable(error)
    assert re.search(sentence, said.detail)
    assert ADDRESS not in said.detail
    assert said.detail.endswith(".")
    assert said.retryable
    assert said.retry_after
    assert said.__cause__ is error
