"""Retries and deadlines: how one request of the SDK is carried through, without I/O.

Every request here is safe to repeat: it only reads, or it is idempotent by nature, or it carries an
``Idempotency-Key`` that stays the same over all its tries.
"""

# ruff: noqa: TID252
from __future__ import annotations

import logging
import random
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ..errors import OnceboxError
from .answers import Fault, fault_of
from .arguments import MAX_TIMEOUT, seconds
from .errors import ConnectionFailed
from .steps import Answer, Dropped, Flow, Pause, Request, Reset

T = TypeVar("T")

RETRY_BASE = 0.5
"""Seconds: the longest wait before the second try; doubled for each further one."""
RETRY_CAP = 15.0
"""Seconds: the longest wait between two tries, unless the service asks for more."""
RETRY_AFTER_CAP = 300.0
"""Seconds: the longest ``Retry-After`` that is believed."""
ASLEEP = 30.0
"""Seconds by which a step takes too long: then the machine was asleep, and that counts for no deadline."""
FIRST_WARNING = 10.0
"""Seconds of nothing but faults after which a warning is logged."""
WARNING_GAP = 60.0
"""Seconds between two warnings after that."""

log = logging.getLogger("oncebox")


@dataclass
class Terms:
    """What the rules need to know, and where they get time and chance from. Tests bring their own."""

    timeout: float = 30.0
    """Seconds without an answer after which a connection counts as dead."""
    deadline: float | None = 300.0
    """Seconds in which a request is tried again; None: for ever."""
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    chance: Callable[[], float] = random.SystemRandom().random
    """Uniform in [0, 1). The system's, so that forked processes don't wait alike."""
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex
    unsupported: set[str] = field(default_factory=set)
    """Query parameters that this service turned out not to know."""
    sent: deque[str] = field(default_factory=lambda: deque(maxlen=256))
    """The ids of the latest requests."""

    def patience(self, timeout: float, deadline: float | None) -> None:
        """Sets how long to wait: seconds, both.

        Raises:
            ValueError: one of them is no such time.
        """
        if not 0 < timeout <= MAX_TIMEOUT or not (deadline is None or deadline >= 0):
            raise ValueError("timeout is more than 0 seconds and at most a day, deadline at least 0 seconds or None")
        self.timeout, self.deadline = timeout, seconds(deadline, "deadline")


class Deadline:
    """A point in time, or none; it moves by the time that the machine was asleep."""

    def __init__(self, terms: Terms, seconds: float | None) -> None:
        self._clock = terms.clock
        self._end = None if seconds is None else terms.clock() + seconds

    def remaining(self) -> float:
        """Seconds, at least 0; infinite where there is no deadline."""
        return float("inf") if self._end is None else max(0.0, self._end - self._clock())

    def step_took(self, seconds: float, allowed: float) -> None:
        """Notes that a step which may take ``allowed`` seconds took ``seconds``; one that slept counts for nothing."""
        if self._end is not None and seconds > allowed + ASLEEP:
            self._end += seconds


def pause(terms: Terms, duration: float, deadline: Deadline) -> Flow[None]:
    """Sleeps for ``duration`` seconds."""
    if duration > 0:
        started = terms.clock()
        yield Pause(duration)
        deadline.step_took(terms.clock() - started, duration)


def ask(terms: Terms, request: Request, deadline: Deadline) -> Flow[Answer]:
    """Sends ``request`` once.

    Raises:
        Fault: a transient one, where no whole answer came, or one that belongs to an earlier request.
    """
    request_id = terms.new_id()
    terms.sent.append(request_id)
    read_timeout = min(request.read_timeout, max(1.0, deadline.remaining()))
    headers = {**request.headers, "X-Request-Id": request_id}
    started = terms.clock()
    reply = yield replace(request, headers=headers, read_timeout=read_timeout)
    deadline.step_took(terms.clock() - started, read_timeout)
    if isinstance(reply, Answer):
        answered = reply.headers.get("x-request-id", request_id)
        if answered == request_id or answered not in terms.sent:
            return reply
        # A hop answered an earlier request twice: all that follows on that connection would be off by one.
        yield Reset()
        reply = Dropped("the answer belongs to an earlier request")
    assert isinstance(reply, Dropped)
    error = ConnectionFailed(reply.detail, request_id=request_id, retryable=not reply.permanent)
    error.__cause__ = reply.cause
    raise Fault(error, transient=not reply.permanent)


class Tries:
    """The tries of one request: how long to wait before the next, and when to give up."""

    def __init__(self, terms: Terms, deadline: Deadline, *, what: str) -> None:
        self._terms = terms
        self._deadline = deadline
        self._what = what
        self.failed = 0
        """Tries that failed in a row."""
        self.last: OnceboxError | None = None
        self._since = 0.0
        self._warn_at = 0.0

    def succeeded(self) -> None:
        """The next failure is a first one again."""
        self.failed = 0

    def again(self, fault: Fault) -> Flow[None]:
        """Waits for the next try.

        Raises:
            OnceboxError: the fault's own, where it does not pass or no time is left.
        """
        self.last = fault.error
        self._note(fault.error)
        left = self._deadline.remaining()
        wanted = fault.error.retry_after
        if not fault.transient or left <= 0 or (wanted is not None and wanted > left):
            if self.failed > 1:
                fault.error.add_note(f"{self._what}: gave up after {self.failed} tries")
            raise fault.error
        yield from pause(self._terms, min(self._delay(wanted), left), self._deadline)

    def _delay(self, wanted: float | None) -> float:
        spread = min(RETRY_CAP, RETRY_BASE * 2.0 ** min(self.failed - 1, 16))
        if wanted is None:
            return self._terms.chance() * spread
        # Never earlier than asked for, and not everybody at the same moment.
        return min(wanted, RETRY_AFTER_CAP) + self._terms.chance() * min(spread, 1.0)

    def _note(self, error: OnceboxError) -> None:
        now = self._terms.clock()
        self.failed += 1
        if self.failed == 1:
            self._since = now
            self._warn_at = now + FIRST_WARNING
        elif now >= self._warn_at:
            self._warn_at = now + WARNING_GAP
            log.warning("%s: no success for %.0f s (%s); still trying", self._what, now - self._since, error)


def call(
    terms: Terms,
    request: Request,
    read: Callable[[Answer], T],
    *,
    of_job: bool = False,
    deadline: Deadline | None = None,
    more_time: float = 0.0,
) -> Flow[T]:
    """Sends ``request``, again after transient faults, until ``read`` makes something of an answer.

    Args:
        of_job: see :func:`fault_of`.
        deadline: instead of the client's own.
        more_time: seconds on top of the client's own deadline, for a request that may itself take long.

    Raises:
        OnceboxError: a problem that does not pass, or the last fault when the deadline has passed.
    """
    if deadline is None:
        deadline = Deadline(terms, None if terms.deadline is None else terms.deadline + more_time)
    tries = Tries(terms, deadline, what=f"{request.method} {request.path.partition('?')[0]}")
    while True:
        try:
            answer = yield from ask(terms, request, deadline)
            fault = fault_of(answer, of_job=of_job, now=terms.wall())
            if fault is None:
                return read(answer)
        except Fault as caught:
            fault = caught
        yield from tries.again(fault)
