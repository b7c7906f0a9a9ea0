"""The command ``oncebox`` as a whole: its subcommands, and how it ends."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from service import __version__
from service.cli.arguments import Group
from service.cli.commands import completion, cp, doctor, jobs, keys, logs, mcp, run, sandbox_acts, servers
from service.cli.output.terminal import show_logs
from service.cli.problems import ReaderGone, report
from service.cli.state import State, verbose_option

if TYPE_CHECKING:
    from collections.abc import Sequence

SECTIONS = {
    "Run commands": ("run", "exec", "status", "wait", "logs", "cancel", "ps"),
    "Sandboxes": ("sandboxes", "cp"),
    "Run the service": ("serve", "engine", "doctor", "keys"),
    "For models": ("mcp",),
    "Shell": ("completion",),
}


class App(Group):
    """The group of all commands; it alone decides how an error is shown and which exit code it gives."""

    def main(self, args: Sequence[str] | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]
        """Run, and leave the process with the exit code of the command."""
        state = State()
        extra.pop("standalone_mode", None)
        try:
            code = super().main(args, standalone_mode=False, obj=state, **extra)
            sys.stdout.flush()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it ends the command here
            code = report(error, state)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        """The command. A reader that went away is told apart: click would make it a plain failure."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise ReaderGone from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands by what they are for."""
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(60)) for name in names])


@click.group(
    cls=App,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="""\b
Examples:
  oncebox run -- make test             # with nothing set up
  oncebox serve                        # a service on 127.0.0.1:8700
  export ONCEBOX_URL=http://127.0.0.1:8700
  oncebox run --detach -- make test    # prints an id, which ...
  oncebox logs -f cmd_...              # ... anybody can follow, from anywhere

The environment: ONCEBOX_URL and ONCEBOX_API_KEY say where the service is and who you are.
""",
)
@click.version_option(__version__, prog_name="oncebox", message="%(prog)s %(version)s")
@verbose_option
@click.pass_context
def app(ctx: click.Context) -> None:
    """Sandboxes that are created once, and commands that run once, whose result outlives the connection."""
    show_logs(verbose=ctx.obj.verbose)
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


for command in (
    run.run,
    run.exec_,
    jobs.status,
    jobs.wait,
    logs.logs,
    jobs.cancel,
    jobs.ps,
    sandbox_acts.sandboxes,
    cp.cp,
    servers.serve,
    servers.engine,
    doctor.doctor,
    keys.keys,
    mcp.mcp,
    completion.completion,
):
    app.add_command(command)
