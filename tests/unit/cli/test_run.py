"""``oncebox run`` against a fake service: what is asked for, what is printed, which code comes out."""

import asyncio
import json
from typing import Any

import pytest

from service.cli import foreground
from service.cli.commands.run import shell_text
from service.cli.foreground import ForegroundRun, RunRequest
from service.cli.interrupts import Interrupts
from service.cli.output.terminal import OutputWriter
from service.errors import EngineRejected, OutcomeUnknown
from service.messages import JobState, Reason
from service.settings import Settings
from tests.support.waiting import PATIENCE
from tests.unit.cli.conftest import Invoke
from tests.unit.cli.fakes import COMMAND_ID, FakeJob, FakeService

BINARY = (b"\x00\xff\xfe", b"caf\xc3", b"\xa9\r\n")


def test_the_output_is_the_commands_bytes_and_the_exit_code_its_own(fake: FakeService, oncebox: Invoke) -> None:
    fake.job_to_come = FakeJob(chunks=BINARY, exit_code=3)

    result = oncebox("run", "--", "make", "test")

    assert result.exit_code == 3
    assert result.stdout_bytes == b"".join(BINARY)
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("end", "code", "said"),
    (
        ({"state": JobState.EXITED, "exit_code": 137}, 137, ""),
        ({"state": JobState.TIMED_OUT, "timeout": 5}, 124, "timed out after 5 s"),
        ({"state": JobState.CANCELLED, "exit_code": None}, 125, "cancelled by somebody else"),
        ({"state": JobState.FAILED, "reason": Reason.NO_FENCE, "exit_code": None}, 125, "disk is full"),
        ({"state": JobState.LOST, "reason": Reason.SANDBOX_GONE, "exit_code": None}, 125, "sandbox was deleted"),
    ),
)
def test_every_end_has_its_exit_code(
    fake: FakeService, oncebox: Invoke, end: dict[str, Any], code: int, said: str
) -> None:
    fake.job_to_come = FakeJob(**end)

    result = oncebox("run", "--", "true")

    assert result.exit_code == code
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == bool(said)


@pytest.mark.parametrize(
    ("words", "text"),
    (
        (("echo", "a  b", "$HOME", "it's"), """echo 'a  b' '$HOME' 'it'"'"'s'"""),
        (("echo a; echo b | cat",), "echo a; echo b | cat"),
        (("true",), "true"),
        (("sh", "-c", "exit 3"), "sh -c 'exit 3'"),
        (("printf", ""), "printf ''"),
        (("-x",), " -x"),
        (("-c", "true"), " -c true"),
        (("+x",), " +x"),
        (("echo", "-x"), "echo -x"),
    ),
)
def test_words_stay_words_and_a_single_one_is_the_shells_text(words: tuple[str, ...], text: str) -> None:
    assert shell_text(words) == text


def test_every_option_reaches_the_service(fake: FakeService, oncebox: Invoke) -> None:
    oncebox(
        *("run", "--image", "node:22", "--timeout", "90", "--cwd", "/w", "--env", "A=1", "--env", "B=x=y"),
        *("--key", "k1", "--user", "1000:0", "--", "node", "--version"),
    )

    assert fake.created == [{"image": "node:22", "timeout": 690, "idempotency_key": "k1"}]
    assert fake.submitted == [
        {
            "sandbox": "new1",
            "command": "node --version",
            "stdin": None,
            "user": "1000:0",
            "timeout": 90,
            "cwd": "/w",
            "env": {"A": "1", "B": "x=y"},
            "idempotency_key": "k1",
        }
    ]


def test_the_sandbox_that_was_made_is_deleted(fake: FakeService, oncebox: Invoke) -> None:
    oncebox("run", "--", "true")

    assert (len(fake.created), fake.deleted) == (1, ["new1"])


def test_a_sandbox_that_was_named_stays(fake: FakeService, oncebox: Invoke) -> None:
    oncebox("run", "--sandbox", "mine", "--", "true")

    assert (fake.created, fake.submitted[0]["sandbox"], fake.deleted) == ([], "mine", [])


def test_detached_the_id_is_printed_and_the_sandbox_stays(fake: FakeService, oncebox: Invoke) -> None:
    result = oncebox("run", "--detach", "--", "true")

    assert (result.exit_code, result.stdout) == (0, COMMAND_ID + "\n")
    assert fake.deleted == []


def test_detached_json_is_the_job(fake: FakeService, oncebox: Invoke) -> None:
    result = oncebox("run", "--detach", "--json", "--", "true")

    assert json.loads(result.stdout)["command_id"] == COMMAND_ID


def test_json_is_an_event_a_line_and_bytes_that_are_no_text_are_base64(fake: FakeService, oncebox: Invoke) -> None:
    fake.job_to_come = FakeJob(chunks=(b"a\n", b"\xff"), exit_code=3)

    result = oncebox("run", "--json", "--", "true")

    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [event["event"] for event in events] == ["start", "output", "output", "end"]
    assert (events[1]["output"], events[1]["encoding"]) == ("a\n", "utf8")
    assert (events[2]["output"], events[2]["encoding"]) == ("/w==", "base64")
    assert events[3]["exit_code"] == result.exit_code == 3


