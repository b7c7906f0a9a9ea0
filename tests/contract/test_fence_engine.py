"""The fence on engines: the local one in both of its ways, and the execd that `ONCEBOX_TEST_EXECD_URL` names."""

import json
import os
import re
import secrets
import shlex
import time
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from service.core.fence import protocol
from service.core.fence.protocol import Fence, Look, Marker, Streams
from tests.contract.fence_commands import CASES, Case
from tests.contract.fence_rig import ANOTHER, OTHER_USER, Ended, Execd, boot_mark, fenced
from tests.contract.fence_startups import NO_PATH, STARTS, Start, compare, here
from tests.contract.local_engine_rig import BWRAP_MISSING, RunningEngine, RunningSandbox
from tests.support.ports import free_port
from tests.support.processes import Spawner
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.acceptance


@dataclass
class Site:
    """An execd, and the sandbox that it is in, where we can do more to that."""

    execd: Execd
    sandbox: RunningSandbox | None

    @property
    def boot(self) -> protocol.Boot:
        boot = boot_mark(self.execd)
        assert boot is not None
        return boot

    def submit(self, command: str, token: str, boot: str) -> str:
        """A fenced command; the engine's id of it."""
        text, env = fenced(self.execd, command, token, boot=boot)
        return self.execd.submit(text, env)

    def short(self, text: str) -> str:
        """One of our own small commands."""
        return self.execd.own(text)

    def look(self, token: str) -> Look:
        return protocol.parse_look(self.short(protocol.look(self.execd.directory, token)))

    def control(self, what: str, **action: str) -> None:
        """What happens to a sandbox."""
        assert self.sandbox is not None
        answer = self.sandbox.engine.call("POST", f"/_dev/sandboxes/{self.sandbox.id}/{what}", action)
        assert answer.status in (200, 204), answer
        self.execd = Execd(self.sandbox.execd, self.execd.directory)


@pytest.fixture(params=[f"{kind}{user}" for user in ("", ANOTHER) for kind in ("plain", "bwrap", "execd")])
def site(request: pytest.FixtureRequest, spawn: Spawner, tmp_path: Path) -> Iterator[Site]:
    """Each kind of engine, with a fence directory of its own."""
    directory = f"/tmp/oncebox-test-{secrets.token_hex(8)}"
    kind, user = request.param.removesuffix(ANOTHER), OTHER_USER if request.param.endswith(ANOTHER) else None
    if user is not None and os.geteuid():
        pytest.skip("only root can start commands of another user")
    if kind == "execd":
        url = os.environ.get("ONCEBOX_TEST_EXECD_URL")
        if not url:
            pytest.skip("ONCEBOX_TEST_EXECD_URL names no real execd")
        site = Site(Execd(url, directory), None)
    else:
        if kind == "bwrap" and BWRAP_MISSING:
            pytest.skip(BWRAP_MISSING)
        sandbox = RunningEngine(spawn, "--isolation", kind, root=tmp_path / "engine").create()
        site = Site(Execd(sandbox.execd, directory), sandbox)
    site.execd.user = user
    yield site
    site.short(f"rm -rf {directory}")


@pytest.fixture
def local(site: Site) -> Site:
    """A site whose sandbox's daemon and container can be restarted."""
    if site.sandbox is None:
        pytest.skip("this sandbox's daemon can't be restarted from here")
    return site


def comparable(ended: Ended) -> tuple[int, bytes]:
    """What must be the same; the number of a process and the command's id in its log's name are not.

    Nor is what busybox says of a child ("Terminated"), which depends on whether it was waiting for one just then.
    Nor is whether SIGINT is ignored: in a real execd each command that starts or ends changes that for all of them.
    """
    output = ended.output.replace(ended.name.encode(), b"ID")
    output = re.sub(rb"(?<=SigIgn:\t)[0-9a-f]{16}", lambda found: b"%016x" % (int(found[0], 16) & ~2), output)
    output = re.sub(rb"(?m)^Terminated\n", b"", output)
    return ended.code, re.sub(rb"(line \d+: ) *\d+( Killed)", rb"\1N\2", output)


