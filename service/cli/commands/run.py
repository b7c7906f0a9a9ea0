"""``oncebox run`` and ``oncebox exec``: a command as a job, in the foreground of whoever started it."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from typing import Any, TypeVar

import click

from service.cli.arguments import Command, Duration, is_utf8, pairs_option
from service.cli.output import streams
from service.cli.problems import TROUBLE, Trouble
from service.cli.state import State, json_option, verbose_option
from service.messages import MAX_JOB_TIMEOUT
from service.settings import Settings, load


def shell_text(words: tuple[str, ...]) -> str:
    """What the sandbox's shell gets: one word is its text; several are quoted, and so stay what they are.

    It is given to ``bash -c``, which takes a text that begins with a sign for one more option of its own.
    """
    text = words[0] if len(words) == 1 else shlex.join(words)
    return f" {text}" if text.startswith(("-", "+")) else text


Decorated = TypeVar("Decorated", bound=Callable[..., Any])

EXIT_CODES = """\
Exit codes: the command's own; 124 timed out; 125 trouble of Oncebox's own, a wrong command line included;
130 interrupted. Ctrl-C cancels the job; twice: leaves at once, and says how to get back.
With --detach, where the id can't be printed, the job is cancelled, unless --key leads back to it.
"""
WORDS = """\
Several words reach the command as they are: they are joined as a shell would quote them. A single word is
given to the sandbox's shell as it stands.
The command reads what stands in stdin, where that is a file or a pipe: it is read to its end first.
A terminal is not read.
"""


def command_options(command: Decorated) -> Decorated:
    """The command itself, and all that is said of it wherever it runs."""
    timeout = Duration(1, MAX_JOB_TIMEOUT)
    decorators: tuple[Callable[[Any], Any], ...] = (
        click.pass_obj,
        verbose_option,
        json_option,
        click.option("-d", "--detach", is_flag=True, help="Print the command_id, and don't wait."),
        click.option("--no-stdin", is_flag=True, help="Give the command nothing to read."),
        click.option("-u", "--user", metavar="U", help="Whose rights it has: a name, UID or UID:GID."),
        click.option("--key", metavar="K", help="Run once for this key, however often it is asked for."),
        pairs_option("-e", "--env", help="A variable of the command; may be given several times."),
        click.option("-w", "--cwd", metavar="D", help="The directory to run in."),
        click.option("--timeout", metavar="T", type=timeout, help="Seconds, or such as 1h30m; default 3600."),
        click.argument("words", metavar="-- CMD...", nargs=-1, type=click.UNPROCESSED),
    )
    for decorate in decorators:
        command = decorate(command)
    return command


@click.command(
    cls=Command,
    context_settings={"allow_interspersed_args": False},
    epilog=f"""\b
Examples:
  oncebox run -- make test
  oncebox run -- sh -c 'for i in 1 2 3; do echo $i; sleep 1; done; exit 3'
  oncebox run 'cd /tmp && ls | wc -l'        # one word: the shell's own text
  oncebox run -e CI=1 --cwd /workspace --timeout 1h30m -- pytest -q
  oncebox run --sandbox ID --detach -- ./train.sh      # prints the command_id
  tar c . | oncebox run -- tar xv             # what comes through the pipe
  oncebox run --key build-17 -- make         # again after a crash: the same job

\b
{WORDS}
\b
Without ONCEBOX_URL a whole service is started in this process, on this machine, and goes when the command
is over. With it, a sandbox is made for the command and deleted at its end, unless --sandbox names one.

\b
{EXIT_CODES}""",
)
@click.option("--sandbox", metavar="ID", help="Run in this sandbox, and leave it there.")
@click.option("--image", metavar="I", help="The image of the sandbox to make.")
@click.option("--rm", "remove", is_flag=True, help="Delete the sandbox at the end, the one of --sandbox too.")
@command_options
def run(
    state: State, sandbox: str | None, image: str | None, remove: bool, words: tuple[str, ...], **options: Any
) -> int:
    """Run a command as a job, show its output as it comes, and exit with its code."""
    state.failed = TROUBLE
    if sandbox is not None and image is not None:
        raise click.UsageError("--sandbox and --image exclude each other: the sandbox has its image already.")
    if remove and options["detach"]:
        raise click.UsageError("--rm and --detach exclude each other: nobody is there at the end.")
    return _run(words, sandbox=sandbox, image=image, remove=remove, **options)


@click.command(
    "exec",
    cls=Command,
    context_settings={"allow_interspersed_args": False},
    epilog=f"""\b
Examples:
  oncebox exec ID -- ls -l /workspace
  oncebox exec -e CI=1 -w /workspace ID -- pytest -q
  oncebox exec ID 'ps aux | wc -l'           # one word: the shell's own text

\b
{WORDS}
\b
{EXIT_CODES}""",
)
@click.argument("sandbox", metavar="ID")
@command_options
def exec_(state: State, sandbox: str, words: tuple[str, ...], **options: Any) -> int:
    """Run a command in a sandbox that is there, as `run --sandbox ID` does."""
    state.failed = TROUBLE
    if words[:1] == ("--",):  # click leaves it there behind an argument
        words = words[1:]
    elif words and words[0].startswith("-"):
        raise click.UsageError(f"Options stand before ID; a command that begins with {words[0]} behind `--`.")
    return _run(words, sandbox=sandbox, image=None, remove=False, **options)


def _run(
    words: tuple[str, ...],
    *,
    sandbox: str | None,
    image: str | None,
    remove: bool,
    timeout: int | None,
    cwd: str | None,
    env: dict[str, str],
    key: str | None,
    user: str | None,
    no_stdin: bool,
    detach: bool,
    as_json: bool,
) -> int:
    if not all(map(is_utf8, words)):
        raise click.UsageError("The command is not UTF-8.")
    if not words:
        raise click.UsageError("No command: write it behind `--`, as in `oncebox run -- make test`.")
    from service.cli.foreground import RunRequest, run_in_foreground

    settings = load()
    _check_needs(settings, sandbox=sandbox, detach=detach)
    request = RunRequest(
        command=shell_text(words),
        sandbox=sandbox,
        image=image,
        remove=remove,
        timeout=timeout,
        cwd=cwd,
        env=env or None,
        key=key,
        user=user,
        stdin=None if no_stdin else streams.piped_stdin(),
        detach=detach,
        as_json=as_json,
    )
    return asyncio.run(run_in_foreground(request, settings))


def _check_needs(settings: Settings, *, sandbox: str | None, detach: bool) -> None:
    if settings.url:
        return
    needs = "set ONCEBOX_URL to the service's, such as http://127.0.0.1:8700 (`oncebox serve`)."
    if detach:
        raise Trouble(f"--detach needs a service that stays when this command is over: {needs}")
    if sandbox is not None:
        raise Trouble(f"a sandbox is named, which needs the service that has it: {needs}")