@pytest.mark.parametrize(
    "words",
    (
        ("run",),
        ("run", "--nonsense", "--", "true"),
        ("run", "--timeout", "0", "--", "true"),
        ("run", "--env", "A", "--", "true"),
        ("run", "--sandbox", "a", "--image", "b", "--", "true"),
    ),
)
def test_a_command_line_that_makes_no_sense_is_125_and_asks_for_nothing(
    fake: FakeService, oncebox: Invoke, words: tuple[str, ...]
) -> None:
    result = oncebox(*words)

    assert result.exit_code == 125
    assert result.stdout == ""
    assert result.stderr.startswith("oncebox: ")
    assert "See `oncebox run --help`." in result.stderr
    assert (fake.created, fake.submitted) == ([], [])


@pytest.mark.parametrize(("option", "value"), (("--detach", None), ("--sandbox", "mine")))
def test_what_needs_a_service_says_so_where_none_is_set(
    oncebox: Invoke, monkeypatch: pytest.MonkeyPatch, option: str, value: str | None
) -> None:
    monkeypatch.delenv("ONCEBOX_URL")

    result = oncebox("run", option, *([value] if value else []), "--", "true")

    assert result.exit_code == 125
    assert "ONCEBOX_URL" in result.stderr


def test_a_refusal_is_a_sentence_and_125(fake: FakeService, oncebox: Invoke) -> None:
    fake.error = EngineRejected("no such image: nonsense")

    result = oncebox("run", "--", "true")

    assert result.exit_code == 125
    assert result.stderr == "oncebox: no such image: nonsense.\n"


def test_a_connection_lost_for_good_leaves_the_job_and_says_how_to_get_back(fake: FakeService, oncebox: Invoke) -> None:
    fake.job_to_come.error = OutcomeUnknown("gateway", command_id=COMMAND_ID)

    result = oncebox("run", "--", "true")

    assert result.exit_code == 125
    assert f"oncebox logs -f {COMMAND_ID}" in result.stderr
    assert fake.deleted == []


def test_a_reader_that_goes_away_ends_the_job_quietly(
    fake: FakeService, oncebox: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(self: OutputWriter, chunk: bytes) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(OutputWriter, "_write", gone)
    fake.job_to_come = FakeJob(chunks=(b"1\n", b"2\n"))

    result = oncebox("run", "--", "true")

    assert (result.exit_code, result.stderr) == (141, "")
    assert (fake.job_to_come.cancels, fake.deleted) == (1, ["new1"])


def test_what_is_missing_of_the_output_is_said(fake: FakeService, oncebox: Invoke) -> None:
    fake.job_to_come.skipped_bytes = 12
    fake.job_to_come.output_complete = False

    result = oncebox("run", "--", "true")

    assert "12 bytes" in result.stderr
    assert "end of the output" in result.stderr


def foreground_run(request: RunRequest) -> tuple[ForegroundRun, asyncio.Event]:
    new = ForegroundRun(request, Settings(url="http://127.0.0.1:1"))
    new.interrupts = Interrupts(new.leave)  # not entered: the test sends them itself
    return new, new.interrupts.first


async def test_an_interrupt_cancels_the_job_and_deletes_the_sandbox(
    fake: FakeService, capfd: pytest.CaptureFixture[str]
) -> None:
    fake.job_to_come.hangs = True
    under_test, interrupt = foreground_run(RunRequest(command="sleep 100"))
    running = asyncio.create_task(under_test.run())
    await fake.job_to_come.given.wait()

    interrupt.set()

    assert await running == 130
    assert (fake.job_to_come.cancels, fake.deleted) == (1, ["new1"])
    said = capfd.readouterr().err
    assert "cancelling the job; Ctrl-C again leaves at once" in said
    assert "oncebox: cancelled." in said


async def test_an_interrupt_during_the_submission_cancels_what_came_of_it(fake: FakeService) -> None:
    fake.submit_gate = asyncio.Event()
    fake.job_to_come.hangs = True
    under_test, interrupt = foreground_run(RunRequest(command="sleep 100", sandbox="mine"))
    running = asyncio.create_task(under_test.run())
    async with asyncio.timeout(PATIENCE):
        while not fake.submitted:
            await asyncio.sleep(0)

    interrupt.set()
    await asyncio.sleep(0)
    fake.submit_gate.set()

    assert await running == 130
    assert (fake.job_to_come.cancels, fake.deleted) == (1, [])


async def test_a_job_that_does_not_end_is_left_after_the_grace(
    fake: FakeService, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ignored() -> None:
        pass

    monkeypatch.setattr(foreground, "GRACE", 0.01)
    monkeypatch.setattr(fake.job_to_come, "cancel", ignored)
    fake.job_to_come.hangs = True
    under_test, interrupt = foreground_run(RunRequest(command="sleep 100", sandbox="mine"))
    running = asyncio.create_task(under_test.run())
    await fake.job_to_come.given.wait()

    interrupt.set()

    assert await running == 130
    assert f"oncebox status {COMMAND_ID}" in capfd.readouterr().err
