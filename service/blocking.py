"""Work that may block for good (a file on a hung mount, a pipe that nobody reads): never in the event loop, and never
in a thread that Python waits for at its end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

MOST_BYTES = 16 * 1024 * 1024
"""Of a file that somebody configured."""


def started(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Do ``work`` in a daemon thread of its own; the future has what came of it, if it ever ends."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if not future.done():
            future.set_exception(error) if error is not None else future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = work()
        except Exception as raised:  # noqa: BLE001 - whoever waits for the future gets it
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed by now
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def read_file(path: str | os.PathLike[str]) -> str:
    """The text of a small regular file, in UTF-8. Nothing else is opened: a FIFO would wait for its writer.

    Raises ``OSError`` (with ``strerror``) and ``UnicodeDecodeError``.
    """
    _require_regular(os.stat(path).st_mode)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        _require_regular(os.fstat(descriptor).st_mode)  # it may be another by now
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MOST_BYTES} bytes")
    return data.decode()


def _require_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is no regular file")
