"""What is a request: never more than h11 takes for one, read in the same way."""

import itertools
import random

import h11
import pytest

from service.server.requests import Requests

MAX_HEAD = 32 * 1024
HOST = b"Host: a\r\n"
GET = b"GET / HTTP/1.1\r\n" + HOST
POST = b"POST /x?y=z HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
Parser = Requests | h11.Connection

REFUSED = [
    (b"GET / HTTP/1.1\r\n\r\n", 400),  # no host
    (GET + HOST + b"\r\n", 400),
    (b"\r\n" + GET + b"\r\n", 400),
    (b" " + GET + b"\r\n", 400),
    (b"\x16\x03\x01\x02\x00", 400),  # TLS
    (b"\0" * 8, 400),
    (b"GET /\r\n" + HOST + b"\r\n", 400),
    (b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    (b"GET / HTTP/1.1 \r\n" + HOST + b"\r\n", 400),
    (b"GET\t/ HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    (b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    (b"GET /\x01 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    (b"GET / HTTP/1\r\n" + HOST + b"\r\n", 400),
    (b"GET / HTTP/11.1\r\n" + HOST + b"\r\n", 400),
    (b"G@T / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    (GET + b"X : b\r\n\r\n", 400),  # a blank before the colon
    (GET + b": b\r\n\r\n", 400),
    (GET + b"X\r\n\r\n", 400),
    (GET + b"X y: b\r\n\r\n", 400),
    (GET + b"X\xfc: b\r\n\r\n", 400),
    (GET + b"X: b\0c\r\n\r\n", 400),
    (GET + b"X: b\rc\r\n\r\n", 400),  # a bare CR
    (GET + b"X: b\r\r\n\r\n", 400),
    (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    (POST + b"Content-Length: 1, 2\r\n\r\n", 400),
    (POST + b"Content-Length: +1\r\n\r\n", 400),
    (POST + b"Content-Length: 0x1\r\n\r\n", 400),
    (POST + b"Content-Length: 1_0\r\n\r\n", 400),
    (POST + b"Content-Length: -1\r\n\r\n", 400),
    (POST + b"Content-Length:\r\n\r\n", 400),
    (POST + b"Content-Length: " + b"9" * 21 + b"\r\n\r\n", 400),
    (POST + b"Transfer-Encoding: gzip\r\n\r\n", 501),
    (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
    (POST + b"Transfer-Encoding: xchunked\r\n\r\n", 501),
    (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 501),
    (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n", 501),
    (GET + b"X: " + b"a" * MAX_HEAD, 431),
    (b"GET /" + b"a" * MAX_HEAD, 431),
    (CHUNKED + b"zz\r\n", 400),
    (CHUNKED + b"-1\r\n", 400),
    (CHUNKED + b"0x1\r\na\r\n0\r\n\r\n", 400),
    (CHUNKED + b" 1\r\na\r\n0\r\n\r\n", 400),
    (CHUNKED + b"\r\n1\r\na\r\n0\r\n\r\n", 400),
    (CHUNKED + b"1\r\nab\r\n0\r\n\r\n", 400),  # longer than it says
    (CHUNKED + b"1\r\na0\r\n\r\n", 400),
    (CHUNKED + b"1" * 21 + b"\r\n", 400),
    (CHUNKED + b"0\r\nX : y\r\n\r\n", 400),  # of a trailer the same as of a header
]
"""What both refuse, and with what status."""

STRICTER = [
    (b"GET / HTTP/1.1\nHost: a\n\n", 400),  # bare LFs
    (b"GET / HTTP/1.1\r\nHost: a\n\r\n", 400),
    (GET + b"X: b\nY: c\r\n\r\n", 400),
    (GET + b"X: b\r\n c\r\n\r\n", 400),  # a line that is folded
    (b"GET / HTTP/1.1\r\nHost: a\r\n\tb\r\n\r\n", 400),
    (b"GET / HTTP/2.0\r\n" + HOST + b"\r\n", 505),
    (b"GET / HTTP/0.9\r\n" + HOST + b"\r\n", 505),
    (b"PRI * HTTP/2.0\r\n\r\n", 505),
    (CHUNKED + b"1\na\r\n0\r\n\r\n", 400),
    (CHUNKED + b"1;a=\0\r\na\r\n0\r\n\r\n", 400),
]
"""What h11 lets pass and is refused here, by RFC 9112 or because it is spoken nowhere."""

TAKEN = [
    GET + b"\r\n",
    GET + b"X:  b \t\r\nx:c\r\nY:\r\nZ: \xfc\r\n\r\n",
    b"FOO * HTTP/1.0\r\n\r\n",
    b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET http://a/b HTTP/1.1\r\nHost: a\r\n\r\n",
    POST + b"Content-Length: 3\r\n\r\nabc",
    POST + b"Content-Length: 3, 3\r\nContent-Length: 3\r\n\r\nabc",
    POST + b"Content-Length: 0\r\n\r\n",
    POST + b"Content-Length: 5\r\n\r\n\r\n\r\n\n",
    POST + b"Upgrade: h2c\r\nConnection: upgrade\r\nContent-Length: 2\r\n\r\n{}",
    POST + b"Transfer-Encoding: Chunked\r\nContent-Length: 5\r\n\r\n1\r\na\r\n0\r\n\r\n",  # the application refuses it
    CHUNKED + b"0\r\n\r\n",
    CHUNKED + b"3\r\nabc\r\nA;b=c\r\n0123456789\r\n0;d\r\nX: y\r\n\r\n",
    CHUNKED + b"8\r\n\r\n\r\n\r\n\r\n\r\n1\r\n\n\r\n0\r\n\r\n",
    CHUNKED.replace(b"Transfer", b"Connection: Upgrade\r\nUpgrade: h2c\r\nTransfer") + b"1\r\na\r\n0\r\n\r\n",
    POST + b"Expect: 100-Continue\r\nContent-Length: 1\r\n\r\na",
]
"""Whole requests. h11's own reading of them is what is expected."""

Read = tuple[bytes, bytes, bytes, list[tuple[bytes, bytes]], bytes, bytes]


def whole(parser: Parser, pieces: list[bytes]) -> Read | None:
    """The first request in ``pieces``, and what is left behind it; None: it is not whole."""
    request, body, left = None, b"", list(pieces)
    while True:
        event = parser.next_event()
        if event is h11.NEED_DATA:
            if not left:
                return None
            parser.receive_data(left.pop(0))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            assert request is not None
            kept = bytes(parser._received) if isinstance(parser, Requests) else parser.trailing_data[0]
            rest = kept + b"".join(left)
            return request.method, request.target, request.http_version, list(request.headers), body, rest


def theirs() -> h11.Connection:
    return h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)


def status_of(parser: Parser, sent: bytes) -> int | None:
    try:
        whole(parser, [sent])
    except h11.RemoteProtocolError as error:
        return error.error_status_hint
    return None


def cut(sent: bytes, at: int) -> list[bytes]:
    return [sent[:at], sent[at:]]


@pytest.mark.parametrize(("sent", "status"), REFUSED)
def test_what_is_no_request_is_refused_by_both(sent: bytes, status: int) -> None:
    assert status_of(Requests(MAX_HEAD), sent) == status
    assert status_of(theirs(), sent) is not None


@pytest.mark.parametrize(("sent", "status"), STRICTER)
def test_what_readers_may_disagree_on_is_refused(sent: bytes, status: int) -> None:
    assert status_of(Requests(MAX_HEAD), sent) == status


@pytest.mark.parametrize("sent", TAKEN)
@pytest.mark.parametrize("behind", [b"", GET + b"\r\n", b"G", b"\r\n"])
def test_a_request_is_read_as_h11_reads_it_however_it_arrives(sent: bytes, behind: bytes) -> None:
    expected = whole(theirs(), [sent + behind])
    assert expected is not None
    for at in range(1, len(sent + behind)):
        assert whole(Requests(MAX_HEAD), cut(sent + behind, at)) == expected, at
    assert whole(Requests(MAX_HEAD), [bytes([each]) for each in sent + behind]) == expected


def test_whatever_is_damaged_is_read_as_h11_reads_it_or_refused() -> None:
    """A few bytes of what is in the tables above are changed, dropped, doubled or put elsewhere."""
    chance = random.Random(9112)
    seeds = [sent for sent, _ in REFUSED + STRICTER if len(sent) < 1000] + 6 * TAKEN
    hostile = [b"\r", b"\n", b"\r\n", b" ", b"\t", b"\0", b":", b",", b";", b"0", b"chunked", b"Content-Length: 1\r\n"]
    taken = 0
    for sent in itertools.islice(itertools.cycle(seeds), 4000):
        damaged = bytearray(sent)
        for _ in range(chance.randint(1, 2)):
            at, to = sorted(chance.sample(range(len(damaged) + 1), 2))
            damaged[at : chance.choice((at, at + 1, to))] = chance.choice((*hostile, bytes(damaged[at:to])))
            if len(damaged) < 2:
                break
        try:
            found = whole(Requests(MAX_HEAD), cut(bytes(damaged), chance.randint(0, len(damaged))))
        except h11.RemoteProtocolError:
            continue
        if found is not None:
            taken += 1
            assert found == whole(theirs(), [bytes(damaged)]), bytes(damaged)
    assert taken > 300, "else there is nothing that was compared"


@pytest.mark.parametrize("bare", [b"1;" + b"x" * 1000, b"0" * 1000], ids=["extension", "zeros"])
def test_chunks_without_any_of_the_body_have_an_end(bare: bytes) -> None:
    requests = Requests(MAX_HEAD)
    requests.receive_data(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + bare)
    assert isinstance(requests.next_event(), h11.Request)
    for _ in range(60):
        assert requests.next_event() is h11.NEED_DATA
        requests.receive_data(bare[-1:] * 1000)
    requests.receive_data(bare[-1:] * 10_000)
    with pytest.raises(h11.RemoteProtocolError):
        requests.next_event()
