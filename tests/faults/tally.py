"""What a fault did to submissions: counted, checked, and kept for the table in `docs/faults.md`."""

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.faults.rig import Rig
from tests.support.waiting import PATIENCE

REPORT = "ONCEBOX_TEST_FAULTS_REPORT"
"""Names a file to which each tally is added, as a line of JSON."""

SETTLED_WITHIN = PATIENCE
"""Seconds in which every job must have its end, with the sandbox reachable, on whatever machine."""


AUDITED_AT_ONCE = 50
"""Jobs that are asked for at the same time: the audit is no load test."""


def tries(*, short: int, long: int, timeout: int = 900) -> pytest.MarkDecorator:
    """The test's `tries`: a few in `make test`, the full count (within `timeout` seconds) in `make faults`."""
    full = pytest.param(long, id="long", marks=[pytest.mark.faults_long, pytest.mark.timeout(timeout)])
    return pytest.mark.parametrize("tries", [pytest.param(short, id="short"), full])


def batches(prefix: str, count: int, size: int) -> list[list[str]]:
    """So many marks, cut into batches."""
    marks = [f"{prefix}{number}" for number in range(count)]
    return [marks[start : start + size] for start in range(0, count, size)]


@dataclass
class Tally:
    """Counts of one fault."""

    fault: str
    tries: int = 0
    duplicates: int = 0
    """Executed more than once."""

    lost: int = 0
    """Acknowledged and not executed, or its result is not the command's own."""

    stuck: int = 0
    """Without an end, or without an answer, when the time was over."""

    notes: list[str] = field(default_factory=list)
    """What was wrong, one line each."""

    def wrong(self, kind: str, note: str) -> None:
        """One more of a kind."""
        setattr(self, kind, getattr(self, kind) + 1)
        self.notes.append(f"{kind}: {note}")

    def check(self) -> None:
        """Keeps the counts, and fails unless all is well."""
        if report := os.environ.get(REPORT):
            with Path(report).open("a") as kept:
                kept.write(json.dumps(asdict(self)) + "\n")
        assert self.tries, "nothing was tried"
        assert not self.notes, f"{self.fault}, {self.tries} tries: " + "; ".join(self.notes[:20])

    async def audit(
        self,
        rig: Rig,
        url: str,
        jobs: Mapping[str, str | None],
        *,
        state: str = "exited",
        exit_code: int | None = 7,
    ) -> None:
        """Waits for the end of each job (mark -> command_id, None: never answered), then compares with the ledger."""
        self.tries += len(jobs)
        ids = [command_id for command_id in jobs.values() if command_id is not None]
        few = asyncio.Semaphore(AUDITED_AT_ONCE)

        async def end_of(command_id: str) -> Mapping[str, Any]:
            async with few:
                return await rig.caller.ended(url, command_id, within=SETTLED_WITHIN)

        ended = await asyncio.gather(*map(end_of, ids))
        found = dict(zip(ids, ended, strict=True))
        runs = rig.runs()
        for mark, command_id in jobs.items():
            if runs[mark] > 1:
                self.wrong("duplicates", f"{mark} ran {runs[mark]} times")
            if command_id is None:
                self.wrong("stuck", f"{mark} has no answer")
                continue
            job = found[command_id]
            told = job.get("state"), job.get("exit_code"), job.get("output")
            if told[0] in (None, "pending", "running", "unknown"):
                self.wrong("stuck", f"{mark} is {told[0]} ({job.get('reason')})")
            elif told != (state, exit_code, f"out-{mark}\n") or not runs[mark]:
                self.wrong("lost", f"{mark} ran {runs[mark]} times and is {told}, {job.get('reason')}")
