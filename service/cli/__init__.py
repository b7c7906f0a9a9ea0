"""The command line ``oncebox``.

Built on click and rich. What a replica needs (the extra ``server``) is imported by the commands that need it,
when they run: ``pip install oncebox`` alone brings a command line that talks to a service elsewhere.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """The console script; leaves the process with the exit code."""
    _open_closed_streams()
    from service.cli.app import app

    app.main(prog_name="oncebox")


def _open_closed_streams() -> None:
    """``>&-``: else the next socket or file would become the standard stream that was closed."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
