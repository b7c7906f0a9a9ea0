"""A simulated engine: sandboxes with a file system, a daemon with a table, and processes that take virtual time.

Its rules are the local engine's (`service.local_engine`): what a daemon forgets, what a restart leaves, what a pause
holds. Commands are a small language of their own: ``run NAME SECONDS CODE LINES`` prints its lines and exits; ``wipe``
in front removes the fence directory first. Each start is told to the history.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeVar

import msgspec

from service.core.fence.protocol import COMMAND_VARIABLE, NOTHING_RAN
from service.core.model.labels import RESERVED
from service.messages import SandboxState
from service.ports.engine import (
    CommandMissing,
    CommandNotRunning,
    CommandSpec,
    CommandStatus,
    FileMissing,
    FileRange,
    Refused,
    SandboxInfo,
    SandboxListing,
    SandboxMissing,
    SandboxNotReady,
    SandboxSpec,
    ShortResult,
    Unclear,
)
from tests.simulation import shell
from tests.simulation.history import (
    AnyEvent,
    ContainerRestarted,
    DaemonRestarted,
    Executed,
    FencesWiped,
    SandboxEnded,
    SandboxMade,
)
from tests.simulation.loop import Host, VirtualLoop
from tests.simulation.store import EPOCH

T = TypeVar("T")
INTERRUPT_SECONDS = 3.0
SIGTERM, SIGKILL = 15, 9


class File:
    """A file's bytes, and when it was last written to, by its sandbox's clock."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: float) -> None:
        self.data = bytearray(data)
        self.at = at


class Process:
    """A first process of a command, with all that it started: one process group."""

    def __init__(self, box: Box, pid: int, text: str) -> None:
        self.box = box
        self.pid = pid
        self.text = text
        """Its command line."""
        self.host = Host(f"{box.id[:8]}/{pid}", box.engine.loop)
        self.host.frozen = box.paused
        self.terminated = asyncio.Event()
        self.over: asyncio.Future[tuple[int, int | None]] = box.engine.loop.create_future()
        """The exit code, or -1 and the signal."""
        self.ran: Executed | None = None
        """The caller's command, once it was started."""
        self.log = ""
        """Where its output goes."""
        box.engine.hosts.append(self.host)

    def ended(self, code: int, signal: int | None = None) -> None:
        """It is over."""
        if not self.over.done():
            self.box.processes.pop(self.pid, None)
            self.over.set_result((code, signal))
            self.tell(self.box.engine.loop.now, code if signal is None else 128 + signal)

    def tell(self, until: float | None, code: int | None) -> None:
        """Tell of the command that it ran, if any."""
        if self.ran is not None:
            log = self.box.files.get(self.log)
            printed = None if log is None else bytes(log.data).decode()
            self.box.engine.tell(msgspec.structs.replace(self.ran, until=until, exit_code=code, output=printed))
            self.ran = None

    def signal(self, number: int) -> None:
        """A signal to the whole group."""
        if number == SIGKILL:
            self.host.kill()
            self.ended(-1, SIGKILL)
        else:
            self.terminated.set()


class Command:
    """One entry of a daemon's table."""

    def __init__(self, id: str, text: str, started: float) -> None:
        self.id = id
        self.text = text
        self.started = started
        self.process: Process | None = None
        self.status = CommandStatus(id=id, content=text, running=True, started_at=started)


