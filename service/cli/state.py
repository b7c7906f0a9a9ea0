"""What the options of the command line have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from service.cli.output.terminal import show_logs

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass
class State:
    """How this invocation speaks; shared by all of its contexts as ``ctx.obj``."""

    verbose: bool = False
    as_json: bool = False
    failed: int = 1
    """The exit code of an error: commands that pass a job's exit code on leave it the small ones."""


def _note_json(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
    ctx.ensure_object(State).as_json |= value
    return value


def _note_verbose(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(State).verbose = True
        show_logs(verbose=True)


def json_option(command: Command) -> Command:
    """``--json``, as the argument ``as_json``. Eager: an error in what follows it is JSON as well."""
    flag = _eager_flag("--json", "as_json", callback=_note_json, help="Print JSON, for programs.")
    return flag(command)


def verbose_option(command: Command) -> Command:
    """``-v``: show what the parts log."""
    help = "Show what the parts log, on stderr."
    flag = _eager_flag("-v", "--verbose", callback=_note_verbose, expose_value=False, help=help)
    return flag(command)


def _eager_flag(*names: str, **more: Any) -> Callable[[Command], Command]:
    return click.option(*names, is_flag=True, is_eager=True, **more)
