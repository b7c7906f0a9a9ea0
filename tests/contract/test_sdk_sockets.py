"""The SDK's transports over real connections, good and bad."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from service.client import AsyncClient, Client, ConnectionFailed, UnexpectedAnswer
from service.client.steps import Answer
from tests.contract.sdk_server import SdkServer, fast_hooks, serving
from tests.unit.client import scenario
from tests.unit.client.fake_service import FakeService
from tests.unit.client.virtual import Clock, Undisturbed, hooks


@pytest.fixture
def server() -> Iterator[SdkServer]:
    with serving(SdkServer(scenario.service())) as running:
        yield running


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    clock = Clock()
    client = Client("http://fake", _hooks=hooks(Undisturbed(scenario.service(), clock), clock))
    return scenario.day(client)


@pytest.mark.parametrize("seed", range(4))
def test_a_disturbed_day_looks_like_any_other(seed: int, expected: dict[str, Any]) -> None:
    with serving(SdkServer(scenario.service(), seed)) as server:
        with Client(server.url, deadline=None, _hooks=fast_hooks()) as client:
            saw = scenario.day(client)

        assert saw == expected
        assert server.faults
        assert set(server.service.executions.values()) == {1}


@pytest.mark.parametrize("seed", range(4))
async def test_a_disturbed_asynchronous_day_looks_like_any_other(seed: int, expected: dict[str, Any]) -> None:
    with serving(SdkServer(scenario.service(), seed)) as server:
        async with AsyncClient(server.url, deadline=None, _hooks=fast_hooks()) as client:
            saw = await scenario.async_day(client)

        assert saw == expected
        assert server.faults
        assert set(server.service.executions.values()) == {1}


class Silent(SdkServer):
    """Takes requests, and never says a word."""

    def _fault(self) -> str:
        return "dead"


def test_a_silent_connection_is_noticed() -> None:
    with (
        serving(Silent(FakeService({}))) as server,
        Client(server.url, timeout=0.2, deadline=0.5) as client,
        pytest.raises(ConnectionFailed, match="no answer in time"),
    ):
        client.sandbox("sb-1").refresh()


async def test_a_silent_connection_is_noticed_by_the_asynchronous_client_too() -> None:
    with serving(Silent(FakeService({}))) as server:
        async with AsyncClient(server.url, timeout=0.2, deadline=0.5) as client:
            with pytest.raises(ConnectionFailed, match="no answer in time"):
                await client.sandbox("sb-1").refresh()


async def test_nobody_listening_is_a_failed_connection(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    with pytest.raises(ConnectionFailed, match="no connection"):
        Client(url, deadline=0).sandbox("sb-1").refresh()
    async with AsyncClient(url, deadline=0) as client:
        with pytest.raises(ConnectionFailed, match="no connection"):
            await client.sandbox("sb-1").refresh()


class Elsewhere(SdkServer):
    """Sends everybody away."""

    def _served(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        return Answer(307, {"location": f"{self.url}/elsewhere"}, b"")


async def test_redirects_are_not_followed() -> None:
    with serving(Elsewhere(FakeService({}))) as server:
        with Client(server.url, "secret") as client, pytest.raises(UnexpectedAnswer, match="redirected"):
            client.create_sandbox()
        async with AsyncClient(server.url, "secret") as async_client:
            with pytest.raises(UnexpectedAnswer, match="redirected"):
                await async_client.create_sandbox()
        assert [target for _, _, target, _ in server.seen] == ["/v1/sandboxes"] * 2


async def test_who_asks_is_in_each_request(server: SdkServer) -> None:
    with Client(server.url, "k-1") as client:
        list(client.sandboxes())
    async with AsyncClient(server.url, "k-1") as async_client:
        [box async for box in async_client.sandboxes()]

    for _, _, _, headers in server.seen:
        assert headers["authorization"] == "Bearer k-1"
        assert headers["user-agent"].startswith("oncebox-python/")
        assert len(headers["x-request-id"]) == 32


async def test_a_base_path_and_odd_characters_arrive_as_they_are(server: SdkServer) -> None:
    labels = {"a b": "c&d=é+%2F"}
    for_sync = f"{server.url}/base%20path"
    with Client(for_sync, deadline=0) as client, pytest.raises(Exception, match="base path"):
        list(client.sandboxes(metadata=labels))
    async with AsyncClient(for_sync, deadline=0) as async_client:
        with pytest.raises(Exception, match="base path"):
            [box async for box in async_client.sandboxes(metadata=labels)]

    first, second = (target for _, _, target, _ in server.seen)
    assert first == second == "/base%20path/v1/sandboxes?metadata=a+b%3Dc%26d%3D%C3%A9%2B%252F"


def ports(server: SdkServer) -> list[int]:
    return [port for port, *_ in server.seen]


def test_a_connection_is_used_again(server: SdkServer) -> None:
    with Client(server.url) as client:
        for _ in range(5):
            list(client.sandboxes())

    assert len(set(ports(server))) == 1


def test_threads_share_a_client(server: SdkServer) -> None:
    with Client(server.url, _hooks=fast_hooks()) as client, ThreadPoolExecutor(16) as pool:
        boxes = list(pool.map(lambda n: client.create_sandbox(idempotency_key=f"k-{n % 8}").id, range(64)))
        results = list(pool.map(lambda box: client.sandbox(box).run("quick", timeout=61).output, boxes))

    assert len(set(boxes)) == 8
    assert set(results) == {"hé\n"}


def test_several_event_loops_share_a_client_but_no_connections(server: SdkServer) -> None:
    client = AsyncClient(server.url)

    async def look() -> None:
        for _ in range(3):
            [box async for box in client.sandboxes()]
        await client.close()

    asyncio.run(look())
    asyncio.run(look())
    threads = [threading.Thread(target=asyncio.run, args=(look(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(ports(server))) == 4
    assert len(server.seen) == 12


UNCLOSED = """
import asyncio, sys
from oncebox import AsyncClient
client = AsyncClient(sys.argv[1])
async def look(close):
    [box async for box in client.sandboxes()]
    if close:
        await client.close()
