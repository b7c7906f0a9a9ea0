"""``oncebox run``: a command as a job, in the foreground of whoever started it."""

from __future__ import annotations

import asyncio
import shlex

import click

from service.cli.arguments import Command, is_utf8, pairs_option
from service.cli.output import streams
from service.cli.output.terminal import say
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


@click.command(
    cls=Command,
    context_settings={"allow_interspersed_args": False},
    epilog="""\b
Examples:
  oncebox run -- make test
  oncebox run -- sh -c 'for i in 1 2 3; do echo $i; sleep 1; done; exit 3'
  oncebox run 'cd /tmp && ls | wc -l'        # one word: the shell's own text
  oncebox run --env CI=1 --cwd /workspace -- pytest -q
  oncebox run --sandbox ID --detach -- ./train.sh      # prints the command_id
  oncebox run --key build-17 -- make         # again after a crash: the same job

\b
Several words reach the command as they are: they are joined as a shell would quote them. A single word is
given to the sandbox's shell as it stands. Nothing is read from
stdin; where data waits there, a line on stderr says so.

\b
Without ONCEBOX_URL a whole service is started in this process, on this machine, and goes when the command
is over. With it, a sandbox is made for the command and deleted at its end, unless --sandbox names one.

\b
Exit codes: the command's own; 124 timed out; 125 trouble of Oncebox's own, a wrong command line included;
130 interrupted. Ctrl-C cancels the job; twice: leaves at once, and says how to get back.
With --detach, where the id can't be printed, the job is cancelled, unless --key leads back to it.
""",
)
@click.argument("words", metavar="-- CMD...", nargs=-1, type=click.UNPROCESSED)
@click.option("--sandbox", metavar="ID", help="Run in this sandbox, and leave it there.")
@click.option("--image", metavar="I", help="The image of the sandbox to make.")
@click.option("--timeout", metavar="S", type=click.IntRange(1, MAX_JOB_TIMEOUT), help="Seconds; default 3600.")
@click.option("--cwd", metavar="D", help="The directory to run in.")
@pairs_option("--env", help="A variable of the command; may be given several times.")
@click.option("--key", metavar="K", help="Run once for this key, however often it is asked for.")
@click.option("--detach", is_flag=True, help="Print the command_id, and don't wait.")
@json_option
@verbose_option
@click.pass_obj
def run(
    state: State,
    words: tuple[str, ...],
    sandbox: str | None,
    image: str | None,
    timeout: int | None,
    cwd: str | None,
    env: dict[str, str],
    key: str | None,
    detach: bool,
    as_json: bool,
) -> int:
    """Run a command as a job, show its output as it comes, and exit with its code."""
    state.failed = TROUBLE
    if not all(map(is_utf8, words)):
        raise click.UsageError("The command is not UTF-8.")
    if not words:
        raise click.UsageError("No command: write it behind `--`, as in `oncebox run -- make test`.")
    if sandbox is not None and image is not None:
        raise click.UsageError("--sandbox and --image exclude each other: the sandbox has its image already.")
    from service.cli.foreground import RunRequest, run_in_foreground

    settings = load()
    _check_needs(settings, sandbox=sandbox, detach=detach)
    request = RunRequest(
        command=shell_text(words),
        sandbox=sandbox,
        image=image,
        timeout=timeout,
        cwd=cwd,
        env=env or None,
        key=key,
        detach=detach,
        as_json=as_json,
    )
    said = _say_what_stdin_has()
    code = asyncio.run(run_in_foreground(request, settings))
    if not said:
        _say_what_stdin_has()  # it came meanwhile
    return code


def _say_what_stdin_has() -> bool:
    """Something waits there that the command does not get: no reason to stop, for it may well be for others."""
    waits = streams.stdin_has_data()
    if waits:
        say("the command is not given stdin, where data waits (`</dev/null` says that this is meant).")
    return waits


def _check_needs(settings: Settings, *, sandbox: str | None, detach: bool) -> None:
    if settings.url:
        return
    needs = "set ONCEBOX_URL to the service's, such as http://127.0.0.1:8700 (`oncebox serve`)."
    if detach:
        raise Trouble(f"--detach needs a service that stays when this command is over: {needs}")
    if sandbox is not None:
        raise Trouble(f"--sandbox needs the service that has the sandbox: {needs}")
