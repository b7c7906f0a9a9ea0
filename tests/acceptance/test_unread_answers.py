"""Callers who ask for a lot and read nothing, or leave: bounded, and no burden for others."""

import socket
import time
from collections.abc import Iterator

import pytest

from service.tenants import key_digest
from tests.acceptance.http_rig import SERVE, Replica
from tests.support.processes import Spawner
from tests.support.unread import UnreadAnswers, grown, resident
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.acceptance

MIB = 1024 * 1024
CAPACITY = 16 * MIB
"""Bytes of room, so that a few callers fill it."""
CALLERS = 40
BODIES = 120
SMALL = SERVE.replace(
    "if __name__", f"from service.core.limits import room\nroom.Room.__init__.__defaults__ = ({CAPACITY},)\nif __name__"
)


def bearer(tenant: str) -> dict[str, str]:
    return {"Authorization": f"Bearer obx_{tenant}"}


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    folder = tmp_path_factory.mktemp("unread")
    tenants = folder / "tenants.toml"
    tenants.write_text("".join(f'[{name}]\nkeys = ["{key_digest("obx_" + name)}"]\n' for name in ("greedy", "quiet")))
    spawner = Spawner(folder)
    yield Replica(spawner, {"ONCEBOX_TENANTS": str(tenants), "ONCEBOX_SECRET": "s"}, program=SMALL)
    spawner.kill_all()


@pytest.fixture(scope="module")
def jobs(replica: Replica) -> dict[str, str]:
    """A finished job of each tenant: 4 MiB of output, and little."""
    return {
        "greedy": finished(replica, "greedy", f"head -c {4 * MIB} /dev/zero | tr '\\0' x"),
        "quiet": finished(replica, "quiet", "seq 1 2000"),
    }


def finished(replica: Replica, tenant: str, command: str) -> str:
    made = replica.ask("POST", "/v1/sandboxes", {}, **bearer(tenant))
    body = {"sandbox_id": made.json()["sandbox_id"], "command": command}
    command_id = str(replica.ask("POST", "/v1/exec-jobs", body, **bearer(tenant)).json()["command_id"])
    until = time.monotonic() + PATIENCE
    while replica.ask("GET", f"/v1/exec-jobs/{command_id}?limit=1", **bearer(tenant)).json()["state"] != "exited":
        assert time.monotonic() < until
        time.sleep(0.1)
    return command_id


@pytest.mark.parametrize("what", ["?limit=8388608", "?limit=8388608&encoding=base64&wait=5", "/output", "/events"])
def test_unread_answers_of_one_tenant_are_bounded_and_others_are_served(
    replica: Replica, jobs: dict[str, str], what: str
) -> None:
    replica.ask("GET", f"/v1/exec-jobs/{jobs['greedy']}?limit=8388608", **bearer("greedy"))  # what it needs once
    before = resident(replica.process.pid)
    with UnreadAnswers(replica.url, [f"/v1/exec-jobs/{jobs['greedy']}{what}"] * CALLERS, key="obx_greedy"):
        most = grown(replica.process.pid, before, 2)
        assert replica.ask("GET", f"/v1/exec-jobs/{jobs['quiet']}", **bearer("quiet")).status == 200
        most = max(most, grown(replica.process.pid, before, 1))
    assert most < 3 * CAPACITY, "40 answers of 4 MiB would be 160 MiB"


def test_who_finds_no_room_is_told_when_to_come_back_and_finds_it_when_the_others_left(
    replica: Replica, jobs: dict[str, str]
) -> None:
    target = f"/v1/exec-jobs/{jobs['greedy']}?limit=8388608"
    with UnreadAnswers(replica.url, [target] * 3, key="obx_greedy"):
        while (refused := replica.ask("GET", target, **bearer("greedy"))).status == 200:
            pass  # the others have not taken all of the room yet
        assert (refused.status, refused.json()["code"]) == (429, "RATE_LIMITED")
        assert int(refused.headers["Retry-After"]) >= 1
        state = replica.ask("GET", f"/v1/exec-jobs/{jobs['greedy']}?limit=1000", **bearer("greedy"))
        assert state.status == 200, "what is small finds room"
    answer = replica.ask("GET", target, **bearer("greedy"))
    assert answer.json()["output"] == "x" * 4 * MIB


def test_what_was_asked_for_is_not_worked_off_when_its_callers_have_left(
    replica: Replica, jobs: dict[str, str]
) -> None:
    target = f"/v1/exec-jobs/{jobs['greedy']}?limit=8388608"
    with UnreadAnswers(replica.url, [target] * CALLERS, key="obx_greedy"):
        time.sleep(0.5)
    replica.ask("GET", "/v1/exec-jobs", **bearer("greedy"))
    lines = [line for line in replica.process.stderr.splitlines() if '"oncebox.access"' in line]
    until = time.monotonic() + PATIENCE
    while len([line for line in lines if f"{jobs['greedy']}" in line and '"status":499' in line]) < CALLERS - 4:
        assert time.monotonic() < until, "they ended with their connections, not after all of it was read"
        time.sleep(0.1)
        lines = [line for line in replica.process.stderr.splitlines() if '"oncebox.access"' in line]


def test_a_body_that_is_not_asked_for_stays_with_its_sender(replica: Replica) -> None:
    before = resident(replica.process.pid)
    address = ("127.0.0.1", int(replica.url.rsplit(":", 1)[1]))
    head = (
        "POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer obx_greedy\r\n"
        f"Content-Type: application/json\r\nContent-Length: {MIB}\r\n\r\n"
    ).encode()
    senders = []
    try:
        for _ in range(BODIES):
            sender = socket.create_connection(address)
            sender.sendall(head)
            sender.setblocking(False)
            senders.append(sender)
        most = 0
        left = dict.fromkeys(senders, MIB - 1)
        until = time.monotonic() + 2
        while time.monotonic() < until:
            for sender in senders:
                try:
                    left[sender] -= sender.send(b" " * min(left[sender], 65_536)) if left[sender] else 0
                except OSError:
                    continue
            most = max(most, resident(replica.process.pid) - before)
    finally:
        for sender in senders:
            sender.close()
    assert most < BODIES * MIB * 3 / 4, "what the room holds, and some pieces each"


@pytest.mark.parametrize("length", [MIB + 1, 10 * MIB])
def test_a_body_that_is_refused_does_not_keep_its_connection(replica: Replica, length: int) -> None:
    head = (
        "POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer obx_wrong\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    ).encode()
    received = replica.raw(head + b" " * 300_000)
    assert received.startswith(b"HTTP/1.1 401")
