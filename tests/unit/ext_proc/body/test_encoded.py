"""Responses that come compressed are read as the plain ones are."""

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable
from itertools import pairwise

import brotli
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.body.encodings import decoder
from ext_proc.body.response.encoded import MAX_DECODED, EncodedReader
from ext_proc.body.response.readers import DocumentReader, ResponseReader, StreamReader

EVENTS = [
    b"data: " + json.dumps(fields).encode() + b"\n\n"
    for fields in (
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        *({"choices": [{"delta": {"content": f"word{number}"}}]} for number in range(20)),
        {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 20}},
    )
]
Compress = Callable[[bytes], bytes]
ENCODINGS: dict[str, Compress] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.compress,
}
encodings = pytest.mark.parametrize("name", ENCODINGS)


def reading(reader: ResponseReader, name: str) -> EncodedReader:
    made = decoder(name)
    assert made is not None
    return EncodedReader(reader, made)


@encodings
@given(cuts=st.lists(st.integers(0, 2000), max_size=6))
@settings(max_examples=20, deadline=None)
def test_usage_and_tokens_are_read_whatever_the_cuts(name: str, cuts: list[int]) -> None:
    body = ENCODINGS[name](b"".join(EVENTS))
    edges = [0, *sorted({cut % len(body) for cut in cuts} - {0}), len(body)]
    reader = reading(StreamReader(), name)
    for start, end in pairwise(edges):
        reader.feed(body[start:end])
    usage = reader.close()
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, reader.tokens) == (4, 20, 20)


def test_each_event_that_the_server_flushes_is_seen_as_it_passes() -> None:
    compress = zlib.compressobj(wbits=31)
    reader = reading(StreamReader(), "gzip")
    seen = [reader.feed(compress.compress(event) + compress.flush(zlib.Z_SYNC_FLUSH)) for event in EVENTS]
    assert seen == [False, *[True] * 20, False]


@encodings
def test_a_bomb_ends_the_reading_in_bounded_memory(name: str) -> None:
    bomb = ENCODINGS[name](b'{"x": "' + b"x" * (64 << 20) + b'", "usage": {"prompt_tokens": 1}}')
    reader = reading(DocumentReader(), name)
    tracemalloc.start()
    try:
        for at in range(0, len(bomb), 65_536):
            reader.feed(bomb[at : at + 65_536])
        assert tracemalloc.get_traced_memory()[1] < 10 * MAX_DECODED
    finally:
        tracemalloc.stop()
    assert reader.close() is None


@encodings
def test_broken_bytes_end_the_reading(name: str) -> None:
    body = bytearray(ENCODINGS[name](b"".join(EVENTS) * 5))
    body[len(body) // 2 :] = b"\xff" * 40
    reader = reading(StreamReader(), name)
    reader.feed(bytes(body))
    reader.feed(b"more")
    reader.close()
    assert not reader.feed(b"more")
