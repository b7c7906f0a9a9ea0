"""The command line ``oncebox``.

Built on click and rich. What a replica needs (the extra ``server``) is imported by the commands that need it,
when they run: ``pip install oncebox`` alone brings a command line that talks to a service elsewhere.
"""

from __future__ import annotations

from service.cli import streams

INTERRUPTED = 130
"""128 + SIGINT."""


def main() -> None:
    """The console script; leaves the process with the exit code."""
    streams.prepare()
    try:
        from service.cli.app import app
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    app.main(prog_name="oncebox")
