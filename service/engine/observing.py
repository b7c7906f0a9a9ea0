"""What the engine's client tells of its calls, and whom it asks for the trace that they belong to."""

from collections.abc import Callable, Mapping
from typing import Protocol

Observe = Callable[[str, str, float], None]
"""Told of each call: its kind (``Call``), its outcome, and its seconds."""


class CallTrace(Protocol):
    """One call, as part of the trace of the request that it is made for."""

    headers: Mapping[str, str]
    """Sent along: where the trace goes on."""

    def end(self, outcome: str) -> None:
        """The call is over."""
        ...


Trace = Callable[[str, str, str], CallTrace | None]
"""Begins the trace of a call of this kind, to this side, by this method; None: it is not traced."""
