"""A command behind the fence runs as execd alone would run it, in every shell that a sandbox may have."""

import re
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.core.fence import protocol
from tests.contract.fence_commands import CASES, DIFFERENT, Case
from tests.contract.fence_rig import EACH, Ended, Shell, boot_mark, fenced, shell_of


@pytest.fixture(params=EACH)
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    """Each shell in turn, with an empty home."""
    yield from shell_of(request.param, tmp_path)


def comparable(ended: Ended) -> tuple[int, bytes]:
    """What must be the same; bash's "Killed" line has a process's number in it.

    Whether busybox says "Terminated" of a child depends on whether it was waiting for one when the signal came.
    """
    output = re.sub(rb"(?m)^Terminated\n", b"", ended.output)
    return ended.code, re.sub(rb"(line \d+: ) *\d+( Killed)", rb"\1N\2", output)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_fenced_command_ends_and_prints_as_an_unfenced_one(shell: Shell, case: Case) -> None:
    token = secrets.token_hex(16)
    text, env = fenced(shell, case.command, token, case.env)

    with ThreadPoolExecutor(2) as threads:
        plain_run = threads.submit(shell.run_case, case.command, case.env, case)
        behind, plain = shell.run_case(text, env, case), plain_run.result()

    assert comparable(plain) == comparable(behind)
    noted = protocol.parse_fence(Path(protocol.fence_path(shell.directory, token)).read_bytes())
    assert (noted.kind, noted.fingerprint, noted.timeout) == ("run", "f" * 32, 60)
    killed_with_it = case.timeout or ("its group" in case.name and "TERM" not in case.name) or plain.code == 137
    assert noted.exit_code == behind.code or (noted.exit_code is None and killed_with_it)


@pytest.mark.parametrize("command", DIFFERENT.values(), ids=DIFFERENT)
def test_what_a_fence_does_change(shell: Shell, command: str) -> None:
    text, env = fenced(shell, command, secrets.token_hex(16))
    assert shell.run(command).output != shell.run(text, env).output


@pytest.mark.parametrize("directory", ["a b", "it's", 'q"$HOME`x`', "ž\n;exit 3", "*", "-n"])
def test_the_fence_directory_may_be_any_absolute_path(shell: Shell, directory: str) -> None:
    shell.directory = f"{shell.home}/{directory}/deep"
    token, voided = secrets.token_hex(16), secrets.token_hex(16)
    boot = boot_mark(shell)
    assert boot is not None

    text, env = fenced(shell, "echo hi; exit 3", token, boot=boot.text)
    assert comparable(shell.run(text, env)) == (3, b"hi\n")

    looked = protocol.parse_look(shell.own(protocol.look(shell.directory, token)))
    assert looked.fence is not None
    assert (looked.boot, looked.fence.exit_code, looked.processes) == (boot, 3, ())
    made = shell.own(protocol.void(shell.directory, voided, boot.text, "1" * 32))
    assert protocol.parse_void(made).outcome == "voided"
    assert sorted(path.name for path in Path(shell.directory).iterdir()) == sorted(["boot", token, voided])


def test_several_jobs_at_once(shell: Shell) -> None:
    boot = boot_mark(shell)
    assert boot is not None

    def job(number: int) -> Ended:
        text, env = fenced(shell, f"sleep 0.1; echo {number}; exit {number}", f"{number:032x}", boot=boot.text)
        return shell.run(text, env)

    with ThreadPoolExecutor(12) as threads:
        ended = list(threads.map(job, range(24)))

    assert ended == [Ended(number, b"%d\n" % number) for number in range(24)]


def test_the_text_is_short_and_shows_the_token(shell: Shell) -> None:
    token = secrets.token_hex(16)
    text, env = fenced(shell, "x" * 90_000, token)
    assert len(text) < 100
    assert token in text
    assert set(env) == {protocol.COMMAND_VARIABLE, protocol.SCRIPT_VARIABLE}


def test_an_engine_that_ignores_the_environment_runs_nothing(shell: Shell) -> None:
    text, _ = fenced(shell, "echo hi", secrets.token_hex(16))
    ended = shell.run(text)
    assert ended.code not in (0, None)
    assert b"hi" not in ended.output


def test_the_file_that_bash_reads_first_is_read_once(shell: Shell) -> None:
    profile = shell.home / "profile's"
    profile.write_text("echo read")
    command, extra = "echo $BASH_ENV", {"BASH_ENV": str(profile)}
    text, env = fenced(shell, command, secrets.token_hex(16), extra)
    assert comparable(shell.run(text, env)) == comparable(shell.run(command, extra))
