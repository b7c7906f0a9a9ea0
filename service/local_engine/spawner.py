"""The process that starts, reaps and ends every process of every sandbox.

Run by path (`python -I -S spawner.py FD MARK DIRECTORY`), never imported by the engine's event loop. It uses
the standard library alone so that it stays small: each command is a fork of it, and forking the engine
itself would copy the page tables of its heap each time.

It is a process of its own for three reasons:

* Commands must be *in* the sandbox's namespaces before they open their output files and make their process
  group; that takes `setns` and a second fork, which a threaded event loop can't do safely.
* It is the parent of all of them (child subreaper), so it can end a process group between the moment its leader
  ended and the moment the leader is reaped: the group's number can't belong to anyone else then.
* When the engine is gone, by SIGKILL too, the socket ends, and this process ends every sandbox before itself.

Messages on the socket, in both directions: 4 bytes length (big endian), then JSON.

Requests: `spawn`, `launch` (a sandbox's first process), `kill` (one process group), `signal_all` (every
process of a sandbox), `forget` (a sandbox's namespaces). Replies carry the request's `tag`; `exit` events
carry the pid. Times are nanoseconds since the epoch.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from typing import Any

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
JOINED_NAMESPACES = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID

PR_SET_CHILD_SUBREAPER = 36
INFO_FD, READY_FD = 3, 4
"""Descriptors of a sandbox's first process: bwrap's report of its child, the entrypoint's report of its start."""

GONE = -1
"""Stands for the first process of a sandbox whose entrypoint ended at once."""

READ_SIZE = 1 << 16
_libc = ctypes.CDLL(None, use_errno=True)


