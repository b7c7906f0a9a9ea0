"""Logs: one JSON object a line, on standard error.

A pipe that nobody reads, or a file on a mount that hangs, blocks whoever writes to it. So lines are written by a thread
of their own, behind a bounded queue; what does not fit is counted, and told as soon as something is taken again.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from datetime import UTC, datetime

import msgspec

from service import context


class JsonLines(logging.Formatter):
    """A record as one line: ``time``, ``level``, ``logger``; what is known of the work under way (``request_id``,
    ``tenant``, ``command_id``, ``trace_id``); and ``message``, or the record's own ``fields``."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            **context.known(),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            return _encoded({**line, **fields})
        shown = {**line, "message": record.getMessage()}
        if record.exc_info:
            shown["exception"] = self.formatException(record.exc_info)
        return _encoded(shown)


def _encoded(line: dict[str, object]) -> str:
    try:
        return msgspec.json.encode(line).decode()
    except UnicodeEncodeError:
        clean = {key: repr(value) for key, value in line.items()}
        return msgspec.json.encode(clean).decode("utf-8", "replace")


MOST_WAITING = 4 * 1024 * 1024
"""Characters that wait to be written at the most."""
LAST_LINES = 1.0
"""Seconds that the last lines get at the end of the process."""


class Lines(logging.Handler):
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


def configure_logging() -> None:
    """Our own lines from INFO on, those of libraries from WARNING on."""
    # A line for each request: what it does not show is not looked up either.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # as the logging HOWTO has it, "Optimization": no stack is searched for the calling line
    handler = Lines(sys.stderr.fileno())
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in ("oncebox", "service"):
        logging.getLogger(name).setLevel(logging.INFO)
