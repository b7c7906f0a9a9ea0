"""The metrics of one replica. ``docs/observability.md`` says what each is for.

Labels come from closed lists in the code: route templates, kinds, outcomes. None grows with callers.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, TypeVar, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

import service
from service.api.observing import RequestObserver
from service.core.telemetry import LOOPS, ClaimOutcome, Hop, Kind, Settled, Telemetry
from service.messages import JobState
from service.observability import buckets
from service.ports.engine import LossCause
from service.store.observing import PoolObserver
from service.store.trouble import KINDS

if TYPE_CHECKING:
    from service.api.observing import Wait

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
NO_ROUTE = "none"
"""In place of a path that is no route's."""
OTHER = "other"
"""In place of a method that is none of HTTP's."""


M = TypeVar("M", Counter, Histogram)


class Children(dict[tuple[str, ...], M]):
    """A metric's children by their labels' values: the library's own look-up costs more than the count itself."""

    def __init__(self, metric: M) -> None:
        self._metric: M = metric

    def __missing__(self, values: tuple[str, ...]) -> M:
        child: M = self._metric.labels(*values)
        self[values] = child
        return child


class HttpMetrics(RequestObserver):
    """Fills the API's ``RequestObserver``."""

    def __init__(self, registry: CollectorRegistry, lost: StreamMetrics) -> None:
        self._lost = lost
        self._requests = Counter(
            "oncebox_http_requests",
            "Requests answered, by route template, method and status (499: the caller left first).",
            ("route", "method", "code"),
            registry=registry,
        )
        self._seconds = Histogram(
            "oncebox_http_request_duration_seconds",
            "From the head of a request to the end of its answer. `wait`: what the caller asked to wait for.",
            ("route", "method", "wait"),
            buckets=buckets.CALLS,
            registry=registry,
        )
        self._open = Gauge(
            "oncebox_http_waits_open",
            "Requests open now that wait on purpose: long polls, event streams, execs.",
            ("wait",),
            multiprocess_mode="livesum",
            registry=registry,
        )
        self._ready = Gauge(
            "oncebox_ready",
            "1: the last look at /readyz found this replica ready, 0: not.",
            multiprocess_mode="livemin",
            registry=registry,
        )
        for wait in ("long_poll", "events", "exec"):
            self._open.labels(wait)
        self._counts = Children(self._requests)
        self._times = Children(self._seconds)

    def request(self, route: str | None, method: str, status: int | None, wait: Wait, seconds: float) -> None:
        """A request is over."""
        shown_route = route or NO_ROUTE
        shown_method = method if method in METHODS else OTHER
        self._counts[shown_route, shown_method, str(status or 0)].inc()
        self._times[shown_route, shown_method, wait].observe(seconds)

    def opened(self, wait: Wait) -> None:
        """A request begins to wait."""
        self._open.labels(wait).inc()

    def closed(self, wait: Wait) -> None:
        """It waits no more."""
        self._open.labels(wait).dec()

    def caller_left(self, age: float, silence: float) -> None:
        """The connection to a waiting caller ended before its answer."""
        self._lost.lost("caller", "left", age, silence)

    def readiness(self, ready: bool) -> None:
        """What /readyz just answered."""
        self._ready.set(1 if ready else 0)


