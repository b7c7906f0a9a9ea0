"""Files through one replica against the engine's own client, on the same engine and in turns with it."""

import io
import random
import statistics
import tarfile
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from opensandbox import Sandbox
from opensandbox.config import ConnectionConfig

from service.client import AsyncSandbox
from tests.bench.bed import ROUNDS, one_replica, sandbox_on
from tests.support.stack import Stack

SIZES = {"14.6 MB": 14_600_000, "100 MB": 100_000_000}
SMALL_FILES = 200
SMALL = 10_000
"""Bytes of each."""


async def run(folder: Path) -> dict[str, Any]:
    """Up and down, and many small files by one archive."""
    async with one_replica(folder / "stack") as stack, sandbox_on(stack.replica_url(0)) as ours:
        theirs = await _own_client(stack)
        found = {name: await _both(ours, theirs, size) for name, size in SIZES.items()}
        archive = await _archive(ours)
        await theirs.kill()
    return {"transfers": found, "archive": archive}


async def _own_client(stack: Stack) -> Sandbox:
    config = ConnectionConfig(
        domain=stack.engine_url.removeprefix("http://"), api_key=stack.engine_key, protocol="http"
    )
    return await Sandbox.create(
        "python:3.12", timeout=timedelta(hours=1), entrypoint=["sleep", "infinity"], connection_config=config
    )


async def _both(ours: AsyncSandbox, theirs: Sandbox, size: int) -> dict[str, Any]:
    data = random.Random(size).randbytes(size)

    async def up() -> None:
        await ours.files.write("/tmp/benchmark", data)

    async def down() -> None:
        assert await ours.files.read("/tmp/benchmark") == data

    async def their_up() -> None:
        await theirs.files.write_file("/tmp/benchmark-own", data, mode=644)

    async def their_down() -> None:
        assert await theirs.files.read_bytes("/tmp/benchmark-own") == data

    taken = await _in_turns({"up": up, "own up": their_up, "down": down, "own down": their_down})
    return {
        **{name.replace(" ", "_") + "_s": round(seconds, 3) for name, seconds in taken.items()},
        "up_to_own": round(taken["own up"] / taken["up"], 2),
        "down_to_own": round(taken["own down"] / taken["down"], 2),
    }


async def _archive(ours: AsyncSandbox) -> dict[str, Any]:
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for number in range(SMALL_FILES):
            member = tarfile.TarInfo(f"file-{number}")
            member.size = SMALL
            archive.addfile(member, io.BytesIO(random.Random(number).randbytes(SMALL)))
    one = bytes(SMALL_FILES * SMALL)

    async def many() -> None:
        await ours.files.unpack("/tmp/many", tar.getvalue())

    async def single() -> None:
        await ours.files.write("/tmp/single", one)

    taken = await _in_turns({"archive": many, "single": single})
    return {
        "files": SMALL_FILES,
        "bytes": SMALL_FILES * SMALL,
        "archive_s": round(taken["archive"], 3),
        "single_s": round(taken["single"], 3),
        "to_single": round(taken["archive"] / taken["single"], 2),
    }


async def _in_turns(sides: dict[str, Callable[[], Awaitable[None]]]) -> dict[str, float]:
    """The median of each in seconds; a first round, which warms up, is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(ROUNDS + 1):
        for name in names if number % 2 else _swapped(names):
            began = time.perf_counter()
            await sides[name]()
            if number:
                taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(each) for name, each in taken.items()}


def _swapped(names: list[str]) -> list[str]:
    """Pairs the other way round: what is written is still written before it is read."""
    return [name for at in range(0, len(names), 2) for name in reversed(names[at : at + 2])]
