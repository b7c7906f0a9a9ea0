"""Bodies and query parameters into typed structs; every error names its field."""

from __future__ import annotations

import functools
import json
import re
from typing import Any, TypeVar, get_origin, get_type_hints
from urllib.parse import parse_qsl

import msgspec

from service.errors import FieldError, InvalidRequest, NotJson

S = TypeVar("S", bound=msgspec.Struct)

MAX_PARAMETERS = 100
_SHOWN = 200
"""Characters of a caller's own text that a message repeats."""
_FIELD = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)


def decode_body(body: bytes, kind: type[S]) -> S:
    """``body`` as a ``kind``. Raises ``NotJson`` or ``InvalidRequest``."""
    try:
        decoded = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _invalid(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotJson(f"The body is not JSON: {str(error)[:_SHOWN]}") from None
    json.loads(body, object_pairs_hook=_refuse_duplicates)
    return decoded


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    """Parsers disagree on which of two equal names counts, so there must not be two."""
    if len({name for name, _ in pairs}) == len(pairs):
        return
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise InvalidRequest.of(name[:_SHOWN], "given more than once")
        seen.add(name)


def decode_query(query: bytes, kind: type[S]) -> S:
    """The query string as a ``kind``: list fields may be repeated, others not. Raises ``InvalidRequest``."""
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS)
    except ValueError:
        raise InvalidRequest.of("query", f"at most {MAX_PARAMETERS} parameters, in UTF-8") from None
    repeatable = _repeatable(kind)
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in repeatable:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise InvalidRequest.of(name[:_SHOWN], "given more than once")
        else:
            values[name] = value
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid(error, flat=True) from None


@functools.cache
def _repeatable(kind: type[msgspec.Struct]) -> frozenset[str]:
    hints = get_type_hints(kind)  # without what is only annotated
    return frozenset(name for name, hint in hints.items() if get_origin(hint) is list)


def _invalid(error: msgspec.ValidationError, *, flat: bool = False) -> InvalidRequest:
    """The field and what is wrong with it, from msgspec's message. ``flat``: fields have no parts."""
    what, _, where = str(error).rpartition(" - at `")
    if not what:
        what, where = where, ""
    field = re.sub(r"\[(\w+)\]", r".\1", where.rstrip("`").replace("[...]", "").removeprefix("$")).lstrip(".")
    field = field.partition(".")[0] if flat else field
    named = _FIELD.fullmatch(what)
    if named is not None:
        field = ".".join(part for part in (field, named[2]) if part)
        what = "unknown field" if named[1] == "contains unknown" else "required"
    field = field[:_SHOWN] or "body"
    message = what.replace("`", "").replace(" | null", "")[:_SHOWN]
    message = message[:1].lower() + message[1:]
    return InvalidRequest(f"{field}: {message}", errors=[FieldError(field, message)])
