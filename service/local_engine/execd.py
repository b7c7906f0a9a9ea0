"""The daemon of one sandbox: its table of commands, and how they start, end and are ended.

Its state is in memory, as the real one's: after a restart the table is empty, while processes and output
files may still be there. Nothing here knows HTTP.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from . import wire
from .files import SandboxFiles
from .spawning import Ending, Namespaces, Process, Spawner, StartFailed

OUTPUT_DIRECTORY = "/tmp"  # noqa: S108 - inside the sandbox
INTERRUPT_SECONDS = 3.0
"""How long an interrupted group has between SIGTERM and SIGKILL."""

INTERRUPT_POLL_SECONDS = 0.05
EXIT_NEVER_STARTED = 255
"""Exit code in the status of a background command that could not be started."""

INVALID_ARGUMENT = 22


class Host(Protocol):
    """What a daemon needs of the sandbox that it runs in."""

    files: SandboxFiles
    namespaces: Namespaces
    env: dict[str, str]
    thawed: asyncio.Event


@dataclass(slots=True)
class CommandRequest:
    """A validated `POST /command`; `timeout` in milliseconds, 0 for none."""

    command: str
    cwd: str = ""
    background: bool = False
    timeout: int = 0
    uid: int | None = None
    gid: int | None = None
    envs: dict[str, str] = field(default_factory=dict)


class NotStarted(Exception):
    """A command that never ran; the message is execd's own."""


class NotRunning(Exception):
    """An interrupt of a command that has ended or is not known; the message is execd's own."""


class Command:
    """One entry of the table."""

    def __init__(self, identifier: str, request: CommandRequest, started: int) -> None:
        self.id = identifier
        self.background = request.background
        self.started = started
        self.running = True
        self.process: Process | None = None
        self.timer: asyncio.TimerHandle | None = None
        content = wire.go_json(request.command)
        self._head = b'{"id":"%s","content":%s,"running":' % (identifier.encode(), content)
        self._tail = b',"started_at":"%s"' % wire.go_time(started).encode()
        self._end = b""

    @property
    def output(self) -> str:
        """Where a background command's output goes, as the sandbox names it."""
        return f"{OUTPUT_DIRECTORY}/{self.id}.output"

    def finish(self, code: int, error: str, at: int) -> None:
        """Note the end: exit code, execd's wording of a failure, nanoseconds since the epoch."""
        self.running = False
        self.process = None
        if self.timer is not None:
            self.timer.cancel()
        failure = b',"error":%s' % wire.go_json(error) if error else b""
        finished = b',"finished_at":"%s"}' % wire.go_time(at).encode()
        self._end = b'false,"exit_code":%d%s%s%s' % (code, failure, self._tail, finished)

    def status(self) -> bytes:
        """The JSON of `GET /command/status/{id}`; repeats the whole command text every time."""
        return self._head + (b"true" + self._tail + b"}" if self.running else self._end)


def find_shell(path: str) -> str:
    """`bash` where there is one, else `sh`, as an absolute path."""
    return shutil.which("bash", path=path) or shutil.which("sh", path=path) or "/bin/sh"


