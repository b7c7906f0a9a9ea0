"""What the engine was asked to do, counted, and faults that tests order."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

KINDS = (
    "create", "list", "get", "delete", "renew", "pause", "resume", "endpoint", "metadata",
    "ping", "submit", "status", "log", "interrupt", "file", "upload", "other",
)  # fmt: skip


@dataclass(slots=True)
class Stats:
    """Counters since the start. `bytes` are those of file and log reads; `outputs` of the file reads those of
    commands' output files."""

    started: float = field(default_factory=time.time)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    bytes: int = 0
    outputs: int = 0

    def view(self) -> dict[str, Any]:
        """All counters, and the seconds that they stand for."""
        return {
            "seconds": round(time.time() - self.started, 3),
            "bytes": self.bytes,
            "outputs": self.outputs,
            **self.counts,
        }


@dataclass(slots=True)
class Fault:
    """What happens to the next `count` requests of a kind: a delay, another answer, a cut connection.

    `reply`: `drop` (carried out, then the connection is cut without a byte), `drop_before` (cut, not
    carried out), for submits also `cut_before_init`, `cut_after_init` and `cut_after_complete`. `status`:
    answered with it instead, not carried out, with `body` as it is.
    """

    count: int = 1
    delay: float = 0.0
    reply: str = ""
    status: int = 0
    body: str = ""
    content_type: str = "application/json"


class Faults:
    """The faults that are due, by kind of request."""

    def __init__(self) -> None:
        self._due: dict[str, list[Fault]] = {}

    def add(self, kind: str, fault: Fault) -> None:
        """Line a fault up behind those of its kind."""
        self._due.setdefault(kind, []).append(fault)

    def take(self, kind: str) -> Fault | None:
        """The fault for the request that is about to be served, if one is due."""
        if not self._due:
            return None
        waiting = self._due.get(kind)
        if not waiting:
            return None
        fault = waiting[0]
        fault.count -= 1
        if fault.count <= 0:
            waiting.pop(0)
            if not waiting:
                del self._due[kind]
        return fault

    def clear(self) -> None:
        """Forget all of them."""
        self._due.clear()

    def view(self) -> dict[str, list[dict[str, Any]]]:
        """What is still due."""
        return {
            kind: [{"count": f.count, "delay": f.delay, "reply": f.reply, "status": f.status} for f in faults]
            for kind, faults in self._due.items()
        }
