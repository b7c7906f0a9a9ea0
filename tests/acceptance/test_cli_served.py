"""The command line against a replica that ``oncebox serve`` runs: jobs that stay, and getting back to them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.processes import ManagedProcess
from tests.support.redis_server import RedisServer
from tests.unit.cli.ptys import CTRL_C, TerminalProcess

pytestmark = pytest.mark.acceptance

ONCEBOX = (sys.executable, "-m", "service.cli")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("ONCEBOX_")}
COUNT = "for i in 1 2 3; do echo $i; sleep 1; done; exit 3"
WAITS = "until [ -e go ]; do sleep 0.1; done"
"""For a file that another command makes in the same directory."""

Oncebox = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A replica with a store and an engine of its own."""
    folder = tmp_path_factory.mktemp("served")
    words = [*ONCEBOX, "serve", "--bind", "127.0.0.1:0"]
    unset = {name: None for name in os.environ if name.startswith("ONCEBOX_")}
    with ManagedProcess(words, folder=folder, name="serve", env=unset) as replica:
        match = replica.wait_for_line(r'\{"url":"(http://[^"]+)"')
        yield match[1]
        assert replica.terminate() == 0, replica.report()


@pytest.fixture
def oncebox(url: str) -> Oncebox:
    """Calls ``oncebox`` with these words."""

    def call(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*ONCEBOX, *words],
            env={**CLEAN, "ONCEBOX_URL": url, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=60,
            check=False,
        )

    return call


@pytest.fixture
def sandbox(oncebox: Oncebox) -> Iterator[str]:
    """A sandbox to run in."""
    sandbox_id = oncebox("sandboxes", "create", "--timeout", "600").stdout.strip()
    yield sandbox_id
    assert oncebox("sandboxes", "rm", sandbox_id).returncode == 0


def sandbox_ids(oncebox: Oncebox) -> set[str]:
    return {item["sandbox_id"] for item in json.loads(oncebox("sandboxes", "ls", "--json").stdout)}


def terminal(url: str, *words: str, **env: str) -> TerminalProcess:
    return TerminalProcess([*ONCEBOX, *words], env={"ONCEBOX_URL": url, **env})


def test_run_makes_a_sandbox_and_deletes_it_at_its_end(url: str, oncebox: Oncebox) -> None:
    before = sandbox_ids(oncebox)
    with terminal(url, "run", "--", "sh", "-c", f"echo 1; {WAITS}; echo 2; exit 3") as screen:
        screen.wait_for("1\n")  # its output comes while it runs
        (during,) = sandbox_ids(oncebox) - before
        oncebox("run", "--sandbox", during, "--", "touch", "go")
        code = screen.wait()

    assert (code, screen.left) == (3, "1\n2\n")
    assert sandbox_ids(oncebox) == before


def test_a_detached_job_is_followed_from_anywhere(oncebox: Oncebox, sandbox: str) -> None:
    detached = oncebox("run", "--sandbox", sandbox, "--detach", "--", "sh", "-c", COUNT)
    command_id = detached.stdout.strip()

    followed = oncebox("logs", "-f", command_id)
    status = json.loads(oncebox("status", "--json", command_id).stdout)
    listed = json.loads(oncebox("ps", "--json", "--sandbox", sandbox).stdout)
    short = oncebox("status", command_id[-12:])

    assert re.fullmatch(r"cmd_\S+", command_id)
    assert (followed.returncode, followed.stdout, followed.stderr) == (0, "1\n2\n3\n", "")
    assert (status["command_id"], status["state"], status["exit_code"]) == (command_id, "exited", 3)
    assert [item["command_id"] for item in listed] == [command_id]
    assert "exited with 3" in short.stdout