class Execd:
    """One life of the daemon."""

    def __init__(self, host: Host, spawner: Spawner, outputs: list[str]) -> None:
        """`outputs` is told of every file that a command's output goes to."""
        self.host = host
        self.alive = True
        self.commands: dict[str, Command] = {}
        self._spawner = spawner
        self._outputs = outputs
        self._deaths: set[Callable[[], None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    # -- starting -----------------------------------------------------------------------------------------

    @staticmethod
    def new_id() -> str:
        """A command's id: 32 hexadecimal digits."""
        return uuid.uuid4().hex

    async def start(self, identifier: str, request: CommandRequest) -> Command:
        """Start a command. Raises `NotStarted`; a background one then has a status with exit code 255."""
        started = time.time_ns()
        command = Command(identifier, request, started)
        try:
            process = await self._spawn(identifier, request)
        except NotStarted as error:
            if request.background:
                command.finish(EXIT_NEVER_STARTED, str(error), time.time_ns())
                self.commands[identifier] = command
            raise
        command.process = process
        if request.timeout:
            delay = request.timeout / 1000 - (time.time_ns() - started) / 1e9
            command.timer = asyncio.get_running_loop().call_later(max(delay, 0), self._time_out, command)
        self.commands[identifier] = command
        if request.background:
            process.ended.add_done_callback(lambda ended: self._background_ended(command, ended.result()))
        return command

    async def _spawn(self, identifier: str, request: CommandRequest) -> Process:
        env = {**self.host.env, **self._file_variables(), **dict(map(variable, request.envs.items()))}
        shell = find_shell(self.host.env.get("PATH", os.defpath))
        try:
            start, cwd = self.host.files.place_from(wire.expand_path(request.cwd, env) or "/workspace")
        except wire.UndefinedVariables as error:
            raise NotStarted(f"resolve cwd: {error}") from error
        if "\0" in request.command:
            raise NotStarted(f"fork/exec {shell}: {wire.errno_text(INVALID_ARGUMENT)}")
        if any("\0" in name + value for name, value in request.envs.items()):
            raise NotStarted("exec: environment variable contains NUL")
        base = f"{OUTPUT_DIRECTORY}/{identifier}"
        outputs = (base + ".output",) * 2 if request.background else (base + ".stdout", base + ".stderr")
        self._outputs += outputs
        try:
            return await self._spawner.spawn(
                shell,
                [os.path.basename(shell), "-c", request.command],
                env,
                start=start,
                cwd=cwd,
                stdout=outputs[0],
                stderr=outputs[1],
                namespaces=self.host.namespaces,
                credentials=credentials(request.uid, request.gid),
                kill_rest=request.background,
            )
        except StartFailed as error:
            raise NotStarted(f"fork/exec {shell}: {wire.errno_text(error.errno)}") from error

    def _file_variables(self) -> dict[str, str]:
        """What the file that `EXECD_ENVS` names adds to every command; nothing where it can't be read."""
        path = self.host.env.get("EXECD_ENVS", "")
        if not path:
            return {}
        try:
            descriptor = self.host.files.open(wire.expand_path(path, self.host.env), os.O_RDONLY | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                lines = file.read().decode("utf-8", "surrogateescape").split("\n")
        except (OSError, wire.UndefinedVariables):
            return {}
        pairs = (line.strip().partition("=") for line in lines if not line.strip().startswith("#"))
        return {name: wire.expand_variables(value, self.host.env) for name, sign, value in pairs if sign}

    # -- ending -------------------------------------------------------------------------------------------

    def _background_ended(self, command: Command, ending: Ending) -> None:
        code, error = wire.exit_of(ending.status)
        command.finish(code, error, ending.at)

    def _time_out(self, command: Command) -> None:
        """Kill the whole group at once; a frozen daemon does so when it is thawed."""
        if not self.host.thawed.is_set():
            task = asyncio.get_running_loop().create_task(self._time_out_thawed(command))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif command.process is not None:
            self._spawner.kill(command.process, signal.SIGKILL)

    async def _time_out_thawed(self, command: Command) -> None:
        await self.host.thawed.wait()
        self._time_out(command)

    async def interrupt(self, identifier: str) -> None:
        """SIGTERM to the group, up to 3 s, then SIGKILL; returns when it is gone. Raises `NotRunning`."""
        command = self.commands.get(identifier)
        if command is None:
            raise NotRunning("no such session")
        process = command.process
        if not command.running or process is None:
            raise NotRunning(f"command session {identifier} is not running")
        self._spawner.kill(process, signal.SIGTERM)
        deadline = time.monotonic() + INTERRUPT_SECONDS
        while time.monotonic() < deadline:
            await asyncio.sleep(INTERRUPT_POLL_SECONDS)
            if not group_exists(process.pid):
                return
        kill_group(process.pid)  # seen all the time, so the number is still this group's
        for _ in range(3):
            if not group_exists(process.pid):
                return
            await asyncio.sleep(INTERRUPT_POLL_SECONDS)

    def on_death(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called when the daemon dies; returns what takes it back."""
        self._deaths.add(callback)
        return lambda: self._deaths.discard(callback)

    def die(self) -> None:
        """The daemon is gone: open streams break, nothing is timed out or cleaned up, commands live on."""
        self.alive = False
        for command in self.commands.values():
            if command.timer is not None:
                command.timer.cancel()
            if command.process is not None:
                self._spawner.release(command.process)
        for callback in list(self._deaths):
            callback()
        self._deaths.clear()


def variable(item: tuple[str, str]) -> tuple[str, str]:
    """A variable whose name has an `=` in it, as the process will read it: the name ends there."""
    name, sign, rest = item[0].partition("=")
    return (name, f"{rest}={item[1]}") if sign else item


def group_exists(group: int) -> bool:
    """Whether any process, ended but unreaped ones included, is left in a process group."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def kill_group(group: int) -> None:
    """SIGKILL to a group that may be gone."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def credentials(uid: int | None, gid: int | None) -> tuple[int, int, Sequence[int]] | None:
    """User, group and further groups to run as: a known user's own, else group 0. None: as the daemon."""
    if uid is None:
        return None
    import grp
    import pwd

    groups: list[int] = []
    primary = 0
    try:
        user = pwd.getpwuid(uid)
        primary = user.pw_gid
        groups = [entry.gr_gid for entry in grp.getgrall() if user.pw_name in entry.gr_mem]
        groups = [primary, *groups]
    except KeyError:
        pass
    return uid, primary if gid is None else gid, groups
