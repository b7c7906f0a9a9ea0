"""The rules of the fence that its texts keep: each holds, and no longer does once its lines are taken out.

Rules 1 and 4 are the claim table's: `tests/unit/core/jobs/test_job_protocol.py`.
"""

import secrets
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.core.fence import protocol, scripts
from service.core.fence.protocol import Marker, Streams
from tests.contract.fence_rig import ANOTHER, EACH, Ended, Shell, boot_mark, fenced, shell_of

TOKEN = "0123456789abcdef" * 2
FINGERPRINT = "f" * 32


@pytest.fixture(params=EACH)
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    """Each shell in turn, with an empty home."""
    yield from shell_of(request.param, tmp_path)


def fence_file(shell: Shell, token: str = TOKEN) -> Path:
    return Path(protocol.fence_path(shell.directory, token))


def mark(shell: Shell) -> str:
    boot = boot_mark(shell)
    assert boot is not None
    return boot.text


def replace_file_system(shell: Shell) -> str:
    """What a restarted container may find: no fences, another mark."""
    shutil.rmtree(shell.directory)
    return mark(shell)


def submit(shell: Shell, boot: str | None) -> Ended:
    text, env = fenced(shell, "echo ran", TOKEN, boot=boot)
    return shell.run(text, env)


def void(shell: Shell, boot: str, token: str = TOKEN) -> protocol.Voided:
    text = protocol.void(shell.directory, token, boot, secrets.token_hex(16))
    return protocol.parse_void(shell.own(text))


# Each tells what happened, as it should be when the rule is kept.


def one_of_thirty(shell: Shell) -> bool:
    """Copies that arrive together run once."""
    boot = mark(shell)
    with ThreadPoolExecutor(30) as threads:
        ended = list(threads.map(lambda _: submit(shell, boot), range(30)))
    others = [protocol.parse_marker(each.output, TOKEN) for each in ended if each.output != b"ran\n"]
    met = {other.met for other in others if other}
    return len(others) == 29 and None not in others and met == {"run"}


def a_second_copy_is_told_what_it_met(shell: Shell) -> bool:
    boot = mark(shell)
    first, second = submit(shell, boot), submit(shell, boot)
    marker = protocol.parse_marker(second.output, TOKEN)
    return (first.output, marker, second.code) == (b"ran\n", Marker("run", FINGERPRINT), protocol.NOTHING_RAN)


def no_void_in_another_file_system(shell: Shell) -> bool:
    """Rule 2."""
    boot = mark(shell)
    assert submit(shell, boot).output == b"ran\n"
    now = replace_file_system(shell)
    voided = void(shell, boot)
    return voided.outcome == "boot" and voided.boot is not None and voided.boot.text == now


def no_void_where_the_mark_is_gone(shell: Shell) -> bool:
    """Rule 2, after a job wiped the directory."""
    boot = mark(shell)
    assert submit(shell, boot).output == b"ran\n"
    shutil.rmtree(shell.directory)
    return void(shell, boot).outcome == "boot"


def no_void_in_a_directory_wiped_meanwhile(shell: Shell) -> bool:
    """Rule 2, where the directory is wiped, and marked anew, between the void's look at the mark and its link."""
    boot = mark(shell)
    assert submit(shell, boot).output == b"ran\n"
    fence_file(shell).unlink()
    link = shell.bin / "ln"
    link.write_text(f'#!/bin/sh\necho "{"9" * 32} 7" >"${{2%/*}}/boot"; exec /bin/ln "$@"\n')
    link.chmod(0o755)
    outcome = void(shell, boot).outcome
    link.unlink()
    return outcome == "boot"


def a_late_message_runs_nothing_in_another_file_system(shell: Shell) -> bool:
    """Rule 3: compared first, so that not even a fence is made."""
    boot = mark(shell)
    replace_file_system(shell)
    late = submit(shell, boot)
    return protocol.parse_marker(late.output, TOKEN) == Marker("boot") and not fence_file(shell).exists()


def a_copy_that_compared_before_the_directory_was_wiped_runs_nothing(shell: Shell) -> bool:
    """Rule 3: the first copy runs and empties the directory between the second's look at the mark and its fence."""
    boot = mark(shell)
    text, env = fenced(shell, "echo ran", TOKEN, boot=boot)
    env[protocol.SCRIPT_VARIABLE] = env[protocol.SCRIPT_VARIABLE].replace(
        "set -C", f"rm {shell.directory}/*; set -C", 1
    )
    return protocol.parse_marker(shell.run(text, env).output, TOKEN) == Marker("boot")


def an_unfenced_message_runs_nothing_where_there_is_a_mark_by_now(shell: Shell) -> bool:
    """Rule 3, for a submission that was sent when no mark could be made."""
    mark(shell)
    return protocol.parse_marker(submit(shell, None).output, TOKEN) == Marker("boot")


def a_late_message_meets_the_void(shell: Shell) -> bool:
    boot = mark(shell)
    assert void(shell, boot).outcome == "voided"
    late = submit(shell, boot)
    return protocol.parse_marker(late.output, TOKEN) == Marker("void")


def a_void_is_not_made_over_a_run(shell: Shell) -> bool:
    boot = mark(shell)
    assert submit(shell, boot).output == b"ran\n"
    voided = void(shell, boot)
    return voided.outcome == "run" and voided.fence is not None and voided.fence.exit_code == 0


def no_run_without_a_fence(shell: Shell) -> bool:
    """Rule 5: the file can't be made (a link that leads nowhere; also for root)."""
    boot = mark(shell)
    fence_file(shell).symlink_to("/nosuch/file")
    return protocol.parse_marker(submit(shell, boot).output, TOKEN) == Marker("none")


