"""``oncebox run`` with nothing configured: real processes, real pipes, real terminals."""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from service.cli.stack import PLAIN
from tests.support.ports import LOOPBACK
from tests.support.waiting import PATIENCE
from tests.unit.cli.ptys import CTRL_C, TerminalProcess

pytestmark = pytest.mark.acceptance

ONCEBOX = (sys.executable, "-m", "service.cli")
ALONE = str(secrets.randbelow(10**8) + 10**8)
"""Ends a number of seconds, or stands in a command line, of which no other run on this machine has the like."""

STUBBORN = 'trap "" INT TERM; echo ready; while :; do sleep 1; done'


class Gate:
    """Holds a command in bash where it says ``wait``, until the test says ``open``: once for each time.

    Over loopback, which a sandbox has in common with the machine; its files it may have for itself.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.wait = f"read </dev/tcp/{LOOPBACK}/{listener.getsockname()[1]}"

    def open(self) -> None:
        """Let it go on, as soon as it has come."""
        connection, _ = self._listener.accept()
        with connection:
            connection.sendall(b"\n")


@pytest.fixture
def gate() -> Iterator[Gate]:
    with socket.create_server((LOOPBACK, 0)) as listener:
        listener.settimeout(PATIENCE)
        yield Gate(listener)


def environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ONCEBOX_")}
    return {**clean, **more}


def left(terminal: TerminalProcess) -> str:
    """What is left on it, without that line."""
    return terminal.left.replace(f"oncebox: {PLAIN}\n", "", 1)


def run(
    *words: str | bytes, env: Mapping[str, str] | None = None, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    return call([*ONCEBOX, "run", *words], env=env, stdin=stdin)


def shell(script: str) -> subprocess.CompletedProcess[bytes]:
    """The script in bash, with ``oncebox`` as a function."""
    function = f'oncebox() {{ {" ".join(ONCEBOX)} "$@"; }}\n'
    return call(["bash", "-c", function + script])


def call(
    argv: Sequence[str | bytes], *, env: Mapping[str, str] | None = None, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """A process to its end. That this machine has no bwrap is left out of what it said, unless ``env`` is given."""
    result = subprocess.run(argv, env=env or environment(), input=stdin, capture_output=True, timeout=60, check=False)
    if env is None:
        lines = result.stderr.splitlines(keepends=True)
        result.stderr = b"".join(line for line in lines if not line.startswith(b"oncebox: no bwrap here"))
    return result


def processes_with(text: str) -> list[psutil.Process]:
    """Processes whose command line contains ``text``."""
    everything = psutil.process_iter(["cmdline"])
    return [process for process in everything if text in " ".join(process.info["cmdline"] or ())]


def all_gone(text: str) -> bool:
    deadline = time.monotonic() + PATIENCE
    while processes_with(text):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_output_comes_as_it_is_printed_and_the_exit_code_is_the_commands(gate: Gate) -> None:
    script = f"for line in first second third; do echo $line; {gate.wait}; done; exit 3"
    with TerminalProcess([*ONCEBOX, "run", "--", "bash", "-c", script]) as terminal:
        for line in ("first", "second", "third"):
            terminal.wait_for(f"{line}\n")
            gate.open()  # only now can the command go on
        code = terminal.wait()

    assert code == 3
    assert left(terminal) == "first\nsecond\nthird\n"


def test_output_is_the_bytes_of_the_command() -> None:
    result = run("--", "sh", "-c", r"printf '\000\001\r\n\377\376'; head -c 3000000 /dev/zero | tr '\000' '\377'")

    assert result.stdout == b"\x00\x01\r\n\xff\xfe" + b"\xff" * 3_000_000
    assert (result.returncode, result.stderr) == (0, b"")


def test_a_reader_that_has_enough_ends_it_quietly() -> None:
    result = shell(
        f"""oncebox run -- sh -c 'echo 1; yes reader-has-enough-{ALONE}' | head -1; echo "${{PIPESTATUS[0]}}" """
    )

    assert (result.stdout, result.stderr) == (b"1\n141\n", b"")
    assert all_gone(f"yes reader-has-enough-{ALONE}")


@pytest.mark.parametrize(
    ("script", "code", "out"),
    [
        ("printf 'a\\000b' | oncebox run -- cat", 0, b"a\0b"),
        ("oncebox run -- sh -c 'read a; echo $a; exit 3' </etc/passwd", 3, None),
        ("(read x; oncebox run -- cat) <<'X'\nfirst\nsecond\nX", 0, b"second\n"),
        ("head -c 3000000 /dev/zero | oncebox run -- wc -c", 0, b"3000000\n"),
        ("oncebox run -- cat </dev/null", 0, b""),
        ("printf a | oncebox run --no-stdin -- cat", 0, b""),
        ("printf 'a\\nb\\n' | while read x; do oncebox run --no-stdin -- echo $x; done", 0, b"a\nb\n"),
        ("printf '' | oncebox run -- cat", 0, b""),
    ],
)
def test_what_stands_in_stdin_is_read_by_the_command(script: str, code: int, out: bytes | None) -> None:
    result = shell(script)
    assert (result.returncode, result.stderr) == (code, b"")
    assert result.stdout == out or (out is None and result.stdout.startswith(b"root:"))


def test_an_input_that_does_not_end_is_waited_for_and_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    env = {"TMPDIR": str(tmp_path)}
    with (
        subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless,
        subprocess.Popen(
            [*ONCEBOX, "run", "--", "head", "-1"],
            stdin=endless.stdout,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(**env),
            start_new_session=True,
        ) as process,
    ):
        assert process.stderr is not None
        said = process.stderr.readline()
        assert b"waiting for the end of stdin" in said
        assert b"--no-stdin" in said
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        endless.kill()
    assert (process.returncode, out) == (130, b"")
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_does_not_start_is_a_sentence_that_says_why(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'service.local_engine' in sys.orig_argv:\n"
        "    print('no room on the disk', file=sys.stderr, flush=True)\n"
        "    os._exit(1)\n"
    )

    result = run("--", "true", env=environment(PYTHONPATH=str(tmp_path)))

    assert result.returncode == 125
    (line,) = result.stderr.decode().splitlines()
    assert line == "oncebox: The local engine ended before it was ready: no room on the disk"


@pytest.mark.parametrize("package", ("hypercorn", "starlette", "fakeredis", "redis"))
def test_what_the_client_alone_does_not_bring_is_named(package: str) -> None:
    script = f"import sys; sys.modules['{package}'] = None; from service.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", script, "run", "--", "true"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert result.returncode == 125
    assert f"needs the package {package}: pip install 'oncebox[server]'" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_full_disk_is_a_sentence() -> None:
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [*ONCEBOX, "run", "--", "yes", f"full-disk-{ALONE}"],
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )

    assert result.returncode == 125
    told = result.stderr.replace(f"oncebox: {PLAIN}\n".encode(), b"")
    assert told.startswith(b"oncebox: stdout can't be written (No space left on device)")
    assert all_gone(f"yes full-disk-{ALONE}")


@pytest.mark.parametrize("closed", ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"))
def test_closed_standard_streams_do_no_harm(closed: str) -> None:
    result = shell(f"oncebox run -- sh -c 'echo out; exit 3' {closed}; echo $?")

    assert result.stdout == (b"3\n" if ">&-" in closed.split() else b"out\n3\n")
    assert result.stderr == b""


def test_a_reader_that_does_not_read_does_not_keep_ctrl_c_from_working() -> None:
    with subprocess.Popen(
        [*ONCEBOX, "run", "--", "yes", f"nobody-reads-{ALONE}"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(2) == b"no"
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=PATIENCE)

    assert code == 130
    assert all_gone(f"yes nobody-reads-{ALONE}")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    (
        (("--timeout", "1", "--", "sleep", "30"), 124, b"timed out after 1 s"),
        (("--", "sh", "-c", "kill -9 $$"), 137, b""),
        (("--", "echo a; exit 5"), 5, b""),
        (("--cwd", "/not/there", "--", "true"), 125, b"/not/there"),
        (("--detach", "--", "true"), 125, b"ONCEBOX_URL"),
        (("--nonsense",), 125, b"oncebox run --help"),
        (("--sandbox",), 125, b"--sandbox"),
        (("--sandbox", "", "--", "true"), 125, b"--sandbox"),
        (("--", b"caf\xe9"), 125, b"not UTF-8"),
        (("--env", b"A=caf\xe9", "--", "true"), 125, b"--env"),
    ),
)
def test_exit_codes(words: tuple[str | bytes, ...], code: int, said: bytes) -> None:
    result = run(*words)

    assert result.returncode == code
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == bool(said)


@pytest.mark.parametrize("words", (("-x",), ("-c", "true"), ("+x",), ("--not-an-option of ours",)))
def test_a_command_that_begins_with_a_sign_is_looked_for_as_a_shell_does(words: tuple[str, ...]) -> None:
    result = run("--", *words)

    assert (result.returncode, result.stderr) == (127, b"")
    assert b"not found" in result.stdout


def test_the_doctor_tries_a_command_where_no_service_is_named() -> None:
    words = [*ONCEBOX, "doctor", "--try", "--json"]
    result = subprocess.run(words, env=environment(), capture_output=True, timeout=60, check=False)

    findings = {finding["about"]: finding for finding in json.loads(result.stdout)["findings"]}
    assert result.returncode == 0
    assert findings["a command"]["verdict"] == "ok"
    assert "ran in a stack of its own" in findings["a command"]["said"]


def test_the_doctor_says_what_keeps_a_command_from_being_tried() -> None:
    script = "import sys; sys.modules['hypercorn'] = None; from service.cli import main; main()"
    words = [sys.executable, "-c", script, "doctor", "--try"]
    result = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=60, check=False)

    assert result.returncode == 1
    assert "WRONG  a command" in result.stdout
    assert "needs the package hypercorn" in result.stdout


def test_words_env_and_directory_arrive_as_they_are() -> None:
    result = run("--env", "A=x  y", "--cwd", "/", "--", "sh", "-c", 'echo "$A" "$PWD" "$1"', "sh", "it's  $HOME")

    assert result.stdout == b"x  y / it's  $HOME\n"


def test_ctrl_c_cancels_says_so_and_leaves_nothing() -> None:
    script = f"echo ready; sleep 7654.25{ALONE}"
    with TerminalProcess([*ONCEBOX, "run", "--", "sh", "-c", script]) as terminal:
        terminal.wait_for("ready")
        terminal.press(CTRL_C)
        code = terminal.wait()

    assert code == 130
    assert "cancelling the job; Ctrl-C again leaves at once" in terminal.screen
    assert "oncebox: cancelled." in terminal.screen
    assert all_gone(f"sleep 7654.25{ALONE}")


def test_ctrl_c_twice_leaves_at_once_and_nothing_stays() -> None:
    with TerminalProcess([*ONCEBOX, "run", "--", "sh", "-c", f"{STUBBORN} # twice {ALONE}"]) as terminal:
        terminal.wait_for("ready")
        terminal.press(CTRL_C)
        terminal.wait_for("cancelling")
        terminal.press(CTRL_C)
        code = terminal.wait()

    assert code == 130
    assert "left at once" in terminal.screen
    assert "oncebox: cancelled." not in terminal.screen
    assert all_gone(f"done # twice {ALONE}")


def test_ctrl_c_while_things_begin_is_quick() -> None:
    with TerminalProcess([*ONCEBOX, "run", "--", "sleep", f"7654.5{ALONE}"]) as terminal:
        terminal.wait_for("ing")  # the progress line's first word: "starting", or "running" where that was quick
        terminal.press(CTRL_C)
        code = terminal.wait()

    assert code == 130
    assert "Traceback" not in terminal.screen
    assert all_gone(f"sleep 7654.5{ALONE}")


def test_sigterm_ends_it_in_order() -> None:
    with TerminalProcess([*ONCEBOX, "run", "--", "sh", "-c", f"echo ready; sleep 7654.75{ALONE}"]) as terminal:
        terminal.wait_for("ready")
        terminal.send(signal.SIGTERM)
        code = terminal.wait()

    assert code == 143
    assert "oncebox: cancelled." in terminal.screen
    assert all_gone(f"sleep 7654.75{ALONE}")


def test_progress_shows_on_a_terminal_and_leaves_no_trace(tmp_path: Path, gate: Gate) -> None:
    output = tmp_path / "output"
    words = [*ONCEBOX, "run", "--", "bash", "-c", f"echo to the file; {gate.wait}"]
    with TerminalProcess(words, stdout=output, env={"NO_COLOR": "1"}) as terminal:
        terminal.wait_for("12 B of output")
        gate.open()
        code = terminal.wait()

    assert code == 0
    assert output.read_bytes() == b"to the file\n"
    assert "running" in terminal.screen
    assert left(terminal) == ""


def test_progress_never_mixes_with_output_on_the_same_terminal(gate: Gate) -> None:
    script = f"printf 'half a'; {gate.wait}; echo ' line'; {gate.wait}; echo end"
    with TerminalProcess([*ONCEBOX, "run", "--", "bash", "-c", script]) as terminal:
        terminal.wait_for("half a")
        time.sleep(1.5)  # longer than it takes to draw
        gate.open()
        terminal.wait_for("running", after=" line\n")
        gate.open()
        terminal.wait()

    assert "half a line\r\n" in terminal.raw.decode()
    assert left(terminal) == "half a line\nend\n"


def test_without_bwrap_one_short_line_says_so(tmp_path: Path) -> None:
    for directory in ("/usr/local/bin", "/usr/bin", "/bin"):
        for program in Path(directory).iterdir():
            link = tmp_path / program.name
            if program.name != "bwrap" and not link.exists():
                link.symlink_to(program)
    assert shutil.which("bwrap", path=str(tmp_path)) is None

    words = [*ONCEBOX, "run", "--", "sh", "-c", "echo out; exit 3"]
    alone = environment(PATH=str(tmp_path))
    result = subprocess.run(words, env=alone, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)

    assert (result.returncode, result.stdout) == (3, b"out\n")
    (line,) = result.stderr.decode().splitlines()
    assert line.startswith("oncebox: no bwrap here")
    assert len(line) < 110


def test_the_terminal_going_away_ends_everything() -> None:
    with TerminalProcess([*ONCEBOX, "run", "--", "sh", "-c", f"echo ready; sleep 7655.5{ALONE}"]) as terminal:
        terminal.wait_for("ready")
        terminal.send(signal.SIGHUP)
        code = terminal.wait()

    assert code == 129
    assert all_gone(f"sleep 7655.5{ALONE}")
