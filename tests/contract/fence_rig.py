"""Places where a fenced command can run: a shell of this machine started as execd starts it, or a real engine."""

from __future__ import annotations

import functools
import http.client
import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

from service.core.fence import protocol, startup
from service.core.fence.protocol import Boot
from tests.contract.fence_commands import Case
from tests.support.waiting import PATIENCE

SIGNALS = {
    "hangup": 1,
    "interrupt": 2,
    "quit": 3,
    "aborted": 6,
    "killed": 9,
    "user defined signal 1": 10,
    "segmentation fault": 11,
    "broken pipe": 13,
    "alarm clock": 14,
    "terminated": 15,
}
"""Go's words for a signal that ended a command."""


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (128 + n for signal n), and all that it printed."""

    code: int
    output: bytes
    name: str = ""
    """The engine's id of the command."""
    status_size: int = 0
    errors: bytes | None = None
    """What it printed to its stderr, where that is apart."""


class Place(Protocol):
    """Runs texts as execd's background commands run."""

    directory: str
    """Where fences stand; new and empty."""

    @property
    def inherited(self) -> dict[str, str]:
        """The startup variables that the daemon hands on to its commands."""
        ...

    def run(
        self,
        text: str,
        env: dict[str, str] | None = None,
        *,
        cwd: str | None = None,
        timeout: float | None = None,
        interrupt: float | None = None,
        settle: float = 0.0,
    ) -> Ended:
        """Run a text to its end, as the place's user."""
        ...

    def own(self, text: str) -> str:
        """What one of Oncebox's own small commands prints, run as the daemon's user."""
        ...

    def run_case(self, text: str, env: dict[str, str], case: Case) -> Ended:
        """Run a text with what is done to a case's command."""
        try:
            return self.run(text, env, cwd=case.cwd, timeout=case.timeout, interrupt=case.interrupt, settle=case.settle)
        except AssertionError as error:
            raise AssertionError(f"{case.name}: {error}") from error


def boot_mark(place: Place) -> Boot | None:
    """The place's boot mark, made where it is missing."""
    return protocol.parse_ready(place.own(protocol.ready(place.directory, secrets.token_hex(16)))).boot


def fenced(
    place: Place, command: str, token: str, env: dict[str, str] | None = None, **how: Any
) -> tuple[str, dict[str, str]]:
    """The text and the environment that run a command behind a fence. `boot` is the place's own if not given."""
    if "boot" not in how:
        boot = boot_mark(place)
        how["boot"] = boot and boot.text
    how = {"directory": place.directory, "fingerprint": "f" * 32, "timeout": 60, "inherited": place.inherited, **how}
    return protocol.wrapper(command, env or {}, token=token, **how)


