"""The fence where things go wrong: full disks, no /proc, read-only directories, and whoever dies half-way."""

import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.core.fence import protocol, scripts
from service.core.fence.protocol import MERGED, Fence, Look, Marker, Streams
from tests.contract.fence_rig import EACH, Ended, Shell, boot_mark, fenced, shell_of
from tests.support.waiting import PATIENCE

RANDOM = "1" * 32
AGES_AGO = 5_000_000


@pytest.fixture(params=EACH)
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    """Each shell in turn, with an empty home."""
    yield from shell_of(request.param, tmp_path)


@pytest.fixture
def emptying(shell: Shell) -> Shell:
    """A shell whose commands can empty the fence directory: another user's can remove nothing of the daemon's."""
    if shell.user is not None:
        pytest.skip("the mark is the daemon's")
    return shell


def mounted(path: Path, *options: str) -> bool:
    """A file system of our own at `path`, where this machine allows it."""
    path.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", *options, "tmpfs", str(path)]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def small_disk(shell: Shell) -> Iterator[Path]:
    """A file system of 64 KiB that holds the fence directory."""
    disk = shell.home / "disk"
    if not mounted(disk, "-o", "size=64k"):
        pytest.skip("no file system can be mounted here")
    shell.directory = str(disk / "fences")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Use up every block. Files can still be made, and everybody can empty this one."""
    filler = disk / "filler"
    filler.touch()
    filler.chmod(0o666)
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    return filler


def fence_file(shell: Shell, token: str = "") -> Path:
    return Path(protocol.fence_path(shell.directory, token or shell.token))


def mark(shell: Shell) -> str:
    boot = boot_mark(shell)
    assert boot is not None
    return boot.text


def submit(shell: Shell, boot: str | None, command: str = "echo ran", streams: Streams = MERGED) -> Ended:
    text, env = fenced(shell, command, shell.token, boot=boot, streams=streams)
    return shell.run(text, env)


def void(shell: Shell, boot: str, token: str = "") -> protocol.Voided:
    return protocol.parse_void(shell.own(protocol.void(shell.directory, token or shell.token, boot, RANDOM)))


def look(shell: Shell, token: str = "") -> Look:
    return protocol.parse_look(shell.own(protocol.look(shell.directory, token or shell.token)))


def end(shell: Shell, token: str = "") -> protocol.End:
    return protocol.parse_end(shell.own(protocol.end(shell.directory, token or shell.token)))


def clean(shell: Shell, *tokens: str, age: int = 86_400, outputs: tuple[str, ...] = ()) -> list[str]:
    text = protocol.clean(shell.directory, tokens, age=age, outputs=outputs)
    return protocol.parse_clean(shell.own(text))


def started(shell: Shell, command: str) -> subprocess.Popen[bytes]:
    """A fenced command that has begun."""
    text, env = fenced(shell, f"echo begun >{shell.home}/begun; {command}", shell.token, boot=mark(shell))
    process, _ = shell.start(text, env)
    deadline = time.monotonic() + PATIENCE
    while not (shell.home / "begun").exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    (shell.home / "begun").unlink()
    return process


def dead(pid: int) -> bool:
    """Gone, or waiting for whoever took over a process without a parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


# -- disks


def test_a_full_disk_does_not_keep_a_command_from_running(shell: Shell, small_disk: Path) -> None:
    boot = mark(shell)
    fill(small_disk)
    assert submit(shell, boot, "echo ran; exit 3") == Ended(3, b"ran\n")
    assert look(shell).fence == Fence(kind="empty")
    again = submit(shell, boot)
    assert protocol.parse_marker(again.output, shell.token) == Marker("run")
    assert void(shell, boot).outcome == "run"


def test_a_disk_that_is_full_for_a_while_costs_the_details_not_the_exit_code(shell: Shell, small_disk: Path) -> None:
    boot = mark(shell)
    filler = fill(small_disk)
    assert submit(shell, boot, f"echo ran; : >{filler}; exit 3") == Ended(3, b"ran\n")
    assert look(shell).fence == Fence(kind="damaged", exit_code=3)


