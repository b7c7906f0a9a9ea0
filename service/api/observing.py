"""What the API tells about its requests. Route templates, methods, statuses: nothing that grows with callers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from starlette.types import ASGIApp

Wait = Literal["none", "long_poll", "events", "exec"]
"""What a request asked to wait for, so that its age is not its latency."""


class RequestObserver:
    """Told of requests. This one keeps nothing."""

    def request(self, route: str | None, method: str, status: int | None, wait: Wait, seconds: float) -> None:
        """One is over."""

    def opened(self, wait: Wait) -> None:
        """One begins to wait."""

    def closed(self, wait: Wait) -> None:
        """It waits no more."""

    def caller_left(self, age: float, silence: float) -> None:
        """A waiting caller's connection ended before its answer: seconds since the request began, and since the last
        byte that was sent on it."""

    def readiness(self, ready: bool) -> None:
        """What ``/readyz`` just answered."""


class Observed(Protocol):
    """An application that tells of itself."""

    @property
    def observer(self) -> RequestObserver:
        """Told of requests."""
        ...

    def render(self) -> tuple[bytes, str]:
        """What a scrape gets, and its content type."""
        ...

    def traced(self, app: ASGIApp) -> ASGIApp:
        """``app``, with a span for each request where traces are switched on."""
        ...