def test_fenced_commands_end_and_print_as_unfenced_ones(site: Site) -> None:
    boot = site.boot.text

    def differs(case: Case) -> str | None:
        text, env = fenced(site.execd, case.command, secrets.token_hex(16), case.env, boot=boot)
        plain = site.execd.run_case(case.command, case.env, case)
        behind = site.execd.run_case(text, env, case)
        assert behind.status_size < 1024, case.name
        same = comparable(plain) == comparable(behind)
        return None if same else f"{case.name}: {comparable(plain)} {comparable(behind)}"

    with ThreadPoolExecutor(6) as threads:
        assert [found for found in threads.map(differs, CASES) if found] == []


def test_fenced_commands_do_what_unfenced_ones_do_where_their_environment_acts(site: Site) -> None:
    assert site.boot is not None, "made before anything else is put there"

    def differs(start: Start) -> str | None:
        directory = f"{site.execd.directory}/here-{secrets.token_hex(4)}"
        plain, behind, _ = compare(site.execd, start, directory, sent=True)
        return None if behind == plain else f"{start.name}: {plain} {behind}"

    with ThreadPoolExecutor(6) as threads:
        assert [found for found in threads.map(differs, [*STARTS, *NO_PATH]) if found] == []


Daemons = Callable[[dict[str, str], str], AbstractContextManager[Execd]]


@pytest.fixture(params=["plain", "bwrap", "execd"])
def daemons(request: pytest.FixtureRequest, spawn: Spawner, tmp_path: Path) -> Daemons:
    """Starts daemons of each kind in environments of their own, with a fence directory each."""
    program = os.environ.get("ONCEBOX_TEST_EXECD", "")
    if request.param == "execd" and not program:
        pytest.skip("ONCEBOX_TEST_EXECD names no program of the real execd")
    if request.param == "bwrap" and BWRAP_MISSING:
        pytest.skip(BWRAP_MISSING)
    if request.param == "execd":
        return lambda env, directory: real_daemon(spawn, program, env, directory)
    engine = RunningEngine(spawn, "--isolation", request.param, root=tmp_path / "engine")
    return lambda env, directory: local_daemon(engine, env, directory)


@contextmanager
def local_daemon(engine: RunningEngine, env: dict[str, str], directory: str) -> Iterator[Execd]:
    sandbox = engine.create(env=env)
    yield Execd(sandbox.execd, directory)
    sandbox.delete()


@contextmanager
def real_daemon(spawn: Spawner, program: str, env: dict[str, str], directory: str) -> Iterator[Execd]:
    port = free_port()
    process = spawn([program, "--port", str(port)], name=f"execd-{port}", env=env)
    execd = Execd(f"http://127.0.0.1:{port}", directory)
    deadline = time.monotonic() + PATIENCE
    while not answers(execd):
        assert time.monotonic() < deadline, process
        time.sleep(0.02)
    yield execd
    process.kill()


def answers(execd: Execd) -> bool:
    """Whether the daemon is there."""
    try:
        return execd.call("GET", "/ping")[0] == 200
    except OSError:
        return False


def test_so_they_do_where_the_environment_of_their_daemon_acts(daemons: Daemons) -> None:
    def differs(start: Start) -> str | None:
        directory = f"/tmp/oncebox-test-{secrets.token_hex(8)}"
        with daemons(here(start, f"{directory}/here"), directory) as execd:
            plain, behind, token = compare(execd, start, f"{directory}/here", sent=False)
            noted = protocol.parse_look(execd.own(protocol.look(directory, token))).fence
            execd.own(f"rm -rf {directory}")
        same = behind == plain and noted is not None and noted.exit_code == plain.code
        return None if same else f"{start.name}: {plain} {behind} {noted}"

    with ThreadPoolExecutor(6) as threads:
        assert [found for found in threads.map(differs, STARTS) if found] == []


