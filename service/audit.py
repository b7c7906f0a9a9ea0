"""The audit trail: one line for each thing that changes state. Logger ``oncebox.audit``, at a level of its own.

A line says who (``tenant``, ``request_id``), what (``action`` and the ids it is about), under which key
(``key_digest``: the first 32 hex digits of the sha256 of the Idempotency-Key, so that ``printf %s KEY | sha256sum``
finds it) and what came of it (``outcome``). Of a file that was written or removed, or a
directory that was made, it has ``path`` and ``size`` (bytes). It never holds a key, a command, a variable or content.
"""

from __future__ import annotations

import hashlib
import logging

from service.log_writer import Fields

AUDIT = 25
"""Between INFO and WARNING; nothing but the audit trail is logged at it."""

logging.addLevelName(AUDIT, "AUDIT")
log = logging.getLogger("oncebox.audit")


def record(action: str, outcome: str, **fields: object) -> None:
    """Write one line; fields that are None are left out."""
    if log.isEnabledFor(AUDIT):
        known = {name: value for name, value in fields.items() if value is not None}
        line = Fields({"action": action, "outcome": outcome, **known})
        log.log(AUDIT, "%s", line, extra={"fields": line})


def key_digest(key: str) -> str:
    """What stands in a line for an Idempotency-Key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]
