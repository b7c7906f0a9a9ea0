"""What an answer means."""

from __future__ import annotations

import json
import pickle

import pytest

from service import errors, messages
from service.client import answers
from service.client.answers import Fault, fault_of
from service.client.errors import ConnectionFailed, DeadlineExceeded, UnexpectedAnswer
from service.client.results import CommandFailed
from service.client.steps import Answer
from tests.unit.client.fake_service import answer, problem


def fault(given: Answer, *, of_job: bool = False, now: float = 0.0) -> Fault:
    found = fault_of(given, of_job=of_job, now=now)
    assert found is not None
    return found


@pytest.mark.parametrize("code", sorted(errors.BY_CODE))
def test_each_code_has_its_class(code: str) -> None:
    cls = errors.BY_CODE[code]

    found = fault(problem(cls.status, code, "why", command_id="cmd_1", headers={"x-request-id": "r-1"}))

    assert type(found.error) is cls
    assert found.error.code == code
    assert found.error.status == cls.status
    assert found.error.detail == "why"
    assert found.error.command_id == "cmd_1"
    assert found.error.request_id == "r-1"


def test_only_what_the_contract_names_is_tried_again() -> None:
    transient = {code for code, cls in errors.BY_CODE.items() if fault(problem(cls.status, code)).transient}

    assert transient == {
        "IDEMPOTENCY_IN_PROGRESS",
        "RATE_LIMITED",
        "QUOTA_EXCEEDED",
        "OUTCOME_UNKNOWN",
        "ENGINE_UNAVAILABLE",
        "STORE_UNAVAILABLE",
    }


@pytest.mark.parametrize(
    ("status", "cls", "transient"),
    [
        (404, errors.NotFound, False),
        (409, errors.OnceboxError, False),
        (422, errors.InvalidRequest, False),
        (429, errors.RateLimited, True),
        (500, errors.OnceboxError, False),
        (503, errors.OnceboxError, True),
    ],
)
def test_a_code_of_a_newer_version_is_kept(status: int, cls: type[errors.OnceboxError], transient: bool) -> None:
    found = fault(problem(status, "BRAND_NEW", "news"))

    assert type(found.error) is cls
    assert (found.error.code, found.error.status, found.error.detail) == ("BRAND_NEW", status, "news")
    assert found.transient is transient
    again = pickle.loads(pickle.dumps(found.error))
    assert (again.code, again.status) == ("BRAND_NEW", status)


def test_a_newer_problem_that_says_retryable_is_believed() -> None:
    body = json.loads(problem(409, "BRAND_NEW").body) | {"retryable": True}

    found = fault(Answer(409, {"content-type": "application/problem+json"}, json.dumps(body).encode()))

    assert found.transient


@pytest.mark.parametrize("status", [500, 502, 503, 504, 520, 429])
def test_a_gateways_page_is_a_transient_fault(status: int) -> None:
    found = fault(Answer(status, {"content-type": "text/html"}, b"<html>"))

    assert isinstance(found.error, UnexpectedAnswer)
    assert found.transient
    assert found.error.retryable
    assert found.error.status == status


@pytest.mark.parametrize("body", [b"not found", b'{"code": "JOB_NOT_FOUND"}', b"<h1>job not found</h1>"])
def test_a_404_that_is_not_oncebox_s_says_nothing_of_a_job(body: bytes) -> None:
    for media_type in ("text/html", "application/json", "text/plain"):
        given = Answer(404, {"content-type": media_type}, body)
        assert fault(given, of_job=True).transient
        assert not fault(given).transient


def test_a_problem_whose_status_is_not_the_answer_s_is_nobody_s_word() -> None:
    given = problem(404, "JOB_NOT_FOUND")

    found = fault(Answer(502, given.headers, given.body), of_job=True)

    assert isinstance(found.error, UnexpectedAnswer)
    assert found.transient


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"code": 7}', b'{"code": "not a code"}'])
def test_a_problem_that_can_t_be_read_is_a_page(body: bytes) -> None:
    found = fault(Answer(404, {"content-type": "application/problem+json"}, body), of_job=True)

    assert isinstance(found.error, UnexpectedAnswer)


def test_a_redirect_is_named() -> None:
    found = fault(Answer(308, {"location": "https://there/"}, b""), of_job=True)

    assert not found.transient
    assert "https://there/" in str(found.error)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("7", 7.0),
        (" 1.5 ", 1.5),
        ("Thu, 01 Jan 1970 00:16:50 GMT", 10.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("", None),
        ("soon", None),
        ("-3", None),
        ("nan", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str, seconds: float | None) -> None:
    assert answers.retry_after(Answer(503, {"retry-after": value}, b""), now=1000.0) == seconds


def test_a_date_is_compared_with_the_answer_s_own_clock() -> None:
    headers = {"retry-after": "Thu, 01 Jan 2026 00:00:30 GMT", "date": "Thu, 01 Jan 2026 00:00:10 GMT"}

    assert answers.retry_after(Answer(503, headers, b""), now=0.0) == 20.0


def test_the_words_of_a_newer_version_can_be_read() -> None:
    job = {"command_id": "c", "sandbox_id": "s", "state": "hibernating", "reason": "full_moon", "new": 1}
    sandbox = {"sandbox_id": "s", "state": "hibernating", "reason": "any text"}

    page = answers.decoded(answer(200, {"items": [job], "next_page_token": None}), messages.JobPage)
    read = answers.decoded(answer(200, sandbox), messages.Sandbox)

    assert page.items[0].state is messages.JobState.UNKNOWN
    assert page.items[0].reason is None
    assert read.state is messages.SandboxState.UNKNOWN
    assert read.reason == "any text"


@pytest.mark.parametrize(
    "given",
    [
        Answer(200, {"content-type": "text/html"}, b"<html>log in to the hotel's network</html>"),
        Answer(200, {"content-type": "application/json"}, b'{"command_id": "c", "sand'),
        Answer(200, {"content-type": "application/json"}, b"[]"),
        Answer(200, {"content-type": "application/json"}, b"{}"),
        Answer(200, {}, b""),
    ],
)
def test_a_body_that_is_not_the_message_is_a_transient_fault(given: Answer) -> None:
    with pytest.raises(Fault) as caught:
        answers.decoded(given, messages.Job)

    assert caught.value.transient
    assert isinstance(caught.value.error, UnexpectedAnswer)


def test_every_error_has_one_base_and_can_be_pickled() -> None:
    given = [
        *(cls("x", command_id="c", request_id="r") for cls in errors.BY_CODE.values()),
        ConnectionFailed("x", command_id="c", request_id="r"),
        DeadlineExceeded("x", command_id="c", request_id="r"),
        UnexpectedAnswer("x", command_id="c", request_id="r"),
        CommandFailed("x", command_id="c", request_id="r"),
    ]

    for error in given:
        again = pickle.loads(pickle.dumps(error))
        assert isinstance(error, errors.OnceboxError)
        assert type(again) is type(error)
        assert (str(again), again.command_id, again.request_id) == ("x", "c", "r")
        assert again.retryable is error.retryable

    assert issubclass(ConnectionFailed, ConnectionError)
    assert issubclass(DeadlineExceeded, TimeoutError)
