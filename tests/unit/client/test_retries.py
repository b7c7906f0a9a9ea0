"""Which requests are sent again, when, with which key, and for how long."""

from __future__ import annotations

import logging
import pickle

import pytest

from service.client import (
    ConnectionFailed,
    EngineUnavailable,
    IdempotencyKeyReused,
    InvalidIdempotencyKey,
    JobNotFound,
    OnceboxError,
    OutcomeUnknown,
    RateLimited,
    SandboxNotFound,
    SandboxNotRunning,
    UnexpectedAnswer,
)
from service.client.steps import Answer, Dropped
from tests.unit.client.fake_service import answer, problem
from tests.unit.client.scripted import DROPPED, PAGE, Scripted, body, job, sandbox

SUBMITTED = answer(202, job("pending"))
TRANSIENT = [
    DROPPED,
    PAGE,
    problem(409, "IDEMPOTENCY_IN_PROGRESS"),
    problem(429, "RATE_LIMITED"),
    problem(429, "QUOTA_EXCEEDED"),
    problem(502, "OUTCOME_UNKNOWN"),
    problem(503, "ENGINE_UNAVAILABLE"),
    problem(503, "STORE_UNAVAILABLE"),
    Answer(200, {"content-type": "text/html"}, b"<html>"),
    answer(202, {"command_id": "cut"}),
]
FINAL = [
    (problem(400, "INVALID_IDEMPOTENCY_KEY"), InvalidIdempotencyKey),
    (problem(404, "SANDBOX_NOT_FOUND"), SandboxNotFound),
    (problem(409, "SANDBOX_NOT_RUNNING"), SandboxNotRunning),
    (problem(422, "IDEMPOTENCY_KEY_REUSED"), IdempotencyKeyReused),
    (problem(500, "INTERNAL"), OnceboxError),
    (Answer(404, {"content-type": "text/html"}, b"<html>"), UnexpectedAnswer),
    (Answer(403, {"content-type": "text/html"}, b"<html>"), UnexpectedAnswer),
    (Answer(302, {"location": "/login"}, b""), UnexpectedAnswer),
    (Dropped("certificate", permanent=True), ConnectionFailed),
]


@pytest.mark.parametrize("fault", TRANSIENT)
def test_a_transient_fault_is_tried_again_with_the_same_key(fault: Answer | Dropped) -> None:
    network = Scripted(fault, fault, SUBMITTED)

    submitted = network.client().sandbox("sb-1").submit("make")

    assert submitted.id == "cmd_1"
    assert len(network.requests) == 3
    assert len(set(network.keys)) == 1
    assert len(network.keys[0]) == 32
    assert submitted.idempotency_key == network.keys[0]


@pytest.mark.parametrize(("fault", "error"), FINAL)
def test_what_can_t_pass_is_raised_at_once(fault: Answer | Dropped, error: type[OnceboxError]) -> None:
    network = Scripted(fault)

    with pytest.raises(error) as caught:
        network.client().sandbox("sb-1").submit("make")

    assert not caught.value.retryable
    assert network.clock.naps == []


async def test_the_asynchronous_client_keeps_the_key_too() -> None:
    network = Scripted(DROPPED, PAGE, SUBMITTED)

    await network.async_client().sandbox("sb-1").submit("make")

    assert len(network.requests) == 3
    assert len(set(network.keys)) == 1


def test_the_caller_s_key_is_sent_as_it_is() -> None:
    network = Scripted(PAGE, SUBMITTED)

    network.client().sandbox("sb-1").submit("make", idempotency_key='"task-17"')

    assert network.keys == ['"task-17"'] * 2


@pytest.mark.parametrize("key", ["", "two words", "new\nline", "é", "x" * 256])
def test_a_key_that_is_none_is_refused_before_anything_is_sent(key: str) -> None:
    network = Scripted()

    with pytest.raises(InvalidIdempotencyKey):
        network.client().sandbox("sb-1").submit("make", idempotency_key=key)


def test_every_post_carries_a_key() -> None:
    network = Scripted(
        answer(201, sandbox()),
        *[answer(200, sandbox())] * 3,
        SUBMITTED,
        answer(200, {**exec_result(), "command_id": "cmd_2"}),
    )
    made = network.client().create_sandbox()
    made.renew(600)
    made.pause()
    made.resume()
    made.submit("make")
    made.exec("make")

    assert len(set(network.keys)) == 6


