"""Lines of server-sent events in pieces cut anywhere. Pure; holds at most the name of a field."""

from collections.abc import Iterator
from enum import IntEnum
from typing import Final

DATA: Final = b"data:"
BOM: Final = b"\xef\xbb\xbf"
_LF: Final = 0x0A


class Part(IntEnum):
    """What a part of the stream is."""

    DATA = 0
    """Bytes of a data line, without the field's name."""
    LINE_END = 1
    """The end of a data line."""
    EVENT_END = 2
    """An empty line."""


class Lines:
    """Where in its lines a stream is. Lines end with LF or CR LF; a byte order mark may precede the first."""

    __slots__ = ("_begun", "_field", "_in_data", "_in_line")

    def __init__(self, *, begun: bool = False) -> None:
        """`begun`: the bytes to come are not the stream's first."""
        self._begun = begun
        self._in_line = False  # after the field's name, up to the end of the line
        self._in_data = False  # that line holds data
        self._field = b""  # the beginning of a line, while it may become "data:"

    @property
    def between(self) -> bool:
        """The next byte begins a line."""
        return not (self._in_line or self._field)

    def parts(self, piece: bytes) -> Iterator[tuple[Part, int, int]]:
        """Yield the parts of a piece that are data, and ends, as (part, start, end)."""
        at, size = 0, len(piece)
        while at < size:
            if not self._in_line:
                if self._name(piece, at):
                    yield Part.EVENT_END, at, at
                at += 1
                continue
            lf = piece.find(b"\n", at)
            end = lf if lf >= 0 else size
            is_data = self._in_data
            if lf >= 0:
                self._in_line = self._in_data = False
            if is_data:
                if end > at:
                    yield Part.DATA, at, end
                if lf >= 0:
                    yield Part.LINE_END, lf, lf
            at = end + 1

    def _name(self, piece: bytes, at: int) -> bool:
        """Take a byte at the beginning of a line; tell whether it ends an empty line."""
        field = self._field + piece[at : at + 1]
        self._field = b""
        if field in {b"\n", b"\r\n"}:
            self._begun = True
            return True
        if field == DATA:
            self._in_line = self._in_data = True
        elif DATA.startswith(field) or field == b"\r" or (BOM.startswith(field) and not self._begun):
            if field != BOM:
                self._field = field
                return False
        else:
            self._in_line = piece[at] != _LF
        self._begun = True
        return False
