"""HTTP/2 says Host, lengths and headers in ways of its own; the rules are the same: no page, no smuggling."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import h2.config
import h2.connection
import h2.events
import msgspec
import pytest

from tests.acceptance.http_rig import Replica
from tests.support.processes import Spawner

pytestmark = pytest.mark.acceptance

Headers = list[tuple[str, str]]
JSON = ("content-type", "application/json")


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    spawner = Spawner(tmp_path_factory.mktemp("processes"))
    yield Replica(spawner)
    spawner.kill_all()


def exchange(replica: Replica, headers: Headers, body: bytes = b"") -> tuple[int | None, dict[str, str], bytes]:
    """Status (None: the stream or the connection was ended instead), headers and body of one request."""
    address = urlsplit(replica.url)
    # A client that checks nothing of what it sends.
    config = h2.config.H2Configuration(
        header_encoding="utf-8", validate_outbound_headers=False, normalize_outbound_headers=False
    )
    connection = h2.connection.H2Connection(config)
    with socket.create_connection((address.hostname, address.port), 10) as link:
        connection.initiate_connection()
        connection.send_headers(1, headers, end_stream=not body)
        if body:
            connection.send_data(1, body, end_stream=True)
        link.sendall(connection.data_to_send())
        status, answered, content = None, {}, b""
        while received := link.recv(65_536):
            for event in connection.receive_data(received):
                if isinstance(event, h2.events.ResponseReceived):
                    answered = {str(name): str(value) for name, value in event.headers or ()}
                    status = int(answered[":status"])
                elif isinstance(event, h2.events.DataReceived):
                    content += event.data or b""
                elif isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated):
                    return None, {}, b""
                elif isinstance(event, h2.events.StreamEnded):
                    return status, answered, content
            link.sendall(connection.data_to_send())
    return None, {}, b""


def head(method: str = "GET", path: str = "/v1/sandboxes", authority: str = "127.0.0.1:8700") -> Headers:
    return [(":method", method), (":scheme", "http"), (":path", path), (":authority", authority)]


def test_http_2_is_served(replica: Replica) -> None:
    status, headers, body = exchange(replica, head())
    assert status == 200
    assert msgspec.json.decode(body)["items"] == []
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "headers",
    [
        head(authority="evil.example"),
        head(authority="127.0.0.1.evil.example:8700"),
        [*head(), ("host", "evil.example")],
        [*head(authority="evil.example"), ("host", "127.0.0.1")],
        [*head(), ("origin", "https://evil.example")],
        [*head()[:3]],
    ],
)
@pytest.mark.parametrize("path", ["/v1/sandboxes", "/docs", "/metrics"])
def test_a_name_that_was_bound_to_loopback_is_not_served(replica: Replica, headers: Headers, path: str) -> None:
    asked = [(name, path if name == ":path" else value) for name, value in headers]
    status, _, body = exchange(replica, asked)
    assert status in (None, 400, 403), body


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-request-id", "a\r\nx-evil: 1"),
        ("x-request-id", "a\nx-evil: 1"),
        ("idempotency-key", "a\r\nx-evil: 1"),
        ("idempotency-key", "a\0b"),
        ("x-a\r\nx-evil", "1"),
        ("X-Upper", "1"),
        ("transfer-encoding", "chunked"),
        ("connection", "keep-alive"),
    ],
)
def test_a_header_that_http_1_would_read_otherwise_is_refused_or_replaced(
    replica: Replica, name: str, value: str
) -> None:
    status, headers, _ = exchange(replica, [*head("POST", "/v1/exec-jobs"), JSON, (name, value)], b"{}")
    assert status is None or status >= 400
    assert "x-evil" not in headers
    assert all(each.isprintable() for each in headers.values())


@pytest.mark.parametrize("length", ["1", "100", "-1", "x", "2, 2"])
def test_a_length_that_lies_starts_nothing(replica: Replica, length: str) -> None:
    body = msgspec.json.encode({"metadata": {"lie": "yes"}})
    asked = [*head("POST"), JSON, ("content-length", length)]
    status, _, _ = exchange(replica, asked, body)
    assert status is None or status >= 400
    assert replica.ask("GET", "/v1/sandboxes?metadata=lie=yes").json()["items"] == []


def test_a_body_over_the_limit_is_refused(replica: Replica) -> None:
    status, _, _ = exchange(replica, [*head("POST"), JSON, ("content-length", "9999999")], b"x" * 16_000)
    assert status in (None, 413)
