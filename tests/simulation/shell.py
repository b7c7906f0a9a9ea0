"""What a shell text of the fence does, read off the text itself.

The texts of `service.core.fence.scripts` are looked for in what is sent, piece by piece: a piece that the product
leaves out, or sends in another order, is left out here, or done in that order. A text of another form is none of ours.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Mapping
from typing import NamedTuple

from service.core.fence import scripts
from service.core.fence.protocol import SCRIPT_VARIABLE


class Script(NamedTuple):
    """The pieces of a wrapper in their order, and what was filled in."""

    pieces: tuple[str, ...]
    values: Mapping[str, str]


class Small(NamedTuple):
    """One of our own small commands."""

    name: str
    values: Mapping[str, str]


def _pattern(text: str) -> str:
    """A regular expression for a template; each name that is filled in is a group."""
    text = re.sub(r"\n{2,}", "\n", text).strip()
    seen: set[str] = set()
    parts = re.split(r"@([A-Z_]+)@", text)
    out = [re.escape(parts[0])]
    for name, rest in zip(parts[1::2], parts[2::2], strict=True):
        out += [f"(?P={name})" if name in seen else f"(?P<{name}>.*?)", re.escape(rest)]
        seen.add(name)
    return "".join(out)


_RUNS = ("RUN", "RUN_EXPORTED", "RUN_WITH_ENV", "RUN_WORDS", "RUN_WORDS_WITH_ENV")
_PIECES = {
    name: re.compile(_pattern(getattr(scripts, name)))
    for name in ("BEGIN", "COMPARE", "MAKE", "FILL", "PREPARE", "ASIDE", *_RUNS, "NOTE")
}
_PIECES["EXIT"] = re.compile(r"exit \$2")
_SMALL = {
    name: re.compile(_pattern(scripts.HEAD + getattr(scripts, name)))
    for name in ("READY", "VOID", "LOOK", "END", "CLEAN")
}


class Unknown(Exception):
    """The text is none of ours."""


def wrapper(text: str, env: Mapping[str, str]) -> Script:
    """The wrapper that a submission carries. Raises ``Unknown``."""
    script = env.get(SCRIPT_VARIABLE)
    token = re.fullmatch(r": ([0-9a-f]{32});eval .*", text)
    if script is None or token is None:
        raise Unknown(text)
    pieces: list[str] = []
    values = {"TOKEN": token[1]}
    place = 0
    while place < len(script):
        name, found = _piece(script, place)
        pieces.append("RUN" if name in _RUNS else name)
        values |= {key: value for key, value in found.groupdict().items() if value is not None}
        place = found.end() + 1
    return Script(tuple(pieces), values)


def _piece(script: str, place: int) -> tuple[str, re.Match[str]]:
    for name, pattern in _PIECES.items():
        found = pattern.match(script, place)
        if found is not None:
            return name, found
    raise Unknown(script[place:])


def small(text: str) -> Small:
    """One of our own small commands. Raises ``Unknown``."""
    name, pattern = _by_end(text)
    found = pattern.fullmatch(text)
    if found is None:
        raise Unknown(text)
    return Small(name, found.groupdict())


def _by_end(text: str) -> tuple[str, re.Pattern[str]]:
    for name, pattern in _SMALL.items():
        if _last_line(name) in text:
            return name, pattern
    raise Unknown(text)


@functools.cache
def _last_line(name: str) -> str:
    """A line that only this one has."""
    others = "".join(getattr(scripts, other) for other in _SMALL if other != name)
    lines = [line for line in getattr(scripts, name).strip().split("\n") if "@" not in line and line not in others]
    longest: str = max(lines, key=len)
    return longest


def word(quoted: str) -> str:
    """A quoted word as the shell reads it."""
    return "".join(shlex.split(quoted))
