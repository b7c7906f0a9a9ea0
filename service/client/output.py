"""Putting chunks of output together: exact characters, exact bytes, and what to do with a replacement."""

# ruff: noqa: TID252
from __future__ import annotations

import base64
import hashlib
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from fcntl import F_GETFL, fcntl
from typing import IO, Any, Generic, Protocol, TypeVar

from ..messages import Encoding

S = TypeVar("S", str, bytes)


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk of output as it came."""

    parts: tuple[str, ...]
    """In ``encoding``. One part, or an exec's stdout and stderr."""
    encoding: Encoding
    replace: bool = False
    """It stands in place of all pieces before it."""
    skipped_bytes: int = 0
    """Bytes between the piece before it and this one that are no longer kept."""

    def text(self) -> str:
        """As characters."""
        if self.encoding is Encoding.UTF8:
            return "".join(self.parts)
        return self.data().decode("utf-8", "replace")

    def data(self) -> bytes:
        """As bytes.

        Raises:
            ValueError: the base64 is not valid.
        """
        if self.encoding is Encoding.UTF8:
            return "".join(self.parts).encode()
        return b"".join(base64.b64decode(part, validate=True) for part in self.parts)


class Unsaid(Generic[S]):
    """What of a replaceable output has not been given away yet, when what was given can't be taken back.

    A replacement that begins with all that was given adds only its rest. One that does not (the output's start is
    no longer kept, or the file was made anew) is given whole. What was given is remembered as a count and a hash;
    only a replacement is held back until it is as long.
    """

    def __init__(self) -> None:
        self._count = 0
        self._hash = hashlib.blake2b()
        self._held: list[S] | None = None
        self._held_count = 0

    def beyond(self, content: S, *, replaces: bool) -> S:
        """The part to give away now; empty if there is none yet."""
        if replaces and self._count:
            self._held, self._held_count = [], 0
        if self._held is None:
            return self._give(content)
        self._held.append(content)
        self._held_count += len(content)
        if self._held_count < self._count:
            return content[:0]
        whole = content[:0].join(self._held)
        self._held = None
        if _hash(whole[: self._count]) == self._hash.digest():
            return self._give(whole[self._count :])
        return self._give_anew(whole)

    def rest(self) -> S | None:
        """What is left at the end: a replacement that stayed shorter than what was given before."""
        held, self._held = self._held, None
        return self._give_anew(held[0][:0].join(held)) if held else None

    def _give_anew(self, content: S) -> S:
        self._count = 0
        self._hash = hashlib.blake2b()
        return self._give(content)

    def _give(self, content: S) -> S:
        self._count += len(content)
        self._hash.update(_bytes(content))
        return content


def _hash(content: str | bytes) -> bytes:
    return hashlib.blake2b(_bytes(content)).digest()


def _bytes(content: str | bytes) -> bytes:
    return content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content


class Sink(Protocol):
    """Takes output. What its methods return is awaited by the asynchronous client, if it can be."""

    encoding: Encoding
    skipped_bytes: int

    def take(self, piece: Piece) -> Any:
        """The next piece."""

    def end(self) -> Any:
        """There are no more."""


class Room:
    """How many bytes of text may be kept, by several who keep some. Text counts as UTF-8."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0

    def take(self, size: int) -> None:
        """Takes some, or gives some back.

        Raises:
            Full: there is no more.
        """
        self.taken += size
        if self.taken > self.most:
            raise Full


class Full(Exception):
    """More was printed than may be kept."""


class Joined:
    """Keeps all output as one text. ``told``: a function that is called with each part as it comes, too."""

    encoding = Encoding.UTF8

    def __init__(self, room: Room | None = None, told: Callable[[str], Any] | None = None) -> None:
        self._texts: list[str] = []
        self._room = room
        self._size = 0
        self._told = None if told is None else ToCallback(told, text=True)
        self.skipped_bytes = 0

    def take(self, piece: Piece) -> Any:
        """The next piece. Returns what ``told`` returned."""
        if piece.replace:
            self._texts.clear()
            self._count(-self._size)
            self.skipped_bytes = 0
        text = piece.text()
        self._count(len(text.encode()))
        self._texts.append(text)
        self.skipped_bytes += piece.skipped_bytes
        return None if self._told is None else self._told.take(piece)

    def _count(self, size: int) -> None:
        if self._room is not None:
            self._size += size
            self._room.take(size)

    def end(self) -> Any:
        """Nothing is held back, but from ``told``."""
        return None if self._told is None else self._told.end()

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._texts)


class ToCallback:
    """Gives output to a function as bytes, or as text."""

    def __init__(self, callback: Callable[[Any], Any], *, text: bool) -> None:
        self._callback = callback
        self._unsaid: Unsaid[Any] = Unsaid()
        self.encoding = Encoding.UTF8 if text else Encoding.BASE64
        self.skipped_bytes = 0

    def take(self, piece: Piece) -> Any:
        """The next piece. Returns what the callback returned."""
        self.skipped_bytes = piece.skipped_bytes + (0 if piece.replace else self.skipped_bytes)
        content = piece.text() if self.encoding is Encoding.UTF8 else piece.data()
        return self._call(self._unsaid.beyond(content, replaces=piece.replace))

    def end(self) -> Any:
        """There are no more pieces. Returns what the callback returned."""
        return self._call(self._unsaid.rest())

    def _call(self, content: Any) -> Any:
        return self._callback(content) if content else None


class ToFile(ToCallback):
    """Writes output to an open file, from where it stands; a replacement overwrites, if the file can seek."""

    def __init__(self, file: IO[Any]) -> None:
        super().__init__(_writer(file), text=isinstance(file, io.TextIOBase))
        self._file = file
        self._start = file.tell() if _can_seek(file) else None

    def take(self, piece: Piece) -> None:
        """The next piece."""
        if piece.replace and self._start is not None:
            self._file.seek(self._start)
            self._file.truncate()
            self._unsaid = Unsaid()
        super().take(piece)


def _can_seek(file: Any) -> bool:
    # Not every object with a `write` is a whole file.
    if not getattr(file, "seekable", lambda: False)():
        return False
    try:
        # `>>` in a shell: such a file begins at 0, with somebody else's content.
        return not fcntl(file.fileno(), F_GETFL) & os.O_APPEND
    except OSError:
        return True  # in memory


def _writer(file: Any) -> Callable[[Any], None]:
    def write(content: Any) -> None:
        # A raw file may take less than it is given.
        written = file.write(content)
        while isinstance(written, int) and written < len(content):
            content = content[written:]
            written = file.write(content)

    return write


def opened(path: str | os.PathLike[str]) -> IO[bytes]:
    """A file to write output to. The asynchronous client writes in its loop's own thread, as to any other file."""
    return open(path, "wb")


def sink_for(target: Any, *, text: bool = False) -> Sink:
    """The sink for an open file, or for a function.

    Raises:
        TypeError: ``target`` is neither.
    """
    if hasattr(target, "write"):
        return ToFile(target)
    if callable(target):
        return ToCallback(target, text=text)
    raise TypeError(f"neither a file nor a function: {target!r}")
