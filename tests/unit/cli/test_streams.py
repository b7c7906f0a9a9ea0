"""The standard streams: what waits on stdin, what stdout can show, and what happens where it can't be written."""

import io
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from service.cli.app import app
from service.cli.output import streams
from service.cli.problems import Trouble
from service.cli.target import Target, connect
from service.errors import SandboxNotFound
from tests.unit.cli.conftest import Invoke
from tests.unit.cli.fakes import COMMAND_ID, FakeJob, FakeSandbox, FakeService

UNUSUAL = "printf 'é — 你好\n🎉'"
COMMANDS = (("ps",), ("status", COMMAND_ID), ("sandboxes", "ls"), ("sandboxes", "rm", "boîte"))


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Makes stdin of a descriptor."""
    opened: list[Any] = []

    def become(fd: int) -> None:
        opened.append(os.fdopen(fd))
        monkeypatch.setattr(sys, "stdin", opened[-1])

    yield become
    for file in opened:
        file.close()


def test_a_file_a_pipe_and_a_socket_are_what_a_command_may_read(stdin: Callable[[int], None], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (ours, theirs), (read, write) = socket.socketpair(), os.pipe()
    for fd in (os.open(tmp_path / "file", os.O_RDONLY), ours.detach(), read):
        stdin(fd)
        assert streams.piped_stdin() == fd
    theirs.close()
    os.close(write)


def test_the_null_device_a_terminal_and_a_closed_stdin_are_not(
    stdin: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for fd in (os.open(os.devnull, os.O_RDONLY), os.openpty()[0]):
        stdin(fd)
        assert streams.piped_stdin() is None
    monkeypatch.setattr(sys, "stdin", None)
    assert streams.piped_stdin() is None


@pytest.mark.parametrize("charset", ("latin-1", "cp1252", "ascii", "utf-8"))
@pytest.mark.parametrize("words", COMMANDS)
def test_what_others_wrote_is_shown_in_any_encoding(fake: FakeService, charset: str, words: tuple[str, ...]) -> None:
    job = FakeJob()
    assert job.info is not None
    job.info.command = UNUSUAL
    fake.jobs_by_id = {COMMAND_ID: job}
    fake.sandboxes_by_id = {"boîte": FakeSandbox(fake, "boîte", metadata={"名": UNUSUAL})}

    result = CliRunner(charset=charset).invoke(app, words, prog_name="oncebox")

    assert (result.exit_code, result.stderr) == (0, "")
    shown = result.stdout_bytes.decode("utf-8" if charset == "ascii" else charset)
    if words[0] in ("ps", "status"):
        assert ("你好" if charset == "utf-8" else r"\u4f60\u597d") in shown
        assert len(shown.splitlines()[-1 if words[0] == "ps" else 2].split(UNUSUAL[:8])) == 2
    assert ("boîte" in shown or r"bo\xeete" in shown) == (words[0] == "sandboxes")


def test_the_process_escapes_what_its_stdout_can_not_encode(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))

    streams.prepare()
    print("⏎", flush=True)

    assert raw.getvalue() == b"\\u23ce\n"


@pytest.fixture(params=(OSError, BrokenPipeError, None))
def unwritable(request: pytest.FixtureRequest, fake: FakeService, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Calls ``oncebox`` with a stdout that is full, that nobody reads, or that was closed (None)."""

    def invoke(*words: str) -> Result:
        if request.param is None:
            monkeypatch.setattr(streams, "stdout_was_closed", lambda: True)
        else:
            echo = click.echo

            def failing(message: Any, **more: Any) -> None:
                if more.get("err"):
                    echo(message, **more)
                else:
                    raise request.param(28, "No space left on device")

            monkeypatch.setattr(click, "echo", failing)
        return CliRunner().invoke(app, words, prog_name="oncebox")

    return invoke


@pytest.mark.parametrize("more", ((), ("--json",)))
def test_a_sandbox_whose_id_can_not_be_printed_is_deleted(
    fake: FakeService, unwritable: Invoke, more: tuple[str, ...]
) -> None:
    result = unwritable("sandboxes", "create", *more)

    assert result.exit_code == 1
    assert "so the sandbox was deleted again" in result.stderr
    assert fake.deleted == ["new1"]


def test_a_sandbox_whose_id_can_not_be_printed_nor_that_be_deleted_is_named(
    fake: FakeService, unwritable: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(self: FakeSandbox) -> None:
        raise SandboxNotFound("sandbox not known here")

    monkeypatch.setattr(FakeSandbox, "delete", gone)

    assert "new1" in unwritable("sandboxes", "create").stderr


def test_a_sandbox_with_a_key_stays_and_is_named(fake: FakeService, unwritable: Invoke) -> None:
    result = unwritable("sandboxes", "create", "--key", "k")

    assert (result.exit_code, fake.deleted) == (1, [])
    assert "new1" in result.stderr


def test_a_detached_job_whose_id_can_not_be_printed_is_cancelled(fake: FakeService, unwritable: Invoke) -> None:
    result = unwritable("run", "--detach", "--", "true")

    assert result.exit_code == 125
    assert "so the job was cancelled" in result.stderr
    assert (fake.job_to_come.cancels, fake.deleted) == (1, ["new1"])


def test_of_a_detached_job_in_a_named_sandbox_only_the_job_goes(fake: FakeService, unwritable: Invoke) -> None:
    result = unwritable("run", "--detach", "--sandbox", "mine", "--", "true")

    assert result.exit_code == 125
    assert (fake.job_to_come.cancels, fake.deleted) == (1, [])


def test_a_detached_job_with_a_key_stays_and_is_named(fake: FakeService, unwritable: Invoke) -> None:
    result = unwritable("run", "--detach", "--key", "k", "--", "true")

    assert result.exit_code == 125
    assert COMMAND_ID in result.stderr
    assert (fake.job_to_come.cancels, fake.deleted) == (0, [])


@pytest.mark.parametrize("words", (("ps",), ("ps", "--json"), ("sandboxes", "ls"), ("keys", "new", "a"), ("doctor",)))
def test_what_can_not_be_printed_is_an_error(unwritable: Invoke, words: tuple[str, ...]) -> None:
    result = unwritable(*words)

    assert result.exit_code in (1, 141)
    assert ("stdout can't be written" in result.stderr) == (result.exit_code == 1)


def test_names_on_this_machine_that_are_no_text_can_be_json(monkeypatch: pytest.MonkeyPatch, oncebox: Invoke) -> None:
    monkeypatch.setenv("ONCEBOX_TENANTS", "/not/caf\udce9")
    monkeypatch.delenv("ONCEBOX_URL")

    findings = json.loads(oncebox("doctor", "--json").stdout)["findings"]

    assert "/not/caf\udce9" in findings[0]["said"]


async def test_a_url_that_names_no_host_is_a_sentence() -> None:
    with pytest.raises(Trouble, match="ONCEBOX_URL"):
        async with connect(Target("http://a..b:1")):
            pass
