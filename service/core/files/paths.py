"""Paths and what stands under them: what a request may say, and what a script's lines mean. Pure."""

from __future__ import annotations

import base64
import hashlib
import re
import stat
from collections.abc import Sequence
from typing import NamedTuple

from service.core.files.scripts import UPLOAD
from service.core.records import rfc3339
from service.errors import InvalidRequest
from service.messages import File, FileType

MAX_PATH = 4096
"""Bytes in UTF-8: what the kernel takes, its last NUL left out."""

_MODE = re.compile(r"[0-7]{1,4}|0o?[0-7]{1,4}")
_STAT = re.compile(
    r"(?P<mode>[0-9a-f]+) (?P<size>[0-9]+) (?P<uid>[0-9]+) (?P<gid>[0-9]+) (?P<device>[0-9]+) (?P<inode>[0-9]+) "
    r"(?P<mtime>-?[0-9]+) (?P<modified>[^|]*)\|(?P<ctime>-?[0-9]+) (?P<changed>[^|]*)\|"
)
_FIRST, _LAST = -62_135_596_800, 253_402_300_799
"""Seconds of the years 1 and 9999, which is what can be written down."""
_FRACTION = re.compile(r":[0-9]{2}\.([0-9]{1,9})")


class Stat(NamedTuple):
    """What ``stat`` said (`scripts`: ``$S``). Times are nanoseconds since 1970 by the sandbox's clock; a ``stat`` that
    tells only seconds leaves the rest 0.
    """

    text: str
    """As it was said: two that are equal are the same file, unchanged."""
    mode: int
    """With the bits of the type."""
    size: int
    device: int
    inode: int
    mtime: int
    ctime: int

    @property
    def etag(self) -> str:
        """A strong entity tag, of device, inode, size, and the times of the last change of content and of inode.

        A PUT makes another inode. What a command writes into the same one changes the times, as finely as the
        sandbox's file system and its ``stat`` tell them.
        """
        parts = (self.device, self.inode, self.size, self.mtime, self.ctime)
        return f'"{hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}"'

    @property
    def type(self) -> FileType:
        """What it is."""
        if stat.S_ISREG(self.mode):
            return FileType.FILE
        if stat.S_ISDIR(self.mode):
            return FileType.DIRECTORY
        return FileType.SYMLINK if stat.S_ISLNK(self.mode) else FileType.OTHER


def parse_stat(text: str) -> Stat:
    """Raises ``ValueError``."""
    match = _STAT.fullmatch(text)
    if match is None:
        raise ValueError("this is no line of stat's")
    return Stat(
        text=text,
        mode=int(match["mode"], 16),
        size=int(match["size"]),
        device=int(match["device"]),
        inode=int(match["inode"]),
        mtime=int(match["mtime"]) * 10**9 + _nanoseconds(match["modified"]),
        ctime=int(match["ctime"]) * 10**9 + _nanoseconds(match["changed"]),
    )


def _nanoseconds(text: str) -> int:
    match = _FRACTION.search(text)
    return int(match[1].ljust(9, "0")) if match else 0


def checked(path: str) -> str:
    """``path`` with single slashes. Raises ``InvalidRequest``."""
    if not path:
        raise InvalidRequest.of("path", "is empty")
    if "\0" in path or any("\ud800" <= char <= "\udfff" for char in path):
        raise InvalidRequest.of("path", "contains NUL or a lone surrogate")
    if len(path.encode()) > MAX_PATH:
        raise InvalidRequest.of("path", f"is longer than {MAX_PATH} bytes")
    if any(part.startswith(UPLOAD) for part in path.split("/")):
        raise InvalidRequest.of("path", f"names beginning with {UPLOAD} are Oncebox's own")
    return re.sub(r"/(?:\.?/)+", "/", path)


def octal(field: str, text: str | None) -> str | None:
    """A mode as ``chmod`` reads it, four digits. Raises ``InvalidRequest``."""
    if text is None:
        return None
    if not _MODE.fullmatch(text):
        raise InvalidRequest.of(field, 'must be octal, such as "0644"')
    return f"{int(text.removeprefix('0o'), 8):04o}"


def from_mount(path: str, mounts: Sequence[str]) -> tuple[str | None, str]:
    """The mount point that ``path`` lies in (None: none), and the path from there.

    A sandbox's daemon can enter its mount points by their names even where commands know them by others (a local engine
    without a file system of its own for each sandbox).
    """
    for mount in sorted(mounts, key=len, reverse=True):
        if path == mount or path.startswith(mount + "/"):
            return mount, "./" + path[len(mount) :].lstrip("/")
    return None, path


def shown(asked: str, base: bytes, where: bytes) -> bytes:
    """The path of an answer: as it was asked for, from the root on; where that went up again, as it is."""
    if ".." in asked.split("/"):
        return where
    path = asked.encode()
    if not path.startswith(b"/"):
        path = base.rstrip(b"/") + b"/" + path.removeprefix(b"./")
    path = path.rstrip(b"/").removesuffix(b"/.")
    return path or b"/"


def file_of(path: bytes, seen: Stat, target: bytes | None = None) -> File:
    """As callers see it."""
    text = path.decode("utf-8", "replace")
    return File(
        path=text,
        type=seen.type,
        size=seen.size,
        mode=f"{stat.S_IMODE(seen.mode):04o}",
        modified_at=rfc3339(min(max(seen.mtime / 1e9, _FIRST), _LAST)) or "",
        target=None if target is None else target.decode("utf-8", "replace"),
        path_base64=None if text.encode() == path else base64.b64encode(path).decode(),
    )
