"""How a replica begins and ends, and what it does to connections that mean no good."""

import os
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.acceptance.http_rig import SERVE, Replica
from tests.support.ports import free_port
from tests.support.processes import Spawner
from tests.support.redis_server import RedisServer
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.acceptance

HEAD = b"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture
def replica(spawn: Spawner) -> Replica:
    return Replica(spawn)


def children(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def ended(processes: list[psutil.Process], timeout: float = PATIENCE) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=timeout)
    return not alive


# -- the end


def test_the_engine_and_its_sandboxes_go_with_a_replica_that_is_killed(replica: Replica) -> None:
    sandbox = replica.sandbox()
    replica.submit(sandbox, "sleep 600")
    below = children(replica.process.pid)
    assert below
    replica.process.send(signal.SIGKILL)
    assert ended(below)


def test_the_engine_and_its_sandboxes_go_with_a_replica_that_is_stopped(replica: Replica) -> None:
    replica.submit(replica.sandbox(), "sleep 600")
    below = children(replica.process.pid)
    assert replica.process.terminate() == 0
    assert ended(below)
    assert "Traceback" not in replica.process.stderr


def test_a_replica_that_shuts_down_serves_on_for_the_delay_and_is_not_ready(spawn: Spawner) -> None:
    replica = Replica(spawn, {"ONCEBOX_SHUTDOWN_DELAY": "3600"})
    assert replica.ask("GET", "/readyz").status == 200
    replica.process.send(signal.SIGTERM)
    while replica.ask("GET", "/readyz").status == 200:
        pass
    not_ready = replica.ask("GET", "/readyz")
    assert not_ready.json()["reasons"] == ["This replica is shutting down."]
    assert not_ready.headers["Connection"] == "close"
    replica.submit(replica.sandbox(), "true")


def test_a_replica_ends_when_the_delay_is_over(spawn: Spawner) -> None:
    replica = Replica(spawn, {"ONCEBOX_SHUTDOWN_DELAY": "1"})
    began = time.monotonic()
    assert replica.process.terminate() == 0
    assert time.monotonic() - began >= 1


def test_long_polls_answer_and_event_streams_end_without_end(replica: Replica) -> None:
    command_id = replica.submit(replica.sandbox(), "echo begun; sleep 600")
    seen: list[str] = []

    def follow() -> None:
        seen.extend(name for name, _, _ in replica.events(command_id))

    follower = threading.Thread(target=follow)
    follower.start()
    cursor = None
    while (job := replica.ask("GET", f"/v1/exec-jobs/{command_id}?cursor={cursor or ''}").json())["output"] == "":
        cursor = job["cursor"]
    cursor = job["cursor"]
    with ThreadPoolExecutor(1) as pool:
        asked = time.monotonic()
        poll = pool.submit(replica.ask, "GET", f"/v1/exec-jobs/{command_id}?wait=30&cursor={cursor}")
        time.sleep(0.5)
        assert not poll.done(), "there is nothing new"
        replica.process.send(signal.SIGTERM)
        assert poll.result(timeout=PATIENCE).json()["state"] == "running"
        assert time.monotonic() - asked < 30, "it was answered before its own time was over"
    follower.join(timeout=PATIENCE)
    assert "output" in seen
    assert "end" not in seen
    assert replica.process.wait() == 0


def test_a_second_signal_ends_at_once(spawn: Spawner) -> None:
    replica = Replica(spawn, {"ONCEBOX_SHUTDOWN_DELAY": "3600"})
    below = children(replica.process.pid)
    replica.process.send(signal.SIGTERM)
    replica.process.wait_for_line("shutting down")
    assert replica.process.alive
    replica.process.send(signal.SIGTERM)
    assert replica.process.wait() != 0
    assert ended(below)


