"""What the fence costs a trivial command: `python -m tests.bench.fence_cost [URL of an execd]`.

Runs `true` with and without the fence, in turns, on the shells of this machine and, where one is given, on an execd.
Prints medians in milliseconds, their difference and their ratio; ends with 1 where the fence costs 10 ms or more.
"""

from __future__ import annotations

import secrets
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.contract.fence_rig import Execd, Shell, boot_mark, fenced

ROUNDS = 200
LIMIT_MS = 10.0


def cost(name: str, place: Shell | Execd) -> float:
    """Print the two medians; what the fence adds, in milliseconds."""
    boot = boot_mark(place)
    assert boot is not None
    plain, behind = [], []
    for _ in range(ROUNDS):
        plain.append(milliseconds(place, "true", {}))
        text, env = fenced(place, "true", secrets.token_hex(16), boot=boot.text)
        behind.append(milliseconds(place, text, env))
    without, fence = statistics.median(plain), statistics.median(behind)
    print(
        f"{name:8} without {without:5.2f} ms  with {fence:5.2f} ms  + {fence - without:4.2f} ms"
        f"  x {fence / without:4.2f}"
    )
    return fence - without


def milliseconds(place: Shell | Execd, text: str, env: dict[str, str]) -> float:
    begin = time.perf_counter()
    if isinstance(place, Execd):
        place.foreground(text, env)
    else:
        process, _ = place.start(text, env)
        process.wait()  # with a timeout it would poll
    return (time.perf_counter() - begin) * 1000


def main() -> int:
    added = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("bash", "dash", "busybox"):
            if reason := Shell.missing(name):
                print(f"{name:8} {reason}")
                continue
            added.append(cost(name, Shell(name, Path(folder) / name)))
        for url in sys.argv[1:]:
            execd = Execd(url, f"/tmp/oncebox-bench-{secrets.token_hex(8)}")
            added.append(cost("execd", execd))
            execd.run(f"rm -rf {execd.directory}")
    return int(max(added) >= LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main())
