"""What the file routes of execd say when its file system refuses, as the port's errors. Pure."""

from service.ports.engine import (
    DiskFull,
    EngineError,
    FileBusy,
    FileMissing,
    OwnerUnknown,
    PathDenied,
    PathExists,
    PathInvalid,
    PathIsDirectory,
    PathIsLink,
    PathNotDirectory,
    ReadOnly,
    Unclear,
)

_NO_LIST: tuple[tuple[str, type[EngineError]], ...] = (
    ("path is a symbolic link", PathIsLink),
    ("path is not a directory", PathNotDirectory),
)
_ENDS: tuple[tuple[str, type[EngineError]], ...] = (
    (": no such file or directory", FileMissing),
    (": is a directory", PathIsDirectory),
    (": not a directory", PathNotDirectory),
    (": permission denied", PathDenied),
    (": operation not permitted", PathDenied),
    (": file exists", PathExists),
    (": no space left on device", DiskFull),
    (": disk quota exceeded", DiskFull),
    (": file too large", DiskFull),
    (": read-only file system", ReadOnly),
    (": text file busy", FileBusy),
    (": device or resource busy", FileBusy),
    (": directory not empty", FileBusy),
    (": invalid cross-device link", FileBusy),
    (": file name too long", PathInvalid),
    (": too many levels of symbolic links", PathInvalid),
    (": invalid argument", PathInvalid),
)
"""How execd's texts end: the system's own words, after the path, which may hold anything."""
_WITHIN: tuple[tuple[str, type[EngineError]], ...] = (
    ("error accessing file: destination path already exists: ", PathExists),
    ("path references undefined environment variables: ", PathInvalid),
    ("failed to lookup user ", OwnerUnknown),
    ("failed to lookup group ", OwnerUnknown),
    (" path is a directory: ", PathIsDirectory),
)


def list_error(message: str) -> type[EngineError] | None:
    """What a 400 of execd's list came to, where it has no list."""
    return next((kind for start, kind in _NO_LIST if message.startswith(start)), None)


def file_error(message: str) -> type[EngineError]:
    """What a 500 of execd's file routes came to. A path in it may hold such words too: then the caller of that
    path is told something odd of it.
    """
    within = (kind for part, kind in _WITHIN if part in message)
    ends = (kind for end, kind in _ENDS if message.endswith(end))
    return next(within, None) or next(ends, Unclear)
