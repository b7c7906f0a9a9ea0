"""`python -m tests.load`: `SANDBOXES` in the environment; the report goes to `build/load.html`."""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench import results
from tests.load.report import answers
from tests.load.run import Run, run
from tests.load.verdict import latencies
from tests.simulation import history
from tests.support.processes import end_in_order

BUILD = Path("build")
FULL = 500
"""Sandboxes of a run whose figures go to the docs."""


def show(done: Run) -> None:
    """The table at the end."""
    console = Console(width=150 if not sys.stdout.isatty() else None)
    rules = Table("rule", "", "found", title=done.title)
    for check in done.found:
        rules.add_row(check.rule, "[green]passed" if check.passed else "[red]FAILED", check.found)
    console.print(rules)
    times = Table("callers wait for", "count", "median", "p99", "largest")
    for name, count, *values in latencies(done.journal, done.callers):
        times.add_row(name, str(count), *(f"{value * 1000:,.0f} ms" for value in values))
    console.print(times)
    console.print(f"answers: {answers(done.journal)}", markup=False, highlight=False)
    for name, value in done.facts.items():
        console.print(f"{name}: {value}", markup=False, highlight=False)


def main() -> int:
    end_in_order()
    sandboxes = int(os.environ.get("SANDBOXES") or 500)
    with tempfile.TemporaryDirectory(prefix="oncebox-load-", ignore_cleanup_errors=True) as folder:
        done = asyncio.run(run(sandboxes, Path(folder)))
    show(done)
    BUILD.mkdir(exist_ok=True)
    BUILD.joinpath("load.html").write_text(done.html())
    history.write(BUILD / "load.jsonl", done.history)
    BUILD.joinpath("load.json").write_text(done.json())
    if sandboxes >= FULL:
        results.record("load", {"sandboxes": sandboxes, **json.loads(done.json())})
    print(f"\nReport: {BUILD / 'load.html'}")
    return 0 if all(check.passed for check in done.found) else 1


if __name__ == "__main__":
    sys.exit(main())
