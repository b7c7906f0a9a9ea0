"""What the fuzz takes for a bug."""

import json

import pytest

from tests.fuzz.honest import fault

BUSY = {"code": "ENGINE_UNAVAILABLE", "retryable": True}


@pytest.mark.parametrize(
    ("status", "retry_after", "body"),
    [
        (200, None, {}),
        (404, None, {}),
        (503, "1", BUSY),
        (503, "2", {"code": "STORE_UNAVAILABLE", "retryable": True}),
        (502, "1", {"code": "OUTCOME_UNKNOWN", "retryable": True}),
    ],
)
def test_no_bug(status: int, retry_after: str | None, body: object) -> None:
    assert fault("/v1/sandboxes", status, retry_after, json.dumps(body).encode()) is None


@pytest.mark.parametrize(
    ("status", "retry_after", "body"),
    [
        (500, "1", {"code": "INTERNAL"}),
        (500, "1", BUSY),
        (503, None, BUSY),
        (503, "soon", BUSY),
        (503, "1", {**BUSY, "retryable": False}),
        (503, "1", {"code": "UNHEARD_OF", "retryable": True}),
        (503, "1", {"status": "not_ready", "reasons": ["Redis"]}),
        (503, "1", []),
    ],
)
def test_a_bug(status: int, retry_after: str | None, body: object) -> None:
    assert fault("/v1/sandboxes", status, retry_after, json.dumps(body).encode()) is not None


def test_an_answer_that_is_no_json_is_a_bug() -> None:
    assert fault("/v1/sandboxes", 503, "1", b"<html>Service Unavailable</html>") is not None


def test_only_readiness_may_be_refused_with_reasons_and_must_have_some() -> None:
    told = json.dumps({"status": "not_ready", "reasons": ["The engine does not answer."]}).encode()
    assert fault("/readyz", 503, None, told) is None
    assert fault("/readyz", 503, None, b'{"reasons": []}') is not None
    assert fault("/readyz", 500, None, told) is not None
