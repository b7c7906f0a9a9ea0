"""How answers are framed, as a client's h11 reads them."""

import h11
import pytest

from service.server.framing import Framing

Headers = list[tuple[bytes, bytes]]
PLAIN: Headers = [(b"x-a", b"b")]


def sized(length: int) -> Headers:
    return [*PLAIN, (b"content-length", b"%d" % length)]


def read(method: str, sent: bytes, *, closed: bool) -> tuple[int, Headers, bytes]:
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("host", "a")]))
    client.send(h11.EndOfMessage())
    client.receive_data(sent)
    if closed:
        client.receive_data(b"")
    answer, body = client.next_event(), b""
    assert isinstance(answer, h11.Response)
    while isinstance(event := client.next_event(), h11.Data):
        body += bytes(event.data)
    assert isinstance(event, h11.EndOfMessage)
    return answer.status_code, list(answer.headers), body


@pytest.mark.parametrize(
    ("method", "status", "headers", "pieces", "framed"),
    [
        ("GET", 200, sized(4), [b"ab", b"", b"cd"], []),
        ("GET", 200, sized(0), [], []),
        ("GET", 200, PLAIN, [b"ab", b"", b"cd"], [(b"transfer-encoding", b"chunked")]),
        ("GET", 200, PLAIN, [], [(b"transfer-encoding", b"chunked")]),
        ("GET", 299, sized(1), [b"a"], []),
        ("HEAD", 200, sized(4), [], []),
        ("HEAD", 200, PLAIN, [], []),
        ("DELETE", 204, PLAIN, [], []),
        ("GET", 304, PLAIN, [], []),
    ],
)
def test_an_answer_is_read_as_it_was_given(
    method: str, status: int, headers: Headers, pieces: list[bytes], framed: Headers
) -> None:
    answer = Framing(method.encode(), closes=False, chunks=True)
    sent = answer.head(status, headers) + b"".join(map(answer.data, pieces)) + answer.end()
    assert answer.state is h11.DONE
    assert read(method, sent, closed=False) == (status, [*headers, *framed], b"".join(pieces))


def test_without_a_length_or_chunks_the_end_is_that_of_the_connection() -> None:
    answer = Framing(b"GET", closes=False, chunks=False)
    sent = answer.head(200, PLAIN) + answer.data(b"ab") + answer.end()
    assert answer.state is h11.MUST_CLOSE
    assert read("GET", sent, closed=True) == (200, [*PLAIN, (b"connection", b"close")], b"ab")


@pytest.mark.parametrize("closes", [True, False])
def test_the_last_answer_says_once_that_it_is_the_last(closes: bool) -> None:
    answer = Framing(b"GET", closes=closes, chunks=True)
    close = (b"connection", b"close")
    sent = answer.head(200, [*sized(0), close]) + answer.end()
    assert answer.state is h11.MUST_CLOSE
    assert read("GET", sent, closed=True) == (200, [*sized(0), close], b"")


@pytest.mark.parametrize(
    "header", [(b"x", b"a\r\nb: c"), (b"x", b"a\nb"), (b"x", b"a\rb"), (b"x", b"\0"), (b"x\n", b"")]
)
def test_a_line_break_in_a_header_is_not_sent(header: tuple[bytes, bytes]) -> None:
    answer = Framing(b"GET", closes=False, chunks=True)
    with pytest.raises(h11.LocalProtocolError):
        answer.head(200, [header])
    assert answer.head(500, sized(0)).startswith(b"HTTP/1.1 500 "), "there is still room for an honest answer"


def test_a_body_of_another_length_than_was_said_is_an_error() -> None:
    answer = Framing(b"GET", closes=False, chunks=True)
    answer.head(200, sized(4))
    answer.data(b"abc")
    with pytest.raises(h11.LocalProtocolError):
        answer.end()
    with pytest.raises(h11.LocalProtocolError):
        answer.data(b"de")
    assert answer.state is not h11.DONE


def test_there_is_one_answer() -> None:
    answer = Framing(b"GET", closes=False, chunks=True)
    answer.head(200, sized(0))
    with pytest.raises(h11.LocalProtocolError):
        answer.head(200, sized(0))
    answer.end()
    with pytest.raises(h11.LocalProtocolError):
        answer.data(b"a")
