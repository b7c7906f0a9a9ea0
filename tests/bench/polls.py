"""(a) A poll answered from Redis against a bare handler; (c) a sandbox replayed; (e) one process against two.

Two kinds of polls: one that asks a running job for news of which there is none (what nearly all polls are: one read
in Redis), and one that fetches a finished job with its recorded output (two reads).
"""

from pathlib import Path
from typing import Any

from tests.bench.bed import (
    SECONDS,
    alternating,
    bare_server,
    finished_jobs,
    one_replica,
    running_jobs,
    sandbox_on,
    shown,
)
from tests.bench.http_load import closed_loop, get, post
from tests.support.ports import free_port

JOBS = 16


async def run(folder: Path) -> dict[str, Any]:
    """All three on one stack."""
    async with one_replica(folder / "stack") as stack, sandbox_on(stack.replica_url(0)) as sandbox:
        ids = [job.id for job in await finished_jobs(sandbox, JOBS)]
        url = stack.replica_url(0)
        fetch = [get(f"/v1/exec-jobs/{id}") for id in ids]
        poll = [get(f"/v1/exec-jobs/{id}?cursor={cursor}") for id, cursor in await running_jobs(sandbox, JOBS)]
        key = "replayed"
        make = post("/v1/sandboxes", {"timeout": 7200}, Idempotency_Key=key)
        await closed_loop(url, lambda _: make, connections=1, seconds=0.5)
        port = free_port()
        two = stack.further("two-workers", port, "--workers", "2")
        await two.start()
        async with bare_server(folder, 700) as bare:
            measured = await alternating(
                {
                    "bare": lambda: closed_loop(bare, lambda n: poll[n % JOBS], seconds=SECONDS),
                    "poll": lambda: closed_loop(url, lambda n: poll[n % JOBS], seconds=SECONDS),
                    "fetch": lambda: closed_loop(url, lambda n: fetch[n % JOBS], seconds=SECONDS),
                    "bare post": lambda: closed_loop(bare, lambda _: make, seconds=SECONDS),
                    "replay": lambda: closed_loop(url, lambda _: make, seconds=SECONDS),
                    "two workers": lambda: closed_loop(
                        f"http://127.0.0.1:{port}", lambda n: poll[n % JOBS], seconds=SECONDS
                    ),
                }
            )
        two.kill()
    rates = {name: each.rate for name, each in measured.items()}
    return {
        **{name: shown(each) for name, each in measured.items()},
        "poll_to_bare": round(rates["poll"] / rates["bare"], 3),
        "fetch_to_bare": round(rates["fetch"] / rates["bare"], 3),
        "replay_to_bare": round(rates["replay"] / rates["bare post"], 3),
        "two_workers_to_one": round(rates["two workers"] / rates["poll"], 3),
    }
