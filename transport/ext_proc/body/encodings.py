"""Content encodings, decoded for reading: lazily, in pieces of bounded size. Pure.

The encoded bytes are what is forwarded. The caller bounds the work and the memory: it asks for as many pieces
as it can use at a time, and counts them.
"""

import zlib
from collections.abc import Callable, Iterator
from typing import Final, Protocol

import brotli
import zstandard
from typing_extensions import override

#: Longest decoded piece, in bytes.
PIECE_BYTES: Final = 65_536
#: Encoded bytes that zstd decodes at a time: a block of four bytes may become 128 KiB.
_ZSTD_SLICE: Final = 64
#: Largest window of a zstd frame, in bytes, as RFC 8878 (3.1.1.1.2) advises.
_ZSTD_WINDOW: Final = 8 * 1024 * 1024


class BrokenEncodingError(Exception):
    """The bytes are not in the encoding."""


class Decoder(Protocol):
    """Decodes one body."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the decoded pieces of the next encoded bytes, each of at most PIECE_BYTES, never empty.

        Take all of them before the next call. Raises BrokenEncodingError.
        """
        ...


def decoder(name: str) -> Decoder | None:
    """Return a decoder of the encoding with this name; None for one that is not read."""
    make = _DECODERS.get(name.strip().lower())
    return None if make is None else make()


class _Zlib(Decoder):
    """gzip, of one or more members."""

    def __init__(self) -> None:
        self._of = zlib.decompressobj(31)

    @override
    def feed(self, data: bytes) -> Iterator[bytes]:
        try:
            while data:
                if self._of.eof:  # another member follows
                    self._of = zlib.decompressobj(31)
                piece = self._of.decompress(data, PIECE_BYTES)
                data = self._of.unused_data if self._of.eof else self._of.unconsumed_tail
                if piece:
                    yield piece
        except zlib.error as error:
            raise BrokenEncodingError(str(error)) from None


class _Deflate(Decoder):
    """deflate: zlib's format, or a bare stream, which many clients send."""

    def __init__(self) -> None:
        self._of: zlib._Decompress | None = None

    @override
    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._of is None and data:
            self._of = zlib.decompressobj(15 if data[0] & 15 == 8 else -15)
        try:
            while data and self._of is not None and not self._of.eof:
                piece = self._of.decompress(data, PIECE_BYTES)
                data = self._of.unconsumed_tail
                if piece:
                    yield piece
        except zlib.error as error:
            raise BrokenEncodingError(str(error)) from None


class _Brotli(Decoder):
    def __init__(self) -> None:
        self._of = brotli.Decompressor()

    @override
    def feed(self, data: bytes) -> Iterator[bytes]:
        try:
            while True:
                piece = self._of.process(data, output_buffer_limit=PIECE_BYTES)
                data = b""
                if not piece and (self._of.is_finished() or self._of.can_accept_more_data()):
                    return
                yield from _cut(piece)
        except brotli.error as error:
            raise BrokenEncodingError(str(error)) from None


class _Zstd(Decoder):
    def __init__(self) -> None:
        self._of = self._new()

    def _new(self) -> "zstandard.ZstdDecompressionObj":
        return zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj()

    @override
    def feed(self, data: bytes) -> Iterator[bytes]:
        try:
            for at in range(0, len(data), _ZSTD_SLICE):
                rest = data[at : at + _ZSTD_SLICE]
                while rest:
                    if self._of.eof:  # another frame follows
                        self._of = self._new()
                    piece = self._of.decompress(rest)
                    rest = self._of.unused_data if self._of.eof else b""
                    yield from _cut(piece)
        except zstandard.ZstdError as error:
            raise BrokenEncodingError(str(error)) from None


def _cut(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), PIECE_BYTES):
        yield data[at : at + PIECE_BYTES]


_DECODERS: Final[dict[str, Callable[[], Decoder]]] = {
    "gzip": _Zlib,
    "x-gzip": _Zlib,
    "deflate": _Deflate,
    "br": _Brotli,
    "zstd": _Zstd,
}
#: The encodings that are read, for messages.
ENCODINGS: Final = ("gzip", "deflate", "br", "zstd")
