"""What replicas that really serve tell of themselves: metrics over all workers, logs, traces."""

import contextlib
import http.server
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import urllib3
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from tests.acceptance.http_rig import Replica
from tests.support.ports import free_port
from tests.support.processes import Spawner
from tests.support.redis_server import RedisServer
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.acceptance

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
TRACE = "0af7651916cd43dd8448eb211c80319c"


def scrape(replica: Replica) -> Series:
    """Every series, by name and labels, on a connection of its own: any worker may answer."""
    with urllib3.PoolManager(retries=False) as http_:
        answer = http_.request("GET", replica.url + "/metrics", headers={"Connection": "close"})
    assert answer.status == 200, answer.data
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.data.decode())
        for sample in family.samples
    }


def value(series: Series, name: str, **labels: str) -> float:
    return series.get((name, frozenset(labels.items())), 0.0)


def total(series: Series, name: str, **labels: str) -> float:
    """The sum over all other labels."""
    wanted = set(labels.items())
    return sum(found for (each, has), found in series.items() if each == name and wanted <= has)


def requests(series: Series) -> float:
    return total(series, "oncebox_http_requests_total", route="/v1/sandboxes/{sandbox_id}", code="404")


def until(condition: Callable[[], bool], *, timeout: float = PATIENCE) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.02)


def connections(replica: Replica) -> float | None:
    """The limit of all workers together; None: this connection was a dead one's."""
    try:
        return value(scrape(replica), "oncebox_redis_connections_limit")
    except urllib3.exceptions.HTTPError:
        return None


# -- one process, nothing configured


def test_a_scrape_after_some_work_finds_all_of_it(spawn: Spawner) -> None:
    replica = Replica(spawn)
    sandbox = replica.sandbox()
    first = replica.submit(sandbox, "echo hi", key="once")
    assert replica.submit(sandbox, "echo hi", key="once") == first
    replica.follow(first)
    answer = replica.ask("POST", "/v1/exec", {"sandbox_id": sandbox, "command": "echo s3cret-command"})
    assert answer.json()["stdout"] == "s3cret-command\n"
    assert replica.ask("GET", "/readyz").status == 200

    until(lambda: total(scrape(replica), "oncebox_jobs_ended_total", state="exited") == 2)
    found = scrape(replica)
    for route, code in (("/v1/sandboxes", "201"), ("/v1/exec", "200")):
        assert value(found, "oncebox_http_requests_total", route=route, method="POST", code=code) == 1
    assert value(found, "oncebox_http_requests_total", route="/v1/exec-jobs", method="POST", code="202") == 2
    assert value(found, "oncebox_claims_total", kind="sandbox", outcome="won") == 1
    assert value(found, "oncebox_claims_total", kind="job", outcome="won") == 2
    assert value(found, "oncebox_claims_total", kind="job", outcome="replayed") == 1
    assert value(found, "oncebox_engine_calls_total", kind="create", outcome="answer") == 1
    assert value(found, "oncebox_engine_calls_total", kind="submit", outcome="answer") == 1
    assert value(found, "oncebox_engine_calls_total", kind="stream", outcome="answer") == 1
    assert value(found, "oncebox_engine_call_duration_seconds_count", kind="submit") == 1
    assert value(found, "oncebox_jobs_ended_total", kind="job", state="exited") == 1
    assert value(found, "oncebox_jobs_ended_total", kind="exec", state="exited") == 1
    assert value(found, "oncebox_redis_round_trip_seconds_count") > 5
    assert value(found, "oncebox_redis_connections_limit") > 0
    assert value(found, "oncebox_ready") == 1
    assert total(found, "oncebox_build_info") == 1
    assert total(found, "oncebox_streams_lost_total") == 0
    assert value(found, "process_resident_memory_bytes") > 0
    assert sandbox not in str(found.keys())
    assert first not in str(found.keys())


def test_logs_are_lines_of_json_that_name_the_job_and_no_command(spawn: Spawner) -> None:
    replica = Replica(spawn, {"ONCEBOX_METRICS_TOKEN": "s3cret-token"})
    sandbox = replica.sandbox()
    answer = replica.ask(
        "POST",
        "/v1/exec-jobs",
        {"sandbox_id": sandbox, "command": "echo s3cret-command", "env": {"A": "s3cret-env"}},
        X_Request_Id="r-17",
        Idempotency_Key="s3cret-key",
    )
    command_id = answer.json()["command_id"]
    replica.follow(command_id)
    assert replica.ask("GET", "/metrics").status == 401
    assert replica.ask("GET", "/metrics", Authorization="Bearer s3cret-token").status == 200
    assert replica.process.terminate() == 0
    lines = [json.loads(line) for line in replica.process.stderr.splitlines() if line.startswith("{")]
    (submitted,) = [line for line in lines if line.get("request_id") == "r-17" and "status" in line]
    assert submitted["command_id"] == command_id
    assert submitted["tenant"] == "default"
    assert submitted["status"] == 202
    assert "s3cret" not in replica.process.stderr


# -- several workers