class Daemon:
    """One life of execd: its table is in memory."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.host = Host(f"{box.id[:8]}/execd", box.engine.loop)
        self.commands: dict[str, Command] = {}
        self.breaks: dict[Callable[[], None], None] = {}
        """What is to be done when it dies: connections that break."""
        box.engine.hosts.append(self.host)

    def die(self) -> None:
        """It is gone; what it started lives on."""
        self.host.kill()
        for broken in list(self.breaks):
            broken()
        self.breaks.clear()

    # -- what it is asked

    async def submit(self, spec: CommandSpec) -> str:
        """Start a command in the background; its id."""
        box = self.box
        id = box.engine.new_id()
        await box.step()
        self._start(id, spec)
        await box.step()
        return id

    def _start(self, id: str, spec: CommandSpec) -> Command:
        box = self.box
        command = Command(id, spec.command, box.clock())
        process = command.process = box.new_process(spec.command)
        self.commands[id] = command
        run = Run(process, spec, f"/tmp/{id}.output")
        process.host.start(run.run(), f"process {process.pid}")
        self.host.start(self._awaited(command, process, spec.timeout), f"command {id}")
        return command

    async def _awaited(self, command: Command, process: Process, timeout: float) -> None:
        done, _ = await asyncio.wait({process.over}, timeout=timeout or None)
        if not done:
            process.signal(SIGKILL)
        code, signal = await process.over
        process.signal(SIGKILL)
        command.process = None
        command.status = CommandStatus(
            id=command.id,
            content=command.text,
            running=False,
            exit_code=code,
            signal=signal,
            error=None if signal is None else "signal: killed",
            started_at=command.started,
            finished_at=self.box.clock(),
        )

    async def status(self, id: str) -> CommandStatus:
        """Its word on a command."""
        if id not in self.commands:
            raise CommandMissing("no such command", status=404)
        return self.commands[id].status

    async def interrupt(self, id: str) -> None:
        """SIGTERM, up to 3 s, SIGKILL."""
        command = self.commands.get(id)
        if command is None or command.process is None:
            raise CommandNotRunning("is not running", status=500)
        process = command.process
        process.signal(SIGTERM)
        await asyncio.wait({process.over}, timeout=INTERRUPT_SECONDS)
        process.signal(SIGKILL)

    async def run_short(self, text: str) -> ShortResult:
        """One of our own small commands: a process of its own, which outlives the daemon."""
        process = self.box.new_process(text)
        work = process.host.start(self._small(process, shell.small(text)), f"process {process.pid}")
        await process.over
        if not work.done():
            raise Unclear("the command was killed")
        return work.result()

    async def _small(self, process: Process, small: shell.Small) -> ShortResult:
        try:
            return await self.box.small(small)
        finally:
            process.ended(0)

    async def ping(self) -> None:
        """It is there."""

    async def read_file(self, path: str, offset: int, length: int) -> FileRange:
        """Bytes of a file."""
        file = self.box.files.get(path)
        if file is None:
            raise FileMissing("no such file", status=404)
        return FileRange(offset, bytes(file.data[offset : offset + length]), len(file.data))

    async def read_lines(self, path: str) -> bytes | None:
        """A whole file, those of ``/proc`` too."""
        if path == "/proc/self/environ":
            return b"PATH=/usr/bin\0"
        return (await self.read_file(path, 0, 2**20)).data

    async def upload(self, path: str, data: bytes) -> None:
        """Write a file."""
        self.box.write(path, data)


class Box:
    """A sandbox."""

    def __init__(self, engine: SimEngine, id: str, spec: SandboxSpec) -> None:
        self.engine = engine
        self.id = id
        self.spec = spec
        self.state = SandboxState.RUNNING
        self.created_at = engine.wall()
        self.expires_at = self.created_at + spec.timeout
        self.ahead = 0.0
        """Seconds by which its clock is ahead."""
        self.files: dict[str, File] = {}
        self.directories: set[str] = set()
        self.full = False
        """Its disk is: files are made, and stay empty."""
        self.paused = False
        self.addressed = True
        """It has an address: a pod that is being made anew has none."""
        self.life = 1
        """Its file systems so far."""
        self.container = 1
        """Its containers so far."""
        self.start = engine.ticks()
        self.processes: dict[int, Process] = {}
        self.daemon: Daemon | None = Daemon(self)
        self._pids = 10

    def clock(self) -> float:
        """Its wall clock, Unix seconds."""
        return self.engine.wall() + self.ahead

    async def step(self) -> None:
        """A moment, in which anything may happen."""
        await asyncio.sleep(self.engine.rng.uniform(0.0002, 0.003) * self.engine.slowness)

    # -- what happens to it

    def info(self) -> SandboxInfo:
        """As the engine shows it."""
        return SandboxInfo(
            id=self.id,
            state=self.state,
            metadata=dict(self.spec.metadata),
            image=self.spec.image,
            created_at=self.created_at,
            expires_at=self.expires_at,
            exited=self.state in (SandboxState.FAILED, SandboxState.TERMINATED),
        )

    def pause(self, paused: bool) -> None:
        """Freeze all of its processes, the daemon included, or thaw them."""
        self.paused = paused
        hosts = [process.host for process in self.processes.values()]
        for host in [*hosts, *([self.daemon.host] if self.daemon else [])]:
            host.freeze() if paused else host.thaw()

    def end(self) -> None:
        """All that runs in it is killed."""
        if self.daemon is not None:
            self.daemon.die()
            self.daemon = None
        for process in list(self.processes.values()):
            process.signal(SIGKILL)

    @property
    def request(self) -> str:
        """Which request made it: one that a network doubled makes two with the same."""
        return " ".join(self.spec.metadata.get(f"{RESERVED}{name}", "") for name in ("generation", "attempt"))

    @property
    def digest(self) -> str:
        """Of the key that it was made for."""
        return self.spec.metadata.get(f"{RESERVED}idem", "")

    @property
    def lives(self) -> bool:
        """It is still one of the engine's."""
        return self.id in self.engine.boxes

    def kill_daemon(self) -> None:
        """Its port refuses from now on; what it started lives on."""
        if self.daemon is not None:
            self.daemon.die()
            self.daemon = None
            self.engine.tell(DaemonRestarted(at=self.engine.loop.now, sandbox=self.id))

    def restart_daemon(self) -> None:
        """A daemon with an empty table; what the old one started lives on."""
        if self.daemon is not None:
            self.daemon.die()
        self.daemon = Daemon(self)
        self.daemon.host.frozen = self.paused
        self.engine.tell(DaemonRestarted(at=self.engine.loop.now, sandbox=self.id))

    def restart(self, *, new_files: bool) -> None:
        """Another first process, in the old or in a new file system."""
        self.end()
        if new_files:
            self.files.clear()
            self.directories.clear()
            self.life += 1
        self.container += 1
        self.start = self.engine.ticks()
        self.paused = False
        self.daemon = Daemon(self)
        self.engine.tell(ContainerRestarted(at=self.engine.loop.now, sandbox=self.id, new_files=new_files))

    # -- files

    def write(self, path: str, data: bytes, *, append: bool = False) -> None:
        """Write a file; on a full disk it is made, and stays as it was."""
        file = self.files.get(path)
        if file is None:
            file = self.files[path] = File(b"", self.clock())
        if self.full:
            return
        if not append:
            file.data.clear()
        file.data += data
        file.at = self.clock()

    def line(self, path: str) -> str:
        """The first line of a file, as ``read`` has it; nothing where it can't be read."""
        file = self.files.get(path)
        return "" if file is None else bytes(file.data).split(b"\n")[0].decode()

    def remove_directory(self, directory: str) -> None:
        """Remove a directory with all that is in it."""
        for path in [path for path in self.files if path.startswith(f"{directory}/")]:
            del self.files[path]
        self.directories.discard(directory)

    # -- processes

    def new_process(self, text: str) -> Process:
        """A process."""
        self._pids += 1
        process = self.processes[self._pids] = Process(self, self._pids, text)
        return process

    # -- our own small commands

    async def small(self, small: shell.Small) -> ShortResult:
        """Run one."""
        directory = shell.word(small.values["DIRECTORY"])
        token = shell.word(small.values["TOKEN"])
        work: Callable[[shell.Small, str, str], Coroutine[Any, Any, str]] = getattr(self, f"_{small.name.lower()}")
        await self.step()
        text = await work(small, directory, token)
        return ShortResult(0, text.removesuffix("\n"))

    def _mark(self, directory: str) -> str:
        return f"boot={self.line(f'{directory}/boot')}\nstart={self.start}\n"

    def _shown(self, path: str) -> str:
        file = self.files.get(path)
        return "" if file is None else f"fence:\n{bytes(file.data).decode()}.\n"

    async def _ready(self, small: shell.Small, directory: str, token: str) -> str:
        boot = f"{directory}/boot"
        if not (boot in self.files and self.files[boot].data):
            mark = f"{small.values['RANDOM']} {self.start}"
            await self.step()
            self.directories.add(directory)
            if not self.full and boot not in self.files:
                self.write(boot, f"{mark}\n".encode())
        return self._mark(directory)

    async def _void(self, small: shell.Small, directory: str, token: str) -> str:
        fence, boot, void = f"{directory}/{token}", shell.word(small.values["BOOT"]), shell.word(small.values["VOID"])
        if self.line(f"{directory}/boot") == boot and fence not in self.files:
            await self.step()
            if not self.full and fence not in self.files and directory in self.directories:
                self.write(fence, f"{void}\n".encode())
        await self.step()
        found = bytes(self.files[fence].data).decode() if fence in self.files else ""
        text = self._mark(directory)
        outcome = "error"
        if self.line(f"{directory}/boot") != boot:
            outcome = "boot"
        elif found == f"{void}\n":
            outcome = "voided"
        elif fence in self.files:
            outcome = "run"
        return f"{text}void={outcome}\n" + (self._shown(fence) if outcome == "run" else "")

    def _with_token(self, token: str) -> list[Process]:
        return [process for process in self.processes.values() if token in process.text]

    async def _look(self, small: shell.Small, directory: str, token: str) -> str:
        fence = f"{directory}/{token}"
        late = fence not in self.files
        found = self._with_token(token)
        await self.step()
        if late and fence in self.files:
            found = self._with_token(token)
        pids = "".join(f"{process.pid} " for process in found)
        return f"found={pids}\n{self._mark(directory)}{self._shown(fence)}"

    async def _end(self, small: shell.Small, directory: str, token: str) -> str:
        found = self._with_token(token)
        if not found:
            return "end=gone\n"
        for process in found:
            process.signal(SIGTERM)
        await asyncio.wait([process.over for process in found], timeout=INTERRUPT_SECONDS)
        for process in found:
            process.signal(SIGKILL)
        return "end=ended\n"

    async def _clean(self, small: shell.Small, directory: str, token: str) -> str:
        minutes, cleaned = int(small.values["MINUTES"]), []
        for one in small.values["TOKENS"].split(" "):
            path = f"{directory}/{shell.word(one)}"
            file = self.files.get(path)
            if file is None or self.clock() - file.at <= minutes * 60 or self._with_token(shell.word(one)):
                continue
            for line in bytes(file.data).decode().split("\n"):
                if line.startswith("log=/"):
                    self.files.pop(line.removeprefix("log="), None)
            del self.files[path]
            cleaned.append(f"cleaned={path.rpartition('/')[2]}\n")
        return "".join(cleaned)


