import itertools

from hypothesis import given
from hypothesis import strategies as st

from tests.support.http_requests import RequestSplitter

PLAIN = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
WITH_BODY = b"POST /b HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST /c HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"


@given(st.permutations([PLAIN, WITH_BODY, CHUNKED]), st.lists(st.integers(0, 200), max_size=8))
def test_requests_are_found_however_the_stream_is_cut(requests: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(requests)
    places = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    splitter = RequestSplitter()
    found = [b""]

    for start, end in itertools.pairwise(places):
        for part in splitter.feed(stream[start:end]):
            assert part.head == (not found[-1])
            found[-1] += part.content
            if part.last:
                found.append(b"")

    assert found == [*requests, b""]


def test_other_protocols_have_no_requests() -> None:
    splitter = RequestSplitter()

    assert list(splitter.feed(b"*1\r\n$4\r\nPING\r\n\r\n\r\n")) == []
    assert list(splitter.feed(PLAIN)) == []