class StreamMetrics:
    """Connections that were to carry a result and were gone before it came."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._count = Counter(
            "oncebox_streams_lost",
            "Streams that ended without their end, by the hop they were lost on and how.",
            ("hop", "cause"),
            registry=registry,
        )
        self._age = Histogram(
            "oncebox_stream_lost_age_seconds",
            "Age of a stream when it was lost.",
            ("hop",),
            buckets=buckets.AGES,
            registry=registry,
        )
        self._silence = Histogram(
            "oncebox_stream_lost_silence_seconds",
            "Time since the last sign of life on a stream (heartbeats included) when it was lost.",
            ("hop",),
            buckets=buckets.SILENCES,
            registry=registry,
        )
        for hop in get_args(Hop):
            self._age.labels(hop)
            self._silence.labels(hop)
            for cause in get_args(LossCause) if hop != "caller" else ("left",):
                self._count.labels(hop, cause)

    def lost(self, hop: Hop, cause: str, age: float, silence: float) -> None:
        """One was lost."""
        self._count.labels(hop, cause).inc()
        self._age.labels(hop).observe(age)
        self._silence.labels(hop).observe(silence)


class CoreMetrics(Telemetry):
    """What the core tells about itself."""

    def __init__(self, registry: CollectorRegistry, lost: StreamMetrics) -> None:
        self._lost = lost
        self._claims = Counter(
            "oncebox_claims", "Requests that met a claim, and how.", ("kind", "outcome"), registry=registry
        )
        self._unknown = Counter(
            "oncebox_outcomes_unknown",
            "Dispatches whose answer was lost, so that nobody could say whether they were executed.",
            ("kind",),
            registry=registry,
        )
        self._reconciled = Counter(
            "oncebox_reconciled", "Unknown submissions that were looked into, and what came out.", ("outcome",),
            registry=registry,
        )  # fmt: skip
        self._lag = Histogram(
            "oncebox_poller_lag_seconds",
            "How late a look at a job began.",
            buckets=buckets.LAGS,
            registry=registry,
        )
        self._ended = Counter(
            "oncebox_jobs_ended", "Jobs and execs that reached their final state.", ("kind", "state"), registry=registry
        )
        self._active = Gauge(
            "oncebox_jobs_active",
            "Jobs that are followed now, over all replicas: take the max, not the sum.",
            multiprocess_mode="livemostrecent",
            registry=registry,
        )
        self._restarts = Counter(
            "oncebox_loop_restarts",
            "Loops of the replica that ended with an error and were started again.",
            ("loop",),
            registry=registry,
        )
        self._unreadable = Counter(
            "oncebox_records_unreadable",
            "Records that could not be read, and were left out: of a list, of a sweep.",
            registry=registry,
        )
        self._from_the_start()

    def _from_the_start(self) -> None:
        """A rate over a series begins with its second value: those that alerts wait for are there at 0."""
        for kind in get_args(Kind):
            self._unknown.labels(kind)
        for kind in ("sandbox", "job"):
            for outcome in get_args(ClaimOutcome):
                self._claims.labels(kind, outcome)
        for loop in LOOPS:
            self._restarts.labels(loop)
        for settled in get_args(Settled):
            self._reconciled.labels(settled)
        for kind in ("job", "exec"):
            for state in JobState:
                if state.terminal:
                    self._ended.labels(kind, state.value)

    def claim(self, kind: Kind, outcome: ClaimOutcome) -> None:
        """A request met a claim."""
        self._claims.labels(kind, outcome).inc()

    def unknown(self, kind: Kind) -> None:
        """The engine's answer to a dispatch was lost."""
        self._unknown.labels(kind).inc()

    def reconciled(self, outcome: Settled) -> None:
        """An unknown or provisional submission was looked into."""
        self._reconciled.labels(outcome).inc()

    def stream_lost(self, hop: Hop, cause: LossCause, age: float, silence: float) -> None:
        """An engine's stream ended without its end."""
        self._lost.lost(hop, cause, age, silence)

    def look(self, lag: float) -> None:
        """A look that was due ``lag`` seconds ago began."""
        self._lag.observe(lag)

    def ended(self, kind: Kind, state: str) -> None:
        """A job reached its final record, or failed."""
        self._ended.labels(kind, state).inc()

    def active(self, count: int) -> None:
        """So many jobs are followed, over all replicas."""
        self._active.set(count)

    def restarted(self, loop: str) -> None:
        """A loop was started again."""
        self._restarts.labels(loop).inc()

    def unreadable(self) -> None:
        """A record can't be read and was left out."""
        self._unreadable.inc()