def test_idle_and_stuck_connections_do_not_hold_the_end_up(spawn: Spawner) -> None:
    replica = Replica(spawn, {"ONCEBOX_SHUTDOWN_GRACE": "3600"})
    address = ("127.0.0.1", int(replica.url.rsplit(":", 1)[1]))
    with socket.create_connection(address) as idle, socket.create_connection(address) as stuck:
        stuck.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        time.sleep(0.2)
        replica.process.send(signal.SIGTERM)
        assert idle.recv(1) == b""
        assert replica.process.wait() == 0


# -- the start


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"ONCEBOX_BIND": "0.0.0.0:0"}, "ONCEBOX_BIND"),
        ({"ONCEBOX_LEASE": "soon"}, "ONCEBOX_LEASE"),
        ({"ONCEBOX_TENANTS": "tenants.toml"}, "ONCEBOX_TENANTS"),
    ],
)
def test_settings_that_are_wrong_stop_the_start(spawn: Spawner, settings: dict[str, str], expected: str) -> None:
    process = spawn([sys.executable, "-P", "-c", SERVE, "1"], env=settings)
    assert process.wait() != 0
    assert expected in process.stderr
    assert process.stdout == ""


def test_several_workers_are_refused_where_they_can_share_nothing(spawn: Spawner) -> None:
    process = spawn([sys.executable, "-P", "-c", SERVE, "2"], env={"ONCEBOX_BIND": "127.0.0.1:0"})
    assert process.wait() != 0
    assert "--workers" in process.stderr


def test_a_port_that_is_taken_is_said(spawn: Spawner) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        process = spawn([sys.executable, "-P", "-c", SERVE, "1"], env={"ONCEBOX_BIND": bind})
        assert process.wait() == 1
    assert f"can't listen on {bind}" in process.stderr
    assert "Traceback" not in process.stderr


# -- workers


@pytest.mark.integration
def test_workers_share_a_port_are_replaced_and_end_together(
    spawn: Spawner, redis_server: RedisServer, tmp_path: Path
) -> None:
    port = free_port()
    engine = spawn(
        [sys.executable, "-P", "-m", "service.local_engine", "--bind", f"127.0.0.1:{port}"],
        name="engine",
        env={"OPEN_SANDBOX_API_KEY": "k"},
    )
    engine.wait_for_line('"url"')
    settings = {
        "ONCEBOX_REDIS_URL": redis_server.url,
        "ONCEBOX_ENGINE_URL": f"http://127.0.0.1:{port}",
        "ONCEBOX_ENGINE_API_KEY": "k",
        "ONCEBOX_SHUTDOWN_DELAY": "0.1",
    }
    replica = Replica(spawn, settings, workers=2)
    sandbox = replica.sandbox()
    workers = [child for child in children(replica.process.pid) if "spawn_main" in " ".join(child.cmdline())]
    assert len(workers) == 2

    # One key on both of them is one job
    with ThreadPoolExecutor(16) as pool:
        ids = set(pool.map(lambda _: replica.submit(sandbox, "echo x >> counter", key="once"), range(32)))
    assert len(ids) == 1

    # A worker that dies is replaced
    workers[0].kill()
    replica.process.wait_for_line("starting another")
    deadline = time.monotonic() + PATIENCE
    while len([child for child in children(replica.process.pid) if "spawn_main" in " ".join(child.cmdline())]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)

    # All of them end, in order
    below = children(replica.process.pid)
    assert replica.process.terminate() == 0
    assert ended(below)


@pytest.mark.integration
def test_workers_end_when_their_parent_is_killed(spawn: Spawner, redis_server: RedisServer) -> None:
    settings = {
        "ONCEBOX_REDIS_URL": redis_server.url,
        "ONCEBOX_ENGINE_URL": f"http://127.0.0.1:{free_port()}",
        "ONCEBOX_SHUTDOWN_DELAY": "0",
    }
    replica = Replica(spawn, settings, workers=2)
    below = children(replica.process.pid)
    os.kill(replica.process.pid, signal.SIGKILL)
    assert ended(below)


# -- connections that mean no good