@dataclass
class Shell(Place):
    """A shell of this machine. Processes are started as execd's `runBackgroundCommand` does it."""

    name: str
    home: Path
    directory: str = ""
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    prefix: tuple[str, ...] = ()
    """A program that starts the shell in other surroundings."""
    user: int | None = None
    """Whose commands these are; None: the daemon's own user."""
    umask: int = -1
    """Of the daemon and all that it starts."""
    stdin: Path | None = None
    """What commands read that no fence gives an input to."""
    apart: bool = False
    """Whether the two outputs of commands are in two files from the start."""
    image: dict[str, str] = field(default_factory=dict)
    """What the daemon has in its environment, and hands on."""

    def __post_init__(self) -> None:
        self.directory = self.directory or str(self.home / "fences")
        self.bin = self.home / "bin"
        self.bin.mkdir(parents=True)
        if self.name == "busybox":
            busybox = shutil.which("busybox")
            assert busybox
            subprocess.run([busybox, "--install", "-s", str(self.bin)], check=True)
            self.path = str(self.bin)
        else:
            (self.bin / "sh").symlink_to("/bin/dash")
            if self.name == "bash":
                (self.bin / "bash").symlink_to("/bin/bash")
            self.path = f"{self.bin}:/usr/local/bin:/usr/bin:/bin"

    @property
    def inherited(self) -> dict[str, str]:
        return startup.acting(self.image)

    @staticmethod
    def missing(name: str) -> str | None:
        """Why this shell can't be tried here, or None."""
        return None if shutil.which(name) else f"there is no {name} on this machine"

    def own(self, text: str) -> str:
        process, output = self.start(text, dict.fromkeys(self.inherited, ""), user=None)
        self.finish(process, output, timeout=None, interrupt=None)
        return output.read_bytes().decode()

    def start(
        self, text: str, env: dict[str, str] | None = None, *, cwd: str | None = None, user: int | None = -1
    ) -> tuple[subprocess.Popen[bytes], Path]:
        """A process in its own group, its two outputs in one file, unless they are to be apart."""
        output = self.home / f"{secrets.token_hex(16)}.output"
        word = "bash" if self.name == "bash" else "sh"
        base = {"PATH": self.path, "HOME": str(self.home), "LANG": "C.UTF-8", **self.image}
        user = self.user if user == -1 else user
        switched: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        errors = output.with_suffix(".stderr") if self.apart else Path(os.devnull)
        with output.open("wb") as out, (self.stdin or Path(os.devnull)).open() as read, errors.open("wb") as err:
            process = subprocess.Popen(
                [*self.prefix, word, "-c", text],
                executable=None if self.prefix else str(self.bin / word),
                stdin=read,
                stdout=out,
                stderr=err if self.apart else subprocess.STDOUT,
                env=base | (env or {}),
                cwd=cwd or self.home,
                process_group=0,
                umask=self.umask,
                **switched,
            )
        self.started.append(process)
        return process, output

    def finish(
        self,
        process: subprocess.Popen[bytes],
        output: Path,
        *,
        timeout: float | None,
        interrupt: float | None,
    ) -> int:
        """Wait for the end as execd does, which kills the rest of the group then."""
        if interrupt is not None:
            while not output.stat().st_size:
                time.sleep(0.01)
            time.sleep(interrupt)
            self._signal(process, signal.SIGTERM)
            timeout = 3.0
        if timeout is not None:
            while not output.stat().st_size and process.poll() is None:
                time.sleep(0.01)  # a timeout counts from the first output, for a machine that is slow to begin
        try:
            code = process.wait(timeout if timeout is not None else PATIENCE)
        except subprocess.TimeoutExpired:
            self._signal(process, signal.SIGKILL)
            code = process.wait(PATIENCE)
        self._signal(process, signal.SIGKILL)
        return 128 - code if code < 0 else code

    def run(
        self,
        text: str,
        env: dict[str, str] | None = None,
        *,
        cwd: str | None = None,
        timeout: float | None = None,
        interrupt: float | None = None,
        settle: float = 0.0,
    ) -> Ended:
        process, output = self.start(text, env, cwd=cwd)
        code = self.finish(process, output, timeout=timeout, interrupt=interrupt)
        time.sleep(settle)
        errors = output.with_suffix(".stderr")
        return Ended(code, output.read_bytes(), errors=errors.read_bytes() if errors.exists() else None)

    def close(self) -> None:
        """End what still runs."""
        for process in self.started:
            if process.poll() is None:
                self._signal(process, signal.SIGKILL)
                process.wait()

    @staticmethod
    def _signal(process: subprocess.Popen[bytes], number: int) -> None:
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass


SHELLS = ("bash", "dash", "busybox")
ANOTHER = " as another user"
EACH = [f"{name}{user}" for user in ("", ANOTHER) for name in SHELLS]
"""Every shell, and as the user of a command that the daemon is not."""
OTHER_USER = 54321
"""A number without a name."""


def shell_of(param: str, tmp_path: Path) -> Iterator[Shell]:
    """For a fixture: the shell that a parameter of `EACH` names, with an empty home that its user can reach."""
    name = param.removesuffix(ANOTHER)
    if reason := Shell.missing(name):
        pytest.skip(reason)
    if name == param:
        place = Shell(name, tmp_path / "place")
        yield place
        place.close()
        return
    if os.geteuid():
        pytest.skip("only root can start commands of another user")
    with tempfile.TemporaryDirectory(prefix="oncebox-test-", dir="/tmp") as home:  # no directory above it is private
        os.chmod(home, 0o755)
        place = Shell(name, Path(home) / "place", user=OTHER_USER)
        place.home.chmod(0o1777)
        yield place
        place.close()


