"""What the command line writes, and where: results to stdout, all else to stderr."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import queue
import sys
import threading
from typing import IO, TYPE_CHECKING, Any

import click
import msgspec

from service.cli.output import streams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_make_room: list[Callable[[], None]] = []


@contextlib.contextmanager
def making_room(clear: Callable[[], None]) -> Iterator[None]:
    """Within the context ``clear`` is called before each line of ``say``."""
    _make_room.append(clear)
    try:
        yield
    finally:
        _make_room.remove(clear)


def say(message: str) -> None:
    """One line about what goes on, on stderr."""
    for clear in _make_room:
        clear()
    with contextlib.suppress(OSError):  # nobody reads it, or the disk is full: no reason to stop
        click.echo(f"oncebox: {message}", err=True)


class Unwritable(Exception):
    """Stdout can't be written: it is closed, or on a disk that is full. A reader that went away is none of these."""

    def __init__(self, number: int | None) -> None:
        super().__init__(f"stdout can't be written ({os.strerror(number or errno.EIO)})")


def put(text: str | bytes, *, colour: bool | None = None) -> None:
    """A line on stdout; its colours stay there where ``colour``, else where stdout is a terminal.

    Raises ``Unwritable``, and ``BrokenPipeError`` where nobody reads any more.
    """
    if streams.stdout_was_closed():
        raise Unwritable(errno.EBADF)
    try:
        click.echo(text, color=colour)
    except OSError as error:
        streams.hush_stdout()
        if isinstance(error, BrokenPipeError):
            raise
        raise Unwritable(error.errno) from None


def print_json(value: Any) -> None:
    """A message, a list of them or plain data as one JSON text on stdout; indented on a terminal."""
    encoded = encoded_json(value)
    put(msgspec.json.format(encoded, indent=2) if sys.stdout.isatty() else encoded)


def encoded_json(value: Any) -> bytes:
    """``value`` in JSON. What is no text (a name in this machine's files) is escaped."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value)).encode()


def is_terminal(stream: IO[Any]) -> bool:
    """``stream`` is a terminal that can erase a line."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def coloured(stream: IO[Any]) -> bool:
    """``stream`` takes colours: a terminal, and nobody asked for none (https://no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def printable(text: str) -> str:
    """``text`` on one line, as stdout can show it: its control characters made visible, for it comes from others."""
    if text.isprintable() and encodable(text):
        return text
    return "".join(char if char.isprintable() and encodable(char) else _visible(char) for char in text)


def _visible(char: str) -> str:
    if char == "\n" and encodable("⏎"):
        return "⏎"
    if char == "\t":
        return " "
    return char.encode("unicode_escape").decode("ascii")


def encodable(text: str) -> bool:
    """Stdout's encoding has all characters of ``text``."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


class SayingHandler(logging.Handler):
    """Shows what is logged as lines of the command itself."""

    def emit(self, record: logging.LogRecord) -> None:
        """One line, without the traceback."""
        say(" ".join(record.getMessage().split()))


def show_logs(*, verbose: bool) -> None:
    """Warnings as lines of ours; with ``verbose`` all that the parts log, as they log it."""
    handler: logging.Handler = SayingHandler()
    if verbose:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler], force=True)


class OutputWriter:
    """Writes a command's output to stdout: the bytes as they are, each chunk before the next is asked for.

    A thread of its own does it: a reader that does not read (a pager) must not keep Ctrl-C from being seen.
    """

    def __init__(self, stream: IO[bytes] | None = None) -> None:
        self._stream: IO[bytes] = sys.stdout.buffer if stream is None else stream
        self._chunks: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.written = 0
        """Bytes so far."""
        self.line_open = False
        """What was written last does not end a line."""

    async def write(self, chunk: bytes) -> None:
        """Returns when the chunk is written. Raises as ``put`` does."""
        if not chunk:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="stdout", daemon=True)
            self._thread.start()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.line_open = not chunk.endswith(b"\n")
        self._chunks.put((chunk, done))
        await done
        self.written += len(chunk)

    def _work(self) -> None:
        while True:
            chunk, done = self._chunks.get()
            failure: Exception | None = None
            try:
                self._write(chunk)
            except BrokenPipeError as error:
                failure = error
            except OSError as error:
                failure = Unwritable(error.errno)
            with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits any more
                done.get_loop().call_soon_threadsafe(_settle, done, failure)

    def _write(self, chunk: bytes) -> None:
        # Not through the stream's buffer where that can be avoided: its lock, held by a thread that is stuck,
        # would stop the interpreter from ending.
        try:
            fd = self._stream.fileno()
        except OSError:
            self._stream.write(chunk)
            self._stream.flush()
            return
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(fd, rest) :]


def _settle(done: asyncio.Future[None], failure: Exception | None) -> None:
    if done.done():
        return
    if failure is None:
        done.set_result(None)
    else:
        done.set_exception(failure)
