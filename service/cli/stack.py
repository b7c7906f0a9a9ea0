"""The embedded stack, as a person at a terminal wants it: without what its parts log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from service.cli.extras import extra
from service.cli.output.terminal import say
from service.cli.problems import Trouble

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from service.settings import Settings

PLAIN = "no bwrap here: the command runs as a plain process of this machine, in a directory of its own."

PURPOSE = "`oncebox run` without ONCEBOX_URL"


@asynccontextmanager
async def stack(settings: Settings) -> AsyncIterator[str]:
    """An embedded stack, and its URL. What its parts log is shown with ``-v`` only."""
    with extra("server", PURPOSE):
        from service.engine.local import EngineDidNotStart
        from service.server.embedded import embedded

    if settings.engine_url != "local://":
        say("ONCEBOX_URL is not set: the command runs on this machine, not in the engine that is set.")
    root = logging.getLogger()
    verbose = root.isEnabledFor(logging.INFO)
    async with _ChildrensStderr(verbose=verbose) as overheard:
        level = root.level
        root.setLevel(level if verbose else logging.CRITICAL)
        try:
            async with contextlib.AsyncExitStack() as exits:
                try:
                    with extra("server", PURPOSE), overheard.children():
                        url = await exits.enter_async_context(embedded(settings))
                except EngineDidNotStart as error:
                    raise Trouble(f"{str(error).rstrip('.')}: {await overheard.last()}") from None
                yield url
        finally:
            root.setLevel(level)


class _ChildrensStderr:
    """What child processes say on their standard error: passed on with ``-v``, else but for one warning not."""

    def __init__(self, *, verbose: bool) -> None:
        self._verbose = verbose
        self._last = "it did not say why"
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> _ChildrensStderr:
        read_end, self._write_end = os.pipe()
        reader = asyncio.StreamReader()
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb")
        )
        self._reading = asyncio.create_task(self._read(reader))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._reading is not None, "entered"
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading
        self._transport.close()

    @contextlib.contextmanager
    def children(self) -> Iterator[None]:
        """Processes that are started meanwhile have the pipe for their standard error; ours stays as it is."""
        ours, own = sys.stderr, os.dup(2)
        with os.fdopen(own, "w", buffering=1, errors="backslashreplace") as stream:
            sys.stderr = stream
            os.dup2(self._write_end, 2)
            os.close(self._write_end)
            try:
                yield
            finally:
                os.dup2(own, 2)
                sys.stderr = ours

    async def last(self) -> str:
        """What was said last, once all who might say something have ended."""
        assert self._reading is not None, "entered"
        await asyncio.wait({self._reading}, timeout=1)
        return self._last

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := (await reader.readline()).decode(errors="replace").strip():
            self._last = line
            if self._verbose:
                sys.stderr.write(line + "\n")
            elif "plain processes" in line:
                say(PLAIN)
