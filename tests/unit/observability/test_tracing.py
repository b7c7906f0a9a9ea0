"""Traces: W3C context in and out; off, nothing is even imported."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from service import context
from service.api.application import Application
from service.api.exchange import Exchange
from service.engine.outcomes import CallKind, Side
from service.engine.transport import Deadline, EngineRequest, Transport
from service.observability import tracing
from service.observability.tracing import Tracing
from service.ports.engine import EngineError
from service.settings import Settings
from tests.unit.api.fakes import FakeCore, ask, post

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


class Rig:
    """Spans in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = Tracing(provider)

    def app(self, core: FakeCore) -> Any:
        application = Application(core, Settings(), manages_core=False)  # type: ignore[arg-type]
        return self.tracing.server(application)

    @property
    def spans(self) -> Any:
        return self.exporter.get_finished_spans()


async def test_a_request_goes_on_with_the_trace_of_its_caller() -> None:
    rig = Rig()
    headers = [("traceparent", PARENT), ("X-Request-Id", "r1")]
    await ask(rig.app(FakeCore()), "GET", "/v1/exec-jobs/cmd_c2I_0", headers=headers)
    (span,) = rig.spans
    assert span.name == "GET /v1/exec-jobs/{command_id}"
    assert span.kind is SpanKind.SERVER
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
    assert span.attributes["http.response.status_code"] == 200
    assert span.attributes["oncebox.request_id"] == "r1"
    assert context.trace_id.get() is None


async def test_a_trace_that_is_not_sampled_is_carried_on_unrecorded() -> None:
    rig = Rig()
    await ask(rig.app(FakeCore()), "GET", "/healthz", headers=[("traceparent", PARENT[:-1] + "0")])
    assert rig.spans == ()


async def test_neither_commands_nor_keys_are_in_a_span() -> None:
    rig = Rig()
    body = {"sandbox_id": "sb", "command": "echo s3cret", "env": {"A": "s3cret"}}
    headers = [("Idempotency-Key", "s3cret"), ("Authorization", "Bearer s3cret")]
    await post(rig.app(FakeCore()), "/v1/exec-jobs", body, headers=headers)
    (span,) = rig.spans
    assert "s3cret" not in span.to_json()


async def test_a_failure_of_ours_is_an_error_and_a_callers_is_none() -> None:
    rig = Rig()
    await ask(rig.app(FakeCore(error=RuntimeError("a bug"))), "GET", "/v1/sandboxes/sb")
    await ask(rig.app(FakeCore()), "GET", "/nowhere")
    ours, theirs = rig.spans
    assert ours.status.status_code is StatusCode.ERROR
    assert theirs.status.status_code is StatusCode.UNSET
    assert theirs.name == "GET"


async def call(rig: Rig, transport: Transport) -> bytes:
    """The head of the engine's request, as an engine gets it that answers nothing."""
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    asked = EngineRequest(
        call=CallKind.STATUS, side=Side.DIRECT, method="GET", url=f"http://127.0.0.1:{port}/x", deadline=Deadline(5)
    )
    async with server:
        with pytest.raises(EngineError):
            await transport.call(asked)
    await transport.close()
    return heads[0]


async def test_a_call_of_the_engine_is_below_its_request_and_carries_the_trace() -> None:
    rig = Rig()
    heads = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        Exchange.begin(scope).status = 200
        background = asyncio.create_task(call(rig, Transport(limit=4, trace=rig.tracing.engine_call)))
        heads.append(await background)

    await ask(rig.tracing.server(app), "POST", "/v1/exec", headers=[("traceparent", PARENT)])
    engine, request = rig.spans
    assert engine.name == "engine status"
    assert engine.kind is SpanKind.CLIENT
    assert engine.parent.span_id == request.context.span_id
    assert engine.attributes["oncebox.engine.outcome"] == "unclear"
    assert engine.attributes["oncebox.engine.hop"] == "direct"
    assert engine.status.status_code is StatusCode.ERROR
    sent = f"traceparent: 00-{TRACE}-{engine.context.span_id:016x}-01".encode()
    assert sent in heads[0].lower()


async def test_what_the_follower_does_by_itself_is_in_no_trace() -> None:
    rig = Rig()
    head = await call(rig, Transport(limit=4, trace=rig.tracing.engine_call))
    assert b"traceparent" not in head.lower()
    assert rig.spans == ()


# -- the switch


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"},
        {"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"},
        {"OTEL_SERVICE_NAME": "oncebox"},
    ],
)
def test_traces_stay_off(environ: dict[str, str]) -> None:
    assert tracing.begin(environ) is None


@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_TRACES_EXPORTER": "otlp"},
        {"OTEL_TRACES_EXPORTER": "console"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1/v1/traces"},
    ],
)
def test_the_standard_variables_switch_them_on(environ: dict[str, str]) -> None:
    begun = tracing.begin(environ)
    assert begun is not None
    begun.close()


def test_what_is_not_installed_is_said_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert tracing.begin({"OTEL_TRACES_EXPORTER": "no-such-exporter"}) is None
    assert "oncebox[otel]" in caplog.text


def run(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True, env={"PATH": ""})


def test_off_nothing_that_makes_spans_is_imported() -> None:
    # redis-py imports some of the SDK's metrics wherever they are installed.
    run(
        "import sys; from service.observability import Observability; Observability({})\n"
        "import service.server.command\n"
        "assert not {'opentelemetry.sdk.trace', 'opentelemetry.exporter'} & set(sys.modules)"
    )


def test_a_replica_does_without_the_extra() -> None:
    run(
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import service.server.command; from service.observability import Observability\n"
        "assert Observability({'OTEL_TRACES_EXPORTER': 'otlp'}).engine_trace is None"
    )
