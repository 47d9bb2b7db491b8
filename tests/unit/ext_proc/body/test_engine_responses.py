"""Usage and tokens of the gRPC engine's responses, from any split. Messages are laid out by hand."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.body.response.engine import EngineReader


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def nested(field: int, payload: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(payload)) + payload


def framed(message: bytes, compressed: int = 0) -> bytes:
    return bytes([compressed]) + len(message).to_bytes(4) + message


def chunk(ids: bytes, prompt: int, completion: int, cached: int = 0) -> bytes:
    counts = number(2, prompt) + number(3, completion) + (number(4, cached) if cached else b"")
    return framed(nested(1, (nested(1, ids) if ids else b"") + counts))


def complete(ids: bytes, prompt: int, completion: int, cached: int = 0) -> bytes:
    counts = number(3, prompt) + number(4, completion) + number(5, cached)
    return framed(nested(2, nested(1, ids) + nested(2, b"stop") + counts))


STREAM = (
    chunk(b"", 300, 0)
    + chunk(b"\x05", 300, 1, 128)
    + chunk(b"\x06\x80\x01", 300, 3, 128)
    + complete(b"\x05\x06\x80\x01" * 40_000, 300, 3, 128)
)


def read(body: bytes, cuts: list[int], *, embeds: bool = False) -> tuple[EngineReader, list[bool]]:
    reader = EngineReader(embeds=embeds)
    edges = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    return reader, [reader.feed(body[start:end]) for start, end in pairwise(edges)]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_split_of_a_stream_gives_the_same(cuts: list[int]) -> None:
    reader, tokens = read(STREAM, cuts)
    usage = reader.close()
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (300, 3, 128)
    assert reader.tokens == 2
    assert any(tokens)


def test_every_cut_of_a_short_stream_and_byte_by_byte() -> None:
    body = chunk(b"\x05", 300, 1) + complete(b"\x05", 300, 1, 7)
    for at in range(len(body)):
        reader, _ = read(body, [at])
        assert (reader.tokens, vars_of(reader)) == (1, (300, 1, 7))
    reader, _ = read(body, list(range(len(body))))
    assert (reader.tokens, vars_of(reader)) == (1, (300, 1, 7))


def vars_of(reader: EngineReader) -> tuple[int, int, int] | None:
    usage = reader.close()
    return None if usage is None else (usage.input_tokens, usage.output_tokens, usage.cached_tokens)


def test_an_embedding_counts_its_prompt() -> None:
    body = framed(nested(1, b"\0\0\0\0" * 1000) + number(2, 12) + number(3, 1000))
    assert vars_of(read(body, [7], embeds=True)[0]) == (12, 0, 0)


def test_a_compressed_message_is_passed_over() -> None:
    body = framed(b"\x1f\x8b whatever", compressed=1) + complete(b"\x05", 3, 1)
    assert vars_of(read(body, [])[0]) == (3, 1, 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0\0\0\0",
        framed(b"\xff" * 30),
        framed(b"\x0f"),
        framed(nested(1, b"\x0a\xff\xff\xff\x0f")),
        b'{"error":{}}' * 100,
        framed(b"\x08"),
    ],
    ids=[
        "empty",
        "empty message",
        "long varint",
        "unknown kind",
        "value beyond its message",
        "no gRPC",
        "cut",
    ],
)
@given(st.lists(st.integers(0, 1200), max_size=6))
def test_what_the_engine_does_not_send_says_nothing(body: bytes, cuts: list[int]) -> None:
    reader, tokens = read(body, cuts)
    assert vars_of(reader) is None
    assert not any(tokens)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=4))
def test_any_bytes_are_read_without_a_fault(body: bytes, cuts: list[int]) -> None:
    read(body, cuts)[0].close()
