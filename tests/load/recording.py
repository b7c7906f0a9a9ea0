"""What callers met, written down beneath the SDK: every request, its answer and how long that took."""

import json
import math
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from service.client import AsyncClient
from service.client.driver import AsyncSender, Hooks
from service.client.steps import Answer, Dropped, Request
from service.client.transport import Target
from service.client.transport_async import AsyncTransport
from tests.chaos.recorder import What, executions, told_by
from tests.faults import caller as faults
from tests.load.plan import Plan
from tests.simulation.history import AnyEvent, Begun, Call, EngineReads, Quiet, SandboxEnded

if TYPE_CHECKING:
    from tests.load.sampling import Sampler

SETTLED = 240.0
"""Seconds after the last trouble within which everything settles, while hundreds of jobs go on."""
_JOB = re.compile(r"/v1/exec-jobs/[^/?]+")
_ONE = re.compile(r"/v1/(exec-jobs|sandboxes)/([^/?]+)(?:\?.*)?$")
_MAKES: dict[str, What] = {"/v1/sandboxes": "create", "/v1/exec-jobs": "submit"}
_ASKS: dict[tuple[str, str], What] = {
    ("GET", "exec-jobs"): "output",
    ("DELETE", "exec-jobs"): "cancel",
    ("DELETE", "sandboxes"): "delete",
}


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
    calls: list[Call] = field(default_factory=list)
    """The same as a history has it, but for output, whose every byte the callers compare."""
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
        if (call := _call(request, reply, begin, begin + took, self._who)) is not None:
            self._journal.calls.append(call)
        return reply

    async def reset(self) -> None:
        """Forgets idle connections."""
        await self._inner.reset()

    async def close(self) -> None:
        """Closes all connections."""
        await self._inner.close()


def _call(request: Request, reply: Answer | Dropped, at: float, until: float, who: str) -> Call | None:
    """A request as a history has it; None: it is of no interest there."""
    one = _ONE.match(request.path)
    make = _MAKES.get(request.path) if request.method == "POST" else None
    what = make or (_ASKS.get((request.method, one[1])) if one is not None else None)
    if what is None or (what == "output" and isinstance(reply, Dropped)):  # which the balancer does all the time
        return None
    told: dict[str, Any] = {}
    status = 0
    if isinstance(reply, Answer):
        status = reply.status
        is_json = reply.media_type.endswith("json")
        said = told_by(faults.Answer(status, json.loads(reply.body) if is_json and reply.body else {}), what)
        seen = tuple(msgspec.structs.replace(each, output=None) for each in said.get("seen", ()))
        told = {**said, "seen": seen}
    key = request.headers.get("Idempotency-Key")
    if make == "submit" and isinstance(request.body, bytes):
        # Each job's key is its name.
        told |= {"key": key, "mark": key or "", "sandbox": json.loads(request.body)["sandbox_id"]}
    elif make == "create":
        told |= {"key": key, "owner": "load"}
    elif one is not None:
        told |= {"of": one[2]}
    return Call(at=at, until=until, caller=who, tenant="default", what=what, status=status, **told)


def history(journal: Journal, sampler: "Sampler", plan: Plan, quiet: float, ledger: str) -> list[AnyEvent]:
    """What a run was, for the checker. ``quiet``: when the last trouble was over; ``ledger``: by the commands."""
    began = time.time() - journal.now()
    lines = dict.fromkeys((job.mark for job in plan.all()), 0)
    runs = [msgspec.structs.replace(run, output=None) for run in executions(ledger, began, lines)]
    reads = [
        EngineReads(
            at=sample.at,
            states=sample.counts["status"],
            outputs=sample.counts["outputs"] + sample.counts["log"],
            active=sample.states.get("running", 0),
        )
        for sample in sampler.samples
    ]
    ends = [SandboxEnded(at=call.at, sandbox=call.of) for call in journal.calls if call.what == "delete"]
    begun = Begun(at=0.0, what=f"load, {plan.sandboxes} sandboxes", settled=SETTLED * plan.scale)
    return [begun, *journal.calls, *runs, *reads, *ends, *([Quiet(at=quiet)] if math.isfinite(quiet) else [])]


def kind_of(request: Request) -> str:
    """What a request is for."""
    path = request.path
    if request.method == "GET" and _JOB.match(path):
        return "long poll" if "wait=" in path and "cursor=" in path else "poll"
    if request.method == "POST":
        return {"/v1/sandboxes": "create", "/v1/exec-jobs": "submit"}.get(path, "other")
    return "delete" if request.method == "DELETE" else "other"
