"""Log lines that nobody waits for.

A pipe that nobody reads, or a file on a mount that hangs, blocks whoever writes to it. So lines are written by a thread
of their own, behind a bounded queue; what does not fit is counted, and told as soon as something is taken again.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque

import msgspec


class Fields(dict[str, object]):
    """What a record says beside its message, as ``extra={"fields": ...}``; as text it is JSON."""

    def __str__(self) -> str:
        return msgspec.json.encode(self).decode("utf-8", "replace")


MOST_WAITING = 4 * 1024 * 1024
"""Characters that wait to be written at the most."""
LAST_LINES = 1.0
"""Seconds that the last lines get at the end of the process."""


class LogWriter(logging.Handler):
    """Writes to ``descriptor`` from a daemon thread; whoever logs never waits."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._waiting: deque[str] = deque()
        self._size = 0
        self._lost = 0
        self._news = threading.Condition()
        self._idle = threading.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the line; formatted here, since it tells of the work under way."""
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - as the handlers of the standard library do
            self.handleError(record)
            return
        with self._news:
            if self._size + len(line) > MOST_WAITING:
                self._lost += 1
                return
            self._waiting.append(line)
            self._size += len(line)
            self._idle.clear()
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_on, name="log", daemon=True)
                self._thread.start()
            self._news.notify()

    def flush(self) -> None:
        """Wait until everything is written, for ``LAST_LINES`` at most."""
        self._idle.wait(LAST_LINES)

    def _write_on(self) -> None:
        while True:
            with self._news:
                while not self._waiting:
                    self._idle.set()
                    self._news.wait()
                some = [self._waiting.popleft() for _ in range(len(self._waiting))]
                lost, self._lost, self._size = self._lost, 0, 0
            self._write("".join(f"{line}\n" for line in some).encode("utf-8", "backslashreplace"))
            if lost:
                record = logging.LogRecord(
                    "oncebox", logging.ERROR, "", 0, "%d lines of this log are lost: nobody took them", (lost,), None
                )
                self._write(f"{self.format(record)}\n".encode())

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:
                time.sleep(0.05)  # somebody made it non-blocking
            except OSError:
                return  # closed: there is nobody to tell
