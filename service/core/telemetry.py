"""What the core tells about itself while it works. Names are fixed and few: no label grows with callers."""

from __future__ import annotations

from typing import Literal, Protocol

ClaimOutcome = Literal["won", "replayed", "waited", "taken_over", "reopened", "conflict"]
Settled = Literal["adopted", "voided", "lost", "still_unknown", "next_attempt"]
Kind = Literal["sandbox", "job", "exec"]


class Telemetry(Protocol):
    """Counts and times of one replica."""

    def claim(self, kind: Kind, outcome: ClaimOutcome) -> None:
        """A request met a claim."""
        ...

    def unknown(self, kind: Kind) -> None:
        """The engine's answer to a dispatch was lost."""
        ...

    def reconciled(self, outcome: Settled) -> None:
        """An unknown or provisional submission was looked into."""
        ...

    def stream_lost(self, age: float, silence: float) -> None:
        """An engine's stream ended without its end: seconds since it began, and since its last event."""
        ...

    def look(self, lag: float) -> None:
        """A look that was due ``lag`` seconds ago began."""
        ...

    def ended(self, kind: Kind, state: str) -> None:
        """A job reached its final record, or failed."""
        ...


class Silence:
    """Tells nobody."""

    def claim(self, kind: Kind, outcome: ClaimOutcome) -> None:
        """Nothing."""

    def unknown(self, kind: Kind) -> None:
        """Nothing."""

    def reconciled(self, outcome: Settled) -> None:
        """Nothing."""

    def stream_lost(self, age: float, silence: float) -> None:
        """Nothing."""

    def look(self, lag: float) -> None:
        """Nothing."""

    def ended(self, kind: Kind, state: str) -> None:
        """Nothing."""