def no_fence_where_the_input_is_missing(shell: Shell) -> bool:
    """It is opened first, so that nothing has begun, and the next attempt may run."""
    text, env = fenced(shell, "cat; echo ran", TOKEN, boot=mark(shell), streams=Streams(stdin="/nosuch"))
    missed = shell.run(text, env)
    return protocol.parse_marker(missed.output, TOKEN) == Marker("input") and not fence_file(shell).exists()


def streams_are_apart_or_nothing_runs(shell: Shell) -> bool:
    """Where there is no file to be had for stderr, here because the log is not one of execd's."""
    text, env = fenced(shell, "echo ran; echo err >&2", TOKEN, boot=mark(shell), streams=Streams(apart=True))
    process, output = shell.start(f"exec >{shell.home}/other 2>&1; {text}", env)
    shell.finish(process, output, timeout=None, interrupt=None)
    printed = (shell.home / "other").read_bytes()
    return protocol.parse_marker(printed, TOKEN) == Marker("apart") and not fence_file(shell).exists()


def a_mark_that_cant_be_reached_is_not_another_mark(shell: Shell) -> bool:
    """Else the submission would stay unknown until its deadline."""
    boot = mark(shell)
    Path(shell.directory).chmod(0o700)
    return protocol.parse_marker(submit(shell, boot).output, TOKEN) == Marker("none")


def one_mark_of_thirty(shell: Shell) -> bool:
    with ThreadPoolExecutor(30) as threads:
        marks = set(threads.map(lambda _: mark(shell), range(30)))
    return len(marks) == 1 and [path.name for path in Path(shell.directory).iterdir()] == ["boot"]


KEPT: dict[Callable[[Shell], bool], list[tuple[str, str, str]]] = {
    one_of_thirty: [("MAKE", "set -C\n", "")],
    a_second_copy_is_told_what_it_met: [("FILL", "fp=%s", "%s")],
    no_void_in_another_file_system: [("VOID", '"$b" != @BOOT@', "1 = 2")],
    no_void_where_the_mark_is_gone: [
        ("VOID", '"$b" != @BOOT@', "1 = 2"),
        ("VOID", 'echo @VOID@ >"$t"', 'mkdir -p "$d"; echo @VOID@ >"$t"'),
    ],
    no_void_in_a_directory_wiped_meanwhile: [("VOID", "mark\nif", "echo boot=; b=@BOOT@\nif")],
    a_late_message_runs_nothing_in_another_file_system: [("COMPARE", '"$ONCEBOX_FENCE" =', "x != ")],
    an_unfenced_message_runs_nothing_where_there_is_a_mark_by_now: [("COMPARE", '"$ONCEBOX_FENCE" =', "x != ")],
    a_copy_that_compared_before_the_directory_was_wiped_runs_nothing: [
        ("MAKE", "set +C", 'set +C; echo @BOOT@ >"${1%/*}/boot"')
    ],
    a_late_message_meets_the_void: [("MAKE", "set -C\n", "")],
    a_void_is_not_made_over_a_run: [("VOID", 'ln "$t" "$f"', 'mv "$t" "$f"'), ("VOID", '[ -e "$f" ] ||', "")],
    no_run_without_a_fence: [("MAKE", "exit @NOTHING@; }", '[ ! -e "$1" ] || exit 0; }')],
    no_fence_where_the_input_is_missing: [
        ("OPEN_INPUT", "[ -f @INPUT@ ] &&", ""),
        ("OPEN_INPUT", "} <@INPUT@", "} </dev/null"),
    ],
    streams_are_apart_or_nothing_runs: [("OPEN_APART", "/*.output)", "/*)"), ("OPEN_APART", '3>"${2', '3>&1; : "${2')],
    a_mark_that_cant_be_reached_is_not_another_mark: [("COMPARE", "|| ONCEBOX_FENCE=none", "|| ONCEBOX_FENCE=boot")],
    one_mark_of_thirty: [
        ("READY", 'ln "$t" "$d/boot"', 'mv "$t" "$d/boot"'),
        ("READY", '[ -s "$d/boot" ]', "sleep 0.1; false"),
    ],
}
"""Rule -> what takes it out of a text: the text, what is replaced, by what."""


@pytest.mark.parametrize("rule", KEPT, ids=lambda rule: rule.__name__)
def test_the_rule_is_kept(shell: Shell, rule: Callable[[Shell], bool]) -> None:
    if rule is a_copy_that_compared_before_the_directory_was_wiped_runs_nothing and shell.user is not None:
        pytest.skip("another user can't empty the directory: the mark is the daemon's")
    if rule is a_mark_that_cant_be_reached_is_not_another_mark and shell.user is None:
        pytest.skip("the daemon's user can reach everything")
    if rule is no_void_in_a_directory_wiped_meanwhile and shell.name == "busybox":
        pytest.skip("busybox has its own ln, which can't be delayed")
    assert rule(shell)


@pytest.mark.parametrize("rule", KEPT, ids=lambda rule: rule.__name__)
def test_the_rule_is_not_kept_without_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: Callable[[Shell], bool]
) -> None:
    for name, lines, instead in KEPT[rule]:
        text = getattr(scripts, name)
        assert lines in text, "the text has changed: say anew what takes the rule out"
        monkeypatch.setattr(scripts, name, text.replace(lines, instead))
    user = ANOTHER if rule is a_mark_that_cant_be_reached_is_not_another_mark else ""
    for place in shell_of(f"dash{user}", tmp_path):
        assert not rule(place)
