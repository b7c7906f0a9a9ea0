"""What the core tells about itself while it works. Names are fixed and few: no label grows with callers."""

from __future__ import annotations

from typing import Literal

from service.ports.engine import LossCause

ClaimOutcome = Literal["won", "replayed", "waited", "taken_over", "reopened", "conflict"]
Settled = Literal["adopted", "voided", "lost", "still_unknown", "next_attempt"]
Kind = Literal["sandbox", "job", "exec"]
LOOPS = ("changes", "poller", "sweeper", "policy")
"""What a replica keeps running: it listens for changes, follows jobs, sweeps, and keeps up with what tenants may do."""
Hop = Literal["direct", "proxy", "caller"]
"""Where a stream was lost: between us and the sandbox, on its own endpoint or through the engine's proxy; or between
our caller and us."""


class Telemetry:
    """Counts and times of one replica. This one keeps none: who wants some overrides what it wants."""

    def claim(self, kind: Kind, outcome: ClaimOutcome) -> None:
        """A request met a claim."""

    def unknown(self, kind: Kind) -> None:
        """The engine's answer to a dispatch was lost."""

    def reconciled(self, outcome: Settled) -> None:
        """An unknown or provisional submission was looked into."""

    def stream_lost(self, hop: Hop, cause: LossCause, age: float, silence: float) -> None:
        """An engine's stream ended without its end: seconds since it began, and since its last event (heartbeats are
        events too)."""

    def look(self, lag: float) -> None:
        """A look that was due ``lag`` seconds ago began."""

    def ended(self, kind: Kind, state: str) -> None:
        """A job reached its final record, or failed."""

    def active(self, count: int) -> None:
        """So many jobs are followed, over all replicas."""

    def restarted(self, loop: str) -> None:
        """A loop of the replica ended with an error, and was started again: one of ``LOOPS``."""

    def unreadable(self) -> None:
        """A record can't be read, and was left out: of a list, of a sweep."""
