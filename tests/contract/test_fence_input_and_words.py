"""What a command reads, where its stderr goes, and words instead of a command: as if no fence were there."""

import secrets
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from service.core.fence import protocol
from service.core.fence.protocol import Streams
from tests.contract.fence_commands import CASES, WORDS, Case
from tests.contract.fence_rig import EACH, Ended, Shell, boot_mark, fenced, shell_of
from tests.contract.fence_startups import STARTS, here, prepare
from tests.contract.test_fence_shells import comparable

READ = b"line 1\n\0\xff\xfe no line end \r"


@pytest.fixture(params=EACH)
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    """Each shell in turn, with an empty home."""
    yield from shell_of(request.param, tmp_path)


def both(shell: Shell, case: Case, boot: str, streams: Streams) -> tuple[Ended, Ended]:
    """A command as it runs by itself, and behind a fence, and what the fence says of it."""
    token = secrets.token_hex(16)
    (shell.home / "cwd").mkdir(exist_ok=True)
    case = replace(case, cwd=case.cwd or str(shell.home / "cwd"))
    plain = replace_place(shell, streams).run_case(case.command, case.env, case)
    text, env = fenced(shell, case.command, token, case.env, boot=boot, streams=streams)
    behind = shell.run_case(text, env, case)
    assert Path(protocol.fence_path(shell.directory, token)).exists(), (case.name, plain, behind)
    noted = protocol.parse_fence(Path(protocol.fence_path(shell.directory, token)).read_bytes())
    assert (noted.kind, noted.apart) == ("run", streams.apart), case.name
    return plain, behind


def replace_place(shell: Shell, streams: Streams) -> Shell:
    """The same, with its streams from the start as the fence is to open them."""
    plain = object.__new__(Shell)
    plain.__dict__.update(
        shell.__dict__, stdin=streams.stdin and shell.home / "cwd" / streams.stdin, apart=streams.apart
    )
    return plain


@pytest.mark.parametrize("apart", [False, True], ids=["merged", "apart"])
@pytest.mark.parametrize("stdin", [None, "read"], ids=["no input", "an input"])
def test_a_command_ends_and_prints_as_without_a_fence(shell: Shell, stdin: str | None, apart: bool) -> None:
    if not stdin and not apart:
        pytest.skip("test_fence_shells")
    (shell.home / "read").write_bytes(READ)
    boot = boot_mark(shell)
    assert boot is not None
    streams = Streams(stdin=stdin and str(shell.home / stdin), apart=apart)

    def differs(case: Case) -> str | None:
        # A timeout runs while the other commands do, and what is killed with the machine busy may not have begun.
        plain, behind = both(shell, case, boot.text, streams)
        same = comparable(plain) == comparable(behind) and errors_of(plain) == errors_of(behind)
        return None if same else f"{case.name}: {plain} {behind}"

    # Of `/proc/self/fd/0`: which file it is tells who opened it.
    cases = [case for case in CASES if not (case.name == "reads its input" and stdin)]
    with ThreadPoolExecutor(6) as threads:
        assert [found for found in threads.map(differs, cases) if found] == []


def errors_of(ended: Ended) -> bytes:
    return comparable(replace(ended, output=ended.errors or b""))[1]


INPUTS = [
    Case("all of it", "cat"),
    Case("twice", "cat; cat; echo rc $?"),
    Case("a line, and a child the rest", "read -r a; echo $a; cat"),
    Case("a child in the background", "cat & wait; echo done"),
    Case("the kind", "[ -f /dev/stdin ] && echo file; [ -t 0 ] || echo none"),
    Case("closes it", "exec <&-; cat; echo rc $?"),
    Case("opens another", "exec </dev/null; cat; echo rc $?"),
    Case("a shell that reads its text there", "sh"),
    Case("leaves it unread", "echo a"),
]


def test_a_command_reads_exactly_its_input(shell: Shell) -> None:
    read = b"echo $((1 + 1))\n" + READ + bytes(range(256)) * 4096
    (shell.home / "in put's").write_bytes(read)
    boot = boot_mark(shell)
    assert boot is not None
    streams = Streams(stdin="../in put's")
    for case in INPUTS:
        plain, behind = both(shell, case, boot.text, streams)
        assert comparable(plain) == comparable(behind), case.name
    assert both(shell, INPUTS[0], boot.text, streams)[1].output == read


def test_no_input_is_read_without_a_fence_either(shell: Shell) -> None:
    (shell.home / "in").write_bytes(READ)
    text, env = fenced(shell, "cat; exit 3", secrets.token_hex(16), boot=None, streams=Streams(stdin="in", apart=True))
    assert shell.run(text, env) == Ended(3, READ, errors=b"")


