"""What a request must be like beyond its types. Pure; each refusal names the field."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from service.core.records import is_reserved
from service.errors import InvalidRequest, PayloadTooLarge
from service.messages import MAX_COMMAND

MAX_METADATA = 64
"""Metadata entries of one sandbox or job."""
MAX_ENV = 1024
"""Environment variables of one request."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
_OWNER = re.compile(r"[A-Za-z0-9._@-]{1,128}")


def owner(value: str | None) -> str | None:
    """An owner is one path segment: letters, digits, ``.``, ``_``, ``-``, ``@``; never ``.`` or ``..``."""
    if value is None:
        return None
    if not _OWNER.fullmatch(value) or value in (".", ".."):
        raise InvalidRequest.of(
            "workspace_owner", "must be 1 to 128 letters, digits, '.', '_', '-' or '@', and not '.' or '..'"
        )
    return value


def metadata(values: Mapping[str, str] | None) -> dict[str, str]:
    """Kubernetes labels; reserved keys are dropped, since the server alone writes them."""
    kept = {}
    for key, value in (values or {}).items():
        if is_reserved(key):
            continue
        prefix, slash, name = key.rpartition("/")
        if not _NAME.fullmatch(name) or (slash and (len(prefix) > 253 or not _PREFIX.fullmatch(prefix))):
            raise InvalidRequest.of(
                f"metadata.{shown(key)}",
                "is no label key (an optional DNS prefix and '/', then 1 to 63 letters, digits, '-', '_', '.')",
            )
        if prefix == "opensandbox.io" or prefix.endswith(".opensandbox.io"):
            raise InvalidRequest.of(f"metadata.{shown(key)}", "has the engine's own prefix")
        if value and not _NAME.fullmatch(value):
            raise InvalidRequest.of(
                f"metadata.{shown(key)}",
                "must be at most 63 letters, digits, '-', '_', '.', and begin and end with a letter or digit",
            )
        kept[key] = value
    if len(kept) > MAX_METADATA:
        raise InvalidRequest.of("metadata", f"has more than {MAX_METADATA} entries")
    return kept


def env(values: Mapping[str, str] | None, *, reserved: Callable[[str], bool]) -> dict[str, str]:
    """Names without ``=`` and NUL, values without NUL and no longer than a command may be."""
    checked = dict(values or {})
    if len(checked) > MAX_ENV:
        raise InvalidRequest.of("env", f"has more than {MAX_ENV} entries")
    for name, value in checked.items():
        if not name or "=" in name or "\0" in name or _surrogate(name):
            raise InvalidRequest.of("env", "has a name that is empty or contains '=' or NUL")
        if reserved(name):
            raise InvalidRequest.of(f"env.{shown(name)}", "is used by Oncebox itself")
        if "\0" in value or _surrogate(value):
            raise InvalidRequest.of(f"env.{shown(name)}", "contains NUL or a lone surrogate")
        if len(value.encode()) > MAX_COMMAND:
            raise InvalidRequest.of(f"env.{shown(name)}", f"is longer than {MAX_COMMAND} bytes")
    return checked


def command(text: str) -> str:
    """A command fits one shell argument, and has no NUL."""
    if not text.strip():
        raise InvalidRequest.of("command", "is empty")
    if "\0" in text or _surrogate(text):
        raise InvalidRequest.of("command", "contains NUL or a lone surrogate")
    if len(text.encode()) > MAX_COMMAND:
        raise PayloadTooLarge(
            f"command: is longer than {MAX_COMMAND} bytes; put it into a file in the sandbox",
            errors=InvalidRequest.of("command", f"is longer than {MAX_COMMAND} bytes").errors,
        )
    return text


def path(field: str, value: str | None) -> str | None:
    """A path without NUL."""
    if value is not None and ("\0" in value or _surrogate(value)):
        raise InvalidRequest.of(field, "contains NUL or a lone surrogate")
    return value


def texts(field: str, values: list[str] | None) -> list[str] | None:
    """A list of strings without NUL."""
    for value in values or []:
        path(field, value)
    return values


def shown(text: str) -> str:
    """Untrusted text for a message: short, printable."""
    return "".join(char if char.isprintable() else "?" for char in text[:80])


def _surrogate(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)
