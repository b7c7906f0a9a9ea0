"""Polling, cursors, draining: when a job is read, from where, and when it is over."""

from __future__ import annotations

import base64
import logging
from urllib.parse import parse_qs, urlsplit

import pytest

from service.client import (
    CommandFailed,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidRequest,
    JobNotFound,
    JobState,
    OnceboxError,
    Reason,
    UnexpectedAnswer,
)
from service.client.steps import Answer, Dropped
from tests.unit.client.fake_service import answer, problem
from tests.unit.client.scripted import DROPPED, PAGE, Scripted, done, job, read

LONG = 30.0


def queries(network: Scripted) -> list[dict[str, str]]:
    return [
        {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}
        for request in network.requests
    ]


def cursors(network: Scripted) -> list[str | None]:
    return [query.get("cursor") for query in queries(network)]


# Where it reads


def test_the_cursor_of_each_answer_is_where_the_next_read_begins() -> None:
    network = Scripted(read(output="a", cursor="c1"), read(output="b", cursor="c2"), done("c"))

    assert network.client().job("cmd_1").result().output == "abc"
    assert cursors(network) == [None, "c1", "c2"]


def test_a_read_that_did_not_get_at_the_output_is_made_again() -> None:
    failed = read("exited", cursor="c9", logs_ok=False)
    network = Scripted(read(output="a", cursor="c1"), failed, failed, done("b"))
    job = network.client().job("cmd_1")

    assert list(job.stream()) == ["a", "b"]
    assert cursors(network) == [None, "c1", "c1", "c1"]
    assert job.logs_ok


def test_nothing_is_taken_from_a_read_that_did_not_get_at_the_output() -> None:
    network = Scripted(read(output="a", cursor="c1"), read(output="junk", cursor="c5", logs_ok=False), done("b"))

    assert network.client().job("cmd_1").result().output == "ab"


def test_logs_ok_is_on_the_job_while_it_is_followed() -> None:
    job = (
        Scripted(read(output="a", cursor="c1"), read(cursor="c1", logs_ok=False), *[DROPPED] * 9).client().job("cmd_1")
    )

    with pytest.raises(DeadlineExceeded):
        list(job.stream(timeout=4))

    assert job.logs_ok is False
    assert job.state is JobState.RUNNING


def test_a_finished_job_whose_log_can_t_be_read_is_not_over_yet() -> None:
    failed = read("exited", cursor=None, logs_ok=False)
    network = Scripted(failed, failed, failed, done("all"))

    assert network.client().job("cmd_1").result().output == "all"


def test_no_more_and_not_readable_ends_after_some_reads() -> None:
    failed = read("lost", cursor=None, logs_ok=False, reason="sandbox_gone")
    network = Scripted(*[failed] * 9)

    result = network.client().job("cmd_1").result()

    assert result.state is JobState.LOST
    assert result.reason is Reason.SANDBOX_GONE
    assert not result.output_complete
    assert len(network.requests) == 5


def test_a_null_cursor_before_the_end_is_no_new_place() -> None:
    network = Scripted(read(output="a", cursor="c1"), read(cursor=None), done())

    assert network.client().job("cmd_1").result().output == "a"
    assert cursors(network) == [None, "c1", "c1"]


def test_a_replacement_stands_in_place_of_all_before_it() -> None:
    network = Scripted(read(output="old ", cursor="c1"), read(output="new ", cursor="c2", replace=True), done("end"))

    assert network.client().job("cmd_1").result().output == "new end"


def test_a_cursor_that_the_service_does_not_know_is_given_up() -> None:
    forgotten = problem(422, "INVALID_REQUEST", errors=[{"field": "cursor", "message": "no cursor of ours"}])
    replies = [read(output="one ", cursor="old"), forgotten, read(output="one ", cursor="new"), done("two")]

    network = Scripted(*replies)
    assert network.client().job("cmd_1").result().output == "one two"
    assert cursors(network) == [None, "old", None, "new"]
    assert list(Scripted(*replies).client().job("cmd_1").stream()) == ["one ", "two"]


def test_output_whose_cursor_did_not_move_came_from_an_earlier_request() -> None:
    first = read(output="a", cursor="c1")
    network = Scripted(first, first, done("b"))

    assert network.client().job("cmd_1").result().output == "ab"


def test_a_stream_goes_on_from_a_cursor() -> None:
    network = Scripted(read(output="a", cursor="c1"))
    before = network.client().job("cmd_1")
    next(iter(before.stream()))
    network.replies = [done("b")]

    assert before.cursor == "c1"
    assert list(network.client().job("cmd_1").stream(cursor=before.cursor)) == ["b"]
    assert cursors(network) == [None, "c1"]


