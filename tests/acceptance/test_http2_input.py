"""Only HTTP/1 is spoken: whoever asks for something else gets nothing past it, and fills no log."""

import re
import socket
import struct

import psutil
import pytest

from tests.acceptance.http_rig import Replica
from tests.support.processes import Spawner

pytestmark = pytest.mark.acceptance

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) * 2
TRIES = 200


def headers_frame(path: bytes) -> bytes:
    """A GET of ``path`` as the first stream's only frame (RFC 9113, 6.2; RFC 7541, 6.1 and 6.2.2)."""
    block = b"\x82\x86\x04" + bytes([len(path)]) + path + b"\x01\x09localhost"
    return struct.pack(">I", len(block))[1:] + b"\x01\x05\x00\x00\x00\x01" + block


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    spawner = Spawner(tmp_path_factory.mktemp("processes"))
    yield Replica(spawner)
    spawner.kill_all()


def statuses(received: bytes) -> list[bytes]:
    return re.findall(rb"HTTP/1\.1 (\d+)", received)


@pytest.mark.parametrize("name", ["h2c", "H2C", "h2c, websocket", "TLS/1.0", "websocket"])
@pytest.mark.parametrize("settings", [b"", b"HTTP2-Settings: AAMAAABkAAQAAP__\r\n"])
def test_an_upgrade_is_not_followed_and_nothing_is_tunnelled(replica: Replica, name: str, settings: bytes) -> None:
    connection = b"Connection: Upgrade, HTTP2-Settings\r\nSec-WebSocket-Version: 13\r\n"
    upgrade = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nUpgrade: " + name.encode() + b"\r\n"
    tunnelled = PREFACE + SETTINGS + headers_frame(b"/metrics")
    received = replica.raw(HEALTH + connection + settings + upgrade + b"\r\n" + tunnelled)
    assert statuses(received) == [b"200", b"505"], "HTTP/1.1 for the one, and no more for the other"
    assert b"oncebox_build_info" not in received


def test_an_upgrade_of_a_request_with_a_body_is_that_request(replica: Replica) -> None:
    head = b"POST /v1/exec-jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
    received = replica.raw(head + b"Connection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n{}")
    assert statuses(received) == [b"422"]


@pytest.mark.parametrize("version", [b"2.0", b"3.0", b"0.9", b"1.9"])
@pytest.mark.parametrize("method", [b"GET /healthz", b"HEAD /healthz", b"PRI *"])
def test_another_version_is_refused(replica: Replica, method: bytes, version: bytes) -> None:
    received = replica.raw(method + b" HTTP/" + version + b"\r\nHost: localhost\r\n\r\n")
    assert statuses(received) == [b"505"]
    if not method.startswith(b"HEAD"):
        assert b'"code":"INVALID_REQUEST"' in received


def test_a_preface_is_answered_and_its_connection_closed(replica: Replica) -> None:
    received = replica.raw(PREFACE + SETTINGS + headers_frame(b"/healthz"))
    assert statuses(received) == [b"505"]
    assert replica.ask("GET", "/healthz").status == 200


@pytest.mark.parametrize(
    "sent",
    [
        PREFACE + SETTINGS * 50,
        PREFACE + SETTINGS + headers_frame(b"/\xff\xfe"),
        PREFACE[:20],
        PREFACE + b"\xff" * 100_000,
        SETTINGS,
        CLIENT_HELLO,
        b"\0" * 1000,
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000,
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"*1\r\n$4\r\nPING\r\n",
    ],
)
def test_what_strangers_send_leaves_a_few_short_lines(spawn: Spawner, sent: bytes) -> None:
    replica = Replica(spawn)
    process = psutil.Process(replica.process.pid)
    before = process.num_fds()
    for _ in range(TRIES):
        with socket.create_connection(("127.0.0.1", int(replica.url.rsplit(":", 1)[1])), 10) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            try:
                while connection.recv(65_536):
                    pass
            except ConnectionResetError:
                pass
    lines = [line for line in replica.process.stderr.splitlines() if '"logger":"oncebox.access"' not in line]
    assert len(lines) < TRIES / 4
    assert all(len(line) < 400 for line in lines)
    assert "Traceback" not in replica.process.stderr
    assert process.num_fds() <= before + 3
    assert replica.process.terminate() == 0
