"""The bounded HTTP response reader: any split of the bytes gives the same body; bad peers are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoint_picker.datalayer.http_response import MAX_CHUNKS, ResponseError, ResponseReader

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
LIMIT = 1000


def counted(body: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunked(*pieces: bytes, trailer: bytes = b"") -> bytes:
    data = b"".join(b"%x;ext=1\r\n" % len(piece) + piece + b"\r\n" for piece in pieces)
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + data + b"0\r\n" + trailer + b"\r\n"


WHOLE = {
    "counted": (counted(b"hello\r\n\r\nworld"), b"hello\r\n\r\nworld"),
    "empty": (counted(b""), b""),
    "chunked": (chunked(b"hello", b"\r\n", b"world"), b"hello\r\nworld"),
    "chunked, trailer": (chunked(b"hello", trailer=b"X: y\r\n"), b"hello"),
    "chunked, empty": (chunked(), b""),
    "after an interim response": (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + counted(b"hi"), b"hi"),
}


@pytest.mark.parametrize("name", WHOLE)
@given(data=st.data())
def test_any_split_gives_the_same_body(name: str, data: st.DataObject) -> None:
    wire, body = WHOLE[name]
    reader = ResponseReader(LIMIT)
    for _ in range(2):  # a kept-alive connection carries the next response
        cuts = sorted(data.draw(st.sets(st.integers(1, len(wire) - 1), max_size=12)))
        pieces = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
        answers = [reader.feed(piece) for piece in pieces]
        assert answers == [None] * (len(pieces) - 1) + [body]
        assert reader.keep_alive


def test_a_body_without_length_ends_with_the_connection() -> None:
    reader = ResponseReader(LIMIT)
    assert reader.feed(HEAD + b"\r\nhello ") is None
    assert reader.feed(b"world") is None
    assert reader.closed() == b"hello world"
    assert not reader.keep_alive


def test_a_connection_that_ends_early_gives_nothing() -> None:
    for wire in (counted(b"hello")[:-1], chunked(b"hello")[:-3], HEAD, b""):
        reader = ResponseReader(LIMIT)
        assert reader.feed(wire) is None
        assert reader.closed() is None


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_a_peer_that_will_close_says_so(head: bytes) -> None:
    reader = ResponseReader(LIMIT)
    assert reader.feed(head) == b""
    assert not reader.keep_alive


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(b"SSH-2.0-OpenSSH\r\n\r\n", id="not HTTP"),
        pytest.param(b"HTTP/1.1 404 Not Found\r\n\r\n", id="not found"),
        pytest.param(b"HTTP/1.1 307 Temporary\r\nLocation: http://10.0.0.1/\r\n\r\n", id="redirect"),
        pytest.param(b"x" * 20_000, id="endless head"),
        pytest.param(HEAD + b"Content-Length: 1001\r\n\r\n", id="announces too much"),
        pytest.param(HEAD + b"Content-Length: -1\r\n\r\n", id="negative length"),
        pytest.param(HEAD + b"Content-Length: 2\r\n\r\nabc", id="more than announced"),
        pytest.param(HEAD + b"\r\n" + b"x" * 1001, id="endless body"),
        pytest.param(HEAD + b"Transfer-Encoding: gzip\r\n\r\n", id="unknown coding"),
        pytest.param(HEAD + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\n", id="compressed"),
        pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", id="chunk size is no number"),
        pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\n3e9\r\n", id="chunk too long"),
        pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabXX", id="chunk without end"),
        pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 2000, id="endless chunk size"),
        pytest.param(
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 5000, id="endless trailer"
        ),
        pytest.param(chunked(b"a") + b"more", id="bytes after the end"),
    ],
)
def test_what_is_no_usable_response_is_refused(wire: bytes) -> None:
    with pytest.raises(ResponseError):
        ResponseReader(LIMIT).feed(wire)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(noise: bytes) -> None:
    for start in (b"", HEAD, HEAD + b"Transfer-Encoding: chunked\r\n\r\n"):
        try:
            ResponseReader(LIMIT).feed(start + noise)
        except ResponseError:
            continue


def test_a_body_comes_in_a_bounded_number_of_chunks() -> None:
    whole = chunked(*[b"x"] * MAX_CHUNKS)
    assert ResponseReader(1 << 20).feed(whole) == b"x" * MAX_CHUNKS
    with pytest.raises(ResponseError, match="too many chunks"):
        ResponseReader(1 << 20).feed(chunked(*[b"x"] * (MAX_CHUNKS + 1)))
