"""``oncebox serve``: replicas on Hypercorn, from the first signal to the last answer.

On SIGTERM (or Ctrl-C) a replica says that it is not ready while it still serves, for ``shutdown_delay``, so
that balancers notice. Then it stops accepting; long polls and event streams end at once; what it owns is
finished within ``shutdown_grace``. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from service.api.logs import configure_logging
from service.app import build_core, create_app
from service.embedded import EngineDidNotStart
from service.observability import Observability
from service.server.connections import ABORT_SECONDS, Connections, raise_descriptors
from service.settings import Settings
from service.tenants import Tenants, tenants_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from service.core.app import Core

BACKLOG = 2048
"""Connections that wait to be accepted: with a short queue a burst of hundreds waits for resends."""
UNSENT = 128 * 1024
"""Bytes that the kernel takes for a caller who reads nothing; by itself it takes some 3 MiB for each."""
STALLED_SECONDS = 90
"""Without a sign of life, after which a connection is cut off: its reader takes nothing, or is gone."""
CLOSING_SECONDS = 15
"""For connections to be closed, and the local engine to be ended, once the grace is over."""

log = logging.getLogger("oncebox")


def serve(settings: Settings, *, workers: int = 1) -> int:
    """Serve until a signal; the exit code. When ready, prints ``{"url": ...}`` on a line of standard output.

    Each of several ``workers`` is a replica. Raises ``SettingsError`` where ``settings`` don't allow it.
    """
    settings.check_serving(workers)
    configure_logging()
    tenants_of(settings)  # a broken file stops the start here, before there are workers
    if workers > 1:
        from service.workers import serve_workers

        return serve_workers(settings, workers)
    try:
        return asyncio.run(run_replica(settings, announce))
    except KeyboardInterrupt:
        return 130
    except EngineDidNotStart as error:
        log.error("%s", error)
        return 1
    except OSError as error:
        log.error("can't listen on %s: %s", settings.bind, error.strerror)
        return 1


def announce(url: str) -> None:
    """Say, on standard output, that ``url`` is served."""
    sys.stdout.write(msgspec.json.encode({"url": url}).decode() + "\n")
    sys.stdout.flush()


async def run_replica(settings: Settings, ready: Callable[[str], None], *, shared: bool = False) -> int:
    """One replica, from start to end; obeys signals. ``shared``: others listen on the same port."""
    replica = await Replica.start(settings, shared=shared)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, replica.signalled)
    if settings.has_keys:  # without keys a closed terminal ends the service, as ever
        loop.add_signal_handler(signal.SIGHUP, replica.reload)
    raise_descriptors()  # not before: what runs in the local engine inherits what it had
    ready(replica.url)
    await replica.serve()
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
                await core.shutdown(0)
                raise
        except BaseException:
            listener.close()
            raise

    def reload(self) -> None:
        """Read the tenants file again; requests go on meanwhile."""
        if isinstance(self.core.policy, Tenants):
            self.core.policy.reload()

    def signalled(self) -> None:
        """The first signal: drain. The second: end at once, whatever is under way."""
        if self._draining is not None:
            log.warning("a second signal: ending at once")
            os._exit(1)
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


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A bound TCP socket that cuts off stalled connections. ``shared``: others may have the port too."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Accepted connections inherit these.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, seconds in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
            if hasattr(socket, name):
                listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_SECONDS * 1000)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener


def url_of(listener: socket.socket) -> str:
    """Where a bound socket is reached from this machine."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
