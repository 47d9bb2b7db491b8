"""Encoded bodies: any split decodes to the same bytes, in bounded pieces."""

import gzip
import zlib
from collections.abc import Callable
from itertools import pairwise

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.body.encodings import PIECE_BYTES, BrokenEncodingError, decoder


def bare_deflate(data: bytes) -> bytes:
    made = zlib.compressobj(wbits=-15)
    return made.compress(data) + made.flush()


ENCODE: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": lambda data: gzip.compress(data[:5]) + gzip.compress(data[5:]),
    "deflate": zlib.compress,
    "Deflate ": bare_deflate,
    "br": brotli.compress,
    "zstd": zstandard.compress,
}
TEXT = bytes(range(256)) * 700


def decoded(name: str, encoded: bytes, cuts: list[int]) -> list[bytes]:
    made = decoder(name)
    assert made is not None
    edges = [0, *sorted(min(cut, len(encoded)) for cut in cuts), len(encoded)]
    return [piece for start, end in pairwise(edges) for piece in made.feed(encoded[start:end])]


@pytest.mark.parametrize("name", ENCODE)
@given(cuts=st.lists(st.integers(0, 3000), max_size=6))
def test_any_split_decodes_alike(name: str, cuts: list[int]) -> None:
    pieces = decoded(name, ENCODE[name](TEXT), cuts)
    assert b"".join(pieces) == TEXT
    assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)


@pytest.mark.parametrize("name", ENCODE)
def test_a_bomb_comes_in_pieces_as_they_are_asked_for(name: str) -> None:
    made = decoder(name)
    assert made is not None
    pieces = made.feed(ENCODE[name](bytes(10_000_000)))
    assert max(len(next(pieces)) for _ in range(100)) <= PIECE_BYTES


@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "zstd"])
def test_other_bytes_are_an_error(name: str) -> None:
    with pytest.raises(BrokenEncodingError):
        decoded(name, b"x" + bytes(range(255, 0, -1)) * 10, [])


@pytest.mark.parametrize("name", ["compress", "identity", "gzip, br", ""])
def test_other_encodings_are_not_read(name: str) -> None:
    assert decoder(name) is None
