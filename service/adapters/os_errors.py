"""What the service says of files, in Python's own exceptions."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from service.client import FileNotFound, FilePermissionDenied, IsADirectory, NotADirectory

WORDS = {
    FileNotFound: (errno.ENOENT, "No such file or directory"),
    NotADirectory: (errno.ENOTDIR, "Not a directory"),
    IsADirectory: (errno.EISDIR, "Is a directory"),
    FilePermissionDenied: (errno.EACCES, "Permission denied"),
}


@contextmanager
def as_os_errors(path: str) -> Iterator[None]:
    """Raises ``FileNotFoundError`` and the like for what ``path`` is in the sandbox, as if it were here."""
    try:
        yield
    except tuple(WORDS) as error:
        raise OSError(*WORDS[type(error)], path) from error
