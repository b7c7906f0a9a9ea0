"""Files on this side: where an upload's bytes come from, and where a download's go.

Local trouble (a disk that is full, a file that is not there) is raised as it is, and never taken for a connection's.
"""

# ruff: noqa: TID252
from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeAlias

from ..errors import InvalidRequest
from ..messages import Unpacked
from .arguments import text
from .errors import UnexpectedAnswer

PIECE = 256 * 1024
"""Bytes that are read and sent at once."""
IN_MEMORY = 1024 * 1024
"""Bytes of a stream that can't seek, or of an archive, that are kept in memory; more goes to a temporary file."""

Progress: TypeAlias = Callable[[int, int | None], object]
"""Called with the bytes so far, and the bytes of the whole where that is known. A try that is repeated begins anew."""
LocalPath: TypeAlias = str | os.PathLike[str]


class LocalFault(Exception):
    """Local trouble on its way through the libraries in between; ``cause`` is raised in its place."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Content:
    """Bytes to be sent from an open file, from where it stands to its end; again from there at each try."""

    def __init__(self, file: IO[bytes], *, progress: Progress | None = None) -> None:
        self._file = file
        self._start = file.tell()
        self.length = file.seek(0, io.SEEK_END) - self._start
        """Bytes."""
        self._progress = progress or _nothing
        self.fault: LocalFault | None = None
        """Local trouble during the last try, whatever the library made of it."""

    def beginning(self, most: int) -> bytes:
        """The first bytes, at most so many. Raises ``OSError``."""
        self._file.seek(self._start)
        return self._file.read(min(most, self.length))

    def sha256(self) -> str:
        """Of all of it, in hex. Raises ``OSError``."""
        found = hashlib.sha256()
        self._file.seek(self._start)
        while piece := self._file.read(PIECE):
            found.update(piece)
        return found.hexdigest()

    def pieces(self) -> Iterator[bytes]:
        """The bytes. Raises ``LocalFault``."""
        self.fault = None
        try:
            self._file.seek(self._start)
            done = 0
            self._progress(done, self.length)
            while done < self.length:
                piece = self._file.read(min(PIECE, self.length - done))
                if not piece:
                    raise OSError("the file became shorter while it was sent")
                yield piece
                done += len(piece)
                self._progress(done, self.length)
        except Exception as error:
            self.fault = LocalFault(error)
            raise self.fault from error


class Receiver:
    """Bytes that are received into an open file, from where it stands, over several tries."""

    def __init__(self, file: IO[bytes], *, progress: Progress | None = None) -> None:
        self._file = file
        self._start = file.tell() if file.seekable() else None
        self._progress = progress or _nothing
        self._total: int | None = None
        self.received = 0
        """Bytes of the file that are here."""
        self.etag: str | None = None
        """Of the file that they are from."""

    def wanted(self) -> dict[str, str]:
        """Headers that ask for what is missing, as long as the file is the same."""
        if not self.received or self.etag is None:
            return {}
        return {"Range": f"bytes={self.received}-", "If-Range": self.etag}

    def begins(self, status: int, headers: Mapping[str, str]) -> bool:
        """Whether the body of this answer is to be received; names of ``headers`` in lower case. Raises ``LocalFault``.

        A part (206) goes on where the last try ended; the whole (200) begins anew.
        """
        if status not in (200, 206):
            return False
        self.etag = headers.get("etag")
        length = headers.get("content-length")
        if status == 200 and self.received:
            self._again()
        self._total = self.received + int(length) if length is not None and length.isdecimal() else None
        return True

    def take(self, block: bytes) -> None:
        """The next bytes. Raises ``LocalFault``."""
        try:
            self._file.write(block)
            self.received += len(block)
            self._progress(self.received, self._total)
        except Exception as error:
            raise LocalFault(error) from error

    def _again(self) -> None:
        try:
            if self._start is None:
                raise UnexpectedAnswer("the file changed while it was read, and what was written can't be taken back")
            self._file.seek(self._start)
            self._file.truncate()
            self.received = 0
        except Exception as error:
            raise LocalFault(error) from error


@contextlib.contextmanager
def content_of(source: bytes | str | IO[bytes] | Any, progress: Progress | None = None) -> Iterator[Content]:
    """What ``write()`` was given: bytes, text (as UTF-8), or an open binary file.

    Raises:
        TypeError: it is none of these.
    """
    if isinstance(source, str):
        source = source.encode()
    if isinstance(source, bytes | bytearray | memoryview):
        yield Content(io.BytesIO(source), progress=progress)
        return
    if not hasattr(source, "read") or isinstance(source, io.TextIOBase):
        raise TypeError(f"bytes, text or an open binary file, not {type(source).__name__}")
    if source.seekable():
        yield Content(source, progress=progress)
        return
    with tempfile.SpooledTemporaryFile(IN_MEMORY) as kept:  # a pipe: its bytes come once
        while piece := source.read(PIECE):
            kept.write(piece)
        kept.seek(0)
        yield Content(kept, progress=progress)


@contextlib.contextmanager
def local_content(local: LocalPath, progress: Progress | None = None) -> Iterator[tuple[Content, Unpacked | None]]:
    """What ``upload()`` was given the path of: a file, or a directory as an archive, and then how much is in it.

    The asynchronous client reads in its loop's own thread, as from any other file. Raises ``OSError``.
    """
    if Path(local).is_dir():
        with archive_of(Path(local), progress) as (archive, sent):
            yield archive, sent
    else:
        with open(local, "rb") as file:
            yield Content(file, progress=progress), None


def is_directory(local: LocalPath) -> bool:
    """Whether a directory is there."""
    return Path(local).is_dir()


@contextlib.contextmanager
def archive_of(directory: Path, progress: Progress | None = None) -> Iterator[tuple[Content, Unpacked]]:
    """A tar of what lies in ``directory``, links as links, without owners; and how much that is.

    Raises:
        OSError: something in it can't be read.
    """
    sent = Unpacked(files=0, bytes=0)

    def nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        sent.files += 1
        sent.bytes += member.size
        return member

    with tempfile.SpooledTemporaryFile(IN_MEMORY) as kept:
        with tarfile.open(fileobj=kept, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path in sorted(directory.iterdir()):
                tar.add(path, arcname=path.name, filter=nobodys)
        kept.seek(0)
        yield Content(kept, progress=progress), sent


def conditions(if_match: str | None, *, create: bool) -> dict[str, str]:
    """The headers that say in place of what a file may be written.

    Raises:
        InvalidRequest: ``if_match`` is no entity tag.
    """
    headers = {"If-None-Match": "*"} if create else {}
    if if_match is not None:
        if not re.fullmatch(r'"[!#-~]*"', text(if_match, "if_match")):
            raise InvalidRequest.of("if_match", 'is no entity tag, such as "a1b2", with its quotes')
        headers["If-Match"] = if_match
    return headers


def octal(mode: str | int | None) -> str | None:
    """``mode`` as it is sent."""
    return f"{mode:04o}" if isinstance(mode, int) else mode


@contextlib.contextmanager
def replaced(local: LocalPath) -> Iterator[IO[bytes]]:
    """A file that takes the name ``local`` when the block is over without an error; till then, what was there stays."""
    path = Path(local).resolve()
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:200]}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(name, path.stat().st_mode & 0o7777 if path.exists() else 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def unpack(archive: IO[bytes], local: LocalPath) -> None:
    """Unpack a tar below ``local``, which is made. Raises ``tarfile.FilterError`` where it leads outside."""
    os.makedirs(local, exist_ok=True)
    with tarfile.open(fileobj=archive, mode="r:") as tar:
        tar.extractall(local, filter="data")


def _nothing(done: int, total: int | None) -> None:
    """Nobody looks."""
