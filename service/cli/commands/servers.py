"""``oncebox serve`` and ``oncebox engine``: the two parts of the service, as processes in the foreground."""

from __future__ import annotations

import logging

import click

from service.cli.arguments import Command
from service.cli.extras import extra
from service.settings import load


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  oncebox serve                                  # nothing else needed: memory:// and local://
  ONCEBOX_REDIS_URL=redis://127.0.0.1:6379 \\
  ONCEBOX_ENGINE_URL=http://127.0.0.1:8080 oncebox serve --workers 2
  oncebox doctor                                 # are the settings right?
""",
)
@click.option("--bind", metavar="HOST:PORT", help="Where to listen [default: ONCEBOX_BIND, or 127.0.0.1:8700].")
@click.option("--workers", metavar="N", type=click.IntRange(min=1), default=1, show_default=True,
              help="Processes; each is a replica.")  # fmt: skip
def serve(bind: str | None, workers: int) -> int:
    """Run a replica of the service, in the foreground; SIGTERM ends it in good order."""
    settings = load(overrides={"bind": bind} if bind else None)
    with extra("server", "`oncebox serve`"):
        from service.server.command import serve as run_service
    return run_service(settings, workers=workers)


@click.command(
    cls=Command,
    context_settings={"ignore_unknown_options": True},
    epilog="""\b
Examples:
  oncebox engine                                 # prints a line of JSON with its URL when it is ready
  ONCEBOX_ENGINE_URL=http://127.0.0.1:8701 oncebox serve
  OPEN_SANDBOX_API_KEY=secret oncebox engine     # the service then needs ONCEBOX_ENGINE_API_KEY=secret
  oncebox engine --like kubernetes               # as OpenSandbox on Kubernetes: pods that are made anew

\b
It runs real processes of this machine and is no security boundary: for development and tests.
""",
)
@click.option("--bind", metavar="HOST:PORT", default="127.0.0.1:8701", show_default=True, help="Where to listen.")
@click.option("--root", metavar="DIR", type=click.Path(file_okay=False),
              help="Where sandboxes live; default: a temporary directory.")  # fmt: skip
@click.option("--isolation", type=click.Choice(["auto", "bwrap", "plain"]), default="auto", show_default=True,
              help="How sandboxes are kept apart.")  # fmt: skip
@click.argument("more", metavar="[OPTIONS OF THE ENGINE]...", nargs=-1, type=click.UNPROCESSED)
def engine(bind: str, root: str | None, isolation: str, more: tuple[str, ...]) -> int:
    """Run the local engine apart, for several replicas to share."""
    with extra("server", "`oncebox engine`"):
        from service.local_engine import main as run_engine
    logging.getLogger().handlers.clear()  # it logs in its own way
    options = ["--bind", bind, "--isolation", isolation, *(["--root", root] if root else []), *more]
    return run_engine(options)