def test_a_command_reads_its_input_has_its_streams_apart_and_words_are_not_parsed(site: Site) -> None:
    boot = site.boot.text
    given = protocol.input_path(site.execd.directory, secrets.token_hex(16))
    site.short(f"printf 'a\\000b' >{given}; chmod 444 {given}")
    how: dict[str, Any] = {"boot": boot, "words": True, "streams": Streams(stdin=given, apart=True)}
    words = ["sh", "-c", 'printf "%s|" "$@"; cat; echo err >&2; id -u; exit 5', "sh", "a b", "*", "$HOME"]
    ended = site.execd.run(*fenced(site.execd, shlex.join(words), secrets.token_hex(16), **how))
    user = site.execd.user if site.execd.user is not None else int(site.short("id -u"))
    assert (ended.code, ended.output) == (5, b"a b|*|$HOME|a\0b%d\n" % user)
    assert ended.errors == b"err\n"


def test_a_command_without_the_input_that_it_is_to_read_runs_nothing(site: Site) -> None:
    token = secrets.token_hex(16)
    ended = site.execd.run(*fenced(site.execd, "echo ran", token, streams=Streams(stdin="/nosuch", apart=True)))
    assert (ended.code, protocol.parse_marker(ended.output, token)) == (protocol.NOTHING_RAN, Marker("input"))
    assert ended.errors is None
    assert site.look(token).fence is None


def test_a_doubled_submission_runs_once_and_leads_to_the_run(site: Site) -> None:
    token, boot = secrets.token_hex(16), site.boot.text
    counter = f"{site.execd.directory}/ran"

    with ThreadPoolExecutor(30) as threads:
        names = list(
            threads.map(lambda _: site.submit(f"echo x >>{counter}; echo ran; exit 3", token, boot), range(30))
        )
    codes = {name: site.execd.wait(name)[0] for name in names}

    ran = [name for name in names if site.execd.output(name) == b"ran\n"]
    assert len(ran) == 1
    assert site.short(f"cat {counter}") == "x\n"
    for name in set(names) - set(ran):
        assert protocol.parse_marker(site.execd.output(name), token) == Marker("run", "f" * 32)
        assert codes[name] == protocol.NOTHING_RAN
    noted = site.look(token).fence
    assert noted is not None
    assert (noted.kind, noted.exit_code, noted.timeout) == ("run", 3, 60)
    assert noted.log is not None
    assert noted.log.endswith(f"/{ran[0]}.output")
    status = json.loads(site.execd.call("GET", f"/command/status/{ran[0]}")[1])
    assert token in status["content"]
    query = urllib.parse.urlencode({"path": noted.log})
    assert site.execd.call("GET", f"/files/download?{query}") == (200, b"ran\n")


def test_a_foreground_run_notes_where_its_output_goes(site: Site) -> None:
    token = secrets.token_hex(16)
    text, env = fenced(site.execd, "echo out; echo err >&2; exit 3", token, boot=site.boot.text)
    site.execd.foreground(text, env)
    noted = site.look(token).fence
    assert noted is not None
    assert noted.log is not None
    assert noted.log.endswith(".stdout")
    assert noted.exit_code == 3
    for path, printed in ((noted.log, b"out\n"), (noted.log.removesuffix("stdout") + "stderr", b"err\n")):
        query = urllib.parse.urlencode({"path": path})
        assert site.execd.call("GET", f"/files/download?{query}") == (200, printed)


def test_a_void_keeps_a_late_submission_from_running(site: Site) -> None:
    token, boot = secrets.token_hex(16), site.boot.text
    void = protocol.void(site.execd.directory, token, boot, secrets.token_hex(16))
    assert protocol.parse_void(site.short(void)).outcome == "voided"
    name = site.submit("echo ran", token, boot)
    assert site.execd.wait(name)[0] == protocol.NOTHING_RAN
    assert protocol.parse_marker(site.execd.output(name), token) == Marker("void")


