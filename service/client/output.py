"""Putting chunks of output together: exact characters, exact bytes, and what to do with a replacement."""

# ruff: noqa: TID252
from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
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
    """Bytes before it that are no longer kept."""

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

    A replacement that begins with all that was given adds only its rest. One that does not (the output's
    start is no longer kept, or the file was made anew) is given whole. Remembers a count and a hash, not the
    output.
    """

    def __init__(self) -> None:
        self._count = 0
        self._hash = hashlib.blake2b()

    def beyond(self, content: S, *, replaces: bool) -> S:
        """The part of ``content`` to give away now."""
        if replaces and self._count:
            begins_alike = len(content) >= self._count and _hash(content[: self._count]) == self._hash.digest()
            if begins_alike:
                content = content[self._count :]
            else:
                self._count = 0
                self._hash = hashlib.blake2b()
        self._count += len(content)
        self._hash.update(_bytes(content))
        return content


def _hash(content: str | bytes) -> bytes:
    return hashlib.blake2b(_bytes(content)).digest()


def _bytes(content: str | bytes) -> bytes:
    return content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content


class Sink(Protocol):
    """Takes output."""

    encoding: Encoding
    skipped_bytes: int

    def take(self, piece: Piece) -> Any:
        """The next piece. What is returned is awaited by the asynchronous client, if it can be."""


class Joined:
    """Keeps all output as one text."""

    encoding = Encoding.UTF8

    def __init__(self) -> None:
        self._texts: list[str] = []
        self.skipped_bytes = 0

    def take(self, piece: Piece) -> None:
        """The next piece."""
        if piece.replace:
            self._texts.clear()
            self.skipped_bytes = 0
        self._texts.append(piece.text())
        self.skipped_bytes = max(self.skipped_bytes, piece.skipped_bytes)

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._texts)


class ToCallback:
    """Gives output to a function as bytes, or as text."""

    def __init__(self, callback: Callable[[Any], Any], *, text: bool) -> None:
        self._callback = callback
        self._unsaid_text: Unsaid[str] | None = Unsaid() if text else None
        self._unsaid_data: Unsaid[bytes] = Unsaid()
        self.encoding = Encoding.UTF8 if text else Encoding.BASE64
        self.skipped_bytes = 0

    def take(self, piece: Piece) -> Any:
        """The next piece. Returns what the callback returned."""
        self.skipped_bytes = max(0 if piece.replace else self.skipped_bytes, piece.skipped_bytes)
        content: str | bytes
        if self._unsaid_text is not None:
            content = self._unsaid_text.beyond(piece.text(), replaces=piece.replace)
        else:
            content = self._unsaid_data.beyond(piece.data(), replaces=piece.replace)
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
            self._unsaid_text = None if self._unsaid_text is None else Unsaid()
            self._unsaid_data = Unsaid()
        super().take(piece)


def _can_seek(file: Any) -> bool:
    # Not every object with a `write` is a whole file.
    return bool(getattr(file, "seekable", lambda: False)())


def _writer(file: Any) -> Callable[[Any], None]:
    def write(content: Any) -> None:
        # A raw file may take less than it is given.
        written = file.write(content)
        while isinstance(written, int) and written < len(content):
            content = content[written:]
            written = file.write(content)

    return write


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
