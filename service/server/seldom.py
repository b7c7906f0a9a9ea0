"""Log lines that strangers can cause: at most so many in a while, however much they do."""

from __future__ import annotations

import logging
import time

LINES = 5
"""Of one kind in a ``PERIOD_SECONDS``; the first line of the next says how many were left out."""
PERIOD_SECONDS = 10.0


class Seldom:
    """Lines of one kind."""

    def __init__(self, log: logging.Logger, level: int) -> None:
        self._log = log
        self._level = level
        self._since = -PERIOD_SECONDS
        self._lines = 0
        self._left_out = 0

    def say(self, message: str, *args: object) -> None:
        """Log ``message`` as ``Logger.log`` does, or count it."""
        now = time.monotonic()
        if now - self._since >= PERIOD_SECONDS:
            self._since, self._lines = now, 0
        if self._lines == LINES:
            self._left_out += 1
            return
        self._lines += 1
        if self._left_out:
            message, args = message + " (and %d such lines left out before)", (*args, self._left_out)
            self._left_out = 0
        self._log.log(self._level, message, *args)
