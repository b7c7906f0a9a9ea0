"""How the words of a command line become values: what every command of ``oncebox`` has in common there."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click
from click.types import UnprocessedParamType

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Command(click.Command):
    """A command whose usage errors know it, and whose arguments are text with something in it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does it; then every value is looked at, however it was typed or made."""
        with _told_where(ctx):
            rest = super().parse_args(ctx, args)
            if not ctx.resilient_parsing:
                for param in self.params:
                    _check(ctx, param)
            return rest


class Group(click.Group):
    """A group of such commands. Alone it prints its help."""

    command_class = Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does it, but that asking for nothing is no error."""
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit()
        with _told_where(ctx):
            return super().parse_args(ctx, args)


@contextlib.contextmanager
def _told_where(ctx: click.Context) -> Iterator[None]:
    """Usage errors of click's parser do not know their command; here they learn it."""
    try:
        yield
    except click.UsageError as error:
        error.ctx = error.ctx or ctx
        raise


def _check(ctx: click.Context, param: click.Parameter) -> None:
    """Refuse an empty value (a variable that is not set, a ``$(...)`` that failed), and bytes that are no text."""
    given = ctx.params.get(param.name or "")
    if isinstance(param.type, UnprocessedParamType):
        return
    for value in _texts(given):
        if not value:
            raise click.BadParameter("it is empty.", ctx, param)
        if isinstance(param, click.Option) and (value == "--" or value in _option_names(ctx)):
            raise click.BadParameter(f"its value is missing: `{value}` follows.", ctx, param)
        if not isinstance(param.type, click.Path) and not is_utf8(value):
            raise click.BadParameter("it is not UTF-8.", ctx, param)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):  # of ``pairs_option``: a variable may well be empty
        yield from (f"{name}={text}" for name, text in value.items())


def _option_names(ctx: click.Context) -> set[str]:
    return {name for param in ctx.command.get_params(ctx) if isinstance(param, click.Option) for name in param.opts}


def is_utf8(text: str) -> bool:
    """``text`` came from bytes that are UTF-8: Python makes lone surrogates of all others."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_DURATION = re.compile(r"(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9})s?)?", re.ASCII)
_UNITS = (86_400, 3600, 60, 1)


class Duration(click.IntRange):
    """Whole seconds, as a plain number or as ``90s``, ``15m``, ``1h30m``, ``2d``; between ``min`` and ``max``."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The seconds."""
        if isinstance(value, int):
            return value
        if not value or not is_utf8(value):
            self.fail("it is not UTF-8." if value else "it is empty.", param, ctx)
        found = _DURATION.fullmatch(value.strip().lower())
        if found is None or not any(found.groups()):
            self.fail(f"{value!r} is no duration: write 90, 90s, 15m or 1h30m.", param, ctx)
        return super().convert(
            sum(int(count or 0) * unit for count, unit in zip(found.groups(), _UNITS, strict=True)), param, ctx
        )


def pairs_option(*names: str, help: str) -> Callable[[Decorated], Decorated]:
    """An option that may be given several times, each time as ``K=V``; the argument is a dictionary."""
    return click.option(*names, multiple=True, metavar="K=V", callback=_pairs, help=help)


def _pairs(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{word!r} is not of the form K=V.")
        pairs[name] = value
    return pairs
