"""What the command line writes, and where: results to stdout, all else to stderr."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import sys
import threading
from typing import IO, TYPE_CHECKING, Any

import click
import msgspec

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
    with contextlib.suppress(BrokenPipeError):  # nobody reads it: no reason to stop
        click.echo(f"oncebox: {message}", err=True)


def print_json(value: Any, *, pretty: bool | None = None) -> None:
    """A message, a list of them or plain data as one JSON text on stdout; indented on a terminal."""
    encoded = msgspec.json.encode(value)
    if sys.stdout.isatty() if pretty is None else pretty:
        encoded = msgspec.json.format(encoded, indent=2)
    click.echo(encoded)


def is_terminal(stream: IO[Any]) -> bool:
    """``stream`` is a terminal that can erase a line."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def coloured(stream: IO[Any]) -> bool:
    """``stream`` takes colours: a terminal, and nobody asked for none (https://no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def printable(text: str) -> str:
    """``text`` on one line, with its control characters made visible: it comes from others."""
    return "".join(char if char.isprintable() else _visible(char) for char in text)


def _visible(char: str) -> str:
    if char == "\n":
        return "⏎"
    if char == "\t":
        return " "
    return char.encode("unicode_escape").decode("ascii")


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
        """Returns when the chunk is written. Raises ``BrokenPipeError`` where nobody reads any more."""
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
            failure: OSError | None = None
            try:
                self._write(chunk)
            except OSError as error:
                failure = error
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


def _settle(done: asyncio.Future[None], failure: OSError | None) -> None:
    if done.done():
        return
    if failure is None:
        done.set_result(None)
    else:
        done.set_exception(failure)