class Execd(Place):
    """An execd at a URL: a real one, or the local engine's."""

    user: int | None = None
    """Whose commands these are; None: the daemon's own user."""

    def __init__(self, url: str, directory: str, headers: dict[str, str] | None = None) -> None:
        self._base = urllib.parse.urlsplit(url)
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self.directory = directory

    @functools.cached_property
    def inherited(self) -> dict[str, str]:
        code, environ = self.call("GET", f"/files/download?path={startup.ENVIRONMENT}&offset=1")
        assert code == 200, environ
        return startup.acting(startup.of_daemon(environ))

    @staticmethod
    def _as(user: int | None) -> dict[str, int]:
        return {} if user is None else {"uid": user, "gid": user}

    def own(self, text: str) -> str:
        name = self.submit(text, dict.fromkeys(self.inherited, ""), uid=None, gid=None)
        self.wait(name)
        return self.output(name).decode()

    def call(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """One request."""
        connection, response = self._open(method, path, body)
        try:
            return response.status, response.read()
        finally:
            connection.close()

    def submit(self, text: str, env: dict[str, str] | None = None, **more: Any) -> str:
        """Start a command in the background; its id."""
        body = {"command": text, "background": True, "envs": env or {}, **self._as(self.user), **more}
        connection, response = self._open("POST", "/command", body)
        name = ""
        try:
            assert response.status == 200, response.read()
            for line in response:
                event = json.loads(line) if line.strip() else {}
                name = event["text"] if event.get("type") == "init" else name
                if event.get("type") == "execution_complete" or "code" in event:
                    break
        finally:
            connection.close()
        assert name
        return name

    def foreground(self, text: str, env: dict[str, str]) -> None:
        """Run a text in the foreground, up to its terminal event (the stream stays open longer)."""
        connection, response = self._open("POST", "/command", {"command": text, "envs": env, **self._as(self.user)})
        try:
            for line in response:
                if line.strip() and json.loads(line).get("type") in ("execution_complete", "error"):
                    return
        finally:
            connection.close()
        raise AssertionError("the stream ended before the command")

    def wait(self, name: str, limit: float = PATIENCE) -> tuple[int, int]:
        """The exit code of a command, and the size of its status."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            code, body = self.call("GET", f"/command/status/{name}")
            if code == 200 and not (status := json.loads(body))["running"]:
                error = status.get("error") or ""
                if status["exit_code"] == -1 and error.startswith("signal: "):
                    return 128 + SIGNALS[error[8:].removesuffix(" (core dumped)")], len(body)
                return status["exit_code"], len(body)
            time.sleep(0.01)
        raise AssertionError(f"{name} still runs")

    def output(self, name: str) -> bytes:
        """All that a command printed."""
        code, body = self.call("GET", f"/command/{name}/logs")
        assert code == 200, body
        return body

    def run(
        self,
        text: str,
        env: dict[str, str] | None = None,
        *,
        cwd: str | None = None,
        timeout: float | None = None,
        interrupt: float | None = None,
        settle: float = 0.0,
    ) -> Ended:
        more: dict[str, Any] = {"cwd": cwd} if cwd else {}
        if timeout:
            more["timeout"] = int(timeout * 1000)
        name = self.submit(text, env, **more)
        if interrupt is not None:
            while (printed := self.call("GET", f"/command/{name}/logs"))[0] != 200 or not printed[1]:
                time.sleep(0.01)
            time.sleep(interrupt)
            code, body = self.call("DELETE", f"/command?id={name}")
            assert code == 200, body
        code, size = self.wait(name)
        time.sleep(settle)
        query = urllib.parse.urlencode({"path": f"/tmp/{name}.stderr"})
        found, errors = self.call("GET", f"/files/download?{query}")
        return Ended(code, self.output(name), name, size, errors if found == 200 else None)

    def _open(
        self, method: str, path: str, body: object
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self._base.hostname or "", self._base.port, timeout=60)
        data = None if body is None else json.dumps(body)
        connection.request(method, self._base.path.rstrip("/") + path, data, self._headers)
        return connection, connection.getresponse()
