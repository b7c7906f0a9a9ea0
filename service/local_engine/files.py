"""A sandbox's files, reached from outside: paths mean what they mean to a process in the sandbox.

bwrap: every path is resolved in the sandbox's own root (`openat2` with `RESOLVE_IN_ROOT`), so that links and
mounts lead where they lead inside and nowhere else.

plain: paths are the machine's, but `/workspace` and the volumes' mount paths, in a request's `cwd` or `path`,
mean the sandbox's own directories: a caller who mounts a volume on `/workspace` can start a command there and
fetch its files in both modes. What a *command* calls `/workspace` is the machine's.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from .isolation import Layout, Mount

SYS_OPENAT2 = 437
RESOLVE_IN_ROOT = 0x10
_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def open_in_root(root: int, path: str, flags: int, mode: int = 0) -> int:
    """Open `path` with directory descriptor `root` as `/`. Raises `OSError`."""
    how = _OpenHow(flags | os.O_CLOEXEC, mode, RESOLVE_IN_ROOT)
    encoded = os.fsencode(path)
    descriptor = _libc.syscall(SYS_OPENAT2, root, encoded, ctypes.byref(how), ctypes.sizeof(how))
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return int(descriptor)


def open_root(layout: Layout, init: int) -> int:
    """A descriptor of what process `init` sees as `/`."""
    try:
        return os.open(f"/proc/{init}/root", os.O_PATH | os.O_DIRECTORY)
    except (FileNotFoundError, PermissionError):
        return os.open(layout.files, os.O_PATH | os.O_DIRECTORY)


class SandboxFiles:
    """Opens, lists and removes by the sandbox's paths. Relative ones start at its workspace."""

    def __init__(self, layout: Layout, mounts: Sequence[Mount], init: int) -> None:
        """`init`: pid of the sandbox's first process in its name spaces, 0 in plain mode.

        Of a sandbox that has ended already, only its own directories are left.
        """
        self._private = init != 0
        self._root = open_root(layout, init) if init else -1
        targets = {
            "/workspace": layout.files / "workspace",
            **{m.target.rstrip("/"): m.source for m in mounts},
        }
        self._mapped = sorted(targets.items(), key=lambda item: -len(item[0]))

    def close(self) -> None:
        """Let go of the sandbox's root; nothing can be reached through this object any more in bwrap mode."""
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def place(self, path: str) -> str:
        """The path to give to a process of the sandbox: as it is, or, in plain mode, the machine's."""
        start, rest = self.place_from(path)
        return f"{start}/{rest}" if start and rest else start + rest

    def place_from(self, path: str) -> tuple[str, str]:
        """The same in two: in plain mode first the machine's directory for `/workspace` or a volume.

        A user of the sandbox may have no way to that one through the engine's own directories, as it has inside.
        """
        path = path if path.startswith("/") else "/workspace/" + path
        if self._private:
            return "", path
        plain = os.path.normpath(path)
        for target, source in self._mapped:
            if plain == target or plain.startswith(target + "/"):
                return str(source), plain[len(target) + 1 :]
        return "", path

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        """A descriptor for `path`. Raises `OSError`."""
        if "\0" in path:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        place = self.place(path)
        if not self._private:
            return os.open(place, flags, mode)
        return open_in_root(self._root, place, flags, mode if flags & os.O_CREAT else 0)

    def stat(self, path: str, follow: bool = True) -> os.stat_result:
        """What `stat` or, without `follow`, `lstat` says inside. Raises `OSError`."""
        descriptor = self.open(path, os.O_PATH | (0 if follow else os.O_NOFOLLOW))
        try:
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)

    def parent(self, path: str) -> tuple[int, str]:
        """A descriptor of the directory that holds `path`, and the last component."""
        place = os.path.normpath(path if path.startswith("/") else "/workspace/" + path)
        directory, name = os.path.split(place)
        return self.open(directory, os.O_PATH | os.O_DIRECTORY), name

    def change(self, path: str, action: Callable[[str], None]) -> None:
        """Do something to what `path` leads to, by a name of the engine's own. Raises `OSError`."""
        descriptor = self.open(path, os.O_PATH)
        try:
            action(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)

    def unlink(self, path: str) -> None:
        """Remove what is no directory. Raises `OSError`."""
        with self._parent(path) as (descriptor, name):
            os.unlink(name, dir_fd=descriptor)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory. Raises `OSError`."""
        with self._parent(path) as (descriptor, name):
            os.rmdir(name, dir_fd=descriptor)

    def make_directory(self, path: str, mode: int) -> None:
        """Make one directory. Raises `OSError`."""
        with self._parent(path) as (descriptor, name):
            os.mkdir(name, mode, dir_fd=descriptor)

    def rename(self, source: str, target: str) -> None:
        """Move a file or directory within the sandbox. Raises `OSError`."""
        with self._parent(source) as (from_fd, from_name), self._parent(target) as (to_fd, to_name):
            os.rename(from_name, to_name, src_dir_fd=from_fd, dst_dir_fd=to_fd)

    def names(self, path: str) -> list[str]:
        """The entries of a directory, by their bytes. Raises `OSError`."""
        descriptor = self.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return sorted(os.listdir(descriptor), key=os.fsencode)
        finally:
            os.close(descriptor)

    @contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        """A descriptor of the directory that holds `path`, and the last component."""
        place = os.path.normpath(path if path.startswith("/") else "/workspace/" + path)
        directory, name = os.path.split(place)
        descriptor = self.open(directory, os.O_PATH | os.O_DIRECTORY)
        try:
            yield descriptor, name
        finally:
            os.close(descriptor)
