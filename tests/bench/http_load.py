"""A small HTTP/1.1 load generator on kept connections: what both sides of a comparison are asked with."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec


@dataclass(frozen=True)
class Measured:
    """What came of a load."""

    rate: float
    """Answers a second."""
    p50: float
    """Milliseconds."""
    p99: float
    failed: int
    """Answers that were not 2xx."""


def get(target: str) -> bytes:
    """A GET as it goes over the wire."""
    return f"GET {target} HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: bench\r\n\r\n".encode()


def post(target: str, body: object, **headers: str) -> bytes:
    """A POST of JSON; underscores in names of headers stand for dashes."""
    raw = msgspec.json.encode(body)
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{more}"
    return f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw


async def closed_loop(
    url: str, request: Callable[[int], bytes], *, connections: int = 64, seconds: float = 2.0
) -> Measured:
    """Each connection sends its next request as soon as the last one is answered. `request` gets a running number."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    times: list[float] = []
    failed = 0
    count = 0
    end = time.perf_counter() + seconds

    async def one() -> None:
        nonlocal count, failed
        reader, writer = await asyncio.open_connection(host, port)
        try:
            while (begin := time.perf_counter()) < end:
                count += 1
                writer.write(request(count))
                status = await answer(reader)
                failed += not 200 <= status < 300
                times.append(time.perf_counter() - begin)
        finally:
            writer.close()

    begin = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(connections)))
    took = time.perf_counter() - begin
    ordered = sorted(times)
    return Measured(len(times) / took, *_quantiles(ordered), failed)


def _quantiles(ordered: list[float]) -> tuple[float, float]:
    return ordered[len(ordered) // 2] * 1000, ordered[int(len(ordered) * 0.99)] * 1000


async def answer(reader: asyncio.StreamReader) -> int:
    """Reads one answer with a Content-Length; its status."""
    head = await reader.readuntil(b"\r\n\r\n")
    at = head.lower().index(b"content-length:") + 15
    length = int(head[at : head.index(b"\r\n", at)])
    if length:
        await reader.readexactly(length)
    return int(head[9:12])
