"""API keys over the product's own processes: who is let in, and how that changes while requests go on."""

import itertools
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.tenants import key_digest
from tests.acceptance.http_rig import Replica
from tests.integration.core_rig import KEY, local_engine
from tests.support.processes import Spawner
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.acceptance, pytest.mark.integration]

ONCEBOX = Path(sys.executable).parent / "oncebox"
ACME, UMBRELLA, LATER = "obx_acme", "obx_umbrella", "obx_later"


def table(tenant: str, key: str) -> str:
    return f'[{tenant}]\nkeys = ["{key_digest(key)}"]\n'


@pytest.fixture
def tenants(tmp_path: Path) -> Path:
    path = tmp_path / "tenants.toml"
    path.write_text(table("acme", ACME) + table("umbrella", UMBRELLA))
    return path


@pytest.fixture
def engine_url(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "engine").mkdir()
    with local_engine(str(tmp_path / "engine")) as url:
        yield url


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def status(replica: Replica, key: str) -> int:
    return replica.ask("GET", "/v1/exec-jobs", **bearer(key)).status


def test_the_key_decides_who_is_asking(spawn: Spawner, tenants: Path) -> None:
    replica = Replica(spawn, {"ONCEBOX_TENANTS": str(tenants), "ONCEBOX_SECRET": "s3cret"})
    for headers in ({}, bearer("obx_wrong"), bearer(key_digest(ACME)), {"Authorization": ACME}):
        refused = replica.ask("GET", "/v1/sandboxes", **headers)
        assert (refused.status, refused.json()["code"]) == (401, "UNAUTHENTICATED")
        assert refused.headers["WWW-Authenticate"] == "Bearer"
        assert refused.headers["Content-Type"] == "application/problem+json"
    made = replica.ask("POST", "/v1/sandboxes", {}, **bearer(ACME)).json()["sandbox_id"]
    assert replica.ask("GET", f"/v1/sandboxes/{made}", **bearer(ACME)).status == 200
    assert replica.ask("GET", f"/v1/sandboxes/{made}", **bearer(UMBRELLA)).status == 404
    assert replica.ask("POST", "/v1/sandboxes", {"workspace_owner": "umbrella"}, **bearer(ACME)).status == 403
    assert replica.ask("GET", "/healthz", Host="box.example").status == 200


def test_sighup_reloads_every_worker_and_drops_no_request(
    spawn: Spawner, tenants: Path, redis_server: RedisServer, engine_url: str
) -> None:
    env = {
        "ONCEBOX_TENANTS": str(tenants), "ONCEBOX_SECRET": "s3cret", "ONCEBOX_SHUTDOWN_DELAY": "0",
        "ONCEBOX_REDIS_URL": redis_server.url, "ONCEBOX_ENGINE_URL": engine_url, "ONCEBOX_ENGINE_API_KEY": KEY,
    }  # fmt: skip
    replica = Replica(spawn, env, workers=2)
    statuses: list[int] = []
    stop = threading.Event()

    def go_on_asking() -> None:
        while not stop.is_set():
            statuses.append(status(replica, ACME))

    asking = threading.Thread(target=go_on_asking)
    asking.start()
    try:
        before = replica.process.stderr.count("the tenants file was read")
        rewrite(tenants, table("acme", ACME) + table("later", LATER))
        replica.process.send(signal.SIGHUP)
        replica.process.wait_for_line(r"(?s)the tenants file was read.*the tenants file was read")
        assert before == 0
        for _ in range(20):  # connections of their own: the kernel spreads them over both workers
            assert fresh(replica, LATER).startswith(b"HTTP/1.1 200")
            assert fresh(replica, UMBRELLA).startswith(b"HTTP/1.1 401")
        rewrite(tenants, "[acme")
        replica.process.send(signal.SIGHUP)
        replica.process.wait_for_line(r"(?s)not taken over.*not taken over")
        assert fresh(replica, LATER).startswith(b"HTTP/1.1 200")
    finally:
        stop.set()
        asking.join()
    assert set(statuses) == {200}
    assert replica.process.terminate() == 0


def rewrite(path: Path, text: str) -> None:
    """Same size, same time: nothing but the signal tells the workers that the file has changed."""
    before = path.stat()
    path.write_text(text.ljust(before.st_size))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def fresh(replica: Replica, key: str) -> bytes:
    head = f"GET /v1/exec-jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n\r\n"
    return replica.raw(head.encode())


@pytest.mark.parametrize(
    ("text", "said"), [("[acme", "no TOML"), ("", "no tenant"), (None, "can't be read"), ("[acme]\n", "keys")]
)
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_broken_file_stops_the_start_in_one_sentence(
    spawn: Spawner, tenants: Path, text: str | None, said: str, workers: str
) -> None:
    tenants.unlink() if text is None else tenants.write_text(text)
    env = {
        "ONCEBOX_TENANTS": str(tenants), "ONCEBOX_REDIS_URL": "redis://127.0.0.1:1",
        "ONCEBOX_ENGINE_URL": "http://127.0.0.1:1",
    }  # fmt: skip
    process = spawn([ONCEBOX, "serve", "--bind", "127.0.0.1:0", "--workers", workers], env=env)
    assert process.wait() != 0
    (line,) = process.stderr.strip().splitlines()
    assert "ONCEBOX_TENANTS" in line
    assert said in line
    assert process.stdout == ""


def test_keys_new_prints_what_lets_its_bearer_in(spawn: Spawner, tenants: Path) -> None:
    process = spawn([ONCEBOX, "keys", "new", "newcomer"])
    assert process.wait() == 0
    key, _, lines = process.stdout.partition("\n")
    assert key not in lines
    tenants.write_text(tenants.read_text() + lines)
    replica = Replica(spawn, {"ONCEBOX_TENANTS": str(tenants), "ONCEBOX_SECRET": "s3cret"})
    assert [status(replica, each) for each in (key, ACME, key + "x")] == [200, 200, 401]
    assert key not in replica.process.stderr


def test_keys_are_of_a_tenant_that_can_be_one(spawn: Spawner) -> None:
    for number, name in zip(itertools.count(), ("a b", "", "-", "x" * 64), strict=False):
        process = spawn([ONCEBOX, "keys", "new", "--", name], name=f"keys{number}")
        assert process.wait() != 0
        assert ("tenant's name" if name else "TENANT") in process.stderr
        assert process.stdout == ""