def test_a_stream_that_does_not_follow_gives_what_is_there() -> None:
    network = Scripted(read(output="a", cursor="c1", more=True), read(output="b", cursor="c2"))

    assert list(network.client().job("cmd_1").stream(follow=False)) == ["a", "b"]
    assert all("wait" not in query for query in queries(network))


def test_a_look_gives_up_at_the_client_s_deadline() -> None:
    network = Scripted(*[DROPPED] * 99)

    with pytest.raises(DeadlineExceeded) as caught:
        list(network.client(deadline=20).job("cmd_1").stream(follow=False))

    assert isinstance(caught.value.__cause__, ConnectionFailed)


# When it is over


def test_a_tail_that_comes_after_the_terminal_state_is_read() -> None:
    network = Scripted(
        read("exited", "a", "c1", exit_code=0),
        read("exited", "", "c1", exit_code=0),
        read("exited", "late", "c2", exit_code=0),
        read("exited", "", "c2", exit_code=0, output_complete=True),
    )

    result = network.client().job("cmd_1").result()

    assert result.output == "alate"
    assert result.output_complete
    assert network.replies == []


def test_without_the_service_s_word_two_reads_that_bring_nothing_are_the_end() -> None:
    silent = read("exited", "", "c1", exit_code=0)
    network = Scripted(read("exited", "a", "c1", exit_code=0), silent, silent, silent)

    result = network.client().job("cmd_1").result()

    assert result.output == "a"
    assert not result.output_complete
    assert len(network.requests) == 3


def test_output_that_can_t_be_had_any_more_ends_it() -> None:
    network = Scripted(read("lost", "a", None, skipped_bytes=70, reason="sandbox_gone"))

    result = network.client().job("cmd_1").result()

    assert (result.output, result.skipped_bytes, result.output_complete) == ("a", 70, False)


@pytest.mark.parametrize(
    "fault",
    [
        DROPPED,
        PAGE,
        Answer(404, {"content-type": "text/html"}, b"<html>404</html>"),
        Answer(404, {"content-type": "application/json"}, b'{"code": "JOB_NOT_FOUND"}'),
        Answer(200, {"content-type": "text/html"}, b"<html>log in</html>"),
        problem(503, "STORE_UNAVAILABLE"),
        problem(429, "RATE_LIMITED"),
        problem(500, "INTERNAL"),
        read("exited", "not mine", None, command_id="cmd_2"),
    ],
)
def test_no_fault_ends_a_job(fault: Answer | Dropped) -> None:
    network = Scripted(read(output="a", cursor="c1"), fault, fault, fault, done("b"))

    result = network.client().job("cmd_1").result()

    assert (result.state, result.output) == (JobState.EXITED, "ab")
    assert cursors(network) == [None, "c1", "c1", "c1", "c1"]


def test_a_structured_404_ends_it() -> None:
    network = Scripted(read(output="a", cursor="c1"), problem(404, "JOB_NOT_FOUND"))

    with pytest.raises(JobNotFound) as caught:
        network.client().job("cmd_1").result()

    assert caught.value.command_id == "cmd_1"


def test_a_bug_in_every_replica_is_raised_in_the_end() -> None:
    network = Scripted(*[problem(500, "INTERNAL")] * 9)

    with pytest.raises(OnceboxError) as caught:
        network.client().job("cmd_1").result()

    assert caught.value.code == "INTERNAL"
    assert len(network.requests) == 5


def test_a_redirect_is_raised() -> None:
    with pytest.raises(UnexpectedAnswer):
        Scripted(Answer(301, {"location": "https://x"}, b"")).client().job("cmd_1").result()


def test_a_job_that_never_started_is_a_result() -> None:
    replies = [read("failed", "", None, reason="engine_unavailable")]

    result = Scripted(*replies).client().job("cmd_1").result()
    assert result.state is JobState.FAILED
    with pytest.raises(CommandFailed, match=r"was never started \(engine_unavailable\)") as caught:
        Scripted(*replies).client().job("cmd_1").result(check=True)
    assert caught.value.result == result
    assert caught.value.command_id == "cmd_1"


def test_unknown_is_not_the_end() -> None:
    network = Scripted(read("unknown", "", None), read("unknown", "", None), done("found"))

    assert network.client().job("cmd_1").result().output == "found"


# When it reads


def test_where_the_long_poll_is_honoured_nothing_else_waits() -> None:
    network = Scripted(
        read(output="a", cursor="c1"), *[(LONG, read(cursor="c1"))] * 20, (12.0, read(output="b", cursor="c2")), done()
    )

    network.client().job("cmd_1").result()

    assert sum(network.clock.naps) < 1
    assert {query.get("wait") for query in queries(network)} == {"30"}


