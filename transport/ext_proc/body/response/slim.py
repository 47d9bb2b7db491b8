"""One JSON value in pieces, without the members that nobody asked for. Pure, bounded; accepts any bytes.

A `Slimmer` walks over a value once, whatever the cuts between its pieces, and keeps the members that a tree
names: `slim` is JSON with them alone, small however large the value is. Strings and numbers are cut short,
not to nothing. Nothing of the value itself is held. A value that is no JSON gives some bytes or other.

What the tree does not name is passed over by a regular expression, so that the time goes by the brackets of
the value that hold other brackets, not by its bytes.
"""

import json
import re
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Final, Union

from typing_extensions import override


class Keep(IntEnum):
    """How a leaf of the tree is kept."""

    SHORT = 0
    """A string or number of at most MAX_SCALAR bytes as it is, a longer string as "+", a longer number as
    null; an array or object as [0], or as [] when it is empty."""
    SPAN = 1
    """A string is left to the caller: `feed` returns at its opening quote, with `at_span` set."""


Tree = Union[Mapping[str, "Tree"], Keep]  # noqa: UP007 - it names itself
"""Members by key; an array stands for each of its elements."""


class Each(Mapping[str, Tree]):
    """A tree that names every key of an object."""

    @override
    def __getitem__(self, key: str) -> Tree:
        return Keep.SHORT

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(())

    @override
    def __len__(self) -> int:
        return 0


#: Bytes of a string or number that are kept, quotes not counted.
MAX_SCALAR: Final = 128
#: Bytes of a key, as it is spelt, up to which it is compared.
MAX_KEY: Final = 256
#: Bytes of the slim form after which no further member is kept.
MAX_SLIM: Final = 8 * 1024

_STRING: Final = rb'(?:[^"\\]++|\\.)*+'
_PLAIN: Final = rb'[^"{}\[\]]++|"' + _STRING + rb'"'
_inside: Final = re.compile(_STRING, re.DOTALL).match
"""The rest of a string, up to its quote, a last backslash or the end."""
_skip: Final = re.compile(rb"(?:" + _PLAIN + rb"|[\[{](?:" + _PLAIN + rb")*+[\]}])*+", re.DOTALL).match
"""Scalars, whole strings, and whole containers that hold no others."""
_space: Final = re.compile(rb"[\s,:]*+").match
_to_key: Final = re.compile(rb'[^"}\]]*+').match
_scalar: Final = re.compile(rb'[^\s,:"\[\]{}]*+').match
_QUOTE, _BACKSLASH, _OPEN, _CLOSE = 0x22, 0x5C, b"[{", b"]}"


def string_at(text: bytes, at: int) -> tuple[str | None, int]:
    """Return the JSON string whose first byte after the quote is at `at`, or None, and its end."""
    inside = _inside(text, at)
    assert inside is not None  # noqa: S101 - it matches nothing at all, too
    try:
        return str(json.loads(b'"%b"' % inside[0])), inside.end()
    except ValueError:
        return None, at


class _At(IntEnum):
    VALUE = 0
    """Before a value."""
    KEY = 1
    """Before a key, or the end of an object."""
    IN_KEY = 2
    IN_STRING = 3
    IN_SCALAR = 4
    IN_SHORT = 5
    """After the bracket that opens an array or object of which only its being empty is kept."""
    SKIPPED = 6
    """In an array or object that is passed over."""
    SKIPPED_STRING = 7
    DONE = 8


