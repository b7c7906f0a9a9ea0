"""The command line ``oncebox``.

Built on click and rich. What a replica needs (the extra ``server``) is imported by the commands that need it,
when they run: ``pip install oncebox`` alone brings a command line that talks to a service elsewhere.

``commands`` has what each command takes and prints; ``foreground`` carries ``run`` out; ``checks`` are the doctor's;
``output`` is all that is written. ``target`` is where the service is, and ``problems`` how an error is shown.
"""

from __future__ import annotations

import signal

from service.cli.output import streams


def main() -> None:
    """The console script; leaves the process with the exit code."""
    streams.prepare()
    try:
        from service.cli.app import app
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    app.main(prog_name="oncebox")
