"""What fingers know from other tools: ``exec``, ``wait``, ``-q``, ``--tail``, several ids, their ends, questions."""

import json

import pytest
from click.testing import CliRunner

from service.cli.app import app
from service.cli.commands import jobs, sandbox_acts
from service.cli.following import LastLines
from service.errors import EngineUnavailable
from service.messages import JobState
from tests.unit.cli.conftest import Invoke
from tests.unit.cli.fakes import COMMAND_ID, REF, FakeJob, FakeSandbox, FakeService

OTHER_ID = "cmd_c2I_" + "f" * 32
BOX = "0b5e9a52-7d0f-4f0e-9d57-6a1c2b3d4e5f"
OTHER_BOX = "a3c1d7e8-1f2a-4b3c-8d4e-5f60718293a4"


@pytest.fixture
def boxes(fake: FakeService) -> FakeService:
    """Two sandboxes, one of them labelled by nobody."""
    for id in (BOX, OTHER_BOX):
        fake.sandboxes_by_id[id] = FakeSandbox(fake, id, image="python:3.12", metadata={"team": "red"})
    return fake


@pytest.fixture
def two(fake: FakeService) -> tuple[FakeJob, FakeJob]:
    """Two jobs that the service knows: one exits with 0, the other with 3."""
    fake.jobs_by_id = {COMMAND_ID: FakeJob(), OTHER_ID: FakeJob(OTHER_ID, exit_code=3)}
    return fake.jobs_by_id[COMMAND_ID], fake.jobs_by_id[OTHER_ID]


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, *words: str, answer: str) -> tuple[int, str]:
    """The exit code, and what was said on stderr, where stdin is a terminal on which ``answer`` is typed."""
    monkeypatch.setattr(sandbox_acts, "_somebody_is_there", lambda: True)
    result = CliRunner().invoke(app, list(words), prog_name="oncebox", input=answer)
    return result.exit_code, result.stderr


@pytest.mark.parametrize("dashes", (("--",), ()))
def test_exec_runs_in_the_sandbox_and_leaves_it(boxes: FakeService, oncebox: Invoke, dashes: tuple[str, ...]) -> None:
    boxes.job_to_come = FakeJob(chunks=(b"out",), exit_code=3)

    result = oncebox("exec", "-e", "A=1", "-w", "/w", "--timeout", "90s", BOX, *dashes, "ls", "-l")

    assert (result.exit_code, result.stdout) == (3, "out")
    sent = boxes.submitted[0]
    assert (sent["sandbox"], sent["command"], sent["timeout"]) == (BOX, "ls -l", 90)
    assert (sent["env"], sent["cwd"], boxes.created, boxes.deleted) == ({"A": "1"}, "/w", [], [])


def test_options_behind_the_id_are_not_taken_for_a_command(boxes: FakeService, oncebox: Invoke) -> None:
    result = oncebox("exec", BOX, "-e", "A=1", "--", "ls")

    assert (result.exit_code, boxes.submitted) == (125, [])
    assert "Options stand before ID" in result.stderr


def test_a_command_may_begin_with_a_dash_behind_the_dashes(boxes: FakeService, oncebox: Invoke) -> None:
    oncebox("exec", BOX, "--", "-x")

    assert boxes.submitted[0]["command"] == " -x"


def test_rm_deletes_a_sandbox_that_was_named(boxes: FakeService, oncebox: Invoke) -> None:
    oncebox("run", "--rm", "--sandbox", BOX, "--", "true")

    assert boxes.deleted == [BOX]
    assert "--detach exclude each other" in oncebox("run", "--rm", "--detach", "--", "true").stderr


@pytest.mark.parametrize("end", (BOX[-12:], BOX[-6:], BOX))
def test_the_end_of_a_sandboxs_id_stands_for_it(boxes: FakeService, oncebox: Invoke, end: str) -> None:
    oncebox("exec", end, "--", "true")

    assert boxes.submitted[0]["sandbox"] == BOX
    assert len(boxes.asked) == (end != BOX)


def test_an_end_that_two_sandboxes_have_is_refused(boxes: FakeService, oncebox: Invoke) -> None:
    twin = "x" * 30 + BOX[-6:]
    boxes.sandboxes_by_id[twin] = FakeSandbox(boxes, twin)

    result = oncebox("sandboxes", "rm", BOX[-6:])

    assert (result.exit_code, boxes.deleted) == (1, [])
    assert "2 sandboxes' ids end with" in result.stderr


@pytest.mark.parametrize(
    ("words", "act"),
    (
        (("show", BOX), (BOX, "show")),
        (("renew", BOX, "2h"), (BOX, "renew", 7200)),
        (("pause", BOX), (BOX, "pause")),
        (("resume", BOX[-6:]), (BOX, "resume")),
    ),
)
def test_a_sandbox_is_shown_after_what_was_done_to_it(
    boxes: FakeService, oncebox: Invoke, words: tuple[str, ...], act: tuple[object, ...]
) -> None:
    shown = oncebox("sandboxes", *words)
    as_json = json.loads(oncebox("sandboxes", words[0], "--json", *words[1:]).stdout)

    assert boxes.acts == [act, act]
    assert shown.stdout.splitlines()[0] == BOX
    assert "team=red" in shown.stdout
    assert as_json["sandbox_id"] == BOX


