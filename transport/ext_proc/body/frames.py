"""Reads the first message of a gRPC request body in bounded steps. Pure."""

from collections import deque
from collections.abc import Iterator
from typing import Final

import numpy as np

from ext_proc.body.api import Api
from ext_proc.body.scan import NotReadError, Scanner, Span
from ext_proc.wire import Held

#: Bytes of the message that are kept, at most; what follows is not read.
MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024
#: Bytes of packed token ids that are decoded in one step.
_RUN_BYTES: Final = 65_536
#: Most fields of one level.
_MAX_FIELDS: Final = 1024
_PREFIX_BYTES: Final = 5
#: Pieces of the message that one step takes.
_PIECES_A_STEP: Final = 16


class FrameScanner:
    """Reads one body; a `reading.FieldScanner`."""

    __slots__ = ("_api", "_ended", "_head", "_inner", "_kept", "_left", "_pieces", "done", "error", "fields")

    def __init__(self, api: Api) -> None:
        """`api.extract` says what the message's bytes mean."""
        self._api = api
        self.fields: dict[str, Span] = {}
        self.done = False
        self.error: NotReadError | None = None
        self._pieces: deque[Held] = deque()
        self._ended = False
        self._head = b""
        self._left = -1  # bytes of the message that have not come; -1 before its prefix is whole
        self._kept = bytearray()
        self._inner: Scanner | None = None

    def feed(self, piece: Held) -> None:
        """Take the next bytes."""
        if piece and not self.done:
            self._pieces.append(piece)

    def end(self) -> None:
        """Note that there are no more bytes."""
        self._ended = True

    @property
    def starved(self) -> bool:
        """`advance` has nothing to do until more bytes come."""
        return not self.done and self._inner is None and not self._pieces and not self._ended

    def advance(self) -> None:
        """Do one bounded step."""
        if self.done or self.starved:
            return
        try:
            if self._inner is not None:
                self._advance_inner(self._inner)
                return
            for _ in range(min(len(self._pieces), _PIECES_A_STEP)):
                self._take(bytes(self._pieces.popleft()))
            if self._left == 0:
                self._message_is_whole()
            elif self._ended and not self._pieces:
                raise NotReadError("not a whole gRPC message")
        except NotReadError as error:
            self._over(error)

    def _over(self, error: NotReadError | None) -> None:
        self.done, self.error = True, error
        self._pieces.clear()
        self._kept = bytearray()

    def _take(self, piece: bytes) -> None:
        if self._left < 0:
            missing = _PREFIX_BYTES - len(self._head)
            self._head += piece[:missing]
            piece = piece[missing:]
            if len(self._head) < _PREFIX_BYTES:
                return
            if self._head[0]:
                raise NotReadError("a compressed gRPC message; send it uncompressed")
            self._left = int.from_bytes(self._head[1:], "big")
        part = piece[: self._left]
        self._left -= len(part)
        self._kept += part[: MAX_MESSAGE_BYTES - len(self._kept)]

    def _message_is_whole(self) -> None:
        extract = self._api.extract
        found = {} if extract is None else extract(bytes(self._kept))
        if isinstance(found, bytes):  # JSON within the message
            self._inner = Scanner(self._api.limits)
            self._inner.feed(found)
            self._inner.end()
            self._kept = bytearray()
            return
        self.fields = {key: Span(raw, True, 0, 0) for key, raw in found.items()}
        self._over(None)

    def _advance_inner(self, inner: Scanner) -> None:
        inner.advance()
        if inner.done:
            self.fields = inner.fields
            self._over(inner.error)


def fields_of(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield (number, value) of a protobuf message's fields: bytes, or the whole number of a varint.

    A last field that is cut off is yielded as far as it goes. Raises NotReadError.
    """
    at = 0
    for _ in range(_MAX_FIELDS):
        if at >= len(message):
            return
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 2:
            size, at = _varint(message, at)
            yield key >> 3, message[at : at + size]
            at += size
        elif kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise NotReadError("not a protobuf message")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise NotReadError("not a protobuf message")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise NotReadError("not a protobuf message")


def packed_ids(data: bytes) -> Iterator[bytes]:
    """Yield packed varints as four bytes each, little endian, in runs; one that is cut off is left out."""
    at = 0
    while at < len(data):
        window = np.frombuffer(data, np.uint8, min(_RUN_BYTES, len(data) - at), at)
        ends = np.flatnonzero(window < 0x80)
        if not ends.size:
            return
        begins = np.concatenate((np.zeros(1, ends.dtype), ends[:-1] + 1))
        lengths = ends - begins + 1
        values = np.zeros(ends.size, np.uint32)
        for place in range(min(int(lengths.max()), 5)):
            has = lengths > place
            values[has] |= (window[begins[has] + place] & 0x7F).astype(np.uint32) << np.uint32(7 * place)
        yield values.astype("<u4").tobytes()
        at += int(ends[-1]) + 1
