"""Bytes as they are kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import StoreUnavailable
from service.store import packing


@given(st.binary() | st.binary(min_size=1, max_size=3).map(lambda unit: unit * 20_000))
async def test_what_is_packed_comes_back(data: bytes) -> None:
    packed = await packing.pack(data)
    assert packing.unpack(packed) == data
    assert len(packed) <= len(data) + 1


@given(st.dictionaries(st.text(max_size=10), st.binary(max_size=1000)))
async def test_streams_come_back(streams: dict[str, bytes]) -> None:
    assert packing.unpack_streams(await packing.pack_streams(streams)) == streams


@pytest.mark.parametrize("kept", [b"?from a newer version", b"znot zlib", b"z"])
def test_what_cant_be_read_is_no_crash(kept: bytes) -> None:
    with pytest.raises(StoreUnavailable):
        packing.unpack(kept)
    with pytest.raises(StoreUnavailable):
        packing.unpack_streams(kept)


def test_streams_of_another_form_are_no_crash() -> None:
    with pytest.raises(StoreUnavailable):
        packing.unpack_streams(b"=\xc1")


def test_more_output_is_joined_on_where_it_fits() -> None:
    assert packing.joined(5, b"abc", 8, b"de") == (5, b"abcde")
    assert packing.joined(5, b"abc", 9, b"de") == (9, b"de")
    assert packing.last_part(5, b"abcde", 2) == (8, b"de")
    assert packing.last_part(5, b"abcde", 9) == (5, b"abcde")
    assert packing.last_part(5, b"abc", 0) == (8, b"")
