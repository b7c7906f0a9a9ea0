"""Labels of sandboxes and jobs, and which of them only the server writes. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def matches(metadata: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Every wanted pair is there."""
    return all(metadata.get(key) == value for key, value in wanted.items())


RESERVED = "oncebox.io/"


def is_reserved(key: str) -> bool:
    """A metadata key that only the server writes, in any letter case or encoding."""
    return key.strip().casefold().startswith(RESERVED)
