"""Cuts a stream of pieces into lines, in bounded memory. Pure."""

from collections.abc import Iterator


class LineTooLong(ValueError):  # noqa: N818 - a condition of the stream
    """A line is longer than the limit."""


class Lines:
    """Lines of one stream. Bytes after the last line break are held until the rest of their line comes."""

    __slots__ = ("_held", "_limit")

    def __init__(self, limit: int) -> None:
        """`limit` is the longest line, in bytes; it also bounds the bytes held."""
        self._limit = limit
        self._held = bytearray()

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the lines that end in this piece, without their breaks; empty lines are left out.

        The cost grows with the piece, not with the line that it continues. Raises LineTooLong after yielding
        the lines before the long one.
        """
        first, *others = piece.split(b"\n")
        self._held += first
        for other in others:
            line, self._held = bytes(self._held), bytearray(other)
            self._check(len(line))
            if line:
                yield line
        self._check(len(self._held))

    def _check(self, length: int) -> None:
        if length > self._limit:
            raise LineTooLong(f"a line of more than {self._limit} bytes")