@pytest.fixture
def engine(spawn: Spawner) -> str:
    """A local engine that takes orders for faults; its URL."""
    port = free_port()
    process = spawn(
        [sys.executable, "-P", "-m", "service.local_engine", "--bind", f"127.0.0.1:{port}", "--dev-controls"],
        name="engine",
        env={"OPEN_SANDBOX_API_KEY": "k"},
    )
    process.wait_for_line('"url"')
    return f"http://127.0.0.1:{port}"


@pytest.mark.integration
def test_two_workers_are_scraped_as_one_and_a_dead_one_takes_only_its_gauges(
    spawn: Spawner, redis_server: RedisServer, engine: str
) -> None:
    settings = {
        "ONCEBOX_REDIS_URL": redis_server.url,
        "ONCEBOX_ENGINE_URL": engine,
        "ONCEBOX_ENGINE_API_KEY": "k",
        "ONCEBOX_SHUTDOWN_DELAY": "0.1",
    }
    replica = Replica(spawn, settings, workers=2)
    for _ in range(40):  # each on a connection of its own, so on either worker
        assert replica.ask("GET", "/v1/sandboxes/none", Connection="close").status == 404
    for _ in range(10):
        assert requests(scrape(replica)) == 40, "whichever worker answers"
    one = scrape(replica)
    assert value(one, "oncebox_redis_connections_limit") == 128, "64 of each"
    assert total(one, "oncebox_build_info") == 1

    workers = [
        child for child in psutil.Process(replica.process.pid).children() if "spawn_main" in str(child.cmdline())
    ]
    assert len(workers) == 2
    workers[0].send_signal(signal.SIGKILL)
    until(lambda: connections(replica) == 64)
    until(lambda: connections(replica) == 128)
    assert requests(scrape(replica)) == 40, "what a dead worker has counted stays counted"
    assert replica.process.terminate() == 0


# -- a stream that is lost


def test_a_lost_stream_leaves_its_hop_its_age_and_its_silence(spawn: Spawner, engine: str) -> None:
    settings = {"ONCEBOX_ENGINE_URL": engine, "ONCEBOX_ENGINE_API_KEY": "k", "ONCEBOX_ENGINE_PROXY": "never"}
    replica = Replica(spawn, settings)
    sandbox = replica.sandbox()
    body = {"sandbox_id": sandbox, "command": "echo begun; sleep 600"}

    def ask() -> None:
        with contextlib.suppress(urllib3.exceptions.HTTPError):  # the replica ends before its answer
            replica.ask("POST", "/v1/exec", body)

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: value(scrape(replica), "oncebox_http_waits_open", wait="exec") == 1)
    until(lambda: value(scrape(replica), "oncebox_engine_calls_total", kind="short", outcome="answer") >= 1)
    time.sleep(0.5)  # so that the stream has an age
    answer = urllib3.request("POST", f"{engine}/_dev/sandboxes/{sandbox}/execd", json={"action": "kill"})
    assert answer.status == 204
    until(lambda: total(scrape(replica), "oncebox_streams_lost_total", hop="direct") == 1)
    found = scrape(replica)
    assert total(found, "oncebox_streams_lost_total", hop="proxy") == 0
    assert value(found, "oncebox_stream_lost_age_seconds_sum", hop="direct") > 0.2
    assert value(found, "oncebox_stream_lost_silence_seconds_count", hop="direct") == 1
    replica.process.wait_for_line("stream was lost")
    (line,) = [json.loads(each) for each in replica.process.stderr.splitlines() if "stream was lost" in each]
    assert line["hop"] == "direct"
    assert line["command_id"].startswith("cmd_")
    assert line["request_id"]
    replica.process.send(signal.SIGKILL)
    asking.join()


# -- traces


class Collector:
    """Takes OTLP over HTTP; ``spans`` by name."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                sent = ExportTraceServiceRequest()
                sent.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
                for resource in sent.resource_spans:
                    for scope in resource.scope_spans:
                        collector.spans.extend(scope.spans)
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                """Nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def collector() -> Iterator[Collector]:
    running = Collector()
    yield running
    running.server.shutdown()
    running.server.server_close()


def test_a_trace_goes_from_the_caller_through_to_the_engine(spawn: Spawner, collector: Collector) -> None:
    where = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_EXPORTER_OTLP_COMPRESSION": "none"}
    replica = Replica(spawn, {**where, "OTEL_TRACES_EXPORTER": "otlp"})
    sandbox = replica.sandbox()
    body = {"sandbox_id": sandbox, "command": "echo s3cret"}
    answer = replica.ask("POST", "/v1/exec-jobs", body, traceparent=f"00-{TRACE}-b7ad6b7169203331-01")
    assert answer.status == 202
    assert replica.process.terminate() == 0  # the last spans are sent at the end
    spans = [span for span in collector.spans if span.trace_id.hex() == TRACE]
    (request,) = [span for span in spans if span.name == "POST /v1/exec-jobs"]
    assert request.parent_span_id.hex() == "b7ad6b7169203331"
    (submit,) = [span for span in spans if span.name == "engine submit"]
    assert submit.parent_span_id == request.span_id
    attributes = {each.key: each.value.string_value for each in submit.attributes}
    assert attributes["oncebox.engine.outcome"] == "answer"
    assert attributes["oncebox.command_id"] == answer.json()["command_id"]
    assert "s3cret" not in str(collector.spans)
