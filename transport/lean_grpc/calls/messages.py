"""Length-prefixed messages in DATA frames: split over several, or several in one. Plain or gzip, bounded."""

import zlib
from struct import Struct
from typing import Final

from lean_grpc.http2.guard import HeldMessages
from lean_grpc.status import CallError, StatusCode

PREFIX: Final = Struct(">BI")
"""Compressed flag and length, before each message."""
PREFIX_SIZE: Final = 5

_GZIP: Final = 31
"""zlib's number for gzip framing with the largest window."""


class MessageReader:
    """Cuts the data of one stream into messages, one at a time, so that the rest can wait.

    `encoding` is the peer's `grpc-encoding`, or None. Between two calls of `feed` it holds a part
    of one message, and the messages that `next` has not been asked for.
    """

    __slots__ = (
        "_at",
        "_buffer",
        "_counted",
        "_held",
        "_limit",
        "_more",
        "_more_size",
        "_stop",
        "_wanted",
        "encoding",
    )

    def __init__(self, limit: int, held_messages: HeldMessages, encoding: bytes | None = None) -> None:
        self._held = held_messages
        self._counted = 0
        self.encoding = encoding
        self._limit = limit
        self._buffer = b""
        self._at = 0
        self._stop = 0
        self._more: list[bytes] = []
        self._more_size = 0
        self._wanted = PREFIX_SIZE

    @property
    def empty(self) -> bool:
        """Tell whether nothing is held: not even a part of a message."""
        return self._at == self._stop and not self._more

    def feed(self, buffer: bytes, start: int, stop: int) -> None:
        """Take `buffer[start:stop]`. Call `next` until it gives None, or `settle`, before the next one."""
        if self.empty:
            self._buffer, self._at, self._stop = buffer, start, stop
        else:
            self._more.append(buffer[start:stop])
            self._more_size += stop - start

    def next(self) -> bytes | None:
        """Return the next message, or None if it has not arrived whole.

        Raises:
            CallError: RESOURCE_EXHAUSTED if it is larger than the limit (known from its prefix),
                INTERNAL or UNIMPLEMENTED if it is compressed in a way that was not agreed.
        """
        size = self._stop - self._at
        if self._more:
            if size + self._more_size < self._wanted:
                return None
            self._buffer = self._buffer[self._at : self._stop] + b"".join(self._more)
            self._at, self._stop = 0, len(self._buffer)
            self._more.clear()
            self._more_size = 0
            size = self._stop
        if size < PREFIX_SIZE:
            self._wanted = PREFIX_SIZE
            return None
        flag, length = PREFIX.unpack_from(self._buffer, self._at)
        if length > self._limit:
            raise CallError(
                StatusCode.RESOURCE_EXHAUSTED, f"a message of {length} bytes; {self._limit} are allowed"
            )
        if size < PREFIX_SIZE + length:
            self._wanted = PREFIX_SIZE + length
            return None
        start = self._at + PREFIX_SIZE
        self._at = start + length
        # Forget the size of this message: after another `feed` it would hold back a shorter next one.
        self._wanted = PREFIX_SIZE
        payload = self._buffer[start : self._at]
        return self._decompress(flag, payload) if flag else payload

    def settle(self) -> None:
        """Release the buffer that was fed, and copy what is left of it.

        Raises:
            CallError: RESOURCE_EXHAUSTED if too much is held for all calls of the connection.
        """
        self._buffer = self._buffer[self._at : self._stop]
        self._at, self._stop = 0, len(self._buffer)
        held = self._stop + self._more_size
        self._held.held += held - self._counted
        self._counted = held
        if held and self._held.overfull:
            raise CallError(StatusCode.RESOURCE_EXHAUSTED, "too many unfinished messages on the connection")

    def drop(self) -> None:
        """Forget what is held."""
        self._held.held -= self._counted
        self._counted = self._at = self._stop = self._more_size = 0
        self._buffer = b""
        self._more.clear()

    def _decompress(self, flag: int, payload: bytes) -> bytes:
        if flag != 1 or self.encoding in (None, b"identity"):
            raise CallError(StatusCode.INTERNAL, "a compressed message, but no grpc-encoding names how")
        if self.encoding != b"gzip":
            raise CallError(StatusCode.UNIMPLEMENTED, "grpc-encoding must be gzip or identity")
        return inflate(payload, self._limit)


def inflate(payload: bytes, limit: int) -> bytes:
    """Return a gzip message decompressed.

    Raises:
        CallError: RESOURCE_EXHAUSTED as soon as the result passes `limit`; INTERNAL if it is no whole gzip.
    """
    machine = zlib.decompressobj(_GZIP)
    try:
        plain = machine.decompress(payload, limit + 1)
    except zlib.error as error:
        raise CallError(StatusCode.INTERNAL, "a compressed message that is no gzip") from error
    if len(plain) > limit:
        raise CallError(
            StatusCode.RESOURCE_EXHAUSTED, f"a message beyond {limit} bytes once it is decompressed"
        )
    if not machine.eof:
        raise CallError(StatusCode.INTERNAL, "a compressed message that ends too early")
    return plain


def deflate(payload: bytes) -> bytes:
    """Return a message compressed with gzip."""
    machine = zlib.compressobj(wbits=_GZIP)
    return machine.compress(payload) + machine.flush()


def prefixed(payload: bytes, *, compress: bool) -> tuple[bytes, bytes]:
    """Return the prefix of a message and its payload as they go on the wire."""
    if compress:
        payload = deflate(payload)
    return PREFIX.pack(compress, len(payload)), payload
