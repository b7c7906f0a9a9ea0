"""What a command is to read: this process's own stdin, to its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import tempfile
from collections.abc import AsyncIterator
from typing import IO

from service.cli.output.terminal import say
from service.cli.problems import Trouble

PATIENCE = 2.0
"""Seconds after which it is said that the end of stdin is waited for."""
IN_MEMORY = 1024 * 1024
"""Bytes that are kept in memory; more goes to a temporary file."""
AT_ONCE = 64 * 1024
"""Bytes of one read, and of a pipe."""
IN_A_HURRY = 64 * 1024 * 1024
"""Bytes that are read as fast as they come; what follows, which may have no end, at this many a second."""
MOST = 4 * 1024**3
"""Bytes; the service takes no longer file unless it is told to."""


@contextlib.asynccontextmanager
async def taken_from(fd: int | None) -> AsyncIterator[IO[bytes] | None]:
    """A file of all that stands in, or comes through, a descriptor. Raises ``Trouble`` for more than ``MOST`` bytes."""
    if fd is None:
        yield None
    elif stat.S_ISREG(os.fstat(fd).st_mode):
        with os.fdopen(os.dup(fd), "rb") as file:
            yield file
    else:
        with tempfile.SpooledTemporaryFile(IN_MEMORY) as file:
            notice = asyncio.get_running_loop().call_later(PATIENCE, _say_that_it_waits)
            try:
                await _read_to_the_end(fd, file)
            finally:
                notice.cancel()
            file.seek(0)
            yield file


def _say_that_it_waits() -> None:
    say("waiting for the end of stdin, which the command is given (`--no-stdin`, or `</dev/null`, gives it none).")


async def _read_to_the_end(fd: int, file: IO[bytes]) -> None:
    loop, size = asyncio.get_running_loop(), 0
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        while True:
            await ready.wait()
            ready.clear()
            piece = os.read(fd, AT_ONCE)  # there is something, or its end
            if not piece:
                return
            file.write(piece)
            size += len(piece)
            if size > MOST:
                raise Trouble(f"stdin is longer than {MOST:,} bytes; nothing was run.")
            if size > IN_A_HURRY:
                await asyncio.sleep(len(piece) / IN_A_HURRY)
    finally:
        loop.remove_reader(fd)
