"""A type of the OpenAPI document in a few words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_LIMITS = {"minimum": "at least", "maximum": "at most", "minLength": "length at least", "maxLength": "length at most"}

Mark = Callable[[str], str]
"""Text as HTML, or as Markdown."""


def in_words(schema: dict[str, Any], *, named: Mark, code: Mark) -> str:
    """``named`` shows the name of another type, ``code`` a value."""

    def words(part: dict[str, Any]) -> str:
        return in_words(part, named=named, code=code)

    if "$ref" in schema:
        return named(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(words, schema["anyOf"])))
    if "enum" in schema:
        return " or ".join(code(str(value)) for value in schema["enum"])
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {words(schema.get('items', {}))}"
    if isinstance(values := schema.get("additionalProperties"), dict) and values:
        return f"object of {words(values)}"
    limits = [f"{said} {schema[limit]}" for limit, said in _LIMITS.items() if limit in schema]
    pattern = [code(schema["pattern"])] if "pattern" in schema else []
    return ", ".join([kind, *limits, *pattern])