def exec_result() -> dict[str, object]:
    return {
        "command_id": "cmd_1",
        "exit_code": 0,
        "timed_out": False,
        "stdout": "out",
        "stderr": "err",
        "truncated": False,
        "duration": 0.5,
    }


def test_fields_that_are_not_given_are_not_sent() -> None:
    network = Scripted(answer(201, sandbox()), SUBMITTED)
    made = network.client().create_sandbox(image="i", wait_ready=0)
    made.submit("make", env={})

    assert body(network.requests[0]) == {"image": "i", "wait_ready": 0}
    assert body(network.requests[1]) == {"sandbox_id": "sb-1", "command": "make", "env": {}}


def test_waits_are_random_and_grow_to_15_s() -> None:
    network = Scripted(*[DROPPED] * 12, SUBMITTED)
    client = network.client(deadline=None)
    client._calls.terms.chance = lambda: 1.0

    client.sandbox("sb-1").submit("make")

    assert network.clock.naps == [0.5, 1, 2, 4, 8, 15, 15, 15, 15, 15, 15, 15]


def test_jitter_is_full() -> None:
    network = Scripted(*[DROPPED] * 3, SUBMITTED)
    client = network.client()
    client._calls.terms.chance = lambda: 0.0

    client.sandbox("sb-1").submit("make")

    assert network.clock.naps == []


def test_retry_after_is_honoured_and_spread() -> None:
    for value in ("20", "Tue, 14 Nov 2023 22:30:20 GMT"):
        waits = problem(429, "RATE_LIMITED", headers={"retry-after": value})
        network = Scripted(waits, SUBMITTED)
        client = network.client()
        client._calls.terms.wall = lambda: 1_700_001_000.0

        client.sandbox("sb-1").submit("make")

        (nap,) = network.clock.naps
        assert 20 <= nap <= 21


def test_a_wait_beyond_the_deadline_is_not_begun() -> None:
    network = Scripted(problem(429, "RATE_LIMITED", headers={"retry-after": "301"}))

    with pytest.raises(RateLimited) as caught:
        network.client(deadline=300).sandbox("sb-1").submit("make")

    assert caught.value.retry_after == 301
    assert network.clock.naps == []


def test_the_last_failure_is_raised_when_the_deadline_has_passed() -> None:
    network = Scripted(*[problem(503, "ENGINE_UNAVAILABLE")] * 1000)
    began = network.clock.now

    with pytest.raises(EngineUnavailable) as caught:
        network.client(deadline=60).sandbox("sb-1").submit("make")

    assert network.clock.now - began == pytest.approx(60)
    assert caught.value.retryable
    assert "gave up after" in caught.value.__notes__[0]


def test_an_unknown_outcome_leads_to_the_job() -> None:
    network = Scripted(*[problem(502, "OUTCOME_UNKNOWN", command_id="cmd_1")] * 1000)

    with pytest.raises(OutcomeUnknown) as caught:
        network.client(deadline=5).sandbox("sb-1").submit("make")

    assert caught.value.command_id == "cmd_1"


def test_time_asleep_counts_for_no_deadline() -> None:
    network = Scripted((3600.0, DROPPED), DROPPED, (7200.0, DROPPED), SUBMITTED)

    assert network.client(deadline=60).sandbox("sb-1").submit("make").id == "cmd_1"


def test_a_replay_is_told() -> None:
    network = Scripted(answer(202, job(), idempotent_replayed="true"), SUBMITTED)
    box = network.client().sandbox("sb-1")

    assert box.submit("make").replayed
    assert not box.submit("make").replayed


def test_an_answer_to_an_earlier_request_is_no_answer() -> None:
    first = answer(200, sandbox(state="paused"))
    network = Scripted(first, first)
    box = network.client().sandbox("sb-1")
    box.refresh()
    stale = Answer(200, {**first.headers, "x-request-id": network.requests[0].headers["X-Request-Id"]}, first.body)
    network.replies = [stale, answer(200, sandbox())]

    assert box.refresh().state.value == "running"
    assert len(network.requests) == 3


def test_an_answer_about_something_else_is_no_answer() -> None:
    other = answer(202, job(), idempotency_key="another")
    network = Scripted(other, SUBMITTED)
    network.client().sandbox("sb-1").submit("make")
    assert len(network.requests) == 2

    network = Scripted(answer(200, sandbox(sandbox_id="sb-2")), answer(200, sandbox()))
    assert network.client().sandbox("sb-1").refresh().sandbox_id == "sb-1"


