"""Bytes as they are kept beside a claim: compressed, with a first byte that says how."""

import asyncio
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec

from service.errors import StoreUnavailable

LEVEL = 1
"""zlib's. Logs shrink to a fifth at 1 and to a sixth at 6, for a third of the time."""
IN_LOOP = 32 * 1024
"""Bytes up to which compressing (about 0.3 ms) is done in the event loop; more goes to a thread."""
_THREADS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="oncebox-compress")
"""Not the event loop's own: lookups of names that hang may hold all of those."""


async def compress(data: bytes) -> bytes:
    """``data`` compressed, without holding up the event loop."""
    if len(data) <= IN_LOOP:
        return zlib.compress(data, LEVEL)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, zlib.compress, data, LEVEL)


def decompress(data: bytes) -> bytes:
    """What ``compress`` made. Raises ``StoreUnavailable`` for anything else."""
    try:
        return zlib.decompress(data)
    except zlib.error as error:
        raise StoreUnavailable("What is kept in Redis can't be read.") from error


async def pack(data: bytes) -> bytes:
    """``data``, compressed where that makes it smaller; empty stays empty."""
    if not data:
        return b""
    packed = await compress(data)
    return b"z" + packed if len(packed) < len(data) else b"=" + data


def unpack(packed: bytes) -> bytes:
    """What ``pack`` was given."""
    match packed[:1]:
        case b"z":
            return decompress(packed[1:])
        case b"=":
            return packed[1:]
        case b"":
            return b""
        case _:
            raise StoreUnavailable("What is kept in Redis was written by another version of Oncebox.")


async def pack_streams(streams: Mapping[str, bytes]) -> bytes:
    """Named outputs as one packed value."""
    return await pack(msgspec.msgpack.encode(dict(streams)))


def unpack_streams(packed: bytes) -> dict[str, bytes]:
    """What ``pack_streams`` was given."""
    try:
        return msgspec.msgpack.decode(unpack(packed), type=dict[str, bytes])
    except msgspec.DecodeError as error:
        raise StoreUnavailable("What is kept in Redis can't be read.") from error


async def final_output(offset: int, data: bytes) -> bytes:
    """Output in its last form: the header that ``lua/output.lua`` reads, and the bytes, compressed."""
    return b"z%018d%018d\n" % (offset, len(data)) + await compress(data)


def joined(offset: int, data: bytes, more_offset: int, more: bytes) -> tuple[int, bytes]:
    """Output with more of it: joined on where it fits, else in its place. As ``lua/advance.lua`` does it."""
    if offset + len(data) == more_offset:
        return offset, data + more
    return more_offset, more


def last_part(offset: int, data: bytes, most: int) -> tuple[int, bytes]:
    """The last ``most`` bytes of output, and where they begin."""
    cut = max(0, len(data) - most)
    return offset + cut, data[cut:]
