"""The command line ``oncebox``.

Built on click and rich. What a replica needs (the extra ``server``) is imported by the commands that need it,
when they run: ``pip install oncebox`` alone brings a command line that talks to a service elsewhere.
"""

from __future__ import annotations


def main() -> None:
    """The console script; leaves the process with the exit code."""
    from service.cli.app import app

    app.main(prog_name="oncebox")
