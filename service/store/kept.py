"""What is kept beside a claim: output, request, the streams of an exec; and the budget over all of it."""

from collections.abc import Mapping

from service.messages import Stream
from service.ports.store import Appended
from service.store import keys, packing
from service.store.base import Part, call, expiry_ms, ms, texts

_TRIM_AT_ONCE = 100
"""Recorded outputs dropped between two looks at the budget."""


class Kept(Part):
    """Output and requests. None of it is ever read with a claim."""

    async def request(self, id: str) -> bytes | None:
        """The request kept beside a claim."""
        packed: bytes | None = await self._redis.command("GET", keys.request(id))
        return None if packed is None else packing.unpack(packed)

    async def output(self, id: str, start: int, end: int, stream: Stream = "stdout") -> Appended | None:
        """Bytes ``[start, end)`` of the kept output, cut to what is kept."""
        kept = await self._slice(id, start, end, stream)
        if kept is None:
            return None
        first = min(max(start, kept.offset), kept.offset + len(kept.data))
        last = max(first, end)
        return Appended(first, kept.data[first - kept.offset : last - kept.offset])

    async def output_span(self, id: str, stream: Stream = "stdout") -> tuple[int, int] | None:
        """First and one past the last byte of the kept output."""
        kind, *rest = await self._redis.script(call("output", (keys.log(id, stream),), 0, 0))
        return None if kind is None else (int(rest[0]), int(rest[1]))

    async def _slice(self, id: str, start: int, end: int, stream: Stream) -> Appended | None:
        """At least the bytes ``[start, end)`` of what is kept, as far as they are."""
        kind, *rest = await self._redis.script(call("output", (keys.log(id, stream),), start, end))
        if kind is None:
            return None
        first, last, offset, data = rest
        if not data:
            return Appended(min(max(start, first), last), b"")
        return Appended(offset, packing.decompress(data) if kind == b"z" else data)

    async def put_streams(self, id: str, streams: Mapping[str, bytes], *, ttl: float) -> None:
        """Keep the named outputs of an exec that still runs."""
        packed = await packing.pack_streams(streams)
        step = call("keep_streams", (keys.streams(id), *keys.outputs(id)), packed, expiry_ms(ttl), ms(self._retention))
        await self._redis.script(step)

    async def streams(self, id: str) -> dict[str, bytes] | None:
        """The named outputs of an exec."""
        packed: bytes | None = await self._redis.command("GET", keys.streams(id))
        return None if packed is None else packing.unpack_streams(packed)

    async def trim_outputs(self, budget: int) -> int:
        """Drop the oldest recorded outputs while all of them take more than ``budget`` bytes."""
        gone = 0
        while True:
            answers = await self._redis.scripts(
                [call("oldest_outputs", names, _TRIM_AT_ONCE) for names in keys.OUTPUTS]
            )
            over = sum(answer[0] for answer in answers) - budget
            rows = sorted(
                (at, name, size, shard)
                for shard, (_, *rest) in enumerate(answers)
                for name, at, size in zip(rest[::3], rest[1::3], rest[2::3], strict=True)
            )
            names: dict[int, list[bytes]] = {}
            for _, name, size, shard in rows[:_TRIM_AT_ONCE]:
                if over <= 0:
                    break
                names.setdefault(shard, []).append(name)
                over -= size
            if not names:
                return gone
            # Dropped first, then forgotten: dropped twice does no harm, forgotten too early stays for good.
            await self._redis.scripts([call("drop_output", (name,)) for some in names.values() for name in texts(some)])
            forgotten = [call("forget_outputs", keys.OUTPUTS[shard], *some) for shard, some in names.items()]
            gone += sum(await self._redis.scripts(forgotten))