def enter_namespaces(pidfd: int, user: bool) -> None:
    """Join a sandbox's mount, pid, ipc and host name spaces, and its user namespace where it has one."""
    flags = JOINED_NAMESPACES | (CLONE_NEWUSER if user else 0)
    if _libc.setns(pidfd, flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def more_descriptors() -> tuple[int, int]:
    """Allow this process as many open files as it may have; the limits that it came with."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    return limits


def become_command(request: dict[str, Any], limits: tuple[int, int]) -> None:
    """Turn this process into the command: own group, files opened inside, then exec. Raises `OSError`.

    The directory is entered as the user: `start` first, to which the user needs no way, then `cwd`.
    """
    os.setpgid(0, 0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
    out = os.open(request["stdout"], flags, 0o777) if request.get("stdout") else null
    err = out if request.get("stderr") == request.get("stdout") else os.open(request["stderr"], flags, 0o777)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for number, descriptor in request.get("keep", ()):
        os.dup2(descriptor, number)
    start = os.open(request["start"], os.O_PATH | os.O_CLOEXEC) if request.get("start") else -1
    if request.get("uid") is not None:
        os.setgroups(request.get("groups", []))
        os.setgid(request["gid"])
        os.setuid(request["uid"])
    if start >= 0:
        os.fchdir(start)
    if request.get("cwd"):
        os.chdir(request["cwd"])
    for number in signal.valid_signals():  # whoever started the engine may have ignored any of them
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    os.execve(request["program"], request["argv"], request["env"])  # noqa: S606


class Spawner:
    """One loop over the engine's socket, SIGCHLD and the report pipes of starts under way."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.poll = select.epoll()
        self.reports: dict[int, tuple[dict[str, Any], bytearray]] = {}
        self.infos: dict[int, tuple[dict[str, Any], int, bytearray]] = {}
        self.commands: dict[int, bool] = {}
        self.namespaces: dict[int, int] = {}
        self.outputs: set[str] = set()
        self.incoming = bytearray()
        self.outgoing = bytearray()
        self.blocked = False
        self.limits = more_descriptors()
        self.wakeup, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self.poll.register(connection.fileno(), select.EPOLLIN)
        self.poll.register(self.wakeup, select.EPOLLIN)

    def run(self) -> None:
        """Serve until the engine's end of the socket is closed."""
        connection = self.connection.fileno()
        while True:
            for descriptor, events in self.poll.poll():
                if descriptor == connection:
                    if events & select.EPOLLIN and not self.receive():
                        return
                    if events & (select.EPOLLHUP | select.EPOLLERR):
                        return
                elif descriptor == self.wakeup:
                    os.read(self.wakeup, READ_SIZE)
                    self.reap()
                elif descriptor in self.reports:
                    self.read_report(descriptor)
                elif self.has_started(descriptor):
                    self.read_info(descriptor)
            self.flush()

    def has_started(self, info: int) -> bool:
        """It is the report of a sandbox whose first process has started, and is waited for.

        An event can be about a pipe that was closed since it came, whose number a new one has by now.
        """
        return info in self.infos and self.infos[info][1] < 0

    # -- the socket ---------------------------------------------------------------------------------------

    def receive(self) -> bool:
        """Take what the engine sent and carry out what is whole; False when it is gone."""
        try:
            received = self.connection.recv(1 << 20)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        if not received:
            return False
        self.incoming += received
        while len(self.incoming) >= 4:
            size = struct.unpack_from(">I", self.incoming)[0]
            if len(self.incoming) < 4 + size:
                break
            request = json.loads(self.incoming[4 : 4 + size])
            del self.incoming[: 4 + size]
            try:
                getattr(self, "on_" + request["op"])(request)
            except OSError as error:  # no more processes or files to be had: this start fails, nothing else does
                self.started(request, {"errno": error.errno or 11, "stage": "exec"})
        return True

    def send(self, message: dict[str, Any]) -> None:
        """Line a message to the engine up."""
        body = json.dumps(message).encode()
        self.outgoing += struct.pack(">I", len(body)) + body

    def flush(self) -> None:
        """Send what the socket takes of what is lined up."""
        while self.outgoing:
            try:
                sent = self.connection.send(self.outgoing)
            except BlockingIOError:
                self.wait_for_room(True)
                return
            except ConnectionError:
                self.outgoing.clear()
                return
            del self.outgoing[:sent]
        self.wait_for_room(False)

    def wait_for_room(self, blocked: bool) -> None:
        """Have the loop wake up when the socket takes more, only while there is more."""
        if blocked != self.blocked:
            self.blocked = blocked
            events = select.EPOLLIN | (select.EPOLLOUT if blocked else 0)
            self.poll.modify(self.connection.fileno(), events)

    # -- starting -----------------------------------------------------------------------------------------

    def on_spawn(self, request: dict[str, Any]) -> None:
        """Start a command, in the sandbox whose first process is `ns`, or on the machine when `ns` is 0."""
        read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        sandbox = request.get("ns", 0)
        pidfd = self.namespaces.get(sandbox, -1)
        try:
            pid = os.fork()
        except OSError:
            os.close(read)
            os.close(write)
            raise
        if pid == 0:
            self.start_in_child(request, write, sandbox, pidfd)
        os.close(write)
        if not sandbox:
            self.outputs.update((request["stdout"], request["stderr"]))
            request["pid"] = pid
            self.commands[pid] = bool(request.get("kill_rest"))
        self.reports[read] = (request, bytearray())
        self.poll.register(read, select.EPOLLIN)

    def start_in_child(self, request: dict[str, Any], report: int, sandbox: int, pidfd: int) -> None:
        """In the fork: join the sandbox, fork again (only children enter a pid namespace), become the command."""
        try:
            if sandbox:
                enter_namespaces(pidfd, request.get("userns", False))
                pid = os.fork()
                if pid:
                    os.write(report, b"P%d\n" % pid)
                    os._exit(0)
            become_command(request, self.limits)
        except OSError as error:
            os.write(report, b"E%d exec\n" % (error.errno or 22))
        except BaseException as error:  # noqa: BLE001 - nothing may return into the parent's loop
            os.write(report, b"E22 %s\n" % type(error).__name__.encode())
        os._exit(127)

    def on_launch(self, request: dict[str, Any]) -> None:
        """Start a sandbox's first process: bwrap, which reports its child, then the entrypoint its start."""
        read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        request["keep"] = [(INFO_FD, write), (READY_FD, write)] if write > READY_FD else []
        if not request["keep"]:
            raise RuntimeError("descriptors 3 and 4 must be taken before the first sandbox is launched")
        request["info"] = read
        self.infos[read] = (request, write, bytearray())
        self.on_spawn(request)

    def read_report(self, descriptor: int) -> None:
        """Finish a start when the command's exec closed the pipe, or its failure came through it."""
        request, text = self.reports[descriptor]
        while True:
            try:
                chunk = os.read(descriptor, READ_SIZE)
            except BlockingIOError:
                return
            if not chunk:
                break
            text += chunk
        del self.reports[descriptor]
        self.poll.unregister(descriptor)
        os.close(descriptor)
        pid, failure = request.get("pid", 0), None
        for line in text.decode().splitlines():
            if line[0] == "P":
                pid = int(line[1:])
            else:
                number, stage = line[1:].split(" ", 1)
                failure = (int(number), stage)
        if failure or not pid:
            self.started(request, {"errno": (failure or (3, "exec"))[0], "stage": (failure or (3, "exec"))[1]})
            return
        request["pid"] = pid
        self.commands[pid] = bool(request.get("kill_rest"))
        self.started(request, {"pid": pid})

    def started(self, request: dict[str, Any], result: dict[str, Any]) -> None:
        """Answer a start; that of a sandbox is answered when its entrypoint runs."""
        info = request.get("info")
        if info is None:
            if "tag" in request:
                self.send({"tag": request["tag"], **result})
            return
        launch, write, text = self.infos[info]
        os.close(write)
        if "pid" not in result:
            del self.infos[info]
            os.close(info)
            self.send({"tag": request["tag"], **result})
            return
        self.infos[info] = (launch, -1, text)
        self.poll.register(info, select.EPOLLIN)

    def read_info(self, descriptor: int) -> None:
        """Answer a launch when the entrypoint runs, or failed to: its pipe then ends without `ready`."""
        request, _, text = self.infos[descriptor]
        try:
            chunk = os.read(descriptor, READ_SIZE)
        except BlockingIOError:
            return
        text += chunk
        if chunk and not text.endswith(b"ready\n"):
            return
        del self.infos[descriptor]
        self.poll.unregister(descriptor)
        os.close(descriptor)
        reply: dict[str, Any] = {"tag": request["tag"], "pid": request["pid"]}
        if chunk:
            try:
                init = json.loads(text[: text.rindex(b"}") + 1])["child-pid"]
                self.namespaces[init] = os.pidfd_open(init)
                reply["init"] = init
            except OSError:
                reply["init"] = GONE
            except (ValueError, KeyError):
                reply = {"tag": request["tag"], "errno": 22, "stage": "launch"}
        else:
            reply = {"tag": request["tag"], "errno": 5, "stage": "launch"}
        self.send(reply)

    # -- ending -------------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Report every ended process; where asked, kill the rest of its group while its number is its own.

        What the starts under way have to say is read first: nobody may hear of an end before the start.
        """
        for descriptor in list(self.reports):
            self.read_report(descriptor)
        for descriptor in filter(self.has_started, list(self.infos)):
            self.read_info(descriptor)
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            for descriptor in list(self.reports):
                self.read_report(descriptor)
            kill_rest = self.commands.pop(pid, None)
            if kill_rest:
                signal_group(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
            if kill_rest is not None:
                self.send({"exit": pid, "status": status, "at": time.time_ns()})

    def on_kill(self, request: dict[str, Any]) -> None:
        """Signal one process group, unless its leader has been reaped: the number may be another's then."""
        if request["pid"] in self.commands:
            signal_group(request["pid"], request["signal"])

    def on_release(self, request: dict[str, Any]) -> None:
        """Leave the rest of a group alone when its leader ends."""
        if request["pid"] in self.commands:
            self.commands[request["pid"]] = False

    def on_signal_all(self, request: dict[str, Any]) -> None:
        """Signal every process of a sandbox: from inside its pid namespace, or by its mark in environments."""
        sandbox = request.get("ns", 0)
        if not sandbox:
            signal_marked(request["mark"], request["signal"])
            self.send({"tag": request["tag"]})
            return
        pid = os.fork()
        if pid == 0:
            try:
                enter_namespaces(self.namespaces[sandbox], request.get("userns", False))
                inner = os.fork()
                if inner == 0:
                    os.kill(-1, request["signal"])
                    os._exit(0)
                os.waitpid(inner, 0)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        self.send({"tag": request["tag"]})

    def on_forget(self, request: dict[str, Any]) -> None:
        """End a sandbox's first process, and with it its pid namespace, and drop what is held of it."""
        pidfd = self.namespaces.pop(request["ns"], None)
        if pidfd is not None:
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            except ProcessLookupError:
                pass
            os.close(pidfd)

    def end_everything(self, mark: str) -> None:
        """The engine is gone: nothing that it started may stay, nor what it wrote into the machine's `/tmp`."""
        for init in list(self.namespaces):
            self.on_forget({"ns": init})
        for pid in self.commands:
            signal_group(pid, signal.SIGKILL)
        for _ in range(3):
            if not signal_marked(mark, signal.SIGKILL):
                break
        for path in self.outputs:
            try:
                os.unlink(path)
            except OSError:
                pass


def signal_group(group: int, number: int) -> None:
    """Signal a process group that may be gone."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass


def signal_marked(mark: str, number: int) -> int:
    """Signal processes with `mark` in their environment (a beginning, if it ends in `/`); how many there were."""
    needle, count = mark.encode(), 0
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                variables = file.read().split(b"\0")
            if any(v.startswith(needle) if mark.endswith("/") else v == needle for v in variables):
                os.kill(int(name), number)
                count += 1
        except OSError:
            continue
    return count


def main() -> None:
    """Serve the engine at the other end of descriptor `argv[1]`; then leave nothing behind."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.setblocking(False)
    for descriptor in (connection.fileno(), int(sys.argv[4])):
        os.set_inheritable(descriptor, False)  # commands have neither
    mark = sys.argv[2]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the engine decides when to end; commands get the defaults back
    for _ in range(2):
        os.open(os.devnull, os.O_RDONLY)
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    gc.disable()
    gc.freeze()
    spawner = Spawner(connection)
    try:
        spawner.run()
    finally:
        spawner.end_everything(mark)
        import shutil

        shutil.rmtree(sys.argv[3], ignore_errors=True)


if __name__ == "__main__":
    main()