class Slimmer:
    """Walks over one JSON value."""

    __slots__ = (
        "_at",
        "_escaped",
        "_held",
        "_kept",
        "_key",
        "_node",
        "_out",
        "_skipped",
        "_stack",
        "at_span",
    )

    def __init__(self, tree: Tree) -> None:
        self._at = _At.VALUE
        self._node: Tree | None = tree
        self._stack: list[tuple[bool, Tree]] = []  # (is an object, its tree) of the open containers
        self._out = bytearray()
        self._held = bytearray()  # of the key, string or number under way
        self._kept = True  # the string or number under way is kept
        self._key = b""  # of the member under way, as `slim` spells it
        self._escaped = False  # the last byte was the backslash of an escape
        self._skipped = 0  # depth in what is passed over
        self.at_span = False
        """`feed` returned at the quote of a string whose leaf is SPAN. The caller goes on after it."""

    @property
    def done(self) -> bool:
        """The value is over."""
        return self._at is _At.DONE

    @property
    def slim(self) -> bytes:
        """The value with the named members alone, once it is over."""
        return bytes(self._out)

    def closed(self) -> bytes:
        """Return the slim form of a value that ends here, b"" of one that is cut off."""
        if self._at is _At.IN_SCALAR and not self._stack:
            self._end_scalar()
        return bytes(self._out) if self.done else b""

    def feed(self, data: bytes, at: int, end: int) -> int:
        """Take bytes from `at` on; return `end`, or the position after the value, or that of a SPAN."""
        self.at_span = False
        while at < end and self._at is not _At.DONE:
            at = _STEPS[self._at](self, data, at, end)
            if self.at_span:
                return at
        return at

    # Steps. Each takes some bytes and returns the position after them.

    def _value(self, data: bytes, at: int, end: int) -> int:
        at = _space(data, at, end).end()  # type: ignore[union-attr]
        if at == end:
            return at
        byte, node = data[at], self._node
        if byte == _QUOTE:
            if node is Keep.SPAN:
                self.at_span = True
                self._after()
                return at
            self._begin_scalar()
            self._at = _At.IN_STRING
        elif byte in _OPEN:
            self._open(byte, node)
        elif byte in _CLOSE:
            self._close(byte)
        else:
            self._begin_scalar()
            self._at = _At.IN_SCALAR
            return at
        return at + 1

    def _open(self, byte: int, node: Tree | None) -> None:
        if node is None or len(self._stack) > 16:
            self._skipped = 1
            self._at = _At.SKIPPED
        elif isinstance(node, Keep):
            self._at = _At.IN_SHORT
        else:
            self._emit(bytes((byte,)))
            is_object = byte == _OPEN[1]
            self._stack.append((is_object, node))
            self._at = _At.KEY if is_object else _At.VALUE

    def _close(self, byte: int) -> None:
        if self._stack:
            self._stack.pop()
            self._out.append(byte)
        self._after()

    def _before_key(self, data: bytes, at: int, end: int) -> int:
        at = _to_key(data, at, end).end()  # type: ignore[union-attr]
        if at == end:
            return at
        if data[at] == _QUOTE:
            self._held.clear()
            self._at = _At.IN_KEY
        else:
            self._close(data[at])
        return at + 1

    def _in_key(self, data: bytes, at: int, end: int) -> int:
        at, over = self._string(data, at, end, MAX_KEY)
        if over:
            self._key, self._node = self._named()
            self._at = _At.VALUE
        return at

    def _named(self) -> tuple[bytes, Tree | None]:
        """Return how the key is spelt in the slim form, and its tree; None for one that is passed over."""
        held = self._held
        if len(held) > MAX_KEY or len(self._out) > MAX_SLIM:
            return b"", None
        try:
            key = held.decode() if _BACKSLASH not in held else json.loads(b'"%b"' % bytes(held))
            spelt = json.dumps(key).encode()
        except ValueError:
            return b"", None
        tree = self._stack[-1][1]
        found = tree.get(key) if not isinstance(tree, Keep) else None
        return spelt + b":", found if found is not None or not isinstance(tree, Each) else Keep.SHORT

    def _in_string(self, data: bytes, at: int, end: int) -> int:
        at, over = self._string(data, at, end, MAX_SCALAR if self._kept else 0)
        if over:
            if self._kept:
                held = self._held
                self._emit(b'"%b"' % bytes(held) if len(held) <= MAX_SCALAR else b'"+"')
            self._after()
        return at

    def _string(self, data: bytes, at: int, end: int, limit: int) -> tuple[int, bool]:
        """Take a part of a string; keep up to `limit` bytes of it, and one more when it is longer."""
        start = at
        if self._escaped:
            self._escaped = False
            at += 1
        at = _inside(data, at, end).end()  # type: ignore[union-attr]
        if at < end and data[at] == _BACKSLASH:  # the last byte: what it escapes has not come
            self._escaped = True
            at += 1
        room = limit + 1 - len(self._held)
        if limit and room > 0:
            self._held += data[start : min(at, start + room)]
        over = at < end and data[at] == _QUOTE and not self._escaped
        return at + over, over

    def _in_scalar(self, data: bytes, at: int, end: int) -> int:
        start = at
        at = _scalar(data, at, end).end()  # type: ignore[union-attr]
        if self._kept:
            self._held += data[start : min(at, start + MAX_SCALAR + 1 - len(self._held))]
        if at < end:
            self._end_scalar()
        return at

    def _begin_scalar(self) -> None:
        self._held.clear()
        self._kept = self._node is not None

    def _end_scalar(self) -> None:
        if self._kept:
            self._emit(bytes(self._held) if len(self._held) <= MAX_SCALAR else b"null")
        self._after()

    def _in_short(self, data: bytes, at: int, end: int) -> int:
        at = _space(data, at, end).end()  # type: ignore[union-attr]
        if at == end:
            return at
        if data[at] in _CLOSE:
            self._emit(b"[]")
            self._after()
            return at + 1
        self._emit(b"[0]")
        self._skipped = 1
        self._at = _At.SKIPPED
        return at

    def _in_skipped(self, data: bytes, at: int, end: int) -> int:
        at = _skip(data, at, end).end()  # type: ignore[union-attr]
        if at == end:
            return at
        byte = data[at]
        if byte == _QUOTE:
            self._at = _At.SKIPPED_STRING
        elif byte in _OPEN:
            self._skipped += 1
        else:
            self._skipped -= 1
            if not self._skipped:
                self._after()
        return at + 1

    def _in_skipped_string(self, data: bytes, at: int, end: int) -> int:
        at, over = self._string(data, at, end, 0)
        if over:
            self._at = _At.SKIPPED
        return at

    def _emit(self, text: bytes) -> None:
        """Add a value to the slim form, after the key of its member."""
        out = self._out
        if out and out[-1] not in _OPEN:
            out += b","
        if self._stack and self._stack[-1][0]:
            out += self._key
        out += text

    def _after(self) -> None:
        """Go on after a value."""
        if not self._stack:
            self._at = _At.DONE
            return
        is_object, tree = self._stack[-1]
        if is_object:
            self._at = _At.KEY
        else:
            self._at = _At.VALUE
            self._node = tree if len(self._out) <= MAX_SLIM else None


_STEPS: Final = (
    Slimmer._value,
    Slimmer._before_key,
    Slimmer._in_key,
    Slimmer._in_string,
    Slimmer._in_scalar,
    Slimmer._in_short,
    Slimmer._in_skipped,
    Slimmer._in_skipped_string,
)
