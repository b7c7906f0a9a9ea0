"""The engine's side of the spawner: starts processes, learns of their end. See `spawner.py` for the why."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = "LOCAL_ENGINE_SANDBOX"
"""Environment variable by which a plain sandbox's processes are found: `<engine>/<sandbox id>`."""

STOP_SECONDS = 10.0
"""How long the spawner may take to end every process when the engine stops."""


class StartFailed(Exception):
    """The process was not started; `errno` says why, `stage` where (`exec`, `launch`)."""

    def __init__(self, errno: int, stage: str) -> None:
        super().__init__(f"{stage}: {os.strerror(errno)}")
        self.errno = errno
        self.stage = stage


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended: a wait status, and when it was reaped (ns since the epoch)."""

    status: int
    at: int


@dataclass(slots=True)
class Process:
    """A started process. `pid` is also its group; `init` the first process inside, for a sandbox's own."""

    pid: int
    ended: asyncio.Future[Ending]
    init: int = 0


@dataclass(frozen=True, slots=True)
class Namespaces:
    """Where a command is started: in the name spaces of process `init`, or on the machine (0)."""

    init: int = 0
    user: bool = False


class Spawner(asyncio.Protocol):
    """Starts the helper process and speaks its messages. One per engine."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self._transport: asyncio.WriteTransport | None = None
        self._helper: subprocess.Popen[bytes] | None = None
        self._buffer = bytearray()
        self._tag = 0
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._processes: dict[int, Process] = {}
        self.lost = asyncio.Event()
        """Set when the helper has ended, and every sandbox with it."""

    async def start(self, scratch: Path, held: int) -> None:
        """Start the helper; `scratch`: a directory that it removes when the engine dies without doing so.

        `held`: a descriptor that it keeps open until then.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        argv = [sys.executable, "-I", "-S", str(Path(__file__).with_name("spawner.py"))]
        argv += [str(theirs.fileno()), f"{MARK}={self.engine}/", str(scratch), str(held)]
        self._helper = subprocess.Popen(  # noqa: ASYNC220 - once, at the start
            argv,
            pass_fds=[theirs.fileno(), held],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            env={"PATH": os.environ.get("PATH", "")},
            cwd="/",
        )
        theirs.close()
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)
        self._transport = transport

    async def stop(self) -> None:
        """End every process of every sandbox, and the helper."""
        if self._transport is not None:
            self._transport.close()
        if self._helper is not None:
            helper = self._helper
            try:
                await asyncio.get_running_loop().run_in_executor(None, lambda: helper.wait(STOP_SECONDS))
            except subprocess.TimeoutExpired:
                helper.kill()
                helper.wait()

    # -- requests -----------------------------------------------------------------------------------------

    async def spawn(
        self,
        program: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        start: str = "",
        cwd: str | None = None,
        stdout: str | None = None,
        stderr: str | None = None,
        namespaces: Namespaces = Namespaces(),
        credentials: tuple[int, int, Sequence[int]] | None = None,
        kill_rest: bool = False,
        launch: bool = False,
    ) -> Process:
        """Start a process as the leader of its own group; its files are opened inside. Raises `StartFailed`.

        `kill_rest`: when it ends, what is left of its group is killed. `launch`: a sandbox's first process.
        """
        request: dict[str, Any] = {
            "op": "launch" if launch else "spawn",
            "program": program,
            "argv": list(argv),
            "env": dict(env),
            "start": start,
            "cwd": cwd,
            "stdout": stdout,
            "stderr": stderr,
            "ns": namespaces.init,
            "userns": namespaces.user,
            "kill_rest": kill_rest,
        }
        if credentials is not None:
            request["uid"], request["gid"], request["groups"] = credentials
        reply = await self._ask(request)
        if "pid" not in reply or "errno" in reply:
            raise StartFailed(int(reply["errno"]), str(reply["stage"]))
        process: Process = reply["process"]
        process.init = int(reply.get("init", 0))
        return process

    def kill(self, process: Process, number: int) -> None:
        """Signal the group of a process that has not been reaped yet; nothing otherwise."""
        self._send({"op": "kill", "pid": process.pid, "signal": number})

    def release(self, process: Process) -> None:
        """What is left of the process's group when it ends is no longer killed."""
        self._send({"op": "release", "pid": process.pid})

    async def signal_all(self, namespaces: Namespaces, sandbox: str, number: int) -> None:
        """Signal every process of a sandbox but its first."""
        mark = f"{MARK}={self.engine}/{sandbox}"
        await self._ask(
            {
                "op": "signal_all",
                "ns": namespaces.init,
                "userns": namespaces.user,
                "mark": mark,
                "signal": number,
            }
        )

    def forget(self, namespaces: Namespaces) -> None:
        """End a sandbox's first process, which ends all the others."""
        self._send({"op": "forget", "ns": namespaces.init, "signal": signal.SIGKILL})

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._tag += 1
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._replies[self._tag] = future
        request["tag"] = self._tag
        self._send(request)
        return await future

    def _send(self, message: dict[str, Any]) -> None:
        if self._transport is None or self._transport.is_closing():
            raise StartFailed(3, "exec")
        body = json.dumps(message).encode()
        self._transport.write(struct.pack(">I", len(body)) + body)

    # -- asyncio.Protocol ---------------------------------------------------------------------------------

    def data_received(self, received: bytes) -> None:
        buffer = self._buffer
        buffer += received
        while len(buffer) >= 4:
            size = struct.unpack_from(">I", buffer)[0]
            if len(buffer) < 4 + size:
                return
            message = json.loads(buffer[4 : 4 + size])
            del buffer[: 4 + size]
            self._dispatch(message)

    def _dispatch(self, message: dict[str, Any]) -> None:
        if "exit" in message:
            process = self._processes.pop(message["exit"], None)
            if process is not None and not process.ended.done():
                process.ended.set_result(Ending(message["status"], message["at"]))
            return
        if "pid" in message and "errno" not in message:
            ended: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
            # The reply reaches its waiter in a later turn of the loop; the end may come in this one.
            message["process"] = self._processes[message["pid"]] = Process(message["pid"], ended)
        future = self._replies.pop(message["tag"], None)
        if future is not None and not future.done():
            future.set_result(message)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()
        for future in self._replies.values():
            if not future.done():
                future.set_exception(StartFailed(3, "exec"))
        self._replies.clear()