def test_where_it_is_not_reads_are_2_to_15_s_apart_and_2_again_after_output() -> None:
    quiet = [read(cursor="c1")] * 7
    network = Scripted(read(output="a", cursor="c1"), *quiet, read(output="b", cursor="c2"), read(cursor="c2"), done())

    network.client().job("cmd_1").result()

    gap, *naps = network.clock.naps
    assert gap <= 0.2
    assert naps == [2, 3, 4.5, 6.75, 10.125, 15, 15, 2, 2]


def test_a_long_poll_that_begins_to_be_honoured_is_noticed() -> None:
    network = Scripted(
        read(output="a", cursor="c1"),
        read(cursor="c1"),
        (LONG, read(cursor="c1")),
        (LONG, read(cursor="c1")),
        done(),
    )

    network.client().job("cmd_1").result()

    assert network.clock.naps[1:] == [2]


@pytest.mark.parametrize("errors", [[{"field": "wait", "message": "unknown"}], []])
def test_an_older_service_that_knows_no_wait_is_polled(errors: list[dict[str, str]]) -> None:
    refused = problem(422, "INVALID_REQUEST", errors=errors)
    network = Scripted(refused, read(cursor="c1"), read(cursor="c1"), done(), done())
    client = network.client()

    client.job("cmd_1").result()
    client.job("cmd_1").result()

    assert [query.get("wait") for query in queries(network)] == ["30", None, None, None, None]
    assert network.clock.naps[1:] == [2]


def test_an_older_service_that_knows_no_timeout_is_not_told() -> None:
    refused = problem(422, "INVALID_REQUEST", errors=[{"field": "timeout", "message": "unknown"}])
    network = Scripted(read(output="a", cursor="c1"), refused, done())

    network.client().job("cmd_1").result()

    assert [query.get("timeout") for query in queries(network)] == [None, "600", None]


def test_what_is_wrong_with_the_request_itself_is_raised() -> None:
    refused = problem(422, "INVALID_REQUEST", errors=[{"field": "encoding", "message": "no"}])

    with pytest.raises(InvalidRequest):
        Scripted(refused).client().job("cmd_1").result()


def test_more_is_read_at_once() -> None:
    network = Scripted(*[read(output="x", cursor=f"c{n}", more=True) for n in range(9)], done("y"))

    assert network.client().job("cmd_1").result().output == "xxxxxxxxxy"
    assert network.clock.naps == []


def test_a_chatty_job_is_read_in_blocks() -> None:
    network = Scripted(*[read(output="x", cursor=f"c{n}") for n in range(5)], done())

    network.client().job("cmd_1").result()

    assert network.clock.naps == [pytest.approx(0.2)] * 5


def test_while_the_log_can_t_be_read_the_long_poll_is_not_used() -> None:
    failed = read("exited", cursor="c1", logs_ok=False)
    network = Scripted(read(output="a", cursor="c1"), failed, failed, failed, done())

    network.client().job("cmd_1").result()

    assert [query.get("wait") for query in queries(network)] == ["30", "30", None, None, None]
    assert network.clock.naps == [0.2, 0.2, 2, 3]


def test_the_job_s_timeout_goes_with_each_read_once_it_is_known() -> None:
    network = Scripted(answer(202, job("pending")), read(cursor="c1"), done())

    network.client().sandbox("sb-1").submit("make", timeout=600).result()

    assert [query.get("timeout") for query in queries(network)[1:]] == ["600", "600"]


def test_a_silent_connection_is_noticed_soon_after_the_long_poll() -> None:
    network = Scripted((45.0, DROPPED), done())

    network.client(timeout=60).job("cmd_1").result()

    assert [request.read_timeout for request in network.requests] == [45, 45]


def test_after_a_success_the_next_fault_is_a_first_one() -> None:
    network = Scripted(*[DROPPED] * 4, read(output="a", cursor="c1"), DROPPED, done())
    client = network.client()
    client._calls.terms.chance = lambda: 1.0

    client.job("cmd_1").result()

    assert network.clock.naps == [0.5, 1, 2, 4, 0.2, 0.5]


def test_time_lost_to_faults_is_not_taken_for_a_long_poll() -> None:
    network = Scripted(
        read(output="a", cursor="c1"), read(cursor="c1"), (45.0, DROPPED), read(cursor="c1"), read(cursor="c1"), done()
    )
    client = network.client()
    client._calls.terms.chance = lambda: 0.0

    client.job("cmd_1").result()

    assert network.clock.naps == [0.2, 2, 3, 4.5]


# Deadlines


def test_result_waits_as_long_as_it_takes() -> None:
    network = Scripted(*[(3600.0, DROPPED)] * 50, done("at last"))

    assert network.client(deadline=10).job("cmd_1").result().output == "at last"