class EngineMetrics:
    """Calls of the sandbox engine."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Counter(
            "oncebox_engine_calls",
            "HTTP calls of the engine (lifecycle and in sandboxes), by kind and outcome.",
            ("kind", "outcome"),
            registry=registry,
        )
        self._seconds = Histogram(
            "oncebox_engine_call_duration_seconds",
            "From the call to the end of its answer. `stream` and `short` last as long as their command.",
            ("kind",),
            buckets=buckets.CALLS,
            registry=registry,
        )

        self._counts = Children(self._calls)
        self._times = Children(self._seconds)

    def called(self, kind: str, outcome: str, seconds: float) -> None:
        """One call is over."""
        self._counts[kind, outcome].inc()
        self._times[kind,].observe(seconds)


class StoreMetrics(PoolObserver):
    """The store's way to Redis."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._in_use = Gauge(
            "oncebox_redis_connections_in_use", "Redis connections at work.", multiprocess_mode="livesum",
            registry=registry,
        )  # fmt: skip
        self._limit = Gauge(
            "oncebox_redis_connections_limit", "Redis connections that may be at work at once.",
            multiprocess_mode="livesum", registry=registry,
        )  # fmt: skip
        self._waiting = Gauge(
            "oncebox_redis_commands_waiting", "Redis commands that wait for a connection.",
            multiprocess_mode="livesum", registry=registry,
        )  # fmt: skip
        self._waited = Histogram(
            "oncebox_redis_wait_seconds",
            "How long commands that found every connection at work waited for one.",
            buckets=buckets.ROUND_TRIPS,
            registry=registry,
        )
        self._trips = Histogram(
            "oncebox_redis_round_trip_seconds",
            "From a write to Redis, of one or several commands, to its last reply.",
            buckets=buckets.ROUND_TRIPS,
            registry=registry,
        )
        self._errors = Counter(
            "oncebox_redis_errors", "Redis commands without an answer, by why.", ("error",), registry=registry
        )
        for error, _ in KINDS:
            self._errors.labels(error)
        self._last_waiting = 0

    def limit(self, connections: int) -> None:
        """So many may be at work at once."""
        self._limit.set(connections)

    def pool(self, in_use: int, waiting: int) -> None:
        """Connections at work and commands that wait, now."""
        self._in_use.set(in_use)
        if waiting != self._last_waiting:
            self._last_waiting = waiting
            self._waiting.set(waiting)

    def waited(self, seconds: float) -> None:
        """A command that had to wait is sent."""
        self._waited.observe(seconds)

    def trip(self, seconds: float) -> None:
        """A write is answered, or failed."""
        self._trips.observe(seconds)

    def failed(self, error: str) -> None:
        """A command brought no answer."""
        self._errors.labels(error).inc()


class Metrics:
    """All of them, in one registry. In a process there may be several, unless several processes share theirs."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        streams = StreamMetrics(self.registry)
        self.http = HttpMetrics(self.registry, streams)
        self.core = CoreMetrics(self.registry, streams)
        self.engine = EngineMetrics(self.registry)
        self.store = StoreMetrics(self.registry)
        self.loop_lag = Histogram(
            "oncebox_event_loop_lag_seconds",
            "How late the event loop wakes a timer: a replica that is busy, or stands still.",
            buckets=buckets.LAGS,
            registry=self.registry,
        )
        self.load = Gauge(
            "oncebox_load",
            "Processor time per second over some 15 s: 1 is all that the one event loop of a replica can use.",
            multiprocess_mode="livemax",
            registry=self.registry,
        )
        build = Gauge(
            "oncebox_build_info", "1, with what is running.", ("version", "python"), multiprocess_mode="max",
            registry=self.registry,
        )  # fmt: skip
        build.labels(service.__version__, platform.python_version()).set(1)
