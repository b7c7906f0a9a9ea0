"""The load balancer of the stack: haproxy with the file that ships, or, where there is none, a small one of ours."""

import asyncio
import contextlib
import itertools
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFIGURATION = ROOT / "deploy" / "haproxy" / "haproxy.cfg"

IDLE_SECONDS = 12.0
"""On which a connection that carries nothing is dropped; the same in haproxy's file."""

CHECK_SECONDS = 1.0
READ_SIZE = 65_536


def haproxy() -> Path | None:
    """The program, if this machine has it."""
    for candidate in (
        os.environ.get("ONCEBOX_TEST_HAPROXY"), str(Path(sys.prefix) / "haproxy"), shutil.which("haproxy"),
        "/usr/sbin/haproxy",
    ):  # fmt: skip
        if candidate and os.access(candidate, os.X_OK):
            return Path(candidate)
    return None


def command(address: str, replicas: Sequence[str]) -> tuple[list[str | Path], dict[str, str], str]:
    """What to start, the variables for it, and what it is; three replicas, each `host:port`."""
    program = haproxy()
    env = {"LISTEN": address, **{f"REPLICA_{number}": each for number, each in enumerate(replicas, 1)}}
    if program is not None:
        return [program, "-db", "-f", CONFIGURATION], env, "haproxy"
    return [sys.executable, "-m", "tests.support.balancer", address, *replicas], {}, "our own (no haproxy here)"


class Balancer:
    """Connections go to ready replicas in turn, and are dropped when idle. Knows nothing of HTTP but `/readyz`."""

    def __init__(self, replicas: Sequence[str]) -> None:
        self._ready: list[tuple[str, int]] = []
        self._turn = itertools.count()
        self._all = [(host, int(port)) for host, _, port in (each.rpartition(":") for each in replicas)]

    async def serve(self, host: str, port: int) -> None:
        """For ever."""
        server = await asyncio.start_server(self._accept, host, port, backlog=2048)
        async with server, asyncio.TaskGroup() as group:
            group.create_task(self._check())
            await server.serve_forever()

    async def _check(self) -> None:
        while True:
            answers = await asyncio.gather(*(_is_ready(*each) for each in self._all))
            self._ready = [each for each, ready in zip(self._all, answers, strict=True) if ready]
            await asyncio.sleep(CHECK_SECONDS)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: asyncio.StreamWriter | None = None
        try:
            for _ in range(len(self._ready)):
                host, port = self._ready[next(self._turn) % len(self._ready)]
                with contextlib.suppress(OSError):
                    source, upstream = await asyncio.open_connection(host, port)
                    await _until_idle((reader, upstream), (source, writer))
                    return
        finally:
            for each in (writer, upstream):
                if each is not None:
                    each.close()


async def _until_idle(*ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    """Forward each way until one ends, or nothing has moved for `IDLE_SECONDS`."""
    loop = asyncio.get_running_loop()
    moved = loop.time()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal moved
        with contextlib.suppress(ConnectionError):
            while content := await reader.read(READ_SIZE):
                moved = loop.time()
                writer.write(content)
                await writer.drain()

    tasks = {asyncio.create_task(forward(*way)) for way in ways}
    try:
        while (left := moved + IDLE_SECONDS - loop.time()) > 0:
            done, _ = await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _is_ready(host: str, port: int) -> bool:
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return (await reader.readline()).split(b" ")[1:2] == [b"200"]
    except (OSError, TimeoutError):
        return False
    finally:
        if writer is not None:
            writer.close()


def main() -> None:
    host, _, port = sys.argv[1].rpartition(":")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Balancer(sys.argv[2:]).serve(host, int(port)))


if __name__ == "__main__":
    main()
