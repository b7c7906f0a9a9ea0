"""What each thing that can happen on a call comes to. Each line of the tables is a promise."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine.outcomes import CallKind, CallReport, Phase, Side, TransportFailure, clean, outcome, retry_after
from service.ports.engine import (
    Busy,
    CommandMissing,
    CommandNotRunning,
    Denied,
    EngineError,
    FileMissing,
    NoAddress,
    NotReached,
    Refused,
    SandboxMissing,
    SandboxNotReady,
    TakenBack,
    Unclear,
)

HTML = "text/html"
JSON = "application/json"
PLAIN = "text/plain; charset=utf-8"
PAGE = b"<html><body><h1>502 Bad Gateway</h1></body></html>"
L, D, P = Side.LIFECYCLE, Side.DIRECT, Side.PROXY
EXECUTED_NOT = (Refused, NotReached)


def answered(
    call: CallKind, side: Side, status: int, body: Any = b"", content_type: str = JSON, **more: Any
) -> CallReport:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return CallReport(
        call=call,
        side=side,
        phase=Phase.HEAD,
        status=status,
        body=raw,
        content_type=content_type if raw else "",
        **more,
    )


def problem(code: str, message: str = "why") -> dict[str, str]:
    return {"code": code, "message": message}


REFUSED_THERE = (
    "Failed to create sandbox: HTTPSConnectionPool(host='10.96.0.1', port=443): Max retries exceeded with url: "
    "/apis/sandbox.opensandbox.io/v1alpha1/namespaces/default/batchsandboxes (Caused by NewConnectionError("
    "'<urllib3.connection.HTTPSConnection object at 0x7f>: Failed to establish a new connection: "
    "[Errno 111] Connection refused'))"
)


def api_error(message: str) -> CallReport:
    """A create that the engine could not carry on to the cluster's API."""
    return answered(CallKind.CREATE, L, 500, problem("KUBERNETES::API_ERROR", message))


