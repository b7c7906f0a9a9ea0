"""What a shell does before it runs our text is done once, for the caller's shell alone, and not by our own commands."""

import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.core.fence import protocol
from tests.contract.fence_rig import ANOTHER, SHELLS, Shell, fenced, shell_of
from tests.contract.fence_startups import NO_PATH, STARTS, Start, compare, here


@pytest.fixture
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    """The shell of a test, with an empty home."""
    yield from shell_of(request.param, tmp_path)


def each(starts: list[Start]) -> pytest.MarkDecorator:
    """Every one in every shell, but single functions, which only bash knows."""
    pairs = [
        pytest.param(f"{shell}{user}", start, id=f"{shell}{user}-{start.name}")
        for user in ("", ANOTHER)
        for shell in SHELLS
        for start in starts
        if shell == "bash" or not start.name.startswith("a function")
    ]
    return pytest.mark.parametrize(("shell", "start"), pairs, indirect=["shell"])


@each([*STARTS, *NO_PATH])
def test_a_fenced_command_does_what_an_unfenced_one_does_where_its_environment_acts(shell: Shell, start: Start) -> None:
    plain, behind, token = compare(shell, start, f"{shell.home}/here", sent=True)
    assert behind == plain
    noted = protocol.parse_fence(Path(protocol.fence_path(shell.directory, token)).read_bytes())
    assert (noted.kind, noted.exit_code) == ("run", plain.code)
    assert noted.log is None or noted.log.endswith(".output")


@each(STARTS)
def test_so_it_does_where_the_environment_of_its_sandbox_acts(shell: Shell, start: Start) -> None:
    shell.image = here(start, f"{shell.home}/here")
    plain, behind, token = compare(shell, start, f"{shell.home}/here", sent=False)
    assert behind == plain
    looked = protocol.parse_look(shell.own(protocol.look(shell.directory, token)))
    assert looked.fence is not None
    assert (looked.fence.kind, looked.fence.exit_code) == ("run", plain.code)


@pytest.mark.parametrize("shell", ["bash", "dash"], indirect=True)
def test_what_acts_by_being_there_is_the_wrappers_too(shell: Shell) -> None:
    """`docs/concepts/protocol.md` says so."""
    env = {"LD_SHOW_AUXV": "1"}
    text, sent = fenced(shell, "echo hi", secrets.token_hex(16), env)
    plain, behind = shell.run("echo hi", env), shell.run(text, sent)
    assert behind.code == plain.code == 0
    assert behind.output.endswith(plain.output.splitlines(keepends=True)[-1])
    assert behind.output.count(b"AT_PAGESZ") > plain.output.count(b"AT_PAGESZ")


@pytest.mark.parametrize("shell", ["bash", "dash", "busybox"], indirect=True)
def test_a_bash_that_path_does_not_lead_to_has_another_name_in_its_first_messages(shell: Shell) -> None:
    """The same."""
    env = {"PATH": "/nosuch", "LC_ALL": "xx", "SHELLOPTS": "verbose"}
    text, sent = fenced(shell, "nosuch", secrets.token_hex(16), env)
    plain, behind = shell.run("nosuch", env), shell.run(text, sent)
    assert behind.code == plain.code == 127
    named = re.sub(rb"/proc/\d+/exe(?=: warning)", b"bash", behind.output)
    assert named == plain.output
    assert (behind.output != plain.output) == (shell.name == "bash")
