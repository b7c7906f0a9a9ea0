"""The end of a replica's process, whatever hangs: a thread in a lookup of names, a mount, a pipe that nobody reads."""

from __future__ import annotations

import _thread
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from types import FrameType

LAST_THREADS = 1.0
"""Seconds that threads get to end by themselves once everything is shut down."""
HANGS = 1
"""The exit code of a process whose shutdown hung."""

log = logging.getLogger("oncebox")


class Watchdog:
    """Ends the process ``seconds`` after the first signal, if it is still there.

    ``signalled`` is a handler for `signal.signal`, not for the event loop, which may be what hangs. It takes no lock,
    since it may interrupt anything.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begun = False

    def signalled(self, _number: int, _frame: FrameType | None) -> None:
        """The time begins; again changes nothing."""
        if not self._begun:
            self._begun = True
            _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        time.sleep(self._seconds)
        # In a thread of its own: whoever hangs may hold a lock that logging needs.
        threading.Thread(target=self._tell, daemon=True).start()
        time.sleep(LAST_THREADS)
        os._exit(HANGS)

    def _tell(self) -> None:
        log.error("not shut down within %g s: something hangs; ending at once", self._seconds)
        logging.shutdown()


def leave(code: int) -> None:
    """Everything is shut down: end the process with ``code`` at once where threads hang that Python would wait for."""
    deadline = time.monotonic() + LAST_THREADS
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread is not threading.main_thread() and not thread.daemon:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                log.warning("a thread hangs (%s): ending without it", thread.name)
                end_at_once(code)


def end_at_once(code: int) -> NoReturn:
    """Write the last log lines, and end the process as it is."""
    logging.shutdown()
    os._exit(code)