asyncio.run(look(False))
asyncio.run(look(False))
asyncio.run(look(True))
"""


def test_a_loop_that_ended_without_close_does_no_harm(server: SdkServer) -> None:
    command = [sys.executable, "-W", "ignore", "-c", UNCLOSED, server.url]
    done = subprocess.run(command, capture_output=True, timeout=60, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert len(set(ports(server))) == 3


FORKED = """
import os, sys
from oncebox import Client
client = Client(sys.argv[1])
list(client.sandboxes())
child = os.fork()
if child == 0:
    try:
        list(client.sandboxes())
        client.close()
    finally:
        os._exit(0)
os.waitpid(child, 0)
list(client.sandboxes())
"""
FORKED_ASYNC = """
import asyncio, os, sys
from oncebox import AsyncClient
client = AsyncClient(sys.argv[1])
loop = asyncio.new_event_loop()
async def look(close=False):
    [box async for box in client.sandboxes()]
    if close:
        await client.close()
loop.run_until_complete(look())
child = os.fork()
if child == 0:
    try:
        loop.run_until_complete(look(close=True))
    finally:
        os._exit(0)
os.waitpid(child, 0)
loop.run_until_complete(look(close=True))
loop.close()
"""


@pytest.mark.parametrize("script", [FORKED, FORKED_ASYNC])
def test_a_forked_process_has_connections_of_its_own(server: SdkServer, script: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", script, server.url]
    done = subprocess.run(command, capture_output=True, timeout=60, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    parent, child, again = ports(server)
    assert parent == again
    assert child != parent


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    key, crt = tmp_path / "key.pem", tmp_path / "crt.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*make, "-keyout", key, "-out", crt], check=True, capture_output=True, timeout=60)
    return key, crt


async def test_a_certificate_that_is_not_trusted_is_an_error_at_once(certificate: tuple[Path, Path]) -> None:
    key, crt = certificate
    server = SdkServer(FakeService({}))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(crt, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = server.url.replace("http:", "https:")
    with serving(server):
        with Client(url) as client, pytest.raises(ConnectionFailed, match="TLS") as caught:
            client.sandbox("sb-1").refresh()
        assert not caught.value.retryable
        async with AsyncClient(url) as async_client:
            with pytest.raises(ConnectionFailed, match="TLS") as caught:
                await async_client.sandbox("sb-1").refresh()
        assert not caught.value.retryable


class SilentAtFirst(SdkServer):
    """Makes a sandbox, but its first answer never comes; the second comes when it is let."""

    def __init__(self) -> None:
        super().__init__(FakeService({}))
        self.silent = threading.Event()
        self.asked_again = threading.Event()
        self.let = threading.Event()

    def answer_to(self, door: Any, method: str, target: str, headers: dict[str, str], body: bytes) -> bool:
        if self.silent.is_set():
            self.asked_again.set()
            self.let.wait(60)
            return super().answer_to(door, method, target, headers, body)
        self._served(method, target, headers, body)
        self.silent.set()
        door.hold()
        return False


async def test_a_create_that_is_cancelled_leaves_nothing_on_the_service() -> None:
    with serving(SilentAtFirst()) as server:
        async with AsyncClient(server.url) as client:
            task = asyncio.create_task(client.create_sandbox())
            await asyncio.to_thread(server.silent.wait, 30)
            assert server.service.sandboxes
            server.let.set()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        assert not server.service.sandboxes


INTERRUPTED = """
import signal, sys
from oncebox import Client
signal.signal(signal.SIGINT, signal.default_int_handler)
print("ready", flush=True)
Client(sys.argv[1]).create_sandbox()
"""
INTERRUPTED_ASYNC = """
import asyncio, signal, sys
from oncebox import AsyncClient
signal.signal(signal.SIGINT, signal.default_int_handler)
print("ready", flush=True)
async def main():
    async with AsyncClient(sys.argv[1]) as client:
        await client.create_sandbox()