ANSWERED: list[tuple[str, CallReport, type[EngineError] | None]] = [
    ("created", answered(CallKind.CREATE, L, 202, {"id": "x"}), None),
    ("deleted", answered(CallKind.DELETE, L, 204), None),
    ("a range", answered(CallKind.READ, D, 206, b"abc"), None),
    ("a range past the end", answered(CallKind.READ, D, 416, b"invalid range", PLAIN), None),
    ("a 416 to anything else", answered(CallKind.STATUS, D, 416, b"invalid range", PLAIN), Unclear),
    # the lifecycle server's own refusals
    ("a bad parameter", answered(CallKind.CREATE, L, 400, problem("SANDBOX::INVALID_PARAMETER")), Refused),
    ("a validation", answered(CallKind.CREATE, L, 422, {"detail": [{"loc": ["body"], "msg": "no"}]}), Refused),
    ("no such route", answered(CallKind.CREATE, L, 404, {"detail": "Not Found"}), Refused),
    ("no such sandbox", answered(CallKind.GET, L, 404, problem("DOCKER::SANDBOX_NOT_FOUND")), SandboxMissing),
    (
        "no such sandbox, Kubernetes",
        answered(CallKind.GET, L, 404, problem("KUBERNETES::SANDBOX_NOT_FOUND")),
        SandboxMissing,
    ),
    ("another 404", answered(CallKind.GET, L, 404, problem("KUBERNETES::POOL_NOT_FOUND")), Refused),
    ("a 404 with that code in its text", answered(CallKind.GET, L, 404, problem("X", "SANDBOX_NOT_FOUND")), Refused),
    ("that code with another status", answered(CallKind.GET, L, 400, problem("X::SANDBOX_NOT_FOUND")), Refused),
    ("a get that races a delete", answered(CallKind.GET, L, 500, problem("DOCKER::SANDBOX_QUERY_FAILED")), Unclear),
    ("a 500 that says not found", answered(CallKind.GET, L, 500, problem("DOCKER::SANDBOX_NOT_FOUND")), Unclear),
    ("not running", answered(CallKind.PAUSE, L, 409, problem("DOCKER::SANDBOX_NOT_RUNNING")), SandboxNotReady),
    (
        "no address yet",
        answered(CallKind.ENDPOINT, L, 404, problem("KUBERNETES::POD_IP_NOT_AVAILABLE")),
        NoAddress,
    ),
    ("no key", answered(CallKind.LIST, L, 401, problem("MISSING_API_KEY")), Denied),
    ("forbidden", answered(CallKind.LIST, L, 403, problem("X")), Denied),
    ("quota", answered(CallKind.CREATE, L, 403, problem("KUBERNETES::QUOTA_EXCEEDED")), Busy),
    ("pool", answered(CallKind.CREATE, L, 429, problem("KUBERNETES::POOL_CAPACITY_EXHAUSTED")), Busy),
    ("too many", answered(CallKind.CREATE, L, 429, {"detail": "slow down"}), Busy),
    ("no image", answered(CallKind.CREATE, L, 500, problem("DOCKER::SANDBOX_IMAGE_PULL_FAILED")), Refused),
    (
        "no image, but not a create",
        answered(CallKind.GET, L, 500, problem("DOCKER::SANDBOX_IMAGE_PULL_FAILED")),
        Unclear,
    ),
    ("no start", answered(CallKind.CREATE, L, 500, problem("DOCKER::SANDBOX_START_FAILED")), Unclear),
    ("a pod that can't start", answered(CallKind.CREATE, L, 500, problem("KUBERNETES::POD_FAILED")), Refused),
    ("that, but not a create", answered(CallKind.RESUME, L, 500, problem("KUBERNETES::POD_FAILED")), Unclear),
    ("taken back", answered(CallKind.CREATE, L, 504, problem("KUBERNETES::POD_READY_TIMEOUT")), TakenBack),
    ("that, but not a create", answered(CallKind.GET, L, 504, problem("KUBERNETES::POD_READY_TIMEOUT")), Unclear),
    ("the cluster refused it", api_error("Failed to create sandbox: (422)\nReason: Unprocessable Entity"), Refused),
    ("the cluster refused its claim", api_error("Cannot verify ownership of PVC 'work': server lacks 'get'"), Refused),
    ("sent twice there, perhaps", api_error("Failed to create sandbox: (409)\nReason: Conflict"), Unclear),
    ("the cluster is busy", api_error("Failed to create sandbox: (429)\nReason: Too Many Requests"), Unclear),
    ("the cluster has a fault", api_error("Failed to create sandbox: (500)\nReason: Internal"), Unclear),
    ("the cluster was not reached", api_error(REFUSED_THERE), NotReached),
    ("the cluster was silent", api_error("Failed to create sandbox: HTTPSConnectionPool: Read timed out."), Unclear),
    ("a text that quotes it", api_error("Failed to create sandbox: (500)\nbody: (422)"), Unclear),
    ("another call's", answered(CallKind.GET, L, 500, problem("KUBERNETES::API_ERROR", REFUSED_THERE)), Unclear),
    ("that text with another code", answered(CallKind.CREATE, L, 500, problem("X::API_ERROR", REFUSED_THERE)), Unclear),
    ("a bare 500", answered(CallKind.CREATE, L, 500, b"Internal Server Error", PLAIN), Unclear),
    # gateways
    ("a gateway's 502", answered(CallKind.CREATE, L, 502, PAGE, HTML), Unclear),
    ("a gateway's 503", answered(CallKind.SUBMIT, D, 503, PAGE, HTML), Unclear),
    ("a gateway's 504", answered(CallKind.SUBMIT, P, 504, PAGE, HTML), Unclear),
    ("a gateway's 404", answered(CallKind.GET, L, 404, PAGE, HTML), Unclear),
    ("a gateway's 404 for a command", answered(CallKind.STATUS, D, 404, PAGE, HTML), Unclear),
    ("a gateway's 400", answered(CallKind.SUBMIT, D, 400, PAGE, HTML), Unclear),
    ("a gateway's 403", answered(CallKind.CREATE, L, 403, PAGE, HTML), Unclear),
    ("a gateway's 429", answered(CallKind.CREATE, L, 429, PAGE, HTML), Unclear),
    ("JSON that calls itself HTML", answered(CallKind.SUBMIT, D, 400, problem("X"), HTML), Unclear),
    ("a gateway's JSON of its own", answered(CallKind.SUBMIT, D, 400, {"error": "bad"}), Unclear),
    ("half a JSON object", answered(CallKind.SUBMIT, D, 400, b'{"code":"INVALID_REQ'), Unclear),
    ("a JSON list", answered(CallKind.SUBMIT, D, 400, b"[1]"), Unclear),
    ("a code that is no text", answered(CallKind.SUBMIT, D, 400, {"code": 5, "message": "x"}), Unclear),
    ("a request timeout", answered(CallKind.CREATE, L, 408, problem("X")), Unclear),
    ("moved", answered(CallKind.CREATE, L, 307, b""), Unclear),
    ("moved, as JSON", answered(CallKind.CREATE, L, 302, problem("X")), Unclear),
    ("not modified", answered(CallKind.READ, D, 304), Unclear),
    # the proxy
    ("container gone", answered(CallKind.SUBMIT, P, 502, problem("BACKEND_CONNECTION_FAILED")), NotReached),
    ("that code from the sandbox", answered(CallKind.SUBMIT, D, 502, problem("BACKEND_CONNECTION_FAILED")), Unclear),
    ("that code with another status", answered(CallKind.SUBMIT, P, 500, problem("BACKEND_CONNECTION_FAILED")), Unclear),
    ("connected, then dropped", answered(CallKind.SUBMIT, P, 502, problem("BACKEND_RESPONSE_FAILED")), Unclear),
    ("backend timeout", answered(CallKind.SUBMIT, P, 504, problem("BACKEND_TIMEOUT")), Unclear),
    ("an older server", answered(CallKind.SUBMIT, P, 500, problem("GENERAL::UNKNOWN_ERROR")), Unclear),
    (
        "no such sandbox, by the proxy",
        answered(CallKind.SUBMIT, P, 404, problem("DOCKER::SANDBOX_NOT_FOUND")),
        SandboxMissing,
    ),
    ("secure access", answered(CallKind.SUBMIT, P, 401, problem("MISSING_OR_INVALID_SECURE_ACCESS")), Denied),
    # execd
    ("a missing directory", answered(CallKind.SUBMIT, D, 400, problem("INVALID_REQUEST_BODY")), Refused),
    ("the same by the proxy", answered(CallKind.SUBMIT, P, 400, problem("INVALID_REQUEST_BODY")), Refused),
    ("execd's token", answered(CallKind.SUBMIT, D, 401, {"error": "Unauthorized"}), Denied),
    ("execd's own 500", answered(CallKind.SUBMIT, D, 500, problem("RUNTIME_ERROR")), Unclear),
    ("an unknown command", answered(CallKind.STATUS, D, 404, problem("INVALID_REQUEST_BODY")), CommandMissing),
    ("the same by the proxy", answered(CallKind.STATUS, P, 404, problem("INVALID_REQUEST_BODY")), CommandMissing),
    ("an unknown path", answered(CallKind.STATUS, D, 404, b"404 page not found", "text/plain"), Unclear),
    ("a sandbox's own 404", answered(CallKind.STATUS, D, 404, problem("DOCKER::SANDBOX_NOT_FOUND")), Unclear),
    ("no such file", answered(CallKind.READ, D, 404, problem("FILE_NOT_FOUND")), FileMissing),
    ("no such file, for a status", answered(CallKind.STATUS, D, 404, problem("FILE_NOT_FOUND")), Unclear),
    ("finished", answered(CallKind.INTERRUPT, D, 500, problem("RUNTIME_ERROR")), CommandNotRunning),
    ("an interrupt that broke", answered(CallKind.INTERRUPT, P, 500, problem("GENERAL::UNKNOWN_ERROR")), Unclear),
]


