"""Reads UBJSON as XGBoost writes it, its typed arrays as numpy arrays. Pure.

A model is read in pieces of Python code, so that an event loop in another thread goes on meanwhile; one call
of a JSON parser would hold the interpreter for tens of milliseconds.
"""

import struct
from typing import Any, Final

import numpy as np

#: Deepest nesting that is read.
MAX_DEPTH: Final = 32

_TYPES: Final[dict[bytes, np.dtype[Any]]] = {
    b"i": np.dtype(">i1"),
    b"U": np.dtype(">u1"),
    b"I": np.dtype(">i2"),
    b"l": np.dtype(">i4"),
    b"L": np.dtype(">i8"),
    b"d": np.dtype(">f4"),
    b"D": np.dtype(">f8"),
}
_SCALARS: Final = {
    b"i": struct.Struct(">b"),
    b"U": struct.Struct(">B"),
    b"I": struct.Struct(">h"),
    b"l": struct.Struct(">i"),
    b"L": struct.Struct(">q"),
    b"d": struct.Struct(">f"),
    b"D": struct.Struct(">d"),
}
_CONSTANTS: Final = {b"T": True, b"F": False, b"Z": None}


class UbjError(ValueError):
    """The bytes are no UBJSON that this module reads."""


def decode(content: bytes) -> Any:
    """Return the value: dicts, lists, str, numbers, and numpy arrays for typed arrays.

    Raises UbjError.
    """
    reader = _Reader(content)
    try:
        value = reader.value(reader.marker(), 0)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        msg = f"UBJSON that ends early or is malformed: {error}"
        raise UbjError(msg) from error
    return value


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def marker(self) -> bytes:
        marker = self._content[self._at : self._at + 1]
        if not marker:
            raise UbjError("UBJSON that ends early")
        self._at += 1
        return marker

    def _peek(self) -> bytes:
        return self._content[self._at : self._at + 1]

    def value(self, marker: bytes, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise UbjError("UBJSON that is nested too deeply")
        if marker == b"{":
            return self._object(depth + 1)
        if marker == b"[":
            return self._array(depth + 1)
        if marker == b"S":
            return self._text()
        layout = _SCALARS.get(marker)
        if layout is not None:
            (number,) = layout.unpack_from(self._content, self._at)
            self._at += layout.size
            return number
        if marker in _CONSTANTS:
            return _CONSTANTS[marker]
        msg = f"UBJSON with the unknown marker {marker!r}"
        raise UbjError(msg)

    def _count(self) -> int:
        count = self.value(self.marker(), MAX_DEPTH)
        if not isinstance(count, int) or not 0 <= count <= len(self._content):
            msg = f"UBJSON with the length {count!r}"
            raise UbjError(msg)
        return count

    def _text(self) -> str:
        count = self._count()
        text = self._content[self._at : self._at + count]
        if len(text) != count:
            raise UbjError("UBJSON that ends within a text")
        self._at += count
        return text.decode()

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        left = -1
        if self._peek() == b"#":
            self._at += 1
            left = self._count()
        while left:
            if left < 0 and self._peek() == b"}":
                self._at += 1
                break
            key = self._text()
            found[key] = self.value(self.marker(), depth)
            left -= 1
        return found

    def _array(self, depth: int) -> Any:
        if self._peek() == b"$":
            self._at += 1
            kind = _TYPES.get(self.marker())
            if kind is None or self.marker() != b"#":
                raise UbjError("UBJSON with a typed array of another type than numbers")
            count = self._count()
            end = self._at + count * kind.itemsize
            if end > len(self._content):
                raise UbjError("UBJSON that ends within an array")
            array = np.frombuffer(self._content, kind, count, self._at)
            self._at = end
            return array.astype(kind.newbyteorder("="))
        found: list[Any] = []
        left = -1
        if self._peek() == b"#":
            self._at += 1
            left = self._count()
        while left:
            if left < 0 and self._peek() == b"]":
                self._at += 1
                break
            found.append(self.value(self.marker(), depth))
            left -= 1
        return found
