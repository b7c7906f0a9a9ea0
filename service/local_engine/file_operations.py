"""What execd does to files, as Go's `os` does it: the same steps, the same words where one fails."""

from __future__ import annotations

import asyncio
import errno
import grp
import os
import pwd
import re
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from . import wire
from .files import SandboxFiles

BREATH = 256
"""Entries after which the engine's other work has its turn."""


class FileError(Exception):
    """Go's text; `missing`: it wraps "no such file or directory"."""

    def __init__(self, text: str, missing: bool = False) -> None:
        super().__init__(text)
        self.missing = missing

    def within(self, prefix: str) -> FileError:
        """The same, wrapped."""
        return FileError(prefix + str(self), self.missing)


@contextmanager
def saying(what: str) -> Iterator[None]:
    """Turn the system's error into Go's text: `open /x: permission denied`."""
    try:
        yield
    except OSError as error:
        number = error.errno or errno.EINVAL
        raise FileError(f"{what}: {wire.errno_text(number)}", number == errno.ENOENT) from error


@contextmanager
def within(prefix: str) -> Iterator[None]:
    """Wrap what fails."""
    try:
        yield
    except FileError as error:
        raise error.within(prefix) from error


@dataclass(frozen=True, slots=True)
class Paths:
    """How a sandbox's daemon reads a path."""

    files: SandboxFiles
    env: dict[str, str]

    def expand(self, path: str) -> str:
        """Variables and `~` replaced. Raises `FileError`."""
        try:
            return wire.expand_path(path, self.env)
        except wire.UndefinedVariables as error:
            raise FileError(str(error)) from error

    def absolute(self, path: str) -> str:
        """Expanded, from the daemon's working directory, without `.`, `..` and double slashes."""
        return wire.clean_path(os.path.join("/workspace", self.expand(path)))


# -- looking


def describe(files: SandboxFiles, path: str) -> dict[str, Any]:
    """What execd tells of a path; `mode` is the octal digits as a decimal number. Raises `OSError`."""
    found = files.stat(path, follow=False)
    kinds = ((stat.S_ISLNK, "symlink"), (stat.S_ISDIR, "directory"), (stat.S_ISREG, "file"))
    return {
        "path": wire.without_surrogates(path),
        "type": next((name for test, name in kinds if test(found.st_mode)), "other"),
        "size": found.st_size,
        "modified_at": wire.go_time(found.st_mtime_ns),
        "created_at": wire.go_time(found.st_ctime_ns),
        "owner": _name(found.st_uid, lambda number: pwd.getpwuid(number).pw_name),
        "group": _name(found.st_gid, lambda number: grp.getgrgid(number).gr_name),
        "mode": int(f"{found.st_mode & 0o777:o}"),
    }


def _name(number: int, look_up: Any) -> str:
    try:
        return str(look_up(number))
    except KeyError:
        return str(number)


def info(files: SandboxFiles, path: str) -> dict[str, Any]:
    """The same, with Go's words."""
    with saying(f"lstat {path}"):
        return describe(files, path)


async def entries(files: SandboxFiles, path: str, depth: int) -> AsyncIterator[dict[str, Any]]:
    """What is below a directory, `depth` levels deep, by the bytes of the names; no link is followed."""
    with saying(f"open {path}"):
        names = files.names(path)
    for count, name in enumerate(names):
        if not count % BREATH:
            await asyncio.sleep(0)
        place = os.path.join(path, name)
        found = info(files, place)
        yield found
        if found["type"] == "directory" and depth > 1:
            async for each in entries(files, place, depth - 1):
                yield each


