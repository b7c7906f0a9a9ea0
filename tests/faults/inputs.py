"""What the commands of the fault tests read: nothing, a byte, 40 KiB, 900 KiB, by their mark.

A command prints what is expected of it only where it has read exactly that.
"""

import hashlib
import zlib

SIZES = (0, 1, 40 * 1024, 900 * 1024)
"""Bytes. Up to 32 KiB are kept in Redis; of more, the hash is."""
_INPUTS: dict[str, str] = {}


def expecting(mark: str) -> tuple[str, str | None]:
    """A test in a shell that what it reads is what goes with a mark, and that; None: nothing."""
    size = SIZES[zlib.crc32(mark.encode()) % len(SIZES)]
    text = f"{hashlib.sha256(mark.encode()).hexdigest()}\n" * (size // 65 + 1)
    given = text[:size]
    found = hashlib.sha256(given.encode()).hexdigest()[:8]
    return f'[ "$(sha256sum|cut -c-8)" = {found} ]', given or None


def remember(command: str, given: str | None) -> str:
    """The command, whose submissions bring what it reads from now on."""
    if given is not None:
        _INPUTS[command] = given
    return command


def submission(sandbox_id: str, command: str, timeout: int) -> dict[str, object]:
    """The body of `POST /v1/exec-jobs`."""
    body: dict[str, object] = {"sandbox_id": sandbox_id, "command": command, "timeout": timeout}
    return {**body, "stdin": _INPUTS[command]} if command in _INPUTS else body
