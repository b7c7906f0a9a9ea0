"""The three standard streams, as this process was given them."""

from __future__ import annotations

import io
import os
import stat
import sys

_closed: set[int] = set()


def prepare() -> None:
    """Make the standard streams safe to use: call it before anything is opened.

    One that was closed (``>&-``) is opened on the null device: else the next socket or file would become it.
    A character that stdout's encoding has not is escaped: what is printed comes from others, who may use any.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free
            _closed.add(fd)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")


def stdout_was_closed() -> bool:
    """Whoever started this process closed its stdout: what is written there reaches nobody."""
    return 1 in _closed


def piped_stdin() -> int | None:
    """The descriptor of a stdin that somebody has filled, or fills: a file, a pipe or a socket; None: it is none."""
    try:
        fd = sys.stdin.fileno()
        kind = os.fstat(fd).st_mode
    except (AttributeError, OSError, ValueError):  # closed, or no file at all
        return None
    return fd if stat.S_ISREG(kind) or stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) else None


def hush_stdout() -> None:
    """Let nothing more, and nothing that is still buffered, reach a stdout that takes it no longer."""
    try:
        fd = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, fd)
    os.close(nowhere)