@pytest.mark.parametrize(("name", "exchange", "expected"), ANSWERED, ids=[each[0] for each in ANSWERED])
def test_an_answer_comes_to(name: str, exchange: CallReport, expected: type[EngineError] | None) -> None:
    found = outcome(exchange)
    assert (type(found) if found else None) is expected, name


@pytest.mark.parametrize("call", list(CallKind))
@pytest.mark.parametrize("failure", list(TransportFailure))
def test_what_was_never_connected_was_not_executed(call: CallKind, failure: TransportFailure) -> None:
    exchange = CallReport(call=call, side=Side.DIRECT, phase=Phase.NOT_CONNECTED, failure=failure)
    assert type(outcome(exchange)) is NotReached


@pytest.mark.parametrize("status", [0, 200, 400, 404, 502])
@pytest.mark.parametrize("phase", [Phase.SENT, Phase.HEAD])
@pytest.mark.parametrize("failure", list(TransportFailure))
def test_a_call_that_broke_after_it_was_sent_may_have_been_executed(
    failure: TransportFailure, phase: Phase, status: int
) -> None:
    exchange = CallReport(
        call=CallKind.SUBMIT,
        side=Side.PROXY,
        phase=phase,
        failure=failure,
        status=status,
        content_type=JSON,
        body=json.dumps(problem("INVALID_REQUEST_BODY")).encode(),
    )
    assert type(outcome(exchange)) is Unclear


