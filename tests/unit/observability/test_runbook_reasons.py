"""What the runbook says that `/readyz` says is what it says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from service.api import system
from service.core import readiness
from service.store import trouble

RUNBOOK = Path(__file__).parents[3] / "docs/observability.md"


def quoted() -> list[str]:
    section = RUNBOOK.read_text().partition("### OnceboxNotReady\n")[2].partition("\n### ")[0]
    return re.findall(r'"([^"]+)"', " ".join(section.split()))


def said() -> str:
    """Every sentence that a replica may give as a reason."""
    sentences = [*trouble._CODES.values(), *(text for _, text in trouble._SENTENCES)]
    return "\n".join([*sentences, inspect.getsource(readiness), inspect.getsource(system)])


def test_the_runbook_names_no_reason_that_does_not_exist() -> None:
    assert len(quoted()) > 10
    for reason in quoted():
        assert reason in said(), f"no replica says {reason!r}"


def test_the_runbook_names_every_reason_of_the_core_s_own() -> None:
    for pattern in (r"Redis may evict keys", r"goes on failing", r"The replica is stopping", r"shutting down"):
        assert re.search(pattern, said())
        assert any(re.search(pattern, reason) for reason in quoted()), pattern
