"""(a) A poll answered from Redis against a bare handler; (c) a sandbox replayed; (e) one process against two.

Two kinds of polls: one that asks a running job for news of which there is none (what nearly all polls are: one read
in Redis), and one that fetches a finished job with its recorded output (two reads).
"""

import statistics
from pathlib import Path
from typing import Any

from tests.bench.bed import (
    SECONDS,
    Side,
    alternating,
    bare_server,
    finished_jobs,
    one_replica,
    processor_seconds,
    running_jobs,
    sandbox_on,
    shown,
)
from tests.bench.http_load import Measured, closed_loop, get, post
from tests.support.ports import free_port

JOBS = 16
RUNNING = 2
"""Jobs that are polled for news: each is looked at twice a second besides, which is another figure (``following``)."""


async def run(folder: Path) -> dict[str, Any]:
    """All three on one stack."""
    async with one_replica(folder / "stack") as stack, sandbox_on(stack.replica_url(0)) as sandbox:
        ids = [job.id for job in await finished_jobs(sandbox, JOBS)]
        url = stack.replica_url(0)
        fetch = [get(f"/v1/exec-jobs/{id}") for id in ids]
        poll = [get(f"/v1/exec-jobs/{id}?cursor={cursor}") for id, cursor in await running_jobs(sandbox, RUNNING)]
        key = "replayed"
        make = post("/v1/sandboxes", {"timeout": 7200}, Idempotency_Key=key)
        await closed_loop(url, lambda _: make, connections=1, seconds=0.5)
        port = free_port()
        two = stack.further("two-workers", port, "--workers", "2")
        await two.start()
        async with bare_server(folder, 700) as (bare, bare_pid):
            used: dict[str, list[float]] = {}
            replica_pid = stack.replicas[0].process.pid

            def side(name: str, where: str, pid: int, requests: list[bytes]) -> Side:
                return lambda: _timed(used.setdefault(name, []), where, pid, requests)

            measured = await alternating(
                {
                    "bare": side("bare", bare, bare_pid, poll),
                    "poll": side("poll", url, replica_pid, poll),
                    "fetch": side("fetch", url, replica_pid, fetch),
                    "bare post": side("bare post", bare, bare_pid, [make]),
                    "replay": side("replay", url, replica_pid, [make]),
                    "two workers": side("two workers", f"http://127.0.0.1:{port}", two.process.pid, poll),
                }
            )
        two.kill()
    rates = {name: each.rate for name, each in measured.items()}
    costs = {name: statistics.median(each) for name, each in used.items()}
    return {
        **{name: {**shown(each), "cpu_us": round(costs[name])} for name, each in measured.items()},
        "poll_to_bare_cpu": round(costs["bare"] / costs["poll"], 3),
        "fetch_to_bare_cpu": round(costs["bare"] / costs["fetch"], 3),
        "replay_to_bare_cpu": round(costs["bare post"] / costs["replay"], 3),
        "poll_to_bare": round(rates["poll"] / rates["bare"], 3),
        "fetch_to_bare": round(rates["fetch"] / rates["bare"], 3),
        "replay_to_bare": round(rates["replay"] / rates["bare post"], 3),
        "two_workers_to_one": round(rates["two workers"] / rates["poll"], 3),
    }


async def _timed(used: list[float], url: str, pid: int, requests: list[bytes]) -> Measured:
    """One round; and what each answer took of the server's processor, in microseconds."""
    before = processor_seconds(pid)
    measured = await closed_loop(url, lambda n: requests[n % len(requests)], seconds=SECONDS)
    used.append((processor_seconds(pid) - before) / (measured.rate * SECONDS) * 1e6)
    return measured