def test_the_two_outputs_are_apart_and_the_log_has_stdout_alone(shell: Shell) -> None:
    command = "echo a; echo b >&2; sh -c 'echo c; echo d >&2'; nosuch; kill -9 $$"
    token = secrets.token_hex(16)
    text, env = fenced(shell, command, token, streams=Streams(apart=True))
    ended = shell.run(text, env)
    assert (ended.code, ended.output) == (137, b"a\nc\n")
    assert ended.errors is not None
    assert ended.errors.startswith(b"b\nd\n")
    assert b"nosuch" in ended.errors
    noted = protocol.parse_fence(Path(protocol.fence_path(shell.directory, token)).read_bytes())
    assert noted.log is not None
    assert Path(protocol.stderr_beside(noted.log)).read_bytes() == ended.errors


# -- words


def test_words_reach_their_program_as_they_are(shell: Shell) -> None:
    boot = boot_mark(shell)
    assert boot is not None
    (shell.bin / "show").write_text('#!/bin/sh\nfor a; do printf "<%s>" "$a"; done; echo; cat; exit 5\n')
    (shell.bin / "show").chmod(0o755)
    for words in WORDS:
        text, env = fenced(shell, shlex.join(["show", *words]), secrets.token_hex(16), boot=boot.text, words=True)
        shown = "".join(f"<{word}>" for word in words) or "<>"
        assert shell.run(text, env) == Ended(5, f"{shown}\n".encode() if words else b"\n"), words


ENDS = {
    "exits": ["sh", "-c", "exit 7"],
    "is killed": ["sh", "-c", "kill -9 $$"],
    "is no builtin": ["[[", "a"],
    "prints its environment": ["env"],
    "is a path": ["/bin/echo", "a  b", "$HOME", "*"],
    "descriptors": ["sh", "-c", "for i in 0 1 2 3 4 5 6 7 8 9; do [ -e /proc/self/fd/$i ] && echo $i; done"],
    "signals": ["grep", "Sig[BIC]", "/proc/self/status"],
}


@pytest.mark.parametrize("words", ENDS.values(), ids=ENDS)
def test_words_run_as_execd_would_run_the_program_alone(shell: Shell, words: list[str]) -> None:
    plain = shell.run("exec " + shlex.join(words))
    text, env = fenced(shell, shlex.join(words), secrets.token_hex(16), words=True)
    behind = shell.run(text, env)
    assert behind.code == plain.code
    if words != ["[[", "a"]:
        assert sorted(behind.output.splitlines()) == sorted(plain.output.splitlines())


@pytest.mark.parametrize(
    ("program", "code"), [("nosuch", 127), ("/nosuch/program", 127), ("./plain", 126), (".", 126), ("-x", 127)]
)
def test_a_program_that_cant_be_run_ends_as_in_a_shell(shell: Shell, program: str, code: int) -> None:
    (shell.home / "plain").write_text("echo no")
    token = secrets.token_hex(16)
    text, env = fenced(shell, shlex.join([program, "a"]), token, words=True, streams=Streams(apart=True))
    ended = shell.run(text, env)
    assert (ended.code, ended.output) == (code, b"")
    assert ended.errors, "the reason is told"
    assert protocol.parse_fence(Path(protocol.fence_path(shell.directory, token)).read_bytes()).exit_code == code


BY_THE_SHELL = {"SHLVL", "OPTIND", "BASH_ARGV0", "PS4", "IFS"}
"""Variables that a shell sets, or takes from nobody."""


def test_nothing_that_a_shell_acts_on_is_acted_on_and_words_get_their_environment(shell: Shell) -> None:
    boot = boot_mark(shell)
    assert boot is not None
    for start in STARTS:
        if start.name.startswith("a function") and shell.name != "bash":
            continue
        directory = f"{shell.home}/here-{secrets.token_hex(4)}"
        prepare(shell, start, directory)
        env = here(start, directory)
        how = {"boot": boot.text, "words": True, "streams": Streams(apart=True)}
        text, sent = fenced(shell, "/bin/cat /proc/self/environ", secrets.token_hex(16), env, **how)
        ended = shell.run(text, sent)
        assert ended.code == 0, start.name
        found = dict(each.partition("=")[::2] for each in ended.output.decode().split("\0") if "=" in each)
        lost = {name for name, value in env.items() if value and found.get(name) != value} - BY_THE_SHELL
        if shell.name != "bash":  # others drop functions, and what old shells took for one
            lost = {name for name in lost if name.isidentifier()}
        assert lost == set(), start.name
        assert not any("ONCEBOX" in name for name in found)
        assert shell.own(f"cat {directory}/left 2>/dev/null") == "", start.name
