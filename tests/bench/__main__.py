"""`make bench`: everything, each against its baseline in the same run.

`BENCH=polls,claims` in the environment runs only those; `QUICK=1` makes the rounds short.
"""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.bench import claims, fairness, files, following, growth, peers, polls, results, submits, waiters
from tests.load.run import machine
from tests.support.processes import end_in_order


async def fence(_folder: Path) -> dict[str, Any]:
    """What the fence costs a trivial command, by shell (`tests.bench.fence_cost`)."""
    words = [sys.executable, "-m", "tests.bench.fence_cost"]
    done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=300, check=False)
    shells = {}
    for name, without, behind in re.findall(
        r"^(\w+) +without +([\d.]+) ms +with +([\d.]+) ms", done.stdout, re.MULTILINE
    ):
        shells[name] = {"without_ms": float(without), "with_ms": float(behind)}
    return {"shells": shells}


SECTIONS: dict[str, Callable[[Path], Coroutine[Any, Any, dict[str, Any]]]] = {
    "polls": polls.run,
    "submits": submits.run,
    "claims": claims.run,
    "following": following.run,
    "waiters": waiters.run,
    "growth": growth.run,
    "fairness": fairness.run,
    "peers": peers.run,
    "files": files.run,
    "fence": fence,
}


def main() -> int:
    end_in_order()
    wanted = [name for name in os.environ.get("BENCH", "").split(",") if name] or list(SECTIONS)
    failed = False
    for name in wanted:
        begin = time.monotonic()
        print(f"{name} ...", flush=True)
        with tempfile.TemporaryDirectory(prefix="oncebox-bench-", ignore_cleanup_errors=True) as folder:
            try:
                figures = asyncio.run(SECTIONS[name](Path(folder)))
            except Exception as error:  # noqa: BLE001 - the others are still worth having
                print(f"  failed: {type(error).__name__}: {error}", flush=True)
                failed = True
                continue
        for key, value in figures.items():
            print(f"  {key}: {value}", flush=True)
        results.record(name, {**figures, "machine": machine(), "seconds": round(time.monotonic() - begin)})
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
