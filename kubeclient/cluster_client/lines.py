"""Cuts a stream of pieces into lines, in bounded memory. Pure."""

from collections.abc import Iterator


class LineTooLong(ValueError):  # noqa: N818 - a condition of the stream
    """A line is longer than the limit."""


class Lines:
    """One stream. What follows the last line break is held until the rest of its line comes."""

    __slots__ = ("_held", "_limit")

    def __init__(self, limit: int) -> None:
        """`limit` bounds a line, and so what is held, in bytes."""
        self._limit = limit
        self._held = bytearray()

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the lines that end in this piece, without their breaks; empty lines are left out.

        The cost is that of the piece, however long the line is that it continues. Raises LineTooLong, after
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