def test_a_void_on_a_full_disk_is_no_void(shell: Shell, small_disk: Path) -> None:
    boot = mark(shell)
    filler = fill(small_disk)
    assert void(shell, boot).outcome == "error"
    assert sorted(path.name for path in Path(shell.directory).iterdir()) == ["boot"]
    filler.unlink()
    assert void(shell, boot).outcome == "voided"


def test_a_mark_on_a_full_disk_is_no_mark(shell: Shell, small_disk: Path) -> None:
    Path(shell.directory).mkdir()
    filler = fill(small_disk)
    assert boot_mark(shell) is None
    assert list(Path(shell.directory).iterdir()) == []
    assert submit(shell, None, "echo ran; exit 3") == Ended(3, b"ran\n")
    filler.unlink()
    assert boot_mark(shell) is not None


def test_nothing_runs_where_there_is_a_mark_and_no_file_can_be_made(shell: Shell) -> None:
    disk = shell.home / "disk"
    if not mounted(disk, "-o", "nr_inodes=3"):
        pytest.skip("no file system can be mounted here")
    shell.directory = str(disk)
    try:
        (disk / "one").touch()
        boot = mark_with_one_file(disk)
        assert protocol.parse_marker(submit(shell, boot).output, shell.token) == Marker("none")
        assert void(shell, boot).outcome == "error"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def mark_with_one_file(disk: Path) -> str:
    """As `ready` makes it, which needs a second file for a moment."""
    (disk / "boot").write_text(f"{RANDOM} 7\n")
    with pytest.raises(OSError, match="No space"):
        (disk / "two").touch()
    return f"{RANDOM} 7"


def test_a_command_runs_unfenced_where_nothing_can_be_written(shell: Shell) -> None:
    disk = shell.home / "disk"
    if not mounted(disk, "-o", "ro"):
        pytest.skip("no file system can be mounted here")
    shell.directory = str(disk / "fences")
    try:
        assert protocol.parse_ready(shell.own(protocol.ready(shell.directory, RANDOM))).boot is None
        assert submit(shell, None, "echo ran; kill -9 $$") == Ended(137, b"ran\n")
        assert void(shell, f"{RANDOM} 7").outcome == "boot"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_fence_directory_that_is_a_file_is_none(shell: Shell) -> None:
    Path(shell.directory).write_text("mine")
    assert boot_mark(shell) is None
    assert submit(shell, None) == Ended(0, b"ran\n")
    assert Path(shell.directory).read_text() == "mine"


@pytest.fixture
def without_proc(shell: Shell) -> Shell:
    """A shell whose commands find nothing in /proc."""
    hide = 'mount -t tmpfs none /proc && exec "$@"'
    prefix = ("unshare", "-m", "--propagation", "private", "/bin/sh", "-c", hide, "hide")
    if shell.user is not None or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("/proc can't be hidden here")
    shell.prefix = prefix
    return shell


def test_everything_works_without_proc(without_proc: Shell) -> None:
    shell = without_proc
    ready = protocol.parse_ready(shell.own(protocol.ready(shell.directory, RANDOM)))
    assert ready.boot is not None
    assert (ready.boot.text, ready.start) == (f"{RANDOM} 0", 0)
    assert submit(shell, ready.boot.text, "echo ran; exit 3") == Ended(3, b"ran\n")
    seen = look(shell)
    assert seen.alive is None
    assert seen.fence is not None
    assert (seen.fence.kind, seen.fence.log, seen.fence.exit_code) == ("run", None, 3)
    assert end(shell) == "error"
    os.utime(fence_file(shell), (AGES_AGO, AGES_AGO))
    assert clean(shell, shell.token) == []
    assert void(shell, ready.boot.text, "e" * 32).outcome == "voided"


