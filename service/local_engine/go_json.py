"""JSON as Go's decoder takes it into its types, with its wording of what it does not take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from . import wire

_NAMES = {
    bool: "bool", str: "string", int: "number", float: "number", list: "array", dict: "object",
}  # fmt: skip
_TYPES: dict[str, Any] = {"string": str, "int": int, "bool": bool, "int64": int, "uint32": int}


class Bad(ValueError):
    """What Go says of the JSON."""


def first_value(body: bytes) -> Any:
    """The first JSON value of a body; what follows it is not looked at. Raises `Bad`."""
    text = wire.text_of(body).lstrip(" \t\r\n")
    if not text:
        raise Bad("EOF")
    try:
        return json.JSONDecoder(strict=True).raw_decode(text)[0]
    except ValueError as error:
        raise Bad(_syntax_error(text, error)) from error
    except RecursionError as error:
        raise Bad("exceeded max depth") from error


def only_value(body: bytes) -> Any:
    """The JSON value that a text is. Raises `Bad`."""
    text = wire.text_of(body).strip(" \t\r\n")
    try:
        return json.loads(text)
    except ValueError as error:
        said = _syntax_error(text, error)
        raise Bad("unexpected end of JSON input" if said == "unexpected EOF" else said) from error
    except RecursionError as error:
        raise Bad("exceeded max depth") from error


def _syntax_error(text: str, error: ValueError) -> str:
    position, reason = getattr(error, "pos", 0), getattr(error, "msg", "")
    if position >= len(text):
        return "unexpected EOF"
    if reason == "Extra data":
        return f"invalid character '{text[position]}' after top-level value"
    wanted = "object key string" if reason.startswith("Expecting property name") else "value"
    return f"invalid character '{text[position]}' looking for beginning of {wanted}"


def mismatch(value: Any, field: str, wanted: str) -> Bad:
    """A value of another type than the struct's `field` (empty: than the whole) has."""
    place = f"struct field {field} of type {wanted}" if field else f"value of type {wanted}"
    given = _NAMES.get(type(value), "null")
    if given == "number" and wanted.rstrip("0123456789") in ("int", "uint"):
        given += f" {value}"
    return Bad(f"json: cannot unmarshal {given} into Go {place}")


def container(value: Any, kind: type, wanted: str) -> Any:
    """A list or an object, or an empty one for null. Raises `Bad`."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise mismatch(value, "", wanted)
    return value


def struct(value: Any, name: str, fields: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """The fields of an object, by name in any letter case; empty or 0 where they are missing. Raises `Bad`.

    `fields`: the type of each, and what Go calls it.
    """
    found: dict[str, Any] = {field: _TYPES[kind]() for field, (kind, _) in fields.items()}
    for key, given in container(value, dict, name).items():
        field = key.lower()
        if field not in fields or given is None:
            continue
        kind, called = fields[field]
        if type(given) is not _TYPES[kind]:
            raise mismatch(given, called, kind)
        found[field] = wire.without_surrogates(given) if isinstance(given, str) else given
    return found
