"""A replica on Hypercorn's protocol, from the first signal to the last answer.

On SIGTERM (or Ctrl-C) a replica says that it is not ready while it still serves, for ``shutdown_delay``, so
that balancers notice. Then it stops accepting; long polls and event streams end at once; what it owns is
finished within ``shutdown_grace``. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from service.app import build_core, create_app
from service.observability import Observability
from service.server.connections import ABORT_SECONDS, Connections, raise_descriptors
from service.server.ending import Watchdog, end_at_once, leave
from service.server.listening import BACKLOG, bind, url_of
from service.tenants import Tenants

if TYPE_CHECKING:
    from collections.abc import Callable

    from service.core.app import Core
    from service.settings import Settings

CLOSING_SECONDS = 12
"""For connections to be closed, and the local engine to be ended, once the grace is over."""
LAST_SECONDS = 2
"""For what is not bounded by itself, after which the process is ended from outside the event loop. With these and one
for the last log lines, 15 seconds after delay and grace are over there is no process."""

log = logging.getLogger("oncebox")


async def run_replica(settings: Settings, ready: Callable[[str], None], *, shared: bool = False) -> int:
    """One replica, from start to end; obeys signals. ``shared``: others listen on the same port."""
    executor = ThreadPoolExecutor(thread_name_prefix="oncebox")
    loop = asyncio.get_running_loop()
    loop.set_default_executor(executor)
    replica = await Replica.start(settings, shared=shared)
    watchdog = Watchdog(settings.shutdown_delay + settings.shutdown_grace + CLOSING_SECONDS + LAST_SECONDS)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, replica.signalled)
        signal.signal(number, watchdog.signalled)  # beside the loop's own, which is told as before
    if settings.has_keys:  # without keys a closed terminal ends the service, as ever
        loop.add_signal_handler(signal.SIGHUP, replica.reload)
    raise_descriptors()  # not before: what runs in the local engine inherits what it had
    ready(replica.url)
    await replica.serve()
    executor.shutdown(wait=False, cancel_futures=True)
    leave(0)
    return 0


class Replica:
    """A core, its application, and the socket that it is served on."""

    def __init__(self, settings: Settings, core: Core, listener: socket.socket, observability: Observability) -> None:
        self.settings = settings
        self.core = core
        self.observability = observability
        self.app = create_app(core, settings, manages_core=False, observability=observability)
        self.url = url_of(listener)
        self._listener = listener
        self._stop = asyncio.Event()
        self._draining: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, settings: Settings, *, shared: bool = False) -> Replica:
        """Bound, started, and accepting (connections wait until ``serve``). Raises ``OSError``."""
        listener = bind(*settings.address, shared=shared)
        try:
            observability = Observability()
            core = await build_core(settings, observability)
            try:
                await core.start()
                observability.start()
                listener.listen(BACKLOG)
                return cls(settings, core, listener, observability)
            except BaseException:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CLOSING_SECONDS):
                        await core.shutdown(0)
                raise
        except BaseException:
            listener.close()
            raise

    def reload(self) -> None:
        """Read the tenants file again; requests go on meanwhile."""
        if isinstance(self.core.policy, Tenants):
            self.core.tasks.start(self.core.policy.reload(), "reload")

    def signalled(self) -> None:
        """The first signal: drain. The second: end at once, whatever is under way."""
        if self._draining is not None:
            log.warning("a second signal: ending at once")
            end_at_once(1)
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        self.app.draining = True
        log.info("shutting down: not ready, serving for another %g s", self.settings.shutdown_delay)
        await asyncio.sleep(self.settings.shutdown_delay)
        self.stop()

    def stop(self) -> None:
        """Stop accepting now; ``serve`` returns when all is finished or the grace is over."""
        self._stop.set()
        self.app.stop_waiting()

    async def serve(self) -> None:
        """Serve until ``stop``, then finish what is owned and close everything."""
        connections = Connections(self.app, self._listener)
        connections.open()
        try:
            await self._stop.wait()
            deadline = time.monotonic() + self.settings.shutdown_grace
            await connections.close(self.settings.shutdown_grace)
            await self._shut_down(max(0.0, deadline - time.monotonic()))
        finally:
            await connections.abort()
        log.info("shut down")

    async def _shut_down(self, grace: float) -> None:
        try:
            async with asyncio.timeout(grace + CLOSING_SECONDS - ABORT_SECONDS):
                await self.core.shutdown(grace)
                await self.observability.close()
        except TimeoutError:
            log.error("some work did not end when it was cancelled")
