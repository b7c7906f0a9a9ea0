"""What is kept beside a claim: output, request, the streams of an exec; and the budget over all of it."""

from collections.abc import Mapping

from service.ports.store import Appended
from service.store import keys, packing
from service.store.base import Part, call, expiry_ms, ms, texts

_TRIM_AT_ONCE = 100
"""Recorded outputs dropped between two looks at the budget."""


class Kept(Part):
    """Output and requests. None of it is ever read with a claim."""

    async def request(self, id: str) -> bytes | None:
        """The request kept beside a claim."""
        packed: bytes | None = await self._link.command("GET", keys.request(id))
        return None if packed is None else packing.unpack(packed)

    async def output(self, id: str, start: int, end: int) -> Appended | None:
        """Bytes ``[start, end)`` of the kept output, cut to what is kept."""
        kept = await self._slice(id, start, end)
        if kept is None:
            return None
        first = min(max(start, kept.offset), kept.offset + len(kept.data))
        last = max(first, end)
        return Appended(first, kept.data[first - kept.offset : last - kept.offset])

    async def output_span(self, id: str) -> tuple[int, int] | None:
        """First and one past the last byte of the kept output."""
        kind, *rest = await self._link.script(call("output", (keys.output(id),), 0, 0))
        return None if kind is None else (int(rest[0]), int(rest[1]))

    async def _slice(self, id: str, start: int, end: int) -> Appended | None:
        """At least the bytes ``[start, end)`` of what is kept, as far as they are."""
        kind, *rest = await self._link.script(call("output", (keys.output(id),), start, end))
        if kind is None:
            return None
        first, last, offset, data = rest
        if not data:
            return Appended(min(max(start, first), last), b"")
        return Appended(offset, packing.decompress(data) if kind == b"z" else data)

    async def put_streams(self, id: str, streams: Mapping[str, bytes], *, ttl: float) -> None:
        """Keep the named outputs of an exec."""
        packed = await packing.pack_streams(streams)
        await self._note(keys.streams(id), len(packed))
        await self._link.command("SET", keys.streams(id), packed, "PX", expiry_ms(ttl))

    async def streams(self, id: str) -> dict[str, bytes] | None:
        """The named outputs of an exec."""
        packed: bytes | None = await self._link.command("GET", keys.streams(id))
        return None if packed is None else packing.unpack_streams(packed)

    async def _note(self, key: str, size: int) -> None:
        """List a recorded output before it is written, so that none is left out of the budget."""
        await self._link.script(call("note_output", keys.OUTPUTS, key, size, ms(self._retention)))

    async def trim_outputs(self, budget: int) -> int:
        """Drop the oldest recorded outputs while all of them take more than ``budget`` bytes."""
        gone = 0
        while True:
            names: list[bytes] = await self._link.script(call("excess_outputs", keys.OUTPUTS, budget, _TRIM_AT_ONCE))
            if not names:
                return gone
            # Dropped first, then forgotten: dropped twice does no harm, forgotten too early stays for good.
            await self._link.scripts([call("drop_output", (name,)) for name in texts(names)])
            gone += int(await self._link.script(call("forget_outputs", keys.OUTPUTS, *names)))
