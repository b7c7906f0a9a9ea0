"""What callers give, as it is sent: text that is Unicode, numbers that JSON holds. Pure.

What can't be sent as it was meant is refused here, before anything is sent; all other judgement is the service's.
"""

# ruff: noqa: TID252
from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import InvalidRequest

LARGEST = 2**63
"""Whole numbers are less than this, on either side of zero: 64 bits."""
MAX_TIMEOUT = 86_400.0
"""Seconds: the longest time that a client may wait for a sign of life on a connection."""


def text(value: Any, field: str) -> str:
    """``value``, if it can be sent as text.

    Raises:
        InvalidRequest: it is no ``str``, or not Unicode (a lone surrogate: how Python shows bytes that are not UTF-8).
    """
    if not isinstance(value, str):
        raise InvalidRequest.of(field, f"is text, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest.of(field, f"has characters that are not Unicode: {value[:100]!a}") from None
    return value


def identifier(value: Any, field: str) -> str:
    """``value``, if it can be an id in a path.

    Raises:
        InvalidRequest: it is empty, or no text.
    """
    if not text(value, field):
        raise InvalidRequest.of(field, "is empty")
    return str(value)


def labels(value: Mapping[str, str], field: str) -> list[str]:
    """``value`` as a query has it: ``name=value`` each.

    Raises:
        InvalidRequest: one of them is no text, or would be taken for another name.
    """
    for name in value:
        if "=" in text(name, field):
            raise InvalidRequest.of(field, f"a name has no '=': {name[:100]!a}")
    return [f"{name}={text(item, f'{field}.{name}')}" for name, item in value.items()]


def plain(value: Any, field: str = "") -> Any:
    """``value`` as JSON holds it: objects, lists, text, numbers, booleans and null.

    Raises:
        InvalidRequest: something in it is none of these; ``errors`` names it.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Mapping):
        return {text(name, field): plain(item, _below(field, name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{field}.{place}") for place, item in enumerate(value)]
    return number(value, field) if _is_number(value) else text(value, field)


def number(value: Any, field: str) -> int | float:
    """``value``, if JSON can hold it as a number.

    Raises:
        InvalidRequest: it is infinite, not a number, or has more than 64 bits.
    """
    if not _is_number(value):
        raise InvalidRequest.of(field, f"is a number, not {type(value).__name__}")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidRequest.of(field, f"is {value}, which JSON can't hold")
        return float(value)
    whole = operator.index(value)
    if abs(whole) >= LARGEST:
        raise InvalidRequest.of(field, "is a number of more than 64 bits")
    return whole


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or hasattr(value, "__index__")


def _below(field: str, name: Any) -> str:
    return f"{field}.{printable(name)}" if field else str(name)


def words(value: Any, field: str) -> list[str]:
    """One word, or several, or none.

    Raises:
        InvalidRequest: one of them is no text.
    """
    if value is None:
        return []
    several = value if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    return [text(word, field) for word in several]


def arguments_of(value: Iterable[str] | None, field: str) -> list[str] | None:
    """A command's words, which are never one text: its letters would be the words.

    Raises:
        InvalidRequest: it is one text.
    """
    if isinstance(value, str | bytes):
        raise InvalidRequest.of(field, "is a list of words, not one text")
    return None if value is None else list(value)


def bounded(value: Any, default: float, most: float) -> float:
    """Seconds that the service will take for ``value``, as long as it takes that at all."""
    return float(min(max(0, value), most)) if isinstance(value, int | float) else default


def seconds(value: Any, name: str) -> float | None:
    """A time to wait on this side; None and infinity are for ever.

    Raises:
        ValueError: it is not a number.
    """
    if value is None:
        return None
    if not isinstance(value, int | float) or math.isnan(value):
        raise ValueError(f"{name} is a number of seconds or None, not {value!r}")
    return value if value <= LARGEST else math.inf


def printable(value: Any) -> str:
    """``value`` as text that can be written anywhere."""
    return str(value).encode("utf-8", "backslashreplace").decode()
