"""Archives on their way into a sandbox: every member is looked at as it passes, and written anew.

What comes out is made here from what was understood, so another reader of it can't see another archive. Nothing of it
is kept but counts. Not for the event loop: reading and writing block.
"""

from __future__ import annotations

import posixpath
import tarfile
import zlib
from collections.abc import Callable, Iterator

import msgspec

from service.core.files.paths import MAX_PATH
from service.core.files.scripts import UPLOAD
from service.errors import FileTooLarge, InvalidRequest

MOST_MEMBERS = 1_000_000
MOST_LINKS = 50_000
"""Symbolic links, whose names are remembered."""
MOST_HEADER = 64 * 1024
"""Bytes of a header that stands before a member's own: names and links of any length that a path may have."""
CHUNK = 256 * 1024
_GZIP = b"\x1f\x8b"
_SPECIAL = {
    tarfile.LNKTYPE: "is a hard link: pack with --hard-dereference",
    tarfile.CHRTYPE: "is a device",
    tarfile.BLKTYPE: "is a device",
    tarfile.FIFOTYPE: "is a pipe",
    tarfile.GNUTYPE_SPARSE: "is sparse: pack without --sparse",
}
_BEFORE = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class Packed(msgspec.Struct):
    """What passed. ``files``: members; ``named``: those that are no directories; ``bytes``: of the files' contents.
    ``mode``: of the directory itself, where the archive has it.
    """

    files: int = 0
    named: int = 0
    bytes: int = 0
    mode: int | None = None


def repack(chunks: Iterator[bytes], write: Callable[[bytes], object], *, most: int) -> Packed:
    """Read an archive (plain or gzipped), and write what may be unpacked. ``most``: bytes, unpacked.

    Raises ``InvalidRequest`` for what is no whole tar, and for what leads outside; ``FileTooLarge``.
    """
    source = _Source(chunks, most)
    try:
        return _Repacking(source, write).all()
    except tarfile.TarError as error:
        raise InvalidRequest(f"The body is no whole tar: {error}") from None
    except (zlib.error, EOFError, UnicodeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"The body is no whole tar: {type(error).__name__}") from None


class _Source:
    """A body, as ``tarfile`` reads a stream; unpacked where it is gzipped, no more than was asked for at a time."""

    def __init__(self, chunks: Iterator[bytes], most: int) -> None:
        self._chunks = chunks
        self._left = most
        self._gzip: zlib._Decompress | None = None
        self._packed = b""
        self._waiting = b""
        self._begun = False
        self.last = b""
        """The last bytes that were read."""

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; none at the end."""
        if not self._waiting:
            self._waiting = self._next(size)
        data, self._waiting = self._waiting[:size], self._waiting[size:]
        self._left -= len(data)
        if self._left < 0:
            raise FileTooLarge("The archive is too large, unpacked; nothing is left of it.")
        self.last = (self.last + data)[-tarfile.BLOCKSIZE :] if data else self.last
        return data

    def _next(self, size: int) -> bytes:
        if not self._begun:
            self._begun = True
            self._packed = self._more()
            while len(self._packed) < len(_GZIP) and (more := self._more()):
                self._packed += more
            if self._packed.startswith(_GZIP):
                self._gzip = zlib.decompressobj(zlib.MAX_WBITS | 16)
        if self._gzip is None:
            data, self._packed = self._packed or self._more(), b""
            return data
        return self._unpacked(size)

    def _unpacked(self, size: int) -> bytes:
        assert self._gzip is not None
        while True:
            if self._gzip.eof:  # another one may follow
                self._packed = self._gzip.unused_data or self._packed or self._more()
                if not self._packed:
                    return b""
                self._gzip = zlib.decompressobj(zlib.MAX_WBITS | 16)
            data = self._gzip.decompress(self._packed, size)
            self._packed = self._gzip.unconsumed_tail
            if data:
                return data
            if not self._gzip.eof and not self._packed:
                self._packed = self._more()
                if not self._packed:
                    raise EOFError

    def _more(self) -> bytes:
        return next(self._chunks, b"")


class _Member(tarfile.TarInfo):
    """Refuses headers that would be read into memory whatever their size, before they are."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _BEFORE and self.size > MOST_HEADER:
            raise InvalidRequest("The archive has a header that is too long")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise _refused(self.name, _SPECIAL[self.type])
        return super()._proc_member(tar)  # type: ignore[misc,no-any-return]

    def _no_sparse(self, *_: object) -> None:
        raise _refused(self.name, _SPECIAL[tarfile.GNUTYPE_SPARSE])

    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _no_sparse


