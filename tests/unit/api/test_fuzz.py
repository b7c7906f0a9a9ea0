"""Whatever is sent, the answer is one of the contract's: never a crash, never a 500, always the common headers."""

import asyncio
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from service import errors
from tests.unit.api.fakes import Connection, FakeCore

PATHS = [
    "/v1/sandboxes", "/v1/sandboxes/sb", "/v1/sandboxes/sb/renew", "/v1/sandboxes/sb/pause", "/v1/exec",
    "/v1/exec-jobs", "/exec-jobs", "/v1/exec-jobs/cmd_x", "/v1/exec-jobs/cmd_x/events", "/healthz", "/docs", "/",
]  # fmt: skip
NAMES = [
    "idempotency-key", "x-request-id", "content-type", "content-length", "transfer-encoding", "content-encoding",
    "host", "origin", "accept", "range", "last-event-id", "authorization", "expect", "x-other",
]  # fmt: skip
FIELDS = [
    "sandbox_id", "command", "timeout", "cwd", "env", "metadata", "encoding", "image", "entrypoint", "resources",
    "workspace_owner", "wait_ready", "x",
]  # fmt: skip
PARAMETERS = ["cursor", "limit", "wait", "timeout", "encoding", "full", "metadata", "state", "page_size", "x"]

latin = st.text(st.characters(max_codepoint=255), max_size=40)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
# Integers beyond what the encoder takes are written by hand, so that they are sent all the same.
bodies = st.binary(max_size=200) | st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=5).map(
    lambda body: str(body).encode("utf-8", "replace") if _huge(body) else msgspec.json.encode(body)
)
queries = st.lists(st.tuples(st.sampled_from(PARAMETERS), latin), max_size=4).map(
    lambda pairs: "&".join(f"{name}={value}" for name, value in pairs)
)
headers = st.lists(st.tuples(st.sampled_from(NAMES), latin), max_size=5)


def _huge(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_huge(item) for item in value.values())
    if isinstance(value, list):
        return any(_huge(item) for item in value)
    return isinstance(value, int) and not -(2**63) <= value < 2**64


@settings(max_examples=400)
@given(
    method=st.sampled_from(["GET", "POST", "DELETE", "HEAD", "PUT"]),
    path=st.sampled_from(PATHS),
    query=queries,
    sent=headers,
    body=bodies,
    json=st.booleans(),
)
def test_no_request_is_answered_with_a_bug(
    method: str, path: str, query: str, sent: list[tuple[str, str]], body: bytes, json: bool
) -> None:
    if json:
        sent = [*sent, ("content-type", "application/json"), ("content-length", str(len(body)))]

    async def exchange() -> None:
        target = f"{path}?{query}".encode("ascii", "replace").decode()
        connection = Connection(FakeCore().app(), method, target, headers=sent, body=[body])
        got = await connection.answer()
        assert got.status < 500
        assert got.finished
        assert got.headers["cache-control"] == "no-store"
        assert got.headers["x-request-id"].isascii()
        assert all(value.isprintable() for value in got.headers.values())
        if got.status >= 400 and method != "HEAD":
            assert got.json["status"] == got.status
            assert errors.BY_CODE[got.json["code"]]

    asyncio.run(exchange())
