"""Starts and stops the engine: the helper process, the isolation, the server."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aiohttp import web

from service.log_writer import LogWriter

from . import scratch, wire
from .isolation import Isolation, choose
from .kubernetes import Pods
from .sandboxes import Sandboxes, new_engine_name
from .server import Dispatcher, make_server
from .spawning import Spawner
from .volumes import claim_directory, is_claim

log = logging.getLogger(__name__)

BACKLOG = 2048
SHUTDOWN_SECONDS = 1.0
"""How long open requests may go on when the engine stops; some never end by themselves."""

LOOPBACK = ("127.0.0.1", "::1", "localhost")
OPEN_WARNING = "WARNING: whoever reaches %s can run commands here: the proxy and the daemons ask for no key"
PLAIN_WARNING = (
    "WARNING: sandboxes are plain processes of this machine (%s): they share its /tmp, see and may change its files, "
    "and absolute paths such as /workspace are not mapped for commands"
)


@dataclass(frozen=True, slots=True)
class Options:
    """How the engine runs. `root` None: a temporary directory, removed at the end. `claims`: volumes that are there
    from the start. `maximum_timeout` in seconds. `like`: whose behaviour is copied; the last three are for Kubernetes.
    """

    host: str = "127.0.0.1"
    port: int = 0
    root: Path | None = None
    volume_root: Path | None = None
    claims: tuple[str, ...] = ()
    isolation: str = "auto"
    api_key: str = ""
    dev_controls: bool = False
    maximum_timeout: int = 86_400
    like: Literal["docker", "kubernetes"] = "docker"
    ready_timeout: float = 60.0
    restart_policy: Literal["Never", "Always"] = "Never"
    snapshots: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """A started engine: where it listens, how it isolates (`bwrap` or `plain`), and whether its helper is lost."""

    url: str
    isolation: str
    root: Path
    volume_root: Path
    lost: asyncio.Event


@contextlib.asynccontextmanager
async def serve(options: Options) -> AsyncIterator[Running]:
    """Run the engine in the current event loop for the length of the block.

    At its end every sandbox's processes are killed, and a temporary root is removed. Raises `RuntimeError`
    when the isolation that was asked for does not work, `OSError` when the address can't be bound.
    """
    root, volume_root, own, held = make_directories(options)
    run = own if own != root else root / "run"
    spawner = Spawner(new_engine_name())
    try:
        await spawner.start(own, held)
        more_descriptors()
        isolation, reason = await choose(spawner, run, [root, volume_root], options.isolation)
        if not isolation.private:
            log.warning(PLAIN_WARNING, reason)
        if options.host not in LOOPBACK:
            log.warning(OPEN_WARNING, options.host)
        sandboxes = make_sandboxes(options, spawner, isolation, run, volume_root)
        dispatcher = Dispatcher(
            sandboxes, options.api_key, dev=options.dev_controls, maximum_timeout=options.maximum_timeout
        )
        if isinstance(sandboxes, Pods):
            sandboxes.daemon = lambda sandbox: make_server(dispatcher.daemon(sandbox))
        runner = web.ServerRunner(make_server(dispatcher), shutdown_timeout=SHUTDOWN_SECONDS, handle_signals=False)
        await runner.setup()
        try:
            site = web.TCPSite(runner, options.host, options.port, backlog=BACKLOG)
            await site.start()
            host, port = runner.addresses[0][:2]
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            dispatcher.address = "" if host in ("0.0.0.0", "::") else address  # noqa: S104
            yield Running(f"http://{address}", isolation.name, root, volume_root, spawner.lost)
        finally:
            await runner.cleanup()
            await sandboxes.close()
    finally:
        await spawner.stop()
        shutil.rmtree(own, ignore_errors=True)
        os.close(held)


def make_sandboxes(options: Options, spawner: Spawner, isolation: Isolation, run: Path, volume_root: Path) -> Sandboxes:
    """The table of the runtime that is copied."""
    if options.like == "docker":
        return Sandboxes(spawner, isolation, run, volume_root)
    return Pods(
        spawner,
        isolation,
        run,
        volume_root,
        ready_timeout=options.ready_timeout,
        always=options.restart_policy == "Always",
        snapshots=options.snapshots,
    )


def make_directories(options: Options) -> tuple[Path, Path, Path, int]:
    """The directories: the root, for volumes, and the one that goes with the engine, with a descriptor that holds it.

    There are no links in their paths. Without a root of the caller's, all of it goes. Raises `OSError`.
    """
    if options.root is None:
        own, held = scratch.make(Path(os.path.realpath(tempfile.gettempdir())), "local-engine-run-")
        root = own
    else:
        root = Path(os.path.realpath(options.root))
        root.mkdir(parents=True, exist_ok=True)
        own, held = scratch.make(root, "run-")
    volume_root = Path(os.path.realpath(options.volume_root or root / "volumes"))
    for name in options.claims:
        claim_directory(name, volume_root).mkdir(parents=True, exist_ok=True)
    volume_root.mkdir(parents=True, exist_ok=True)
    return root, volume_root, own, held


async def run(options: Options, exit_with_stdin: bool) -> None:
    """Run until SIGTERM, SIGINT or, if asked for, the end of stdin; print the line that says where."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with serve(options) as running:
        sys.stdout.write(json.dumps({"url": running.url, "isolation": running.isolation}) + "\n")
        sys.stdout.flush()
        if exit_with_stdin:
            watch_stdin(loop, stop)
        waits = [asyncio.ensure_future(event.wait()) for event in (stop, running.lost)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if not stop.is_set():
            raise RuntimeError("the helper process ended, and every sandbox with it")


def more_descriptors() -> None:
    """Allow this process as many open files as it may have: each sandbox holds one, each connection another."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def watch_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Set `stop` when stdin ends. What comes through it is thrown away."""
    descriptor = sys.stdin.fileno()

    def read() -> None:
        try:
            ended = not os.read(descriptor, 4096)
        except BlockingIOError:
            return
        except OSError:
            ended = True
        if ended:
            loop.remove_reader(descriptor)
            stop.set()

    try:
        loop.add_reader(descriptor, read)
    except PermissionError:  # a regular file or /dev/null is always at its end
        stop.set()


def parse_arguments(argv: Sequence[str] | None) -> tuple[Options, bool]:
    """The command line and `OPEN_SANDBOX_API_KEY` as options, and whether the end of stdin ends the engine."""
    parser = argparse.ArgumentParser(
        prog="python -m service.local_engine",
        description="A development engine that speaks OpenSandbox's protocol and runs real processes. "
        "Not a security boundary. The API key comes from OPEN_SANDBOX_API_KEY.",
    )
    parser.add_argument("--bind", default="127.0.0.1:0", metavar="HOST:PORT", help="port 0: any free one")
    parser.add_argument("--root", type=Path, help="directory for sandboxes and volumes (default: a temporary one)")
    parser.add_argument("--volume-root", type=Path, help="what may be mounted (default: ROOT/volumes)")
    parser.add_argument("--claim", action="append", default=[], metavar="NAME", help="a claim that is there already")
    parser.add_argument("--isolation", choices=("auto", "bwrap", "plain"), default="auto")
    parser.add_argument("--max-timeout", type=int, default=86_400, metavar="SECONDS", help="longest life of a sandbox")
    parser.add_argument("--like", choices=("docker", "kubernetes"), default="docker", help="the runtime that is copied")
    parser.add_argument(
        "--ready-timeout", type=float, default=60.0, metavar="SECONDS", help="kubernetes: until a create is taken back"
    )
    parser.add_argument(
        "--restart-policy",
        choices=("Never", "Always"),
        default="Never",
        help="kubernetes: of a first process that ends",
    )
    parser.add_argument("--snapshots", action="store_true", help="kubernetes: there is a registry, so that pauses work")
    parser.add_argument("--exit-with-stdin", action="store_true", help="end when stdin ends")
    parser.add_argument("--dev-controls", action="store_true", help="faults on order under /_dev, for tests")
    given = parser.parse_args(argv)
    host, _, port = given.bind.rpartition(":")
    if not host or not wire.is_number(port) or int(port) > 65535:
        parser.error(f"--bind: {given.bind!r} is not HOST:PORT")
    for name in given.claim:
        if not is_claim(name):
            parser.error(f"--claim: {name!r} is no claim's name")
    options = Options(
        host=host.strip("[]"),
        port=int(port),
        root=given.root,
        volume_root=given.volume_root,
        claims=tuple(given.claim),
        isolation=given.isolation,
        api_key=os.environ.get("OPEN_SANDBOX_API_KEY", ""),
        dev_controls=given.dev_controls,
        maximum_timeout=given.max_timeout,
        like=given.like,
        ready_timeout=given.ready_timeout,
        restart_policy=given.restart_policy,
        snapshots=given.snapshots,
    )
    return options, given.exit_with_stdin


def main(argv: Sequence[str] | None = None) -> int:
    """Run the engine from the command line; the process's exit code."""
    options, exit_with_stdin = parse_arguments(argv)
    handler = LogWriter(sys.stderr.fileno())
    logging.basicConfig(handlers=[handler], level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        asyncio.run(run(options, exit_with_stdin))
    except (RuntimeError, OSError) as error:
        log.error("%s", error)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
