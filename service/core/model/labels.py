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


def pairs(metadata: Mapping[str, str]) -> list[str]:
    """Each as ``name=value``."""
    return [f"{name}={value}" for name, value in metadata.items()]


def has_text(wanted: str, *texts: str | None) -> bool:
    """One of the texts has this in it, in any letter case."""
    folded = wanted.casefold()
    return not folded or any(folded in text.casefold() for text in texts if text)