async def walk(files: SandboxFiles, path: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """All that is no directory, at and below a path, with the name; what goes meanwhile is left out."""
    try:
        found = info(files, path)
    except FileError as error:
        if error.missing:
            return
        raise error.within(f"error accessing path {path}: ") from error
    if found["type"] != "directory":
        yield os.path.basename(path), found
        return
    try:
        with saying(f"open {path}"):
            names = files.names(path)
    except FileError as error:
        if error.missing:
            return
        raise error.within(f"error accessing path {path}: ") from error
    for count, name in enumerate(names):
        if not count % BREATH:
            await asyncio.sleep(0)
        async for each in walk(files, os.path.join(path, name)):
            yield each


def glob(pattern: str) -> re.Pattern[str]:
    """execd's patterns for one name: `*`, `?`, `[a-z]`, `[^a]`, `{a,b}`, a backslash. Raises `ValueError`."""
    text, depth, at = "", 0, 0
    while pattern.startswith("**/"):
        pattern = pattern[3:]
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == "*":
            text += ".*"
        elif char == "?":
            text += "."
        elif char == "[":
            end = pattern.index("]", at + 1)
            chosen = pattern[at:end]
            negated = chosen[:1] in ("^", "!")
            text += f"[{'^' if negated else ''}{chosen[negated:].replace('[', re.escape('['))}]"
            at = end + 1
        elif char == "{":
            text, depth = text + "(?:", depth + 1
        elif char == "}" and depth:
            text, depth = text + ")", depth - 1
        elif char == "," and depth:
            text += "|"
        elif char == "\\":
            text += re.escape(pattern[at])
            at += 1
        else:
            text += re.escape(char)
    if depth:
        raise ValueError(pattern)
    return re.compile(text, re.DOTALL)


# -- changing


def directory_of(path: str) -> str:
    """Go's `filepath.Dir`."""
    return wire.clean_path(path[: path.rfind("/") + 1])


def make_directories(files: SandboxFiles, path: str, mode: int = 0o777) -> None:
    """`os.MkdirAll`."""
    try:
        if not stat.S_ISDIR(files.stat(path).st_mode):
            raise FileError(f"mkdir {path}: not a directory")
        return
    except OSError:
        parent = os.path.dirname(path.rstrip("/"))
    if parent.strip("/"):
        make_directories(files, parent, mode)
    try:
        with saying(f"mkdir {path}"):
            files.make_directory(path, mode)
    except FileError:
        try:
            if stat.S_ISDIR(files.stat(path, follow=False).st_mode):
                return
        except OSError:
            pass
        raise


def permit(paths: Paths, path: str, wanted: dict[str, Any]) -> None:
    """The mode, then owner and group by name, of what a path leads to."""
    place = paths.absolute(path)
    if mode := wanted["mode"]:
        if not re.fullmatch(r"[0-7]{1,11}", str(mode)):
            raise FileError(f'strconv.ParseUint: parsing "{mode}": invalid syntax')
        with saying(f"chmod {place}"):
            paths.files.change(place, lambda name: os.chmod(name, int(str(mode), 8) & 0o777))
    owner = _number("user", wanted["owner"], lambda name: pwd.getpwnam(name).pw_uid)
    group = _number("group", wanted["group"], lambda name: grp.getgrnam(name).gr_gid)
    if owner >= 0 or group >= 0:
        with within(f"failed to set owner/group for {place}: "), saying(f"chown {place}"):
            paths.files.change(place, lambda name: os.chown(name, owner, group))


def _number(kind: str, name: str, look_up: Any) -> int:
    if not name:
        return -1
    try:
        return int(look_up(name))
    except KeyError:
        raise FileError(f"failed to lookup {kind} {name}: {kind}: unknown {kind} {name}") from None


def remove_file(paths: Paths, path: str) -> None:
    """Remove what is no directory; what a `stat` does not find, a dangling link too, is left as it is."""
    with within("invalid path: "):
        place = paths.absolute(path)
    try:
        with saying(f"stat {place}"):
            found = paths.files.stat(place)
    except FileError as error:
        if error.missing:
            return
        raise
    if stat.S_ISDIR(found.st_mode):
        raise FileError(f"path is a directory: {path}")
    with within("failed to remove file: "), saying(f"remove {place}"):
        paths.files.unlink(place)


async def remove_all(files: SandboxFiles, path: str) -> None:
    """`os.RemoveAll`: as much as can be; the first failure."""
    if not path:
        return
    if path == "." or path.endswith("/."):
        raise FileError(f"RemoveAll {path}: invalid argument")
    await asyncio.sleep(0)
    try:
        files.unlink(path)
        return
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM, errno.EACCES):
            raise FileError(f"unlinkat {path}: {wire.errno_text(error.errno or 0)}") from error
    first: FileError | None = None
    try:
        names = files.names(path)
    except OSError as error:
        names, first = [], FileError(f"openfdat {path}: {wire.errno_text(error.errno or 0)}")
    for name in names:
        try:
            await remove_all(files, os.path.join(path, name))
        except FileError as error:
            first = first or error
    try:
        files.remove_directory(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise first or FileError(f"unlinkat {path}: {wire.errno_text(error.errno or 0)}") from error


def move(paths: Paths, source: str, target: str) -> None:
    """Rename to a name that a `stat` does not find, with its directories made."""
    with within("invalid source path: "):
        old = paths.absolute(source)
    with within("invalid destination path: "):
        new = paths.absolute(target)
    try:
        paths.files.stat(old)
    except FileNotFoundError as error:
        raise FileError(f"source path not found: {source}: stat {old}: no such file or directory", True) from error
    except OSError:
        pass
    with within("failed to create destination directory: "):
        make_directories(paths.files, os.path.dirname(new), 0o755)
    try:
        paths.files.stat(new)
    except OSError:
        pass
    else:
        raise FileError(f"destination path already exists: {target}")
    with within("failed to rename file: "), saying(f"rename {old} {new}"):
        paths.files.rename(old, new)