def test_a_living_run_is_found_and_ended_with_its_children(site: Site) -> None:
    token, boot = secrets.token_hex(16), site.boot.text
    name = site.submit("(trap '' TERM; sleep 60) & echo $!; sleep 60", token, boot)
    while not (child := site.execd.output(name).strip()):
        pass
    seen = site.look(token)
    assert seen.alive
    assert seen.fence is not None
    assert (seen.fence.pid,) == seen.processes
    assert protocol.parse_end(site.short(protocol.end(site.execd.directory, token))) == "ended"
    assert site.execd.wait(name)[0] == 143
    assert site.look(token).alive is False
    assert "sleep" not in site.short(f"cat /proc/{child.decode()}/cmdline 2>/dev/null")


def test_a_run_that_outlives_its_daemon_is_followed_and_ended(local: Site) -> None:
    token, other, boot = secrets.token_hex(16), secrets.token_hex(16), local.boot.text
    go = f"{local.execd.directory}/go"
    local.submit(f"while [ ! -e {go} ]; do sleep 0.02; done; exit 3", token, boot)
    local.submit("(trap '' TERM; sleep 60) & sleep 60", other, boot)
    while not (local.look(token).alive and local.look(other).alive):
        pass

    local.control("execd", action="restart")

    assert local.boot.text == boot
    assert local.look(token).alive
    local.short(f": >{go}")
    while local.look(token).alive:
        pass
    noted = local.look(token).fence
    assert noted is not None
    assert noted.exit_code == 3
    assert protocol.parse_end(local.short(protocol.end(local.execd.directory, other))) == "ended"
    assert local.look(other).alive is False


def test_a_container_that_comes_back_with_its_file_system(local: Site) -> None:
    token, boot, start = secrets.token_hex(16), local.boot, ready_start(local)
    local.submit("sleep 60", token, boot.text)
    while not local.look(token).alive:
        pass

    local.control("container", action="restart", filesystem="kept")

    seen = local.look(token)
    assert seen.boot == boot
    assert seen.alive is False
    assert seen.fence is not None
    assert (seen.fence.kind, seen.fence.exit_code) == ("run", None)
    if local.sandbox and local.sandbox.engine.isolation == "bwrap":
        assert seen.start != start


def test_a_container_that_comes_back_with_another_file_system(local: Site) -> None:
    if local.sandbox and local.sandbox.engine.isolation == "plain":
        pytest.skip("plain sandboxes share the machine's /tmp, which stays")
    token, boot = secrets.token_hex(16), local.boot
    name = local.submit("echo ran", token, boot.text)
    local.execd.wait(name)

    local.control("container", action="restart", filesystem="new")

    void = protocol.void(local.execd.directory, token, boot.text, secrets.token_hex(16))
    voided = protocol.parse_void(local.short(void))
    assert voided.outcome == "boot"
    assert boot.replaced_by(voided.start)
    now = local.boot
    assert now.text != boot.text
    late = local.submit("echo ran", token, boot.text)
    local.execd.wait(late)
    assert protocol.parse_marker(local.execd.output(late), token) == Marker("boot")
    assert local.look(token).fence is None


def ready_start(site: Site) -> int:
    """When the sandbox's first process started."""
    return protocol.parse_ready(site.short(protocol.ready(site.execd.directory, secrets.token_hex(16)))).start


def test_a_fence_that_ends_with_a_signal_notes_it(site: Site) -> None:
    token = secrets.token_hex(16)
    site.execd.wait(site.submit("kill -SEGV $$", token, site.boot.text))
    noted = site.look(token).fence
    assert isinstance(noted, Fence)
    assert noted.exit_code == 139
