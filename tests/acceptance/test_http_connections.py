"""Connections: freed at once when they are closed, bounded, and answered when only one side of them was closed."""

import contextlib
import json
import re
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.acceptance.http_rig import MARK, SERVE, Replica
from tests.support.processes import Spawner

pytestmark = pytest.mark.acceptance

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
LIMIT = 256
"""Open files of a replica; half of them may be connections."""
IN_TIME = 60.0
"""Seconds for what should be at once, on a busy machine: far less than the 75 s of an idle connection."""


def limited(soft: int, hard: int) -> str:
    """The program of a replica that is started with limits of open files."""
    return SERVE.replace(
        "if __name__", f"import resource\nif __name__ == '__main__':\n    {setting(soft, hard)}\nif __name__"
    )


def setting(soft: int, hard: int) -> str:
    return f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))"


def connect(replica: Replica, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", int(replica.url.rsplit(":", 1)[1])), IN_TIME)
    connection.sendall(sent)
    return connection


def fill(replica: Replica, sent: bytes, count: int, held: contextlib.ExitStack) -> list[socket.socket]:
    return [held.enter_context(connect(replica, sent)) for _ in range(count)]


def get(target: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def post(target: str, body: dict[str, object]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
    return head.encode() + str(len(content)).encode() + b"\r\n\r\n" + content


def half_closed(replica: Replica, *sent: bytes) -> bytes:
    """All that comes back after the sending side was closed."""
    with connect(replica) as connection:
        for part in sent:
            connection.sendall(part)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while part := connection.recv(65_536):
            received += part
        return received


def until_descriptors(replica: Replica, most: int) -> None:
    process = psutil.Process(replica.process.pid)
    deadline = time.monotonic() + IN_TIME
    while process.num_fds() > most:
        assert time.monotonic() < deadline, f"{process.num_fds()} descriptors: {process.net_connections()}"
        time.sleep(0.02)


def waits(replica: Replica, kind: str) -> int:
    found = re.search(
        rf'^oncebox_http_waits_open{{wait="{kind}"}} (\d+)', replica.ask("GET", "/metrics").data.decode(), re.MULTILINE
    )
    return int(found[1]) if found else 0


def until_waiting(replica: Replica, kind: str, count: int) -> None:
    deadline = time.monotonic() + IN_TIME
    while waits(replica, kind) != count:
        assert time.monotonic() < deadline, replica.process.report()
        time.sleep(0.02)


# -- connections that are over


def test_connections_that_callers_close_do_not_use_descriptors_up(spawn: Spawner) -> None:
    replica = Replica(spawn, program=limited(LIMIT, LIMIT))
    for _ in range(2 * LIMIT):
        with connect(replica, HEALTH) as connection:
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
    assert "can't accept" not in replica.process.stderr
    assert len(replica.process.stderr.splitlines()) < 20


@pytest.mark.parametrize("more", [b"", HEALTH, b"G"])
@pytest.mark.parametrize("target", ["?wait=30", "/events"])
def test_a_wait_ends_with_its_connection_whatever_was_sent_behind_it(
    shared: Replica, running: tuple[str, str], target: str, more: bytes
) -> None:
    before = psutil.Process(shared.process.pid).num_fds()
    _, cursor = running
    kind = "events" if target == "/events" else "long_poll"
    with contextlib.ExitStack() as held:
        path = f"/v1/exec-jobs/{running[0]}{target}" + ("" if kind == "events" else f"&cursor={cursor}")
        fill(shared, get(path) + more, 20, held)
        until_waiting(shared, kind, 20)
    until_descriptors(shared, before + 3)
    until_waiting(shared, kind, 0)


# -- as many as there may be


def test_idle_connections_make_room_and_what_is_under_way_goes_on(spawn: Spawner) -> None:
    replica = Replica(spawn, program=limited(LIMIT, LIMIT))
    command_id, cursor = started(replica)
    with contextlib.ExitStack() as held:
        poll = held.enter_context(connect(replica, get(f"/v1/exec-jobs/{command_id}?wait=30&cursor={cursor}")))
        until_waiting(replica, "long_poll", 1)
        idle = fill(replica, b"", LIMIT, held)
        with connect(replica, HEALTH) as late:
            assert late.recv(65_536).startswith(b"HTTP/1.1 200")
        replica.submit(replica.sandbox(), "true")
        assert idle[0].recv(1) == b"", "the longest idle ended"
        assert psutil.Process(replica.process.pid).num_fds() < LIMIT
        replica.ask("DELETE", f"/v1/exec-jobs/{command_id}")
        answer = b""
        while b'"command_id"' not in answer:  # begun, if it took long
            part = poll.recv(65_536)
            assert part, answer
            answer += part
    assert "connections, the most that there may be" in replica.process.stderr
    assert len(replica.process.stderr.splitlines()) < 40


def test_where_all_are_at_work_others_wait_for_their_turn(spawn: Spawner) -> None:
    replica = Replica(spawn, program=limited(64, 64))
    command_id, cursor = started(replica)
    with contextlib.ExitStack() as held:
        polls = fill(replica, get(f"/v1/exec-jobs/{command_id}?wait=30&cursor={cursor}"), 40, held)
        with connect(replica, HEALTH) as late:
            late.settimeout(1)
            with pytest.raises(TimeoutError):
                late.recv(1)
            for poll in polls[:20]:
                poll.close()
            late.settimeout(IN_TIME)
            assert late.recv(65_536).startswith(b"HTTP/1.1 200")


def test_descriptors_that_run_out_all_the_same_are_said_once_in_a_while(spawn: Spawner) -> None:
    replica = Replica(spawn, program=limited(LIMIT, LIMIT))
    command_id, cursor = started(replica)
    replica.http.clear()
    with contextlib.ExitStack() as held:
        fill(replica, get(f"/v1/exec-jobs/{command_id}?wait=30&cursor={cursor}"), 5, held)
        replica.process.wait_for_line("url")
        until_waiting(replica, "long_poll", 5)
        replica.http.clear()
        used = max(int(entry.name) for entry in descriptors(replica)) + 1
        resource.prlimit(replica.process.pid, resource.RLIMIT_NOFILE, (used, LIMIT))
        late = fill(replica, HEALTH, used, held)
        replica.process.wait_for_line("can't accept connections: Too many open files")
        time.sleep(2)  # for all the tries that there are
        assert replica.process.stderr.count("can't accept") <= 5
        resource.prlimit(replica.process.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
        assert late[-1].recv(65_536).startswith(b"HTTP/1.1 200")
    assert "Traceback" not in replica.process.stderr


def test_the_soft_limit_of_descriptors_is_raised_for_the_service_alone(spawn: Spawner) -> None:
    replica = Replica(spawn, program=limited(LIMIT, 4 * LIMIT))
    process = psutil.Process(replica.process.pid)
    assert process.rlimit(psutil.RLIMIT_NOFILE)[0] == 4 * LIMIT
    command_id = replica.submit(replica.sandbox(), "ulimit -Sn; ulimit -Hn")
    assert replica.follow(command_id)[1] == f"{LIMIT}\n{4 * LIMIT}\n".encode(), "as it was for whoever started it"


# -- a side of its own


@pytest.mark.parametrize("target", ["/healthz", "/v1/exec-jobs", "/v1/sandboxes?page_size=1", "/openapi.json", "/docs"])
def test_a_plain_read_is_answered_whole(shared: Replica, target: str) -> None:
    expected = shared.ask("GET", target)
    head, _, body = half_closed(shared, get(target)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert len(body) == len(expected.data) == int(expected.headers["Content-Length"])


def test_what_makes_something_is_answered(shared: Replica, running: tuple[str, str]) -> None:
    received = half_closed(shared, post("/v1/sandboxes", {"env": {"MARKED": MARK}}))
    assert received.startswith(b"HTTP/1.1 201")
    sandbox = json.loads(received.partition(b"\r\n\r\n")[2])["sandbox_id"]
    command = {"sandbox_id": sandbox, "command": f"echo hi # {MARK}"}
    asked = post("/v1/exec-jobs", command)
    assert half_closed(shared, asked[:30], asked[30:-5], asked[-5:]).startswith(b"HTTP/1.1 202")
    received = half_closed(shared, post("/v1/exec", {**command, "command": f"sleep 1; echo hi # {MARK}"}))
    assert received.startswith(b"HTTP/1.1 200")
    assert json.loads(received.partition(b"\r\n\r\n")[2])["stdout"] == "hi\n"
    assert half_closed(shared, post("/v1/exec-jobs", {"sandbox": sandbox})).startswith(b"HTTP/1.1 422")
    assert half_closed(shared, b"DELETE " + get(f"/v1/sandboxes/{sandbox}")[4:]).startswith(b"HTTP/1.1 204")


def test_a_long_poll_is_answered_at_once_with_what_there_is(shared: Replica, running: tuple[str, str]) -> None:
    command_id, cursor = running
    began = time.monotonic()
    received = half_closed(shared, get(f"/v1/exec-jobs/{command_id}?wait=30&cursor={cursor}"))
    assert time.monotonic() - began < 30, "not at the end of its own time"
    assert received.startswith(b"HTTP/1.1 200")
    job = json.loads(received.partition(b"\r\n\r\n")[2])
    assert (job["state"], job["cursor"]) == ("running", cursor)


def test_all_that_was_asked_for_before_is_answered_in_order(shared: Replica, running: tuple[str, str]) -> None:
    command_id, cursor = running
    poll = get(f"/v1/exec-jobs/{command_id}?wait=30&cursor={cursor}")
    began = time.monotonic()
    received = half_closed(shared, get("/healthz"), poll, get("/nowhere"))
    assert re.findall(rb"HTTP/1\.1 (\d+)", received) == [b"200", b"200", b"404"]
    assert time.monotonic() - began < 30, "not at the end of the poll's own time"


def test_an_event_stream_gives_what_it_has_and_ends(shared: Replica, running: tuple[str, str]) -> None:
    began = time.monotonic()
    received = half_closed(shared, get(f"/v1/exec-jobs/{running[0]}/events"))
    assert time.monotonic() - began < IN_TIME
    assert b"event: output" in received
    assert b"event: end" not in received
    assert not received.endswith(b"0\r\n\r\n"), "cut off, so that nobody takes it for the end"


def test_a_download_gives_what_is_taken_soon_and_ends(shared: Replica) -> None:
    command_id = shared.submit(shared.sandbox(), "head -c 30000000 /dev/zero; echo end >&2")
    shared.follow(command_id)
    target = get(f"/v1/exec-jobs/{command_id}/output")
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        reader.connect(("127.0.0.1", int(shared.url.rsplit(":", 1)[1])))
        reader.sendall(target)
        reader.shutdown(socket.SHUT_WR)
        shared.process.wait_for_line(r'"route":"/v1/exec-jobs/\{command_id\}/output","status":499')
    few = shared.submit(shared.sandbox(), "echo few")
    shared.follow(few)
    assert half_closed(shared, get(f"/v1/exec-jobs/{few}/output")).endswith(b"\r\n\r\nfew\n")


def test_a_body_that_was_not_sent_whole_runs_nothing(shared: Replica) -> None:
    asked = post("/v1/sandboxes", {"metadata": {"half": "yes"}})
    assert half_closed(shared, asked[:-3]) == b""
    assert shared.ask("GET", "/v1/sandboxes?metadata=half=yes").json()["items"] == []


# -- rigs


def descriptors(replica: Replica) -> Iterator[Path]:
    return Path(f"/proc/{replica.process.pid}/fd").iterdir()


def started(replica: Replica) -> tuple[str, str]:
    """A job that runs, and the cursor behind its first line."""
    command_id = replica.submit(replica.sandbox(), "echo begun; sleep 600")
    cursor = None
    while True:
        job = replica.ask("GET", f"/v1/exec-jobs/{command_id}?wait=5" + (f"&cursor={cursor}" if cursor else "")).json()
        cursor = job["cursor"]
        if job["output"]:
            return command_id, str(cursor)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """One replica for the tests that do it no harm."""
    spawner = Spawner(tmp_path_factory.mktemp("shared"))
    yield Replica(spawner)
    spawner.kill_all()


@pytest.fixture(scope="module")
def running(shared: Replica) -> tuple[str, str]:
    return started(shared)
