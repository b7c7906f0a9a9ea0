"""Errors as people read them: one sentence that says what is wrong, and one that says what to do."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import click
import msgspec

from service.cli.interrupts import INTERRUPTED
from service.cli.output import streams
from service.cli.output.terminal import Unwritable, encoded_json, say
from service.errors import OnceboxError
from service.settings import SettingsError

if TYPE_CHECKING:
    from service.cli.state import State

USAGE = 2
TROUBLE = 125
"""What the commands of ``PASS_ON`` give for Oncebox's own trouble: the codes below it belong to what was run."""
PASS_ON = ("run", "exec", "wait")
"""Commands whose exit code is a job's."""
PIPE_CLOSED = 141
"""128 + SIGPIPE: what a shell shows of a program whose reader went away."""


class Trouble(click.ClickException):
    """Something that ends a command of ours; the message says what to do."""


class ReaderGone(Exception):
    """Nobody reads stdout any more: the command ends without a word."""


ADVICE = {
    "UNAUTHENTICATED": "Set ONCEBOX_API_KEY to a key of that service.",
    "FORBIDDEN": "Ask whoever runs the service which owners your key may use.",
    "SANDBOX_NOT_FOUND": "`oncebox sandboxes ls` lists those that there are.",
    "JOB_NOT_FOUND": "`oncebox ps` lists the jobs that are known.",
    "SANDBOX_NOT_RUNNING": "`oncebox sandboxes ls` shows its state.",
    "IDEMPOTENCY_IN_PROGRESS": "Try again with the same key in a moment.",
    "IDEMPOTENCY_KEY_REUSED": "Take another key, or send the same request.",
    "RATE_LIMITED": "Try again later.",
    "QUOTA_EXCEEDED": "Remove what is no longer needed, or try again later.",
    "ENGINE_UNAVAILABLE": "Nothing was run; try again, or run `oncebox doctor` where the service runs.",
    "STORE_UNAVAILABLE": "Nothing was run; try again, or run `oncebox doctor` where the service runs.",
    "OUTCOME_UNKNOWN": "It may have been executed, and is not executed again by a retry with the same key.",
}
"""What to do, by problem code, where the problem's own detail does not say it."""


def sentence(error: OnceboxError) -> str:
    """What happened and what to do, on one line."""
    said = " ".join(str(error.detail).split()).rstrip(".")
    parts = [f"{said}."]
    advice = ADVICE.get(error.code)
    if error.code == "OUTCOME_UNKNOWN" and error.command_id:
        advice = f"`oncebox status {error.command_id}` tells how it went."
    if error.code == "INTERNAL" and error.request_id:
        advice = f"The service's log has more, under the request id {error.request_id}."
    if error.code in ("RATE_LIMITED", "QUOTA_EXCEEDED") and error.retry_after:
        advice = f"Try again in {error.retry_after:.0f} s."
    if advice and advice.rstrip(".") not in said:
        parts.append(advice)
    return " ".join(parts)


def report(error: BaseException, state: State) -> int:
    """Say on stderr what ended the command, and give the exit code."""
    as_json = state.as_json
    match error:
        case click.UsageError():
            _show(as_json, "USAGE", error.format_message(), _see_help(error))
            passes_on = error.ctx is not None and error.ctx.info_name in PASS_ON
            return TROUBLE if passes_on else USAGE
        case click.ClickException():
            _show(as_json, "FAILED", error.format_message())
        case SettingsError():
            _show(as_json, "SETTINGS", str(error))
        case OnceboxError():
            _show(as_json, error.code, sentence(error), **_details(error))
        case click.Abort() | KeyboardInterrupt():
            return INTERRUPTED
        case ReaderGone() | BrokenPipeError():
            streams.hush_stdout()
            return PIPE_CLOSED
        case Unwritable():
            _show(as_json, "FAILED", f"{error}.")
        case OSError():
            _show(as_json, "FAILED", f"{error}.")
        case Exception():
            _unforeseen(error, state)
        case _:
            raise error
    return state.failed


def _unforeseen(error: Exception, state: State) -> None:
    if state.verbose:
        traceback.print_exception(error)
    said = " ".join(f"{type(error).__name__}: {error}".split())
    _show(state.as_json, "INTERNAL", f"{said}. This is a bug in Oncebox; `oncebox -v ...` shows where.")


def _see_help(error: click.UsageError) -> str:
    path = error.ctx.command_path if error.ctx else "oncebox"
    return f"See `{path} --help`."


def _details(error: OnceboxError) -> dict[str, Any]:
    shown = {
        "retryable": error.retryable,
        "command_id": error.command_id,
        "sandbox_id": error.sandbox_id,
        "errors": msgspec.to_builtins(list(error.errors)) or None,
        "request_id": error.request_id,
    }
    return {name: value for name, value in shown.items() if value is not None}


def _show(as_json: bool, code: str, message: str, more: str = "", **details: Any) -> None:
    if as_json:
        problem = {"error": {"code": code, "message": message, **details}}
        click.echo(encoded_json(problem), err=True)
    else:
        say(f"{message} {more}".rstrip())