def test_a_hop_that_makes_request_ids_of_its_own_does_no_harm() -> None:
    network = Scripted(answer(200, sandbox(), x_request_id="the-hop-s"))

    assert network.client().sandbox("sb-1").refresh().sandbox_id == "sb-1"


def test_a_delete_whose_first_answer_was_lost_is_done() -> None:
    gone = problem(404, "SANDBOX_NOT_FOUND")
    Scripted(DROPPED, gone).client().sandbox("sb-1").delete()

    with pytest.raises(SandboxNotFound):
        Scripted(gone).client().sandbox("sb-1").delete()


def test_a_cancel_believes_a_structured_404_only() -> None:
    page = Answer(404, {"content-type": "text/html"}, b"<html>job not found</html>")
    network = Scripted(page, answer(202, job("cancelled")))
    assert network.client().job("cmd_1").cancel().state.value == "cancelled"

    with pytest.raises(JobNotFound):
        Scripted(problem(404, "JOB_NOT_FOUND")).client().job("cmd_1").cancel()


def test_an_exec_notices_a_dead_connection_long_before_its_timeout() -> None:
    network = Scripted(DROPPED, answer(200, exec_result()))

    result = network.client(timeout=30).sandbox("sb-1").exec("make", timeout=7200)

    assert result.stdout == "out"
    assert [request.read_timeout for request in network.requests] == [90, 90]
    assert len(set(network.keys)) == 1


def test_a_create_waits_for_readiness_as_long_as_the_service_does() -> None:
    network = Scripted(answer(201, sandbox()))

    network.client(timeout=30).create_sandbox(wait_ready=120)

    assert network.requests[0].read_timeout == 150


def test_a_connection_error_carries_its_request_s_id() -> None:
    network = Scripted(*[DROPPED] * 100)

    with pytest.raises(ConnectionFailed) as caught:
        network.client(deadline=1).sandbox("sb-1").refresh()

    assert caught.value.request_id == network.requests[-1].headers["X-Request-Id"]
    assert caught.value.retryable


def test_long_trouble_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    network = Scripted(*[(20.0, DROPPED)] * 8, SUBMITTED)

    with caplog.at_level(logging.WARNING, "oncebox"):
        network.client().sandbox("sb-1").submit("make")

    assert 1 <= len(caplog.records) <= 3
    assert "still trying" in caplog.text


async def test_an_error_carries_the_key_that_leads_to_what_the_request_may_have_made() -> None:
    for key in ("task-17", None):
        network = Scripted(*[DROPPED] * 100)
        with pytest.raises(ConnectionFailed) as caught:
            network.client(deadline=1).create_sandbox(idempotency_key=key)
        assert caught.value.idempotency_key == network.keys[-1] == (key or network.keys[0])
        assert pickle.loads(pickle.dumps(caught.value)).idempotency_key == network.keys[-1]

        network = Scripted(*[problem(502, "OUTCOME_UNKNOWN")] * 100)
        with pytest.raises(OutcomeUnknown) as unknown:
            await network.async_client(deadline=1).sandbox("sb-1").submit("make", idempotency_key=key)
        assert unknown.value.idempotency_key == network.keys[-1]


def test_an_error_of_a_request_without_a_key_has_none() -> None:
    with pytest.raises(SandboxNotFound) as caught:
        Scripted(problem(404, "SANDBOX_NOT_FOUND")).client().sandbox("sb-1").refresh()

    assert caught.value.idempotency_key is None


def test_a_change_of_files_whose_answer_was_lost_is_asked_for_again() -> None:
    lost = problem(503, "ENGINE_UNAVAILABLE", "it may have been done")
    made = {"path": "/d", "type": "directory", "size": 0, "mode": "0755", "modified_at": "2026-01-01T00:00:00Z"}
    network = Scripted(lost, DROPPED, answer(204, None), lost, DROPPED, answer(200, made), lost, answer(200, made))
    files = network.client().sandbox("sb-1").files

    files.remove("f")
    files.mkdir("d")
    files.write("d", b"x")

    assert [request.method for request in network.requests] == ["DELETE"] * 3 + ["POST"] * 3 + ["PUT"] * 2
