"""``python -m tests.simulation``: worlds of new seeds for ``SIMULATE_SECONDS``; ``--seed N``: one of them again."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import msgspec

from tests.simulation.judging import Verdict, judged, smaller, timeline
from tests.simulation.plan import Plan, plan_of


def main() -> int:
    """0 where nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run the world of this seed, and print it")
    parser.add_argument("--plan", type=Path, help="run the world of a plan in a file, as a timeline prints it")
    parser.add_argument("--first", type=int, help="the first of the new seeds; without it, the present time")
    parser.add_argument("--as-it-is", action="store_true", help="do not make a failing world smaller")
    options = parser.parse_args()
    if options.plan is not None:
        return _one(msgspec.json.decode(options.plan.read_bytes(), type=Plan), shrink=not options.as_it_is)
    if options.seed is not None:
        return _one(plan_of(options.seed), shrink=not options.as_it_is)
    seconds = float(os.environ.get("SIMULATE_SECONDS") or 60)
    return _many(time.time_ns() // 10**6 if options.first is None else options.first, seconds)


def _one(plan: Plan, *, shrink: bool) -> int:
    verdict = judged(plan)
    if verdict.failed and shrink:
        verdict = smaller(verdict)
    for line in timeline(verdict):
        print(line)
    return int(verdict.failed)


def _many(first: int, seconds: float) -> int:
    until = time.monotonic() + seconds
    seed, submissions, failed = first, 0, list[Verdict]()
    began = time.process_time()
    while time.monotonic() < until:
        verdict = judged(plan_of(seed))
        submissions += verdict.submissions
        if verdict.failed:
            failed.append(verdict)
            print(f"seed {seed}: {', '.join(sorted(verdict.kinds))}", flush=True)
        seed += 1
    spent = time.process_time() - began
    print(
        f"{seed - first} worlds from seed {first}, {submissions} submissions, {submissions / spent:.0f} a second of "
        f"processor time; {len(failed)} failed"
    )
    for verdict in failed[:1]:
        print(f"\nseed {verdict.plan.seed}, made smaller:")
        print("\n".join(timeline(smaller(verdict))))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
