"""The metrics that an expression names, with the labels that it asks of them. Not a parser: enough for our files."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_NAME = re.compile(r"\b(oncebox_[a-z0-9_]+)\b(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'([a-z_]+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")

SCRAPED = {"instance", "job"}
"""Labels that Prometheus itself puts on."""


@dataclass(frozen=True)
class Named:
    """A metric in an expression; ``asked``: values by label, alternatives apart."""

    name: str
    asked: dict[str, list[str]]


def named(expression: str) -> Iterator[Named]:
    """Every metric of ours in it."""
    for match in _NAME.finditer(expression):
        matchers = _MATCHER.findall(match[2] or "")
        yield Named(match[1], {label: value.split("|") for label, value in matchers})


def grouped(expression: str) -> set[str]:
    """Labels that it groups or joins by."""
    found = {label.strip() for labels in _GROUPING.findall(expression) for label in labels.split(",")}
    return found - {""}
