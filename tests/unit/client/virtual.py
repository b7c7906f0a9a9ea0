"""Virtual time, and transports that go straight to a fake service, disturbed by a seeded plan."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from service.client.driver import Hooks
from service.client.rules import Terms
from service.client.steps import Answer, Dropped, Request
from service.client.transport import Target
from tests.unit.client.fake_service import FakeService, problem


@dataclass
class Clock:
    """Seconds that pass only when somebody says so."""

    now: float = 1000.0
    naps: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.naps.append(seconds)
        self.now += seconds

    async def async_sleep(self, seconds: float) -> None:
        self.sleep(seconds)


def terms(clock: Clock, seed: int = 0) -> Terms:
    """Terms in virtual time, with chance and ids that are the same each time."""
    rng = random.Random(seed)
    return Terms(
        clock=clock,
        wall=lambda: 1_700_000_000 + clock(),
        chance=rng.random,
        new_id=lambda: f"{rng.getrandbits(128):032x}",
    )


class Undisturbed:
    """Every request arrives, every answer comes."""

    def __init__(self, service: FakeService, clock: Clock) -> None:
        self.service = service
        self.clock = clock
        self.requests: list[Request] = []
        self.resets = 0

    def deliver(self, request: Request) -> Answer | Dropped:
        self.requests.append(request)
        self.clock.now += 0.01
        return self._served(request)

    def _served(self, request: Request) -> Answer | Dropped:
        until = self.service.waits_until(request.method, request.path, self.clock.now)
        if until - self.clock.now > request.read_timeout:
            self.clock.now += request.read_timeout
            return Dropped("no answer in time")
        self.clock.now = until
        body = request.body
        assert isinstance(body, bytes | None)
        return self.service.handle(request.method, request.path, dict(request.headers), body, self.clock.now)


PAGE = b"<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"


class Disturbed(Undisturbed):
    """Each answer may be delayed, cut, doubled, replaced or lost: as the seed says."""

    def __init__(self, service: FakeService, clock: Clock, seed: int, *, rate: float = 0.45) -> None:
        super().__init__(service, clock)
        self.rng = random.Random(seed)
        self.rate = rate
        self.in_a_row = 0
        self.before: Answer | None = None
        self.stuck_answer: Answer | None = None
        self.faults: list[str] = []
        self.kinds: list[Callable[[Request], Answer | Dropped]] = [
            self.late,
            self.dead,
            self.cut,
            self.lost,
            self.doubled,
            self.stale,
            self.gateway_page,
            self.gateway_page_after,
            self.not_found_page,
            self.half_a_body,
            self.portal,
            self.rate_limited,
            self.store_down,
            self.outcome_unknown,
            self.impatient,
            self.cursor_forgotten,
            self.asleep,
        ]

    def deliver(self, request: Request) -> Answer | Dropped:
        self.requests.append(request)
        self.clock.now += 0.01
        self.service.honours_wait = self.rng.random() < 0.7
        broken = self.rng.random() < 0.15
        self.service.logs_fail = lambda job: broken
        log_lost = self.rng.random() < 0.1
        self.service.log_lost = lambda job: log_lost
        if self.stuck_answer is not None:
            # The connection is one answer behind, until it is given up.
            stale, self.stuck_answer = self.stuck_answer, self._real(request)
            return stale
        if self.in_a_row < 6 and self.rng.random() < self.rate:
            self.in_a_row += 1
            fault = self.rng.choice(self.kinds)
            self.faults.append(fault.__name__)
            reply = fault(request)
        else:
            self.in_a_row = 0
            reply = self._served(request)
        if isinstance(reply, Answer):
            self.before = reply
        return reply

    def reconnect(self) -> None:
        self.resets += 1
        self.stuck_answer = None

    def _real(self, request: Request) -> Answer:
        body = request.body
        assert isinstance(body, bytes | None)
        return self.service.handle(request.method, request.path, dict(request.headers), body, self.clock.now)

    def _problem(
        self, request: Request, status: int, code: str, *, retry_after: int | None = None, **more: Any
    ) -> Answer:
        headers = {"x-request-id": request.headers["X-Request-Id"]}
        if retry_after is not None:
            headers["retry-after"] = str(retry_after)
        return problem(status, code, headers=headers, **more)

    def late(self, request: Request) -> Answer | Dropped:
        self.clock.now += self.rng.random() * request.read_timeout
        return self._served(request)

    def dead(self, request: Request) -> Dropped:
        if self.rng.random() < 0.5:
            self._served(request)
        self.clock.now += request.read_timeout
        return Dropped("no answer in time")

    def cut(self, request: Request) -> Dropped:
        self._served(request)
        return Dropped("the connection broke")

    def lost(self, request: Request) -> Dropped:
        return Dropped("the connection broke")

    def doubled(self, request: Request) -> Answer | Dropped:
        self._served(request)
        return self._served(request)

    def stale(self, request: Request) -> Answer | Dropped:
        if self.before is None:
            return self._served(request)
        self.stuck_answer = self._real(request)
        return self.before

    def gateway_page(self, request: Request) -> Answer:
        return self._page(self.rng.choice([500, 502, 503, 504]))

    def gateway_page_after(self, request: Request) -> Answer:
        self._served(request)
        return self._page(504)

    def _page(self, status: int) -> Answer:
        return Answer(status, {"content-type": "text/html; charset=utf-8"}, PAGE)

    def not_found_page(self, request: Request) -> Answer | Dropped:
        if "/exec-jobs/" in request.path:
            return self._page(404)
        return self._page(503)

    def half_a_body(self, request: Request) -> Answer | Dropped:
        reply = self._served(request)
        if isinstance(reply, Dropped) or not reply.body:
            return reply
        return Answer(reply.status, reply.headers, reply.body[: self.rng.randrange(len(reply.body))])

    def portal(self, request: Request) -> Answer:
        return self._page(200)

    def rate_limited(self, request: Request) -> Answer:
        return self._problem(request, 429, "RATE_LIMITED", retry_after=self.rng.randrange(4))

    def store_down(self, request: Request) -> Answer:
        return self._problem(request, 503, "STORE_UNAVAILABLE", retry_after=1)

    def outcome_unknown(self, request: Request) -> Answer | Dropped:
        if request.method != "POST":
            return self._served(request)
        self._served(request)
        return self._problem(request, 502, "OUTCOME_UNKNOWN")

    def impatient(self, request: Request) -> Answer | Dropped:
        self.service.honours_wait = False
        return self._served(request)

    def cursor_forgotten(self, request: Request) -> Answer | Dropped:
        if "cursor=" not in request.path:
            return self._served(request)
        errors = [{"field": "cursor", "message": "is no cursor that this service made"}]
        return self._problem(request, 422, "INVALID_REQUEST", errors=errors)

    def asleep(self, request: Request) -> Dropped:
        self.clock.now += 3600
        return Dropped("the connection broke")


class SyncTransport:
    def __init__(self, network: Undisturbed) -> None:
        self.network = network

    def send(self, request: Request) -> Answer | Dropped:
        return self.network.deliver(request)

    def reset(self) -> None:
        if isinstance(self.network, Disturbed):
            self.network.reconnect()

    def close(self) -> None:
        pass


class AsyncTransport:
    def __init__(self, network: Undisturbed) -> None:
        self.network = network

    async def send(self, request: Request) -> Answer | Dropped:
        return self.network.deliver(request)

    async def reset(self) -> None:
        if isinstance(self.network, Disturbed):
            self.network.reconnect()

    async def close(self) -> None:
        pass


def hooks(network: Undisturbed, clock: Clock, seed: int = 0) -> Hooks:
    """Hooks for a client of either kind on this network."""

    def sync_transport(target: Target) -> SyncTransport:
        return SyncTransport(network)

    def async_transport(target: Target) -> AsyncTransport:
        return AsyncTransport(network)

    return Hooks(
        terms=terms(clock, seed),
        sleep=clock.sleep,
        async_sleep=clock.async_sleep,
        sync_transport=sync_transport,
        async_transport=async_transport,
    )
