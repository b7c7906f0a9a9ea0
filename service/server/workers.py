"""Several replicas on one port: a process each, and one that looks after them.

Every worker has a listening socket of its own on the shared port, so the kernel spreads connections evenly. A
worker that dies is replaced; workers end, in order, when their parent does.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING

import msgspec

from service.observability.exposition import SharedDirectory, shared_directory
from service.server.listening import announce, bind, url_of
from service.server.logs import configure_logging
from service.server.replica import run_replica
from service.settings import Settings

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess
    from types import FrameType

RESTART_SECONDS = 1.0
"""Before a worker that died is replaced."""

log = logging.getLogger("oncebox")
_spawn = multiprocessing.get_context("spawn")


class Workers:
    """The processes, and whether they are to go on."""

    def __init__(self, settings: Settings, count: int, metrics: SharedDirectory) -> None:
        self.settings = settings
        self.count = count
        self.metrics = metrics
        self.stopping = False
        self._running: dict[SpawnProcess, Connection] = {}

    def start_one(self) -> None:
        """Start a worker; it says on its connection when it is ready."""
        ours, theirs = _spawn.Pipe(duplex=False)
        process = _spawn.Process(target=_work, args=(self.settings, theirs), name="oncebox-worker")
        # A worker is born with SIGHUP blocked, and takes it when it has a handler.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP} if self.settings.has_keys else ())
        try:
            process.start()
        except BaseException:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        self._running[process] = ours

    def all_ready(self) -> bool:
        """Wait until every worker has said so; False as soon as one ended before."""
        for said in list(self._running.values()):
            try:
                said.recv()
            except EOFError:
                return False
        return True

    def signalled(self, _number: int, _frame: FrameType | None) -> None:
        """Pass it on: once, and they drain; twice, and they end at once."""
        self.stopping = True
        for process in self._running:
            process.terminate()

    def reload(self, _number: int, _frame: FrameType | None) -> None:
        """SIGHUP, for every worker: read the tenants file again."""
        for process in self._running:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, signal.SIGHUP)

    def look_after(self) -> int:
        """Replace workers that die, until a signal; the exit code."""
        code = 0
        while self._running:
            ended = {process.sentinel: process for process in self._running}
            for sentinel in wait(list(ended)):
                process = ended[sentinel]  # type: ignore[index]
                process.join()
                self._running.pop(process).close()
                self.metrics.worker_ended(process.pid)
                if self.stopping:
                    # One that was still starting has no handler yet, and nothing to finish.
                    code = code or (0 if process.exitcode in (0, -signal.SIGTERM) else 1)
                else:
                    log.error("a worker ended with exit code %s: starting another", process.exitcode)
                    self._start_another()
        return code

    def _start_another(self) -> None:
        """Tried for as long as it takes: a machine that is out of processes or memory is not for good."""
        while True:
            time.sleep(RESTART_SECONDS)
            if self.stopping:
                return
            try:
                self.start_one()
            except OSError as error:
                log.error("a worker can't be started: %s", error.strerror)
            else:
                return


def serve_workers(settings: Settings, count: int) -> int:
    """Serve with ``count`` workers until a signal; the exit code."""
    try:
        # Holds the port, also one that the kernel chose; not listening, it gets no connections.
        reserved = bind(*settings.address, shared=True)
    except OSError as error:
        log.error("can't listen on %s: %s", settings.bind, error.strerror)
        return 1
    with reserved, shared_directory() as metrics:
        host, port = settings.address[0], reserved.getsockname()[1]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        bound = msgspec.structs.replace(settings, bind=address)
        workers = Workers(bound, count, metrics)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, workers.signalled)
        if settings.has_keys:
            signal.signal(signal.SIGHUP, workers.reload)
        for _ in range(count):
            workers.start_one()
        if workers.all_ready():
            announce(url_of(reserved))
        elif not workers.stopping:
            log.error("a worker did not start")
            workers.signalled(signal.SIGTERM, None)
            workers.look_after()
            return 1
        return workers.look_after()


def _work(settings: Settings, ready: Connection) -> None:
    """A worker's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent passes it on
    configure_logging()
    raise SystemExit(asyncio.run(_replica(settings, ready)))


async def _replica(settings: Settings, ready: Connection) -> int:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def started(_url: str) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        loop.add_reader(parent.sentinel, parent_gone)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        ready.send(True)

    def parent_gone() -> None:
        asyncio.get_running_loop().remove_reader(parent.sentinel)
        log.error("the parent is gone: shutting down")
        signal.raise_signal(signal.SIGTERM)

    return await run_replica(settings, started, shared=True)
