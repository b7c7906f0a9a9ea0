"""Prints the counts of a fault run as a table, and puts it into `docs/faults.md`.

    python -m tests.faults.table REPORT [DOCUMENT]

REPORT is what the tests wrote (`tally.REPORT`); in DOCUMENT, what stands between the two marks is replaced.
"""

import json
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.support.redis_server import redis_executable

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
COUNTS = ("tries", "duplicates", "lost", "stuck")


def table(report: Path) -> str:
    """The rows of a report; those of one fault are added up."""
    rows: dict[str, dict[str, int]] = {}
    for line in report.read_text().splitlines():
        said = json.loads(line)
        row = rows.setdefault(said["fault"], dict.fromkeys(COUNTS, 0))
        for count in COUNTS:
            row[count] += said[count]
    rows["**all**"] = {count: sum(row[count] for row in rows.values()) for count in COUNTS}
    head = ["| fault | " + " | ".join(COUNTS) + " |", "| --- | " + " | ".join("---:" for _ in COUNTS) + " |"]
    body = [f"| {fault} | " + " | ".join(f"{row[count]:,}" for count in COUNTS) + " |" for fault, row in rows.items()]
    return "\n".join(head + body)


def conditions() -> str:
    """Where and when this was measured."""
    server = redis_executable()
    version = os.popen(f"{server} --version").read().partition("v=")[2].partition(" ")[0] if server else "none"
    return (
        f"Measured on {datetime.now(UTC):%Y-%m-%d}: {os.cpu_count()} cores, "
        f"Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}, Redis {version}, "
        "the local engine."
    )


def main() -> int:
    """Prints, and writes where a document is named."""
    report = Path(sys.argv[1])
    if not report.exists():
        print("no fault was counted", file=sys.stderr)
        return 1
    shown = table(report)
    print(shown)
    for document in map(Path, sys.argv[2:]):
        text = document.read_text()
        before, _, rest = text.partition(BEGIN)
        after = rest.partition(END)[2]
        document.write_text(f"{before}{BEGIN}\n{conditions()}\n\n{shown}\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
