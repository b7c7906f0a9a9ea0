"""Directories of an engine that outlive no engine: removed by the next one where this one could not."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from pathlib import Path

NEW = ".new-"
"""Stands before the name of a directory that nobody holds yet."""


def make(parent: Path, prefix: str) -> tuple[Path, int]:
    """A new directory `{prefix}{random}` in `parent`, and a descriptor of it that holds it.

    It is held (`flock`) until the descriptor is closed in this process and in all that inherited it; however they
    end. Those of this user that nobody holds any more are removed first. Raises `OSError`.
    """
    for left in parent.glob(f"{prefix}*"):
        remove_abandoned(left)
    name = f"{prefix}{secrets.token_hex(8)}"
    new = parent / f"{NEW}{name}"
    new.mkdir(mode=0o700)
    held = os.open(new, os.O_RDONLY | os.O_DIRECTORY)
    with contextlib.suppress(OSError):  # a file system without locks: then the next engine can't lock it either
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # Only now it can be found: what is found and not locked is abandoned.
    path = new.rename(parent / name)
    return path, held


def remove_abandoned(directory: Path) -> None:
    """Remove a directory of this user's with all that is in it, unless somebody holds it or it can't be told."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
    except OSError:
        pass
    finally:
        os.close(descriptor)