def test_exec_wait_and_a_live_view(url: str, oncebox: Oncebox, sandbox: str) -> None:
    command_id = oncebox("exec", "--detach", sandbox[-12:], "--", "sh", "-c", f"echo 1; {WAITS}; exit 4").stdout.strip()
    with terminal(url, "ps", "--watch", "--sandbox", sandbox) as screen:
        screen.wait_for("running")
        waiting = subprocess.Popen(
            [*ONCEBOX, "wait", command_id], env={**CLEAN, "ONCEBOX_URL": url}, stdout=subprocess.PIPE, text=True
        )
        assert oncebox("exec", sandbox, "--", "touch", "go").returncode == 0
        told, _ = waiting.communicate(timeout=60)
        screen.wait_for("exited")
        screen.press(CTRL_C)
        code = screen.wait()

    assert (waiting.returncode, told) == (4, f"{command_id} exited with 4\n")
    assert code == 0
    assert screen.raw.endswith(b"\x1b[?25h\x1b[?1049l\r\n"), "the terminal is as it was"
    assert oncebox("logs", "--tail", "1", command_id).stdout == "1\n"


def test_the_same_key_is_the_same_job(oncebox: Oncebox, sandbox: str) -> None:
    words = ("run", "--sandbox", sandbox, "--key", "once", "--", "sh", "-c", "echo $$; date +%N")

    first, second = oncebox(*words), oncebox(*words)

    assert first.stdout
    assert first.stdout == second.stdout


