"""One tenant asks for a lot and reads nothing, another asks now and then: memory, and what the quiet one notices.

`python -m tests.bench.unread [COUNT] [TARGET]`: COUNT (540) requests of one key for 8 MiB of output each, over HTTP/1,
unread, in five rounds; before each round the quiet tenant alone. Promised: the replica grows by less than 256 MiB, the
quiet tenant's median stays within twice of what it is alone and under 100 ms, and when the callers have left, what
they asked for is not worked off.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from service.tenants import key_digest
from tests.acceptance.http_rig import Replica
from tests.integration.core_rig import KEY, local_engine
from tests.support.processes import Spawner
from tests.support.redis_server import RedisServer
from tests.support.unread import UnreadAnswers, resident

ROUNDS = 5
ALONE, BESIDE = 4.0, 12.0
"""Seconds of the two halves of a round. In the first of the second half the requests arrive, all at once."""
PAUSE = 0.02
"""Seconds between two of the quiet tenant's requests."""
LIMIT = 8 * 1024 * 1024
TENANTS = "".join(f'[{name}]\nkeys = ["{key_digest("obx_" + name)}"]\n' for name in ("greedy", "quiet"))
SAYS = "head -c {size} /dev/zero | tr '\\\\0' x"


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer obx_{name}"}


def job_with_output(replica: Replica, tenant: str, command: str) -> str:
    """A finished job of this tenant in a sandbox of its own."""
    made = replica.ask("POST", "/v1/sandboxes", {}, **bearer(tenant))
    assert made.status == 201, made.data
    body = {"sandbox_id": made.json()["sandbox_id"], "command": command}
    command_id = replica.ask("POST", "/v1/exec-jobs", body, **bearer(tenant)).json()["command_id"]
    until = time.monotonic() + 60
    while replica.ask("GET", f"/v1/exec-jobs/{command_id}?limit=1", **bearer(tenant)).json()["state"] != "exited":
        assert time.monotonic() < until
        time.sleep(0.1)
    return str(command_id)


class Watched:
    """Samples a replica's memory until it is left."""

    def __init__(self, pid: int) -> None:
        self.pid, self.most, self._over = pid, 0, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.wait(0.02):
            self.most = max(self.most, resident(self.pid))

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def latencies(replica: Replica, target: str, seconds: float) -> list[float]:
    """Seconds of each of the quiet tenant's requests; one that is refused counts as a minute."""
    found, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        answer = replica.ask("GET", target, **bearer("quiet"))
        found.append(time.monotonic() - began if answer.status == 200 else 60.0)
        time.sleep(PAUSE)
    return found


def processor(pid: int) -> float:
    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)


def measure(replica: Replica, count: int, kinds: list[str]) -> dict[str, Any]:
    loud = job_with_output(replica, "greedy", SAYS.format(size=LIMIT))
    quiet = job_with_output(replica, "quiet", "seq 1 2000")
    targets = [f"/v1/exec-jobs/{loud}{kinds[number % len(kinds)]}" for number in range(count)]
    small, pid = f"/v1/exec-jobs/{quiet}", replica.process.pid
    latencies(replica, small, 2)
    before, most = resident(pid), 0
    alone: list[float] = []
    beside: list[float] = []
    slowest: list[float] = []
    after: list[float] = []
    for _ in range(ROUNDS):
        alone.append(statistics.median(latencies(replica, small, ALONE)))
        with Watched(pid) as watched, UnreadAnswers(replica.url, targets, key="obx_greedy") as attack:
            found = latencies(replica, small, BESIDE)
            beside.append(statistics.median(found))
            slowest.append(max(found))
            attack.leave()
            time.sleep(1)
            used = processor(pid)
            time.sleep(3)
            after.append(processor(pid) - used)
        most = max(most, watched.most)
    return {
        "grown_mib": round((most - before) / 2**20, 1),
        "alone_ms": [round(each * 1000, 1) for each in alone],
        "beside_ms": [round(each * 1000, 1) for each in beside],
        "slowest_beside_ms": [round(each * 1000, 1) for each in slowest],
        "processor_s_in_3_s_from_1_s_after_they_left": [round(each, 2) for each in after],
    }


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 540
    kinds = sys.argv[2:] or [f"?limit={LIMIT}"]
    with tempfile.TemporaryDirectory(prefix="oncebox-unread-") as place:
        folder = Path(place)
        (folder / "tenants.toml").write_text(TENANTS)
        (folder / "engine").mkdir()
        (folder / "processes").mkdir()
        spawn = Spawner(folder / "processes")
        with RedisServer(folder / "redis") as redis, local_engine(str(folder / "engine")) as engine:
            env = {
                "ONCEBOX_REDIS_URL": redis.url, "ONCEBOX_ENGINE_URL": engine, "ONCEBOX_ENGINE_API_KEY": KEY,
                "ONCEBOX_TENANTS": str(folder / "tenants.toml"), "ONCEBOX_SECRET": "s", "ONCEBOX_SHUTDOWN_DELAY": "0",
            }  # fmt: skip
            try:
                replica = Replica(spawn, env)
                print(json.dumps(measure(replica, count, kinds), indent=1))
            finally:
                spawn.kill_all()


if __name__ == "__main__":
    main()