class _Repacking:
    def __init__(self, source: _Source, write: Callable[[bytes], object]) -> None:
        self._source = source
        self._write = write
        self._links: set[str] = set()
        self._packed = Packed()
        self._closed: list[tuple[str, int, int]] = []
        """Directories that their owner can't write into: open until the end, since not every tar waits with that."""

    def all(self) -> Packed:
        with tarfile.open(
            fileobj=self._source,  # type: ignore[call-overload]
            mode="r|",
            bufsize=CHUNK,
            tarinfo=_Member,
            encoding="utf-8",
            errors="surrogateescape",
        ) as tar:
            for member in tar:
                tar.members = []  # it would keep all of them
                self._pass(tar, member)
        while self._source.read(CHUNK):
            pass
        if self._source.last.strip(b"\0"):
            raise InvalidRequest("The body is no whole tar: its end is missing")
        for name, mode, mtime in reversed(self._closed):
            again = tarfile.TarInfo(name)
            again.type, again.mode, again.mtime = tarfile.DIRTYPE, mode, mtime
            self._head(again)
        self._write(b"\0" * (2 * tarfile.BLOCKSIZE))
        return self._packed

    def _head(self, member: tarfile.TarInfo) -> None:
        self._write(member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))

    def _pass(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name = checked_name(member.name)
        packed = self._packed
        if not name:
            packed.mode = member.mode & 0o7777 if member.isdir() else packed.mode
            return
        packed.files += 1
        if packed.files > MOST_MEMBERS:
            raise InvalidRequest(f"The archive has more than {MOST_MEMBERS} members")
        self._check(name, member)
        fresh = tarfile.TarInfo(name)
        fresh.mode = member.mode & 0o7777
        fresh.mtime = int(min(max(member.mtime, 0), 2**33 - 1))
        fresh.type = tarfile.REGTYPE if member.isreg() else member.type
        fresh.size = member.size if member.isreg() else 0
        fresh.linkname = member.linkname if member.issym() else ""
        if fresh.isdir() and fresh.mode & 0o700 != 0o700:
            self._closed.append((name, fresh.mode, int(fresh.mtime)))
            if len(self._closed) > MOST_LINKS:
                raise InvalidRequest(f"The archive has more than {MOST_LINKS} directories that their owner can't use")
            fresh.mode |= 0o700
        self._head(fresh)
        packed.named += not member.isdir()
        if member.isreg():
            packed.bytes += member.size
            self._copy(tar, member)

    def _check(self, name: str, member: tarfile.TarInfo) -> None:
        if not (member.isreg() or member.isdir() or member.issym()):
            raise _refused(name, _SPECIAL.get(member.type, "is neither file, directory nor symbolic link"))
        parts = name.split("/")
        for end in range(1, len(parts)):
            if "/".join(parts[:end]) in self._links:
                raise _refused(name, "lies behind a symbolic link of the archive")
        if member.issym():
            check_link(name, member.linkname)
            self._links.add(name)
            if len(self._links) > MOST_LINKS:
                raise InvalidRequest(f"The archive has more than {MOST_LINKS} symbolic links")

    def _copy(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        file = tar.extractfile(member)
        assert file is not None
        left = member.size
        while left:
            data = file.read(min(CHUNK, left))
            if not data:
                raise EOFError
            self._write(data)
            left -= len(data)
        if rest := -member.size % tarfile.BLOCKSIZE:
            self._write(b"\0" * rest)


def checked_name(name: str) -> str:
    """A member's name without what means nothing; empty: the directory itself. Raises ``InvalidRequest``."""
    if name.startswith("/"):
        raise _refused(name, "is absolute")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise _refused(name, "leads outside (`..`)")
    if any(part.startswith(UPLOAD) for part in parts):
        raise _refused(name, f"has a name that is Oncebox's own ({UPLOAD})")
    plain = "/".join(parts)
    if len(plain.encode("utf-8", "surrogateescape")) >= MAX_PATH or any(
        len(part.encode("utf-8", "surrogateescape")) > 255 for part in parts
    ):
        raise _refused(name, "has a name that is too long")
    return plain


def check_link(name: str, target: str) -> None:
    """Where a symbolic link leads stays inside, whatever else the archive has: it goes up only at its beginning, and no
    further than its own directory lies deep. (No member lies behind a link, so that directory is a real one.)

    Raises ``InvalidRequest``.
    """
    if not target or target.startswith("/") or len(target.encode("utf-8", "surrogateescape")) >= MAX_PATH:
        raise _refused(name, "is a link that leads outside (it is absolute)" if target else "is a link to nothing")
    parts = [part for part in target.split("/") if part not in ("", ".")]
    up = 0
    while up < len(parts) and parts[up] == "..":
        up += 1
    deep = len(posixpath.dirname(name).split("/")) if "/" in name else 0
    if up > deep or ".." in parts[up:]:
        raise _refused(name, "is a link that leads outside (`..`)")


def _refused(name: str, why: str) -> InvalidRequest:
    shown = "".join(char if char.isprintable() else "?" for char in name[:200])
    return InvalidRequest.of("body", f"the archive's member {shown!r} {why}; nothing was unpacked")
