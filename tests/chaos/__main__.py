"""`python -m tests.chaos`: `CHAOS_SECONDS` of trouble in all, `CHAOS_SEED`, `CHAOS_STORES` (all three, in turns).

With `ONCEBOX_TEST_EXECD_URL` on that execd, else on the local engine. Histories go to `build/chaos-*.jsonl`.
"""

import asyncio
import os
import random
import sys
from pathlib import Path

from tests.chaos.run import World, place, run
from tests.chaos.stores import STORES
from tests.simulation.checker import check
from tests.support.processes import Spawner, end_in_order

SHOWN = 40


def main() -> int:
    """0: nothing is wrong with any history."""
    end_in_order()
    seconds = float(os.environ.get("CHAOS_SECONDS") or 1800)
    seed = os.environ.get("CHAOS_SEED") or str(random.randrange(10**9))
    stores = (os.environ.get("CHAOS_STORES") or ",".join(STORES)).split(",")
    print(f"CHAOS_SEED={seed} CHAOS_STORES={','.join(stores)} CHAOS_SECONDS={seconds:.0f}", flush=True)
    wrong = 0
    for store in stores:
        world = World(store, seed, seconds / len(stores), execd=os.environ.get("ONCEBOX_TEST_EXECD_URL") or None)
        with place() as folder:
            spawn = Spawner(folder)
            try:
                recorder = asyncio.run(run(world, folder, spawn, lambda text: print(text, flush=True)))
            finally:
                spawn.kill_all()
        file = Path("build") / f"chaos-{store}-{seed}.jsonl"
        recorder.write(file)
        violations = check(recorder.events)
        print(f"{store}: {len(recorder.events)} events in {file}, {len(violations)} violations", flush=True)
        for violation in violations[:SHOWN]:
            print(f"  {violation.at:8.3f} {violation.rule}: {violation.what}", flush=True)
        wrong += len(violations)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
