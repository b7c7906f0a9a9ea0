"""``status``, ``logs``, ``cancel``, ``ps``, ``sandboxes`` and the frame around all commands."""

import builtins
import json
import sys
from typing import Any

import pytest

from service import __version__
from service.cli.output import tables
from service.errors import InvalidRequest, OutcomeUnknown, QuotaExceeded, Unauthenticated
from service.messages import JobState
from tests.unit.cli.conftest import Invoke
from tests.unit.cli.fakes import COMMAND_ID, REF, FakeJob, FakeSandbox, FakeService

OTHER_ID = "cmd_c2I_" + "f" * 32
COMMANDS = (
    "run",
    "exec",
    "status",
    "wait",
    "logs",
    "cancel",
    "ps",
    "sandboxes",
    "serve",
    "engine",
    "doctor",
    "completion",
)


@pytest.fixture
def job(fake: FakeService) -> FakeJob:
    """A job that the service knows."""
    job = FakeJob(chunks=(b"a\xff\n", b"b"), exit_code=3)
    fake.jobs_by_id = {COMMAND_ID: job, OTHER_ID: FakeJob(OTHER_ID)}
    return job


def test_status_says_how_it_ended(job: FakeJob, oncebox: Invoke) -> None:
    result = oncebox("status", COMMAND_ID)

    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == COMMAND_ID
    assert "state    exited with 3" in result.stdout


def test_status_as_json_is_the_job(job: FakeJob, oncebox: Invoke) -> None:
    shown = json.loads(oncebox("status", "--json", COMMAND_ID).stdout)

    assert (shown["command_id"], shown["state"], shown["exit_code"]) == (COMMAND_ID, "exited", 3)


@pytest.mark.parametrize("short", (REF[-12:], REF[-6:], REF))
def test_the_end_of_an_id_stands_for_it(job: FakeJob, oncebox: Invoke, short: str) -> None:
    assert oncebox("status", short).stdout.startswith(COMMAND_ID)


def test_the_end_of_an_id_must_name_one_job(fake: FakeService, job: FakeJob, oncebox: Invoke) -> None:
    twin = "cmd_dHdpbg_" + REF
    fake.jobs_by_id[twin] = FakeJob(twin)

    assert "2 jobs' ids end with" in oncebox("status", REF).stderr
    assert "oncebox ps" in oncebox("status", "abcdef01").stderr


def test_logs_are_the_bytes(job: FakeJob, oncebox: Invoke) -> None:
    for words in (("logs", COMMAND_ID), ("logs", "-f", COMMAND_ID)):
        result = oncebox(*words)
        assert (result.exit_code, result.stdout_bytes) == (0, b"a\xff\nb")


def test_logs_without_follow_do_not_wait_for_the_end(job: FakeJob, oncebox: Invoke) -> None:
    job.hangs = True

    assert oncebox("logs", COMMAND_ID).stdout_bytes == b"a\xff\nb"


def test_cancel_says_whether_it_was_over(job: FakeJob, oncebox: Invoke) -> None:
    assert "is being cancelled" in oncebox("cancel", COMMAND_ID).stdout
    assert job.cancels == 1
    oncebox("status", COMMAND_ID)
    assert "was over: cancelled" in oncebox("cancel", COMMAND_ID).stdout


def test_ps_lists_jobs(fake: FakeService, job: FakeJob, oncebox: Invoke) -> None:
    result = oncebox("ps", "--state", "running", "--sandbox", "sb", "--metadata", "a=b", "--kind", "exec")

    assert [line.split()[0] for line in result.stdout.splitlines()] == ["JOB", COMMAND_ID, OTHER_ID]
    assert fake.asked == [{"sandbox_id": "sb", "state": ("running",), "metadata": {"a": "b"}, "kind": "exec"}]


def test_ps_as_json_is_a_list_of_jobs(job: FakeJob, oncebox: Invoke) -> None:
    shown = json.loads(oncebox("ps", "--json").stdout)

    assert [item["command_id"] for item in shown] == [COMMAND_ID, OTHER_ID]


def test_ps_says_where_there_are_more(job: FakeJob, oncebox: Invoke) -> None:
    result = oncebox("ps", "--limit", "1")

    assert len(result.stdout.splitlines()) == 2
    assert "--limit" in result.stderr


