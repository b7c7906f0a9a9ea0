"""OpenTelemetry traces: a span for each request, and below it one for each call of the engine that it makes.

Switched on by the standard variables: ``OTEL_TRACES_EXPORTER`` (``otlp``, ``console``), or an OTLP endpoint
(``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT``); ``OTEL_SDK_DISABLED=true`` switches off.
Resource, sampler, batching and exporters read their own ``OTEL_*`` variables. Off, nothing is imported.

Only W3C ``traceparent`` and ``tracestate`` go in and out: baggage is the caller's and does not belong in a sandbox.
What the poller does by itself is in no request's trace.
"""

from __future__ import annotations

import logging
import os
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import service
from service import context as known
from service.api.exchange import Exchange

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span
    from starlette.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger("oncebox.tracing")

GOOD_OUTCOMES = frozenset({"answer", "left"})


def begin(environ: Mapping[str, str] | None = None) -> Tracing | None:
    """Traces as the environment asks for them; None: they are off, or what they need is not installed."""
    environ = os.environ if environ is None else environ
    exporter = _exporter_name(environ)
    if exporter is None:
        return None
    try:
        return Tracing(_provider(exporter))
    except (ImportError, LookupError) as error:
        log.warning("traces are asked for and stay off: %s; pip install 'oncebox[otel]'", error)
        return None


def _exporter_name(environ: Mapping[str, str]) -> str | None:
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    endpoints = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    default = "otlp" if any(environ.get(name) for name in endpoints) else "none"
    name = (environ.get("OTEL_TRACES_EXPORTER") or default).partition(",")[0].strip()
    if name != "otlp":
        return None if name == "none" else name
    protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    return "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"


def _provider(exporter: str) -> TracerProvider:
    """The SDK's own provider, not made the process's: a replica in somebody's program leaves theirs alone."""
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    found = next(iter(entry_points(group="opentelemetry_traces_exporter", name=exporter)), None)
    if found is None:
        raise LookupError(f"there is no exporter of traces named {exporter}")
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "oncebox"}))
    provider = TracerProvider(resource=resource.merge(Resource({SERVICE_VERSION: service.__version__})))
    sender: Any = found.load()()
    provider.add_span_processor(BatchSpanProcessor(sender))  # in a thread of its own, the console too
    return provider


class Tracing:
    """Spans of one replica, made by ``provider``."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("oncebox", service.__version__)
        self._trace = trace
        self._context = context
        self._w3c = TraceContextTextMapPropagator()

    def close(self) -> None:
        """Send what is left; blocks for the exporter's deadline at most."""
        self._provider.shutdown()

    # -- requests

    def server(self, app: ASGIApp) -> ASGIApp:
        """``app`` with a span around each request, which goes on with the caller's trace."""

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            sent = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            kind = self._trace.SpanKind.SERVER
            span = self._tracer.start_span(scope["method"][:16], context=self._w3c.extract(sent), kind=kind)
            token = self._context.attach(self._trace.set_span_in_context(span))
            known.trace_id.set(self._trace.format_trace_id(span.get_span_context().trace_id))
            try:
                await app(scope, receive, send)
            finally:
                self._context.detach(token)
                known.trace_id.set(None)
                self._finish(span, Exchange.of(scope))

        return traced

    def _finish(self, span: Span, exchange: Exchange) -> None:
        if span.is_recording():
            method = exchange.method[:16]
            span.update_name(f"{method} {exchange.route}" if exchange.route else method)
            shown: dict[str, str | int | None] = {
                "http.request.method": method,
                "http.route": exchange.route,
                "http.response.status_code": exchange.status,
                "oncebox.request_id": exchange.request_id,
                "oncebox.tenant": exchange.tenant,
                "oncebox.command_id": exchange.command_id,
            }
            span.set_attributes({name: value for name, value in shown.items() if value is not None})
            if exchange.status is None or exchange.status >= 500:
                span.set_status(self._trace.StatusCode.ERROR)
        span.end()

    # -- the engine

    def engine_call(self, kind: str, hop: str, method: str) -> EngineCall | None:
        """A span below the request's; None where there is no request."""
        above = self._trace.get_current_span()
        if not above.get_span_context().is_valid:
            return None
        attributes = {"oncebox.engine.call": kind, "oncebox.engine.hop": hop, "http.request.method": method}
        if (command_id := known.command_id.get()) is not None:
            attributes["oncebox.command_id"] = command_id
        span = self._tracer.start_span(f"engine {kind}", kind=self._trace.SpanKind.CLIENT, attributes=attributes)
        headers: dict[str, str] = {}
        self._w3c.inject(headers, context=self._trace.set_span_in_context(span))
        return EngineCall(span, headers, self._trace.StatusCode.ERROR)


class EngineCall:
    """A call of the engine under way."""

    def __init__(self, span: Span, headers: Mapping[str, str], error: Any) -> None:
        self.headers = headers
        self._span = span
        self._error = error

    def end(self, outcome: str) -> None:
        """The call is over."""
        self._span.set_attribute("oncebox.engine.outcome", outcome)
        if outcome not in GOOD_OUTCOMES:
            self._span.set_status(self._error)
        self._span.end()