def test_several_jobs_are_cancelled_and_one_that_is_not_known_does_not_keep_the_others(
    two: tuple[FakeJob, FakeJob], oncebox: Invoke
) -> None:
    unknown = "cmd_eA_" + "0" * 32

    result = oncebox("cancel", unknown, REF[-12:], OTHER_ID)

    assert (result.exit_code, two[0].cancels, two[1].cancels) == (1, 1, 1)
    assert len(result.stdout.splitlines()) == 2
    assert unknown in result.stderr


def test_wait_ends_with_the_first_code_that_is_not_zero(two: tuple[FakeJob, FakeJob], oncebox: Invoke) -> None:
    both = oncebox("wait", REF[-12:], OTHER_ID)

    assert both.exit_code == 3
    assert both.stdout.splitlines() == [f"{COMMAND_ID} exited with 0", f"{OTHER_ID} exited with 3"]
    assert oncebox("wait", COMMAND_ID).exit_code == 0
    assert [job["state"] for job in json.loads(oncebox("wait", "--json", COMMAND_ID).stdout)] == ["exited"]


def test_wait_gives_up_with_a_code_that_is_no_jobs(
    two: tuple[FakeJob, FakeJob], oncebox: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    two[0].end = {"state": JobState.RUNNING}
    monkeypatch.setattr(jobs, "PAUSES", (60.0,))

    result = oncebox("wait", "--timeout", "1s", COMMAND_ID)

    assert result.exit_code == 125
    assert "not all of it is over after 1 s" in result.stderr


def test_wait_that_can_not_be_told_is_125(two: tuple[FakeJob, FakeJob], oncebox: Invoke) -> None:
    two[0].error = EngineUnavailable("down")

    assert oncebox("wait", COMMAND_ID).exit_code == 125


def test_quiet_lists_are_whole_ids_alone(boxes: FakeService, two: tuple[FakeJob, FakeJob], oncebox: Invoke) -> None:
    assert oncebox("ps", "-q").stdout.split() == [COMMAND_ID, OTHER_ID]
    assert oncebox("sandboxes", "ls", "-q").stdout.split() == [BOX, OTHER_BOX]


def test_a_live_view_needs_a_terminal(two: tuple[FakeJob, FakeJob], oncebox: Invoke) -> None:
    result = oncebox("ps", "--watch")

    assert result.exit_code == 2
    assert "--watch needs a terminal" in result.stderr


@pytest.mark.parametrize(("lines", "shown"), ((0, b""), (1, b"d"), (2, b"c\nd"), (3, b"\nc\nd"), (9, b"a\nb\n\nc\nd")))
def test_the_tail_is_the_last_lines_as_bytes(fake: FakeService, oncebox: Invoke, lines: int, shown: bytes) -> None:
    fake.jobs_by_id = {COMMAND_ID: FakeJob(chunks=(b"a\nb", b"\n\nc", b"\nd"))}

    assert oncebox("logs", "--tail", str(lines), COMMAND_ID).stdout_bytes == shown
    assert oncebox("logs", "-f", "-n", str(lines), COMMAND_ID).exit_code == 0


def test_the_tail_holds_no_more_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.cli.following.MOST_KEPT", 8)
    cut, short, late = LastLines(2), LastLines(2), LastLines(1)
    for _ in range(10):
        cut.add(b"0123456789")
        short.add(b"01\n")
        late.add(b"0123456789")
        assert max(map(len, (cut._held, short._held, late._held))) <= 26
    late.add(b"\nend\n")

    assert (cut.text(), cut.cut) == (b"23456789", True)
    assert (short.text(), short.cut) == (b"01\n01\n", False)
    assert (late.text(), late.cut) == (b"end\n", False)


def test_all_of_a_label_are_deleted_after_a_yes(boxes: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_a_terminal(monkeypatch, "sandboxes", "rm", "--metadata", "team=red", answer="n\n")[0] == 130
    assert boxes.deleted == []
    code, said = on_a_terminal(monkeypatch, "sandboxes", "rm", "--metadata", "team=red", answer="y\n")
    assert (code, boxes.deleted) == (0, [BOX, OTHER_BOX])
    assert f"Delete 2 sandboxes ({BOX}, {OTHER_BOX})" in said
    assert boxes.asked[-1] == {"metadata": {"team": "red"}}


def test_all_are_deleted_where_nobody_can_be_asked_only_with_yes(boxes: FakeService, oncebox: Invoke) -> None:
    refused = oncebox("sandboxes", "rm", "--all")
    assert (refused.exit_code, boxes.asked, boxes.deleted) == (2, [], [])
    assert "--yes" in refused.stderr

    assert json.loads(oncebox("sandboxes", "rm", "--all", "--yes", "--json").stdout)["deleted"] == [BOX, OTHER_BOX]
    assert boxes.deleted == [BOX, OTHER_BOX]


@pytest.mark.parametrize("words", ((), (BOX, "--all"), ("--all", "--metadata", "a=b"), (BOX, "--metadata", "a=b")))
def test_which_sandboxes_are_deleted_is_said_in_one_way(
    boxes: FakeService, oncebox: Invoke, words: tuple[str, ...]
) -> None:
    assert oncebox("sandboxes", "rm", "--yes", *words).exit_code == 2
    assert boxes.deleted == []