asyncio.run(main())
"""


@pytest.mark.parametrize("interrupts", [1, 2])
@pytest.mark.parametrize("script", [INTERRUPTED, INTERRUPTED_ASYNC])
def test_nor_does_one_that_is_interrupted(script: str, interrupts: int) -> None:
    with serving(SilentAtFirst()) as server:
        with subprocess.Popen(
            [sys.executable, "-c", script, server.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert server.silent.wait(60)
            assert server.service.sandboxes
            for _ in range(interrupts):
                process.send_signal(signal.SIGINT)
                assert server.asked_again.wait(60)
            told = ""
            if interrupts == 2 and script == INTERRUPTED:  # the script is over, and its process waits for the clean-up
                assert process.stderr is not None
                told = next(line for line in process.stderr if line.startswith("KeyboardInterrupt"))
            server.let.set()
            _, said = process.communicate(timeout=60)

        assert (told + said).rstrip().endswith("KeyboardInterrupt")
        assert not server.service.sandboxes


class Says(socketserver.BaseRequestHandler):
    """Says the same to everybody, whatever they say."""

    said = b""

    def handle(self) -> None:
        self.request.recv(65_536)
        self.request.sendall(self.said)
        self.request.shutdown(socket.SHUT_WR)
        while self.request.recv(65_536):
            pass


@contextlib.contextmanager
def saying(said: bytes) -> Iterator[str]:
    handler = type("SaysThis", (Says,), {"said": said})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("scheme", "said"),
    [
        # An http service, asked by https.
        ("https", b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"),
        # An https service, asked by http: a TLS alert.
        ("http", b"\x15\x03\x01\x00\x02\x02\x46"),
        # The two sides know no common version; or the service wants a certificate of ours.
        ("https", b"\x15\x03\x01\x00\x02\x02\x46"),
        ("https", b"\x15\x03\x03\x00\x02\x02\x28"),
    ],
)
async def test_a_peer_of_the_wrong_kind_is_an_error_at_once(scheme: str, said: bytes) -> None:
    with saying(said) as place:
        with Client(f"{scheme}://{place}") as client, pytest.raises(ConnectionFailed, match="TLS") as caught:
            client.sandbox("sb-1").refresh()
        assert not caught.value.retryable
        async with AsyncClient(f"{scheme}://{place}") as async_client:
            with pytest.raises(ConnectionFailed, match="TLS") as caught:
                await async_client.sandbox("sb-1").refresh()
        assert not caught.value.retryable


async def test_a_handshake_that_breaks_off_may_pass() -> None:
    with saying(b"") as place:
        with Client(f"https://{place}", deadline=0) as client, pytest.raises(ConnectionFailed) as caught:
            client.sandbox("sb-1").refresh()
        assert caught.value.retryable
        async with AsyncClient(f"https://{place}", deadline=0) as async_client:
            with pytest.raises(ConnectionFailed) as caught:
                await async_client.sandbox("sb-1").refresh()
        assert caught.value.retryable
