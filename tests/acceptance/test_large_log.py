"""A log far larger than memory ought to hold: read through in chunks, byte for byte, with bounded memory on the way."""

import asyncio
import hashlib
import io
from pathlib import Path
from typing import IO, cast

import psutil
import pytest

from service.client import AsyncClient
from tests.bench.bed import one_replica

pytestmark = [pytest.mark.acceptance, pytest.mark.integration]

MEMORY = 64 * 1024 * 1024
"""Bytes by which a process may grow meanwhile."""
LINE = "a línea of a rather long log, €\n".encode()


class Sink(io.RawIOBase):
    """A hash and a count of what is written to it."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.count = 0

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.hash.update(data)
        self.count += len(data)
        return len(data)


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(130_000_001, id="130MB"),
        pytest.param(3_000_000_001, id="3GB", marks=[pytest.mark.faults_long, pytest.mark.timeout(1200)]),
    ],
)
async def test_a_large_log_is_read_through_with_bounded_memory(size: int, tmp_path: Path) -> None:
    async with one_replica(tmp_path) as stack, AsyncClient(stack.replica_url(0)) as client:
        sandbox = await client.create_sandbox(wait_ready=60, timeout=7200)
        processes = [psutil.Process(each.process.pid) for each in (stack.replicas[0], stack.engine)]
        job = await sandbox.submit(f"yes '{LINE.decode().rstrip()}' | head -c {size}")
        result = await job.result(timeout=600)
        assert result.output_complete
        before = [process.memory_info().rss for process in processes]
        most = list(before)

        async def watch() -> None:
            while True:
                most[:] = [max(m, process.memory_info().rss) for m, process in zip(most, processes, strict=True)]
                await asyncio.sleep(0.05)

        watching = asyncio.create_task(watch())
        sink = Sink()
        whole = await client.job(job.id).output_to(cast(IO[bytes], sink), timeout=900)
        watching.cancel()
        assert (sink.count, whole.skipped_bytes, whole.output_complete) == (size, 0, True)
        assert sink.hash.digest() == await asyncio.to_thread(expected, size)
        for after, then in zip(most, before, strict=True):
            assert after - then < MEMORY
        print(f"grown by {[(after - then) // 1024 for after, then in zip(most, before, strict=True)]} KiB")


def expected(size: int) -> bytes:
    """The digest of the log."""
    many = LINE * 10_000
    digest = hashlib.sha256()
    for _ in range(size // len(many)):
        digest.update(many)
    digest.update(many[: size % len(many)])
    return digest.digest()