def test_on_a_narrow_terminal_ps_shows_the_ends_of_ids(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from service.cli.commands import jobs

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(tables, "terminal_width", lambda: 80)
    monkeypatch.setattr(jobs, "terminal_width", lambda: 80)
    monkeypatch.setenv("NO_COLOR", "1")
    info = FakeJob().info
    assert info is not None

    jobs._print_jobs([info])

    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith(REF[-12:] + " ")
    assert all(len(line) <= 80 for line in lines)


def test_sandboxes_are_listed_created_and_deleted(fake: FakeService, oncebox: Invoke) -> None:
    fields = ("--image", "node:22", "--timeout", "90", "--env", "A=1", "--metadata", "team=red")
    more = ("--cpu", "500m", "--memory", "1Gi", "--owner", "alice", "--key", "k")

    created = oncebox("sandboxes", "create", *fields, *more)
    listed = oncebox("sandboxes", "ls", "--state", "running", "--metadata", "team=red")
    as_json = oncebox("sandboxes", "ls", "--json")
    deleted = oncebox("sandboxes", "rm", "new1")

    assert created.stdout == "new1\n"
    assert fake.created == [
        {
            "image": "node:22",
            "timeout": 90,
            "env": {"A": "1"},
            "metadata": {"team": "red"},
            "resources": {"cpu": "500m", "memory": "1Gi"},
            "workspace_owner": "alice",
            "idempotency_key": "k",
        }
    ]
    assert listed.stdout.splitlines()[1].split()[:2] == ["new1", "running"]
    assert fake.asked[0] == {"metadata": {"team": "red"}, "state": ("running",)}
    assert [item["sandbox_id"] for item in json.loads(as_json.stdout)] == ["new1"]
    assert (deleted.stdout, fake.deleted) == ("new1\n", ["new1"])


def test_one_sandbox_that_can_not_be_deleted_does_not_keep_the_others(fake: FakeService, oncebox: Invoke) -> None:
    fake.sandboxes_by_id["here"] = FakeSandbox(fake, "here")

    result = oncebox("sandboxes", "rm", "gone", "here")

    assert (result.exit_code, result.stdout, fake.deleted) == (1, "here\n", ["here"])
    assert "gone: sandbox not known here" in result.stderr


@pytest.mark.parametrize(
    ("error", "said"),
    (
        (Unauthenticated("wrong key"), "ONCEBOX_API_KEY"),
        (QuotaExceeded("10 sandboxes", retry_after=7.4), "in 7 s"),
        (OutcomeUnknown("gateway", command_id=COMMAND_ID), f"oncebox status {COMMAND_ID}"),
        (InvalidRequest.of("image", "too long"), "image: too long."),
    ),
)
def test_an_error_is_a_line_that_says_what_to_do(fake: FakeService, oncebox: Invoke, error: Any, said: str) -> None:
    fake.error = error

    result = oncebox("sandboxes", "create")

    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (1, "", 1)
    assert said in result.stderr


def test_with_json_an_error_is_json_too(fake: FakeService, oncebox: Invoke) -> None:
    fake.error = InvalidRequest.of("image", "too long")

    error = json.loads(oncebox("sandboxes", "create", "--json").stderr)["error"]

    assert (error["code"], error["retryable"]) == ("INVALID_REQUEST", False)
    assert error["errors"] == [{"field": "image", "message": "too long"}]


def test_wrong_settings_are_a_sentence(oncebox: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEBOX_URL", "nonsense")

    result = oncebox("ps")

    assert result.exit_code == 1
    assert "ONCEBOX_URL must be" in result.stderr


def test_a_bug_is_a_sentence_without_a_traceback(
    fake: FakeService, oncebox: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.error = KeyError("x")  # type: ignore[assignment]

    result = oncebox("sandboxes", "create")

    assert result.exit_code == 1
    assert "Traceback" not in result.stderr
    assert "a bug in Oncebox" in result.stderr


def test_what_only_the_server_extra_has_is_named(oncebox: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_hypercorn(name: str, *more: Any) -> Any:
        if name.startswith("service.server"):
            raise ModuleNotFoundError("No module named 'hypercorn'", name="hypercorn")
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", without_hypercorn)

    result = oncebox("serve")

    assert result.exit_code == 1
    assert result.stderr == "oncebox: `oncebox serve` needs the package hypercorn: pip install 'oncebox[server]'\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(oncebox: Invoke, command: str) -> None:
    result = oncebox(command, "--help")

    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 110


def test_the_help_lists_every_command(oncebox: Invoke) -> None:
    shown = oncebox().stdout

    assert all(f"\n  {command} " in shown for command in COMMANDS)


def test_the_version_is_the_packages(oncebox: Invoke) -> None:
    assert oncebox("--version").stdout == f"oncebox {__version__}\n"


@pytest.mark.parametrize("shell", ("bash", "zsh", "fish"))
def test_completion_is_a_script_for_the_shell(oncebox: Invoke, shell: str) -> None:
    result = oncebox("completion", shell)

    assert result.exit_code == 0
    assert "_ONCEBOX_COMPLETE" in result.stdout


@pytest.mark.parametrize("words", (("nonsense",), ("status",), ("logs", "--nonsense", "x"), ("completion", "csh")))
def test_usage_errors_are_2_and_point_at_the_help(oncebox: Invoke, words: tuple[str, ...]) -> None:
    result = oncebox(*words)

    assert result.exit_code == 2
    assert "--help`." in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_job_that_is_not_known_is_a_sentence(oncebox: Invoke, job: FakeJob) -> None:
    assert "oncebox ps" in oncebox("status", "cmd_eA_" + "0" * 32).stderr
    assert job.state is JobState.PENDING