class Run:
    """A wrapper's shell that carries out its script, piece by piece."""

    def __init__(self, process: Process, spec: CommandSpec, log: str) -> None:
        self._process = process
        self._box = process.box
        self._script = shell.wrapper(spec.command, spec.env)
        self._command = spec.env[COMMAND_VARIABLE]
        self._log = log
        self._fence = shell.word(self._script.values["FENCE"])
        self._directory = self._fence.rpartition("/")[0]
        self._box.write(log, b"")

    async def run(self) -> None:
        """To its end."""
        code: int | None = None
        for piece in self._script.pieces:
            match piece:
                case "RUN":
                    code = await self._program()
                case "NOTE":
                    self._note(f"\nexit={code}\n")
                case "COMPARE" | "MAKE" | "FILL":
                    await self._box.step()
                    if (met := getattr(self, f"_{piece.lower()}")()) is not None:
                        self._print(f"oncebox-fence {self._script.values['TOKEN']} {met}\n")
                        return self._process.ended(NOTHING_RAN)
        return self._process.ended(code or 0)

    def _compare(self) -> str | None:
        mark = self._box.line(f"{self._directory}/boot")
        return None if mark == shell.word(self._script.values["BOOT"]) else "boot"

    def _make(self) -> str | None:
        if self._directory not in self._box.directories:
            return "none"
        if self._fence in self._box.files:
            return self._box.line(self._fence)
        self._box.files[self._fence] = File(b"", self._box.clock())
        return None

    def _fill(self) -> None:
        fingerprint, timeout = (shell.word(self._script.values[name]) for name in ("FINGERPRINT", "TIMEOUT"))
        self._note(f"fp={fingerprint}\ntimeout={timeout}\npid={self._process.pid}\nlog={self._log}\n")

    def _note(self, text: str) -> None:
        if self._fence in self._box.files or self._directory in self._box.directories:
            self._box.write(self._fence, text.encode(), append=True)

    def _print(self, text: str) -> None:
        self._box.write(self._log, text.encode(), append=True)

    async def _program(self) -> int:
        """The caller's command: its exit code."""
        words = self._command.split()
        box = self._box
        if words[0] == "wipe":
            words = words[1:]
            box.remove_directory(self._directory)
            box.engine.tell(FencesWiped(at=box.engine.loop.now, sandbox=box.id))
        _, mark, seconds, code, lines = words
        self._process.log = self._log
        self._process.ran = Executed(
            at=box.engine.loop.now,
            sandbox=box.id,
            mark=mark,
            files=box.life,
            container=box.container,
            fenced="MAKE" in self._script.pieces,
            attempt=self._script.values["TOKEN"],
        )
        pauses = int(lines) + 1
        for number in range(pauses):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(float(seconds) / pauses):
                    await self._process.terminated.wait()
                return 128 + SIGTERM
            if number < int(lines):
                self._print(f"{mark} {number}\n")
        return int(code)