def test_a_reader_of_logs_that_has_enough_ends_them_quietly(oncebox: Oncebox, url: str, sandbox: str) -> None:
    endless = "while :; do echo 1; sleep 0.1; done"
    command_id = oncebox("run", "--sandbox", sandbox, "--detach", "--", "sh", "-c", endless).stdout.strip()
    script = f"{' '.join(ONCEBOX)} logs -f {command_id} | head -1; echo ${{PIPESTATUS[0]}}"

    result = subprocess.run(
        ["bash", "-c", script],
        env={**CLEAN, "ONCEBOX_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (result.stdout, result.stderr) == ("1\n141\n", "")


def test_logs_are_interrupted_and_go_on_where_they_stopped(url: str, oncebox: Oncebox, sandbox: str) -> None:
    script = f"echo line 1; echo line 2; {WAITS}; echo line 3"
    command_id = oncebox("run", "--sandbox", sandbox, "--detach", "--", "sh", "-c", script).stdout.strip()
    with terminal(url, "logs", "-f", command_id) as screen:
        screen.wait_for("line 2\n")
        screen.press(CTRL_C)
        code = screen.wait()
    hint = re.search(r"oncebox (logs -f --cursor \S+ cmd_\S+)", screen.screen)
    assert hint is not None, screen.screen

    oncebox("run", "--sandbox", sandbox, "--", "touch", "go")
    rest = oncebox(*hint[1].split())

    assert code == 130
    seen = re.findall(r"line (\d)", screen.screen) + re.findall(r"line (\d)", rest.stdout)
    assert seen == list("123")


def test_ctrl_c_cancels_the_job_and_a_named_sandbox_stays(url: str, oncebox: Oncebox, sandbox: str) -> None:
    with terminal(url, "run", "--sandbox", sandbox, "--", "sh", "-c", "echo ready; sleep 8765") as screen:
        screen.wait_for("ready")
        screen.press(CTRL_C)
        code = screen.wait()

    (job,) = json.loads(oncebox("ps", "--json", "--sandbox", sandbox).stdout)
    assert code == 130
    assert "oncebox: cancelled." in screen.screen
    assert job["state"] == "cancelled"
    assert sandbox in sandbox_ids(oncebox)


def test_ctrl_c_twice_leaves_and_says_how_to_get_back(url: str, oncebox: Oncebox, sandbox: str) -> None:
    script = 'trap "" INT TERM; echo ready; while :; do sleep 0.1; done'
    with terminal(url, "run", "--sandbox", sandbox, "--", "sh", "-c", script) as screen:
        screen.wait_for("ready")
        screen.press(CTRL_C)
        screen.wait_for("cancelling the job")
        screen.press(CTRL_C)
        code = screen.wait()

    hint = re.search(r"get back to the job with: oncebox (logs -f cmd_\S+)", screen.screen)
    assert code == 130
    assert hint is not None, screen.screen
    assert oncebox(*hint[1].split()).stdout == "ready\n"


def test_cancel_ends_a_job_that_run_waits_for(url: str, oncebox: Oncebox, sandbox: str) -> None:
    with terminal(url, "run", "--sandbox", sandbox, "--", "sh", "-c", "echo ready; sleep 8765") as screen:
        screen.wait_for("ready")
        (job,) = json.loads(oncebox("ps", "--json", "--sandbox", sandbox).stdout)
        cancelled = oncebox("cancel", job["command_id"])
        code = screen.wait()

    assert "is being cancelled" in cancelled.stdout
    assert code == 125
    assert "cancelled by somebody else" in screen.screen


@pytest.mark.parametrize(
    ("words", "number"),
    (
        (("sandboxes", "create"), signal.SIGTERM),
        (("run", "--detach", "--", "sleep", "8767"), signal.SIGINT),
    ),
)
def test_an_interrupt_at_any_moment_leaves_nothing_whose_id_is_not_known(
    url: str, oncebox: Oncebox, words: tuple[str, ...], number: signal.Signals
) -> None:
    before = sandbox_ids(oncebox)
    printed = ""
    for tenths in (4, 7, 10, 13):  # from the interpreter's start to the end; whatever is met, the promise holds
        with subprocess.Popen(
            [*ONCEBOX, *words],
            env={**CLEAN, "ONCEBOX_URL": url},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - one system call
        ) as process:
            time.sleep(tenths / 10)
            process.send_signal(number)
            printed += process.communicate(timeout=60)[0]

    for command_id in re.findall(r"cmd_\S+", printed):
        printed += json.loads(oncebox("status", "--json", command_id).stdout)["sandbox_id"] + "\n"
    left = sandbox_ids(oncebox) - before
    for sandbox_id in left:
        oncebox("sandboxes", "rm", sandbox_id)
    assert left <= set(printed.split())


@pytest.mark.parametrize(
    ("words", "out"),
    (
        ("sandboxes create", ">&-"),
        ("sandboxes create", "> /dev/full"),
        ("sandboxes create", "> >(:)"),
        ("run --detach -- sleep 8768", ">&-"),
        ("run --detach --json -- sleep 8768", "> /dev/full"),
    ),
)
def test_what_can_not_be_told_is_undone(url: str, oncebox: Oncebox, words: str, out: str) -> None:
    before = sandbox_ids(oncebox)

    result = subprocess.run(
        ["bash", "-c", f"exec {' '.join(ONCEBOX)} {words} {out}"],
        env={**CLEAN, "ONCEBOX_URL": url},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert result.returncode == (125 if words.startswith("run") else 1)
    assert re.search("so the (job was cancelled|sandbox was deleted again)", result.stderr), result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert sandbox_ids(oncebox) == before


def test_tables_are_shown_in_any_encoding(oncebox: Oncebox, sandbox: str) -> None:
    unusual = "echo 'é — 你好\n🎉'"
    command_id = oncebox("run", "--sandbox", sandbox, "--detach", "--", unusual).stdout.strip()
    for encoding in ("latin-1", "cp1252", "ascii"):
        listed = oncebox("ps", "--sandbox", sandbox, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
        shown = oncebox("status", command_id, PYTHONIOENCODING=encoding, PYTHONUTF8="0")

        for result in (listed, shown):
            assert (result.returncode, result.stderr) == (0, "")
            assert r"\u4f60\u597d" in result.stdout


def test_tables_fit_the_terminal_and_have_colours_there(url: str, oncebox: Oncebox, sandbox: str) -> None:
    oncebox("run", "--sandbox", sandbox, "--", "sh", "-c", "sleep 0 # " + "x" * 200)
    with terminal(url, "ps", "--sandbox", sandbox) as coloured:
        coloured.wait()
    with terminal(url, "ps", "--sandbox", sandbox, NO_COLOR="1") as plain:
        plain.wait()

    assert b"\x1b[" in coloured.raw
    assert b"\x1b[" not in plain.raw
    for screen in (coloured.screen, plain.screen):
        assert [len(line) <= 80 for line in screen.splitlines()] == [True, True]
    assert oncebox("ps", "--sandbox", sandbox).stdout.splitlines()[1].endswith("x" * 200 + "'")


def test_a_sandbox_that_is_gone_is_a_sentence(oncebox: Oncebox) -> None:
    result = oncebox("run", "--sandbox", "gone", "--", "true")

    assert (result.returncode, result.stdout) == (125, "")
    assert "oncebox sandboxes ls" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_without_a_service_a_sentence_says_how_to_start_one(oncebox: Oncebox) -> None:
    result = oncebox("ps", ONCEBOX_URL=f"http://127.0.0.1:{free_port()}")

    assert result.returncode == 1
    assert "oncebox serve" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_doctor_finds_nothing_wrong_with_a_good_service(oncebox: Oncebox) -> None:
    result = oncebox("doctor", "--try", "--json")

    report = json.loads(result.stdout)
    assert (result.returncode, report["healthy"]) == (0, True), result.stdout
    verdicts = {finding["about"]: finding["verdict"] for finding in report["findings"]}
    assert verdicts["service"] == verdicts["a command"] == verdicts["API key"] == "ok"


@pytest.mark.integration
def test_the_doctor_names_what_is_wrong_and_its_mend(oncebox: Oncebox, redis_server: RedisServer) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    with redis_server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        result = oncebox(
            "doctor",
            ONCEBOX_REDIS_URL=redis_server.url,
            ONCEBOX_ENGINE_URL=f"http://{nobody}",
            ONCEBOX_URL=f"http://{nobody}",
        )
    finally:
        with redis_server.client() as client:
            client.config_set("maxmemory-policy", "noeviction")

    assert result.returncode == 1
    assert "WRONG  Redis eviction" in result.stdout
    assert "WRONG  Redis persistence" in result.stdout
    assert "ok     Redis clock" in result.stdout
    assert "WRONG  engine" in result.stdout
    assert "WRONG  service" in result.stdout
    assert "maxmemory-policy noeviction" in result.stdout


def test_the_doctor_looks_into_an_engine_run_apart(oncebox: Oncebox, tmp_path: Path) -> None:
    words = [*ONCEBOX, "engine", "--bind", "127.0.0.1:0", "--root", str(tmp_path / "root")]
    with ManagedProcess(words, folder=tmp_path, env={"OPEN_SANDBOX_API_KEY": "right"}) as engine:
        engine_url = engine.wait_for_line(r'"url": ?"(http://[^"]+)"')[1]
        good = oncebox("doctor", "--try", ONCEBOX_ENGINE_URL=engine_url, ONCEBOX_ENGINE_API_KEY="right")
        bad = oncebox("doctor", ONCEBOX_ENGINE_URL=engine_url, ONCEBOX_ENGINE_API_KEY="wrong")
        engine.send(signal.SIGTERM)
        code = engine.wait()

    assert good.returncode == 0, good.stdout
    assert "execd: ran a command in a new sandbox" in good.stdout
    assert bad.returncode == 1
    assert "ONCEBOX_ENGINE_API_KEY" in bad.stdout
    assert code == 0


def test_a_service_that_is_gone_does_not_keep_ctrl_c_from_working(tmp_path: Path) -> None:
    words = [*ONCEBOX, "serve", "--bind", "127.0.0.1:0"]
    unset = {name: None for name in os.environ if name.startswith("ONCEBOX_")}
    with ManagedProcess(words, folder=tmp_path, name="serve", env=unset) as replica:
        url = replica.wait_for_line(r'\{"url":"(http://[^"]+)"')[1]
        with terminal(url, "run", "--", "sh", "-c", "echo ready; sleep 8766") as screen:
            screen.wait_for("ready")
            replica.kill()
            screen.press(CTRL_C)
            code = screen.wait()

    assert code == 130
    assert re.search(r"try again later: oncebox cancel cmd_\S+", screen.screen), screen.screen
    assert "oncebox sandboxes rm " in screen.screen
