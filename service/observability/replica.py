"""One replica's metrics and traces, and the loop's own delay."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from typing import TYPE_CHECKING

from service import blocking
from service.observability import tracing
from service.observability.exposition import CONTENT_TYPE, Exposition, prepare
from service.observability.metrics import HttpMetrics, Metrics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp

    from service.engine.observing import Observe, Trace

LAST_SPANS = 5.0
"""Seconds for the last spans to be sent."""
LOOP_STEP = 0.5
"""Seconds between two looks at how late the event loop is."""


LOAD_SPAN = 15.0
"""Seconds that the load is an average over, the latest counting most."""


class Load:
    """How much of its one core a process uses. Times are seconds: a steady clock's, and of the processor."""

    def __init__(self, at: float, used: float) -> None:
        self._at, self._used = at, used
        self.value = 0.0

    def note(self, at: float, used: float) -> float:
        """The average with what was ``used`` since the last time."""
        passed, spent = at - self._at, used - self._used
        self._at, self._used = at, used
        if passed > 0:
            weight = 1 - math.exp(-passed / LOAD_SPAN)
            self.value += (spent / passed - self.value) * weight
        return self.value


class Observability:
    """``engine_observe`` and ``engine_trace`` are for the engine's client, ``metrics.core`` for the core,
    ``metrics.store`` for the store; the API is given all of it.

    ``environ``: where the standard ``OTEL_*`` variables are read; None: this process's.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        prepare()
        self.metrics = Metrics()
        self._exposition = Exposition(self.metrics.registry)
        self._tracing = tracing.begin(environ)
        self._watching: asyncio.Task[None] | None = None

    @property
    def observer(self) -> HttpMetrics:
        """For the API."""
        return self.metrics.http

    @property
    def engine_observe(self) -> Observe:
        """Told of each call of the engine."""
        return self.metrics.engine.called

    @property
    def engine_trace(self) -> Trace | None:
        """Begins a span for each call of the engine; None: traces are off."""
        return self._tracing.engine_call if self._tracing else None

    def render(self) -> tuple[bytes, str]:
        """What a scrape gets, and its content type."""
        return self._exposition.render(), CONTENT_TYPE

    def traced(self, app: ASGIApp) -> ASGIApp:
        """``app``, with a span for each request where traces are switched on; else ``app`` itself."""
        return self._tracing.server(app) if self._tracing else app

    def start(self) -> None:
        """Begin to watch the event loop that this is called in."""
        self._watching = asyncio.create_task(self._watch_loop(), name="event loop lag")

    async def close(self) -> None:
        """Stop watching, and send the last spans, for ``LAST_SPANS`` at most: an exporter may try for minutes."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        if self._tracing is not None:
            await asyncio.wait({blocking.started(self._tracing.close, "last spans")}, timeout=LAST_SPANS)

    async def _watch_loop(self) -> None:
        loop = asyncio.get_running_loop()
        load = Load(loop.time(), time.process_time())
        while True:
            due = loop.time() + LOOP_STEP
            await asyncio.sleep(LOOP_STEP)
            self.metrics.loop_lag.observe(max(0.0, loop.time() - due))
            self.metrics.load.set(load.note(loop.time(), time.process_time()))