def test_an_error_carries_the_engines_words_cleaned_and_cut() -> None:
    body = problem("SANDBOX::INVALID_PARAMETER", "a\r\n\x1b[31mb\u202e" + "c" * 1000)
    found = outcome(answered(CallKind.CREATE, L, 400, body))
    assert found is not None
    assert found.code == "SANDBOX::INVALID_PARAMETER"
    assert found.status == 400
    assert found.message.startswith("a   [31mb c")
    assert len(found.message) == 300


def test_a_validation_error_does_not_repeat_what_was_sent() -> None:
    detail = [{"loc": ["body", "env", "A"], "msg": "Input should be a valid string", "input": "s3cret"}]
    found = outcome(answered(CallKind.CREATE, L, 422, {"detail": detail}))
    assert found is not None
    assert "s3cret" not in str(found)
    assert found.message == "body.env.A: Input should be a valid string"


def test_a_busy_engine_says_when_to_come_back() -> None:
    found = outcome(answered(CallKind.CREATE, L, 429, problem("X"), retry_after="7"))
    assert isinstance(found, Busy)
    assert found.retry_after == 7


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7", 7.0), (" 0.5 ", 0.5), ("999999", 3600.0), (None, None), ("-1", None), ("soon", None), ("1e9", None)],
)
def test_retry_after_is_seconds_or_nothing(text: str | None, seconds: float | None) -> None:
    assert retry_after(text) == seconds


def test_clean_text_is_short_and_printable() -> None:
    assert clean("  a\x00b ") == "a b"
    assert clean("x" * 301) == "x" * 297 + "..."
    assert clean("\ud800") == ""


CODES = ["INVALID_REQUEST_BODY", "BACKEND_CONNECTION_FAILED", "X::SANDBOX_NOT_FOUND", "RUNTIME_ERROR", "FILE_NOT_FOUND"]
BODIES = st.binary(max_size=60) | st.sampled_from(CODES).map(lambda code: json.dumps(problem(code)).encode())
TYPES = st.sampled_from([JSON, "application/problem+json", HTML, PLAIN, ""]) | st.text(max_size=12)


@given(
    call=st.sampled_from(CallKind),
    side=st.sampled_from(Side),
    status=st.integers(-1, 1000),
    body=BODIES,
    cut=st.integers(0, 80),
    content_type=TYPES,
)
@settings(max_examples=500)
def test_not_executed_is_only_said_of_a_whole_structured_answer(
    call: CallKind, side: Side, status: int, body: bytes, cut: int, content_type: str
) -> None:
    exchange = CallReport(
        call=call, side=side, phase=Phase.HEAD, status=status, body=body[:cut], content_type=content_type
    )
    if isinstance(outcome(exchange), EXECUTED_NOT):
        assert 400 <= status < 600
        assert "json" in content_type.lower()
        assert isinstance(json.loads(body[:cut]), dict)


@given(cut=st.integers(0, 200), name=st.sampled_from([each[0] for each in ANSWERED]))
@settings(max_examples=300)
def test_half_an_error_is_never_taken_for_a_whole_one(cut: int, name: str) -> None:
    whole = next(each[1] for each in ANSWERED if each[0] == name)
    if whole.status < 400 or whole.status == 416 or cut >= len(whole.body):
        return
    half = CallReport(
        call=whole.call,
        side=whole.side,
        phase=whole.phase,
        status=whole.status,
        content_type=whole.content_type,
        body=whole.body[:cut],
    )
    assert type(outcome(half)) is Unclear
