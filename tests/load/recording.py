"""What callers met, written down beneath the SDK: every request, its answer and how long that took."""

import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from service.client import AsyncClient
from service.client.driver import AsyncSender, Hooks
from service.client.steps import Answer, Dropped, Request
from service.client.transport import Target
from service.client.transport_async import AsyncTransport

_JOB = re.compile(r"/v1/exec-jobs/[^/?]+")


@dataclass(frozen=True)
class Exchange:
    """One request. `status` 0: no whole answer came."""

    at: float
    who: str
    kind: str
    status: int
    seconds: float
    detail: str = ""


@dataclass
class Journal:
    """Everything that callers met; times are seconds since the start of the run."""

    began: float = field(default_factory=time.monotonic)
    exchanges: list[Exchange] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)
    """What was done to the stack."""
    windows: list[tuple[float, float, str]] = field(default_factory=list)
    """From when to when a part was away."""

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    def note(self, what: str) -> None:
        """Something was done to the stack."""
        self.events.append((self.now(), what))

    @contextmanager
    def window(self, what: str) -> Iterator[None]:
        """A part is away for as long as the block lasts."""
        begin = self.now()
        self.note(what)
        try:
            yield
        finally:
            self.windows.append((begin, self.now(), what))

    def client(self, url: str, who: str) -> AsyncClient:
        """An SDK client whose requests are written down under `who`."""

        def transport(target: Target) -> AsyncSender:
            return Recording(AsyncTransport(target), self, who)

        return AsyncClient(url, _hooks=Hooks(async_transport=transport))

    def statuses(self, who: str | None = None) -> Counter[int]:
        """How often each status came."""
        return Counter(each.status for each in self.exchanges if who in (None, each.who))


class Recording:
    """A transport that writes down what another one does."""

    def __init__(self, inner: AsyncTransport, journal: Journal, who: str) -> None:
        self._inner = inner
        self._journal = journal
        self._who = who

    async def send(self, request: Request) -> Answer | Dropped:
        """Sends once."""
        begin = self._journal.now()
        reply = await self._inner.send(request)
        status = reply.status if isinstance(reply, Answer) else 0
        detail = ""
        if isinstance(reply, Dropped):
            detail = reply.detail
        elif status >= 400:
            detail = reply.body[:200].decode(errors="replace")
        took = self._journal.now() - begin
        self._journal.exchanges.append(Exchange(begin, self._who, kind_of(request), status, took, detail))
        return reply

    async def reset(self) -> None:
        """Forgets idle connections."""
        await self._inner.reset()

    async def close(self) -> None:
        """Closes all connections."""
        await self._inner.close()


def kind_of(request: Request) -> str:
    """What a request is for."""
    path = request.path
    if request.method == "GET" and _JOB.match(path):
        return "long poll" if "wait=" in path and "cursor=" in path else "poll"
    if request.method == "POST":
        return {"/v1/sandboxes": "create", "/v1/exec-jobs": "submit"}.get(path, "other")
    return "delete" if request.method == "DELETE" else "other"