@pytest.mark.parametrize(
    "request_",
    [
        HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
        HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: xchunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding : chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
        HEAD + b"Content-Length: +2\r\n\r\n{}",
        HEAD + b"X-Request-Id: a\0b\r\nContent-Length: 2\r\n\r\n{}",
        HEAD + b"X-A: " + b"a" * 200_000 + b"\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
def test_a_request_that_others_may_read_otherwise_is_refused_and_its_connection_closed(
    shared: Replica, request_: bytes
) -> None:
    received = shared.raw(request_ + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert received.startswith((b"HTTP/1.1 4", b"HTTP/1.1 501"))
    assert received.count(b"HTTP/1.1 ") == 1
    assert shared.ask("GET", "/v1/sandboxes").json()["items"] == []


@pytest.mark.parametrize("name", [b"X-Request-Id", b"Idempotency-Key"])
@pytest.mark.parametrize(
    "value", [b"a\r\n X-Evil: 1", b"a\n X-Evil: 1", b"a\r X-Evil: 1", b"a\x0bX-Evil: 1", b"a%0d%0aX-Evil: 1"]
)
def test_a_header_can_not_be_injected_by_one_that_comes_back(shared: Replica, name: bytes, value: bytes) -> None:
    request = b"POST /v1/exec-jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request += name + b": " + value + b"\r\nContent-Length: 1\r\nConnection: close\r\n\r\n{"
    head = shared.raw(request).partition(b"\r\n\r\n")[0].lower()
    assert b"\nx-evil" not in head
    assert b"\rx-evil" not in head


def test_a_body_without_end_is_cut_off_and_not_kept(shared: Replica) -> None:
    memory = psutil.Process(shared.process.pid).memory_info().rss

    def pour(connection: socket.socket) -> None:
        try:
            for _ in range(2_000):
                connection.sendall(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
        except OSError:
            pass

    for path in (b"POST /v1/sandboxes", b"POST /nowhere", b"DELETE /v1/sandboxes/x", b"GET /v1/exec-jobs/cmd_x"):
        head = (
            path
            + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        try:
            received = shared.raw(head, then=pour)
        except ConnectionError:
            continue  # closed while it was still pouring
        assert received.startswith(b"HTTP/1.1 413")
    assert psutil.Process(shared.process.pid).memory_info().rss - memory < 64 * 1024 * 1024
    assert shared.ask("GET", "/healthz").status == 200


def test_connections_that_end_badly_leave_nothing_behind(shared: Replica) -> None:
    process = psutil.Process(shared.process.pid)
    before = process.num_fds()
    big = b"Transfer-Encoding: chunked\r\n\r\n" + (b"10000\r\n" + b"x" * 65_536 + b"\r\n") * 12
    for _ in range(5):
        for request in (HEAD + b"Content-Length: 100\r\n\r\n{", HEAD[:20], HEAD + big, b"\x16\x03\x01" * 50):
            with socket.create_connection(("127.0.0.1", int(shared.url.rsplit(":", 1)[1]))) as connection:
                connection.sendall(request)
    deadline = time.monotonic() + PATIENCE
    while process.num_fds() > before + 2:
        assert time.monotonic() < deadline, process.net_connections()
        time.sleep(0.05)


def test_a_reader_that_takes_nothing_is_cut_off(spawn: Spawner) -> None:
    impatient = "from service.server import listening\nlistening.STALLED_SECONDS = 2\n" + SERVE
    replica = Replica(spawn, program=impatient)
    command_id = replica.submit(replica.sandbox(), "head -c 30000000 /dev/zero")
    replica.follow(command_id)
    target = f"GET /v1/exec-jobs/{command_id}/output HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        reader.connect(("127.0.0.1", int(replica.url.rsplit(":", 1)[1])))
        reader.sendall(target)
        replica.process.wait_for_line(r'"route":"/v1/exec-jobs/\{command_id\}/output","status":499')
    assert replica.process.terminate() == 0
    assert '"level":"error"' not in replica.process.stderr


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """One replica for the tests that do it no harm."""
    spawn = Spawner(tmp_path_factory.mktemp("shared"))
    yield Replica(spawn)
    spawn.kill_all()