def test_the_first_process_may_have_any_name(shell: Shell) -> None:
    if subprocess.run(["unshare", "-p", "-f", "--mount-proc", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no pid namespace can be made here")
    odd = shell.bin / "a) R (b 1 2"
    shutil.copy("/bin/dash", odd)
    shell.prefix = ("unshare", "-p", "-f", "--mount-proc", str(odd), "-c", 'eval "$2"')
    text = protocol.ready(shell.directory, RANDOM).removesuffix("; exit 0") + "; cat /proc/1/stat"
    printed = shell.own(text)
    said, stat = printed.rpartition("\n1 (")[::2]
    assert stat.startswith("a) R (b 1 2) ")
    assert protocol.parse_ready(said).start == int(stat.rpartition(")")[2].split()[19])


def test_without_proc_streams_are_not_apart_and_nothing_runs(without_proc: Shell) -> None:
    boot = mark(without_proc)
    ended = submit(without_proc, boot, streams=Streams(apart=True))
    assert protocol.parse_marker(ended.output, without_proc.token) == Marker("apart")
    assert (ended.code, fence_file(without_proc).exists()) == (protocol.NOTHING_RAN, False)


def test_where_no_file_can_be_made_for_stderr_nothing_runs(shell: Shell) -> None:
    boot = mark(shell)
    text, env = fenced(shell, "echo ran", shell.token, boot=boot, streams=Streams(apart=True))
    env[protocol.SCRIPT_VARIABLE] = env[protocol.SCRIPT_VARIABLE].replace('3>"${2%.output}', '3>"/nosuch/${2##*/}')
    ended = shell.run(text, env)
    assert (ended.code, protocol.parse_marker(ended.output, shell.token)) == (protocol.NOTHING_RAN, Marker("apart"))
    assert not fence_file(shell).exists()


# -- what a command is to read


def test_an_input_that_is_not_there_or_no_file_keeps_a_command_from_running(shell: Shell) -> None:
    boot = mark(shell)
    fifo, private = shell.home / "fifo", shell.home / "private"
    os.mkfifo(fifo)
    private.write_text("x")
    private.chmod(0)
    refused = ["/nosuch", "nosuch", str(shell.home), str(fifo), "/dev/null", "/dev/tcp/localhost/1", "-", "&3", "a\nb"]
    for path in [*refused, *([str(private)] if shell.user is not None else [])]:
        for streams in (Streams(stdin=path), Streams(stdin=path, apart=True)):
            ended = submit(shell, boot, streams=streams)
            assert (ended.code, protocol.parse_marker(ended.output, shell.token)) == (
                protocol.NOTHING_RAN,
                Marker("input"),
            )
            assert not fence_file(shell).exists(), "the next attempt may run"
            assert ended.errors is None, "nothing is left"


def test_a_copy_that_meets_the_run_leaves_no_file_for_its_stderr(shell: Shell) -> None:
    boot = mark(shell)
    assert submit(shell, boot, streams=Streams(apart=True)).errors == b""
    second = submit(shell, boot, streams=Streams(apart=True))
    assert (protocol.parse_marker(second.output, shell.token), second.errors) == (Marker("run", "f" * 32), None)


def test_inputs_are_cleaned_away_by_their_age(shell: Shell) -> None:
    boot = mark(shell)
    old, young, anothers = (Path(protocol.input_path(shell.directory, secrets.token_hex(16))) for _ in range(3))
    submit(shell, boot)
    for path in (old, young, anothers):
        path.write_text("x")
    almost = time.time() - protocol.INPUT_LIFETIME + 60
    os.utime(old, (AGES_AGO, AGES_AGO))
    os.utime(young, (almost, almost))
    clean(shell, shell.token, age=0)
    assert (old.exists(), young.exists(), anothers.exists()) == (False, True, True)


# -- what another user can't reach


@pytest.mark.parametrize("closed", ["fences", "place", "mark"])
def test_a_user_who_cant_reach_the_directory_is_told_so_at_once(shell: Shell, closed: str) -> None:
    """By a marker, which is not that of another mark: nothing needs to be found out."""
    if shell.user is None:
        pytest.skip("this one can reach everything")
    shell.directory = str(shell.home / "place" / "fences")
    boot = mark(shell)
    directory = Path(shell.directory)
    {"fences": directory, "place": directory.parent, "mark": directory / "boot"}[closed].chmod(0o600)
    assert protocol.parse_marker(submit(shell, boot).output, shell.token) == Marker("none")
    assert not fence_file(shell).exists()


@pytest.mark.parametrize("umask", [0o077, 0o777])
def test_the_mark_and_a_void_are_for_everybody_whatever_the_umask(shell: Shell, umask: int) -> None:
    shell.umask = umask
    shell.directory = str(shell.home / "deep" / "fences")
    boot = mark(shell)
    assert submit(shell, boot).output == b"ran\n"
    voided = secrets.token_hex(16)
    assert void(shell, boot, voided).outcome == "voided"
    shell.token = voided
    assert protocol.parse_marker(submit(shell, boot).output, voided) == Marker("void")


# -- what a job does to its fences


def test_a_job_that_wipes_the_directory(emptying: Shell) -> None:
    shell = emptying
    boot = mark(shell)
    assert submit(shell, boot, f"rm -rf {shell.directory}; echo ran; exit 3") == Ended(3, b"ran\n")
    seen = look(shell)
    assert (seen.boot, seen.fence, seen.processes) == (None, None, ())
    assert not protocol.Boot("x", seen.start).replaced_by(seen.start)


def test_a_wiped_fence_that_is_written_to_again_is_not_misread(emptying: Shell) -> None:
    shell = emptying
    boot = mark(shell)
    wipe = f"rm -rf {shell.directory}/*; echo 'other 7' >{shell.directory}/boot; exit 3"
    assert submit(shell, boot, wipe).code == 3
    seen = look(shell)
    assert seen.boot == protocol.Boot("other 7", 7)
    assert seen.fence == Fence(kind="damaged", exit_code=3)


def test_a_void_that_a_run_wrote_into_is_none(emptying: Shell) -> None:
    shell = emptying
    boot = mark(shell)
    process = started(shell, "sleep 0.3; exit 3")
    fence_file(shell).unlink()
    assert void(shell, boot).outcome == "voided"
    process.wait()
    assert void(shell, boot).fence == Fence(kind="damaged", exit_code=3)


def test_a_fence_that_is_a_directory(shell: Shell) -> None:
    boot = mark(shell)
    fence_file(shell).mkdir()
    assert protocol.parse_marker(submit(shell, boot).output, shell.token) == Marker("run")
    voided = void(shell, boot)
    assert (voided.outcome, voided.fence) == ("run", Fence(kind="empty"))
    assert not list(fence_file(shell).iterdir())


# -- deaths half-way


def test_a_wrapper_that_dies_before_it_fills_its_fence(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "FILL", "kill -9 $$\n")
    boot = mark(shell)
    assert submit(shell, boot) == Ended(137, b"")
    assert (look(shell).fence, look(shell).processes) == (Fence(kind="empty"), ())
    monkeypatch.undo()
    assert void(shell, boot).fence == Fence(kind="empty")
    assert protocol.parse_marker(submit(shell, boot).output, shell.token) == Marker("run")


def test_a_void_that_dies_half_way_counts_for_nothing(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    boot = mark(shell)
    monkeypatch.setattr(scripts, "VOID", scripts.VOID.replace("ln ", "kill -9 $$ && ln ", 1))
    assert void(shell, boot).outcome == "error"
    monkeypatch.undo()
    left = [path for path in Path(shell.directory).iterdir() if path.name != "boot"]
    assert [path.name for path in left] == [f".tmp.{RANDOM}"]
    assert look(shell).fence is None
    assert submit(shell, boot).output == b"ran\n"
    os.utime(left[0], (AGES_AGO, AGES_AGO))
    clean(shell)
    assert not left[0].exists()


# -- looking and ending


def test_a_living_run_is_found_and_only_that(shell: Shell) -> None:
    process = started(shell, "sleep 600")
    for text in (protocol.end, protocol.look):  # our own commands about this token, in the middle of their work
        shell.start(f"{text(shell.directory, shell.token)}".replace("find_token", "sleep 600; find_token", 1))
    seen = look(shell)
    assert seen.processes == (process.pid,)
    assert seen.fence is not None
    assert (seen.fence.pid, seen.fence.exit_code) == (process.pid, None)
    assert look(shell, "d" * 32).processes == ()


def test_a_run_that_outlived_its_daemon_is_ended_with_its_group(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine three seconds may be too few for the shell to say goodbye.
    monkeypatch.setattr(scripts, "END", scripts.END.replace("wait_while find_token 30", "wait_while find_token 300", 1))
    child = shell.home / "child"
    process = started(shell, f"trap 'echo bye' TERM; (trap '' TERM; sleep 60) & echo $! >{child}; sleep 60")
    assert end(shell) == "ended"
    assert process.wait(PATIENCE) in (0, 143)
    assert dead(int(child.read_text()))
    assert end(shell) == "gone"
    assert look(shell).alive is False


def test_a_run_that_ignores_sigterm_is_killed_after_three_seconds(shell: Shell) -> None:
    process = started(shell, "trap '' TERM; while :; do sleep 60; done")
    begin = time.monotonic()
    assert end(shell) == "ended"
    assert time.monotonic() - begin > 2.9
    assert process.wait(PATIENCE) == -signal.SIGKILL


def test_what_can_still_be_found_after_sigkill_has_not_ended(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process that waits for a disk."""
    process = started(shell, "trap '' TERM; while :; do sleep 60; done")
    monkeypatch.setattr(scripts, "END", scripts.END.replace("all KILL", "all CONT", 1))
    assert end(shell) == "error"
    monkeypatch.undo()
    assert end(shell) == "ended"
    assert process.wait(PATIENCE) == -signal.SIGKILL


def test_the_end_is_waited_for_with_all_that_the_first_process_left(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = started(shell, "(trap '' TERM; sleep 60) & sleep 60")
    monkeypatch.setattr(scripts, "END", scripts.END.replace("all KILL", "all CONT", 1))
    begin = time.monotonic()
    assert end(shell) == "ended"
    assert time.monotonic() - begin > 1
    os.killpg(process.pid, signal.SIGKILL)


def test_a_pid_that_is_anothers_by_now_is_left_alone(shell: Shell) -> None:
    boot = mark(shell)
    assert submit(shell, boot).code == 0
    other, _ = shell.start("sleep 60")
    path = fence_file(shell)
    path.write_text(path.read_text().replace("pid=", f"pid={other.pid}\nold="))
    assert end(shell) == "not_ours"
    assert other.poll() is None


def test_ending_a_run_that_lost_its_fence(shell: Shell) -> None:
    process = started(shell, f"rm -f {fence_file(shell)}; sleep 60")
    assert end(shell) == "ended"
    assert process.wait(PATIENCE) == 143


# -- cleaning


def test_old_fences_and_outputs_of_ended_jobs_are_removed(shell: Shell) -> None:
    boot = mark(shell)
    young, voided, stranger = (secrets.token_hex(16) for _ in range(3))
    submit(shell, boot)
    run_log = look(shell).fence
    assert run_log is not None
    assert run_log.log is not None
    void(shell, boot, voided)
    void(shell, boot, young)
    marker_output = shell.home / "second.output"
    mine, unlisted = Path(shell.directory) / "notes", fence_file(shell, stranger)
    for path in (marker_output, mine, unlisted):
        path.write_text("x")
    for path in (fence_file(shell), fence_file(shell, voided), marker_output, mine, unlisted):
        os.utime(path, (AGES_AGO, AGES_AGO))

    cleaned = clean(shell, shell.token, voided, young, outputs=(str(marker_output),))

    assert set(cleaned) == {shell.token, voided}

    assert not Path(run_log.log).exists()
    assert not marker_output.exists()
    assert {path.name for path in Path(shell.directory).iterdir()} == {young, "boot", stranger, "notes"}


def test_a_running_job_is_not_cleaned_away(shell: Shell) -> None:
    started(shell, "sleep 9")
    os.utime(fence_file(shell), (AGES_AGO, AGES_AGO))
    assert clean(shell, shell.token) == []
    assert fence_file(shell).exists()


def test_nothing_young_is_cleaned_away_whatever_age_is_asked_for(shell: Shell) -> None:
    """So a copy of a submission that is still on its way meets its fence."""
    submit(shell, mark(shell))
    almost = time.time() - protocol.MESSAGE_LIFETIME + 60
    os.utime(fence_file(shell), (almost, almost))
    assert clean(shell, shell.token, age=0) == []
    assert fence_file(shell).exists()


def test_only_outputs_are_removed_whatever_a_fence_names(shell: Shell) -> None:
    boot, precious = mark(shell), shell.home / "precious"
    precious.write_text("x")
    secret = secrets.token_hex(16)
    fence_file(shell, secret).write_text(f"fp=x\nlog={precious}\n")
    os.utime(fence_file(shell, secret), (AGES_AGO, AGES_AGO))
    assert clean(shell, secret) == [secret]
    assert precious.exists()
    assert mark(shell) == boot