def test_result_gives_up_at_its_timeout_and_says_how_to_get_back() -> None:
    network = Scripted(*[read(cursor="c1")] * 99)
    began = network.clock.now

    with pytest.raises(DeadlineExceeded, match="running when last seen") as caught:
        network.client().job("cmd_1").result(timeout=20)

    assert caught.value.command_id == "cmd_1"
    assert network.clock.now - began == pytest.approx(20)


def test_the_last_long_poll_is_cut_to_the_timeout() -> None:
    network = Scripted(read(cursor="c1"), (9.0, read(cursor="c1")), done())

    network.client().job("cmd_1").result(timeout=10)

    assert queries(network)[1]["wait"] == "9"


def test_after_faults_the_long_poll_is_cut_to_what_is_left() -> None:
    network = Scripted(read(cursor="c1"), (6.0, DROPPED), (2.0, read(cursor="c1")), done())

    network.client().job("cmd_1").result(timeout=10)

    assert [query["wait"] for query in queries(network)][:3] == ["9", "9", "3"]


def test_a_timeout_of_nothing_is_one_look() -> None:
    assert Scripted(done("x")).client().job("cmd_1").result(timeout=0).output == "x"
    with pytest.raises(TimeoutError):
        Scripted(read(cursor="c1")).client().job("cmd_1").result(timeout=0)


def test_a_deadline_among_faults_names_the_last_one() -> None:
    with pytest.raises(DeadlineExceeded) as caught:
        Scripted(*[PAGE] * 999).client().job("cmd_1").result(timeout=30)

    assert isinstance(caught.value.__cause__, UnexpectedAnswer)


def test_after_an_hour_asleep_it_looks_again_before_it_gives_up() -> None:
    network = Scripted(read(cursor="c1"), (3600.0, DROPPED), PAGE, done("awake"))

    assert network.client().job("cmd_1").result(timeout=60).output == "awake"


# What is said


def test_bytes_come_as_they_are() -> None:
    data = bytes(range(256))
    encoded = base64.b64encode(data).decode()
    broken = read(output="!!!", cursor="c1", encoding="base64")
    network = Scripted(broken, read(output=encoded, cursor="c1", encoding="base64"), done(encoding="base64"))

    assert b"".join(network.client().job("cmd_1").stream_bytes()) == data
    assert {query["encoding"] for query in queries(network)} == {"base64"}


def test_an_exec_s_two_outputs_are_a_result_too() -> None:
    running = answer(200, job(kind="exec", stdout="", stderr="", cursor="c0"))
    ended = answer(
        200,
        job("exited", kind="exec", stdout="out", stderr="err", cursor="c1", exit_code=2, output_complete=True),
    )
    network = Scripted(running, ended)

    result = network.client().job("cmd_1").result()

    assert (result.output, result.stdout, result.stderr, result.exit_code) == ("outerr", "out", "err", 2)


def test_an_exec_without_the_service_s_word_ends_as_well() -> None:
    ended = answer(200, job("exited", kind="exec", stdout="out", stderr="err", cursor="c1", exit_code=0))

    result = Scripted(*[ended] * 9).client().job("cmd_1").result()

    assert result.output == "outerr"


def test_each_gap_in_the_output_is_counted_once() -> None:
    network = Scripted(
        read(output="b", cursor="c1", skipped_bytes=10),
        read(cursor="c1"),
        read(cursor="c2", skipped_bytes=5),
        done("c", skipped_bytes=2),
    )
    job = network.client().job("cmd_1")

    assert job.result().skipped_bytes == 17
    assert job.skipped_bytes == 17
    assert job.output_complete


def test_a_gap_in_a_replacement_is_all_that_counts() -> None:
    network = Scripted(
        read(output="b", cursor="c1", skipped_bytes=10), read(output="c", cursor="c2", replace=True, skipped_bytes=3)
    )
    network.replies.append(done())
    job = network.client().job("cmd_1")

    assert job.result().skipped_bytes == 3
    assert job.skipped_bytes == 3


def test_looks_one_after_the_other_count_all_gaps() -> None:
    network = Scripted(read(output="b", cursor="c1", skipped_bytes=10), read(output="c", cursor="c2", skipped_bytes=5))
    job = network.client().job("cmd_1")
    for _ in range(2):
        list(job.stream(cursor=job.cursor, follow=False))

    assert job.skipped_bytes == 15


def test_the_job_is_kept_up_to_date() -> None:
    job = Scripted(read(output="a", cursor="c1"), done()).client().job("cmd_1")
    assert repr(job) == "<Job cmd_1 not seen yet>"

    states = [job.state for _ in job.stream()]

    assert states == [JobState.RUNNING]
    assert job.info is not None
    assert job.info.exit_code == 0
    assert not hasattr(job.info, "output")


def test_a_healthy_job_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "oncebox"):
        Scripted(read(output="a", cursor="c1"), done()).client().job("cmd_1").result()

    assert caplog.records == []