class SimEngine:
    """The lifecycle server, and all sandboxes."""

    def __init__(self, loop: VirtualLoop, rng: random.Random, *, tell: Callable[[AnyEvent], None]) -> None:
        self.loop = loop
        self.rng = rng
        self.tell = tell
        """Writes the history."""
        self.up = True
        self.ahead = 0.0
        self.slowness = 1.0
        self.boxes: dict[str, Box] = {}
        self.hosts: list[Host] = []
        self.calls: dict[str, int] = {}
        self.breaks: dict[Callable[[], None], None] = {}
        self.host = Host("engine", loop)
        self.hosts.append(self.host)
        loop.at(1.0, self._expire)

    def wall(self) -> float:
        """Its wall clock, Unix seconds."""
        return EPOCH + self.loop.now + self.ahead

    def ticks(self) -> int:
        """Clock ticks since the machine's boot."""
        return 100_000 + round(self.loop.now * 100)

    def new_id(self) -> str:
        """A command's id."""
        return f"{self.rng.getrandbits(128):032x}"

    def _expire(self) -> None:
        for box in list(self.boxes.values()):
            if box.expires_at <= self.wall():
                self.remove(box, "expired")
        self.loop.at(self.loop.now + 1.0, self._expire)

    def remove(self, box: Box, why: str) -> None:
        """A sandbox is gone for good."""
        del self.boxes[box.id]
        box.state = SandboxState.TERMINATED
        box.end()
        self.tell(SandboxEnded(at=self.loop.now, sandbox=box.id, why=why))

    def box(self, id: str) -> Box:
        """The sandbox of this id. Raises ``SandboxMissing``."""
        if id not in self.boxes:
            raise SandboxMissing("not found", code="DOCKER::SANDBOX_NOT_FOUND", status=404)
        return self.boxes[id]

    # -- what it is asked

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        """Make a sandbox: it takes a while."""
        await asyncio.sleep(self.rng.uniform(0.05, 1.0) * self.slowness)
        bits = f"{self.rng.getrandbits(128):032x}"
        id = "-".join((bits[:8], bits[8:12], bits[12:16], bits[16:20], bits[20:]))
        box = self.boxes[id] = Box(self, id, spec)
        self.tell(SandboxMade(at=self.loop.now, sandbox=id, digest=box.digest))
        await asyncio.sleep(self.rng.uniform(0.05, 0.5) * self.slowness)
        return box.info()

    async def get(self, id: str) -> SandboxInfo:
        """A sandbox."""
        return self.box(id).info()

    async def list(self, metadata: dict[str, str], page: int, page_size: int) -> SandboxListing:
        """Those with this metadata, newest first."""
        found = [
            box.info()
            for box in sorted(self.boxes.values(), key=lambda box: (-box.created_at, box.id))
            if all(box.spec.metadata.get(key) == value for key, value in metadata.items())
        ]
        some = found[(page - 1) * page_size : page * page_size]
        return SandboxListing(items=some, has_next=len(found) > page * page_size)

    async def delete(self, id: str) -> None:
        """End a sandbox."""
        box = self.box(id)
        await asyncio.sleep(self.rng.uniform(0.01, 0.1) * self.slowness)
        if id in self.boxes:
            self.remove(box, "deleted")

    async def renew(self, id: str, expires_at: float) -> float:
        """Set an expiry."""
        box = self.box(id)
        if expires_at <= self.wall():
            raise Refused("must be in the future", status=400)
        box.expires_at = expires_at
        return expires_at

    async def pause(self, id: str, to: Literal["pause", "resume"]) -> None:
        """Freeze or thaw a sandbox."""
        box = self.box(id)
        wanted, after = (
            (SandboxState.RUNNING, SandboxState.PAUSED)
            if to == "pause"
            else (SandboxState.PAUSED, SandboxState.RUNNING)
        )
        if box.state is not wanted:
            raise SandboxNotReady("wrong state", status=409)
        box.state = after
        box.pause(to == "pause")
