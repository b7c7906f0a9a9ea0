"""Logs: one JSON object a line, on standard error."""

from __future__ import annotations

import functools
import logging
import sys
import time

import msgspec

from service import context
from service.log_writer import LogWriter


class JsonLines(logging.Formatter):
    """A record as one line: ``time``, ``level``, ``logger``; what is known of the work under way (``request_id``,
    ``tenant``, ``command_id``, ``trace_id``); and ``message``, or the record's own ``fields``."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        whole = int(record.created)
        line: dict[str, object] = {
            "time": f"{_second(whole)}.{int((record.created - whole) * 1000):03}Z",
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


@functools.lru_cache(1)
def _second(whole: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))


def _encoded(line: dict[str, object]) -> str:
    try:
        return msgspec.json.encode(line).decode()
    except UnicodeEncodeError:
        clean = {key: repr(value) for key, value in line.items()}
        return msgspec.json.encode(clean).decode("utf-8", "replace")


def configure_logging() -> None:
    """Our own lines from INFO on, those of libraries from WARNING on."""
    # A line for each request: what it does not show is not looked up either.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # as the logging HOWTO has it, "Optimization": no stack is searched for the calling line
    handler = LogWriter(sys.stderr.fileno())
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in ("oncebox", "service"):
        logging.getLogger(name).setLevel(logging.INFO)
