"""Reads the top level of a JSON object while its pieces come, in bounded steps. Pure.

The scanner keeps the values of the keys that it is asked for, each up to a limit, and skips all others at
the speed of a search. It checks structure (strings, brackets, the scalars of the top level) and leaves what
stands deeper to the model server. Of a key that occurs twice the last value counts, as in Python, Go and
JavaScript.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import Final, NamedTuple

from xxhash import xxh3_128

from ext_proc.body.brackets import WINDOW_BYTES, Nest
from ext_proc.body.material import DIGEST, LONG_BYTES, OPAQUE_BYTES, is_opaque
from ext_proc.wire import Held

#: Most keys of the object.
MAX_KEYS: Final = 10_000
#: Longest key that is compared, in bytes; a longer one is none of those asked for.
_MAX_KEY: Final = 256
#: Longest scalar (a number with all its digits), in bytes.
_MAX_SCALAR: Final = 4096
#: Keys that one step takes.
_KEYS_A_STEP: Final = 128

_space: Final = re.compile(rb"[ \t\r\n]*+").match
_inside: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL).match
_word: Final = re.compile(rb"[^\s,\]}:\"\[{]*+").match
_scalar: Final = re.compile(
    rb"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|NaN|-?Infinity"
).fullmatch

_QUOTE, _OPEN_OBJECT, _OPEN_LIST, _CLOSE_OBJECT, _COMMA, _COLON = b'"{[},:'
_BOM: Final = b"\xef\xbb\xbf"


class NotReadError(Exception):
    """The bytes cannot be read; the text completes "the request body is ..."."""


class Span(NamedTuple):
    """One value of the top level."""

    raw: bytes
    """As it is written, up to the limit of its key; long base64 strings are replaced by digests."""
    whole: bool
    """False: the value goes on beyond `raw`."""
    start: int
    """Offset of its first byte in the body."""
    end: int
    """Offset behind its last byte."""


class _Capture:
    """Keeps the beginning of a value. Of a long base64 string it keeps a digest.

    What is kept does not depend on the cuts between pieces: bytes beyond the limit are kept until it is known
    whether a string that began before it is replaced by its digest.
    """

    __slots__ = ("_digest", "_dropped", "_kept", "_limit", "_string")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._dropped = False
        self._string = -1  # where the inside of the open string begins in `_kept`
        self._digest: xxh3_128 | None = None

    def add(self, data: bytes, start: int, end: int) -> None:
        if self._digest is not None:
            self._digest.update(memoryview(data)[start:end])
        elif self._string < 0 and len(self._kept) >= self._limit:
            self._dropped = self._dropped or end > start
        else:
            self._kept += memoryview(data)[start:end]
            if self._string >= 0:
                self._judge_string()

    def open(self, behind: int) -> None:
        """Note that the last `behind` bytes are the beginning of a string that goes on."""
        begun = len(self._kept) - behind
        if not self._dropped and begun < self._limit:
            self._string = begun
            self._judge_string()

    def close(self) -> None:
        """Note the end of the open string; its closing quote is not added yet."""
        if self._digest is not None:
            self._kept += DIGEST + self._digest.hexdigest().encode()
            self._digest = None
        self._string = -1

    def _judge_string(self) -> None:
        begun = self._string
        if len(self._kept) - begun > LONG_BYTES:
            if is_opaque(bytes(self._kept[begun : begun + OPAQUE_BYTES])):
                self._digest = xxh3_128(self._kept[begun:])
                del self._kept[begun:]
            else:
                self._string = -1

    @property
    def full(self) -> bool:
        return self._dropped or len(self._kept) > self._limit

    @property
    def raw(self) -> bytes:
        return bytes(self._kept[: self._limit])


class Scanner:
    """Reads one body. `feed` and `end` bring it, `advance` does the work."""

    __slots__ = (
        "_at",
        "_base",
        "_data",
        "_ended",
        "_limits",
        "_listed",
        "_pieces",
        "_run",
        "done",
        "error",
        "fields",
    )

    def __init__(self, limits: Mapping[str, int], *, listed: bool = False) -> None:
        """`limits` has the most bytes kept of the value of each key that is asked for.

        With `listed` the object may be the first of a list, whose others are not read.
        """
        self._limits = limits
        self._listed = listed
        self.fields: dict[str, Span] = {}
        self.done = False
        self.error: NotReadError | None = None
        """Why the body cannot be read; set when `done`."""
        self._pieces: deque[Held] = deque()
        self._data = b""
        self._at = 0
        self._base = 0
        self._ended = False
        self._run = self._object()

    def feed(self, piece: Held) -> None:
        """Take the next bytes of the body."""
        if piece and not self.done:
            self._pieces.append(piece)

    def end(self) -> None:
        """Note that there are no more bytes."""
        self._ended = True

    @property
    def starved(self) -> bool:
        """`advance` has nothing to do until more bytes come."""
        return not self.done and not self._pieces and not self._ended

    def advance(self) -> None:
        """Do one bounded step."""
        if self.starved or self.done:
            return
        try:
            next(self._run)
        except StopIteration:
            self._over(None)
        except NotReadError as error:
            self._over(error)

    def _over(self, error: NotReadError | None) -> None:
        self.done, self.error = True, error
        self._pieces.clear()
        self._data = b""

    # The generators below yield once a step. They return what they read.

    def _refill(self) -> Generator[None, None, bool]:
        """Go to the next window; return False at the end of the body."""
        yield
        while not self._pieces:
            if self._ended:
                return False
            yield
        piece = self._pieces.popleft()
        self._base += len(self._data)
        if len(piece) > WINDOW_BYTES:
            self._pieces.appendleft(piece[WINDOW_BYTES:])
            piece = piece[:WINDOW_BYTES]
        self._data, self._at = bytes(piece), 0
        return True

    def _peek(self) -> Generator[None, None, int]:
        """Skip white space; return the byte that follows, -1 at the end."""
        while True:
            self._at = _end_of(_space, self._data, self._at)
            if self._at < len(self._data):
                return self._data[self._at]
            if not (yield from self._refill()):
                return -1

    def _object(self) -> Generator[None, None, None]:
        yield from self._byte_order_mark()
        first = yield from self._peek()
        if first < 0:
            raise NotReadError("empty")
        in_list = self._listed and first == _OPEN_LIST
        if in_list:
            self._at += 1
            first = yield from self._peek()
        if first != _OPEN_OBJECT:
            raise NotReadError("not a JSON object")
        self._at += 1
        keys = 0
        after = yield from self._peek()
        while after != _CLOSE_OBJECT or keys:
            if after != _QUOTE:
                raise NotReadError(f"not JSON: a key is missing at byte {self._base + self._at}")
            keys += 1
            if keys > MAX_KEYS:
                raise NotReadError(f"an object of more than {MAX_KEYS} keys")
            if keys % _KEYS_A_STEP == 0:
                yield
            key = yield from self._key()
            if (yield from self._peek()) != _COLON:
                raise NotReadError(f"not JSON: a colon is missing at byte {self._base + self._at}")
            self._at += 1
            yield from self._value(key)
            after = yield from self._peek()
            if after == _CLOSE_OBJECT:
                break
            if after != _COMMA:
                raise NotReadError(f"not JSON: a comma is missing at byte {self._base + self._at}")
            self._at += 1
            after = yield from self._peek()
        self._at += 1
        if not in_list and (yield from self._peek()) >= 0:
            raise NotReadError(f"not JSON: something follows its end at byte {self._base + self._at}")

    def _byte_order_mark(self) -> Generator[None, None, None]:
        found = b""
        while len(found) < len(_BOM) and _BOM.startswith(found):
            if self._at == len(self._data) and not (yield from self._refill()):
                return
            found += self._data[self._at : self._at + 1]
            if not _BOM.startswith(found):
                return
            self._at += 1

    def _key(self) -> Generator[None, None, str]:
        kept = _Capture(_MAX_KEY)
        yield from self._string(kept)
        raw = kept.raw
        if kept.full:
            return ""
        if b"\\" not in raw:
            return raw[1:-1].decode("utf-8", "replace")
        try:
            return str(json.loads(raw))
        except ValueError:
            return ""

    def _value(self, key: str) -> Generator[None, None, None]:
        first = yield from self._peek()
        limit = self._limits.get(key)
        kept = None if limit is None else _Capture(limit)
        start = self._base + self._at
        if first == _QUOTE:
            yield from self._string(kept)
        elif first in (_OPEN_OBJECT, _OPEN_LIST):
            yield from self._nested(kept)
        else:
            yield from self._word(kept)
        if kept is not None:
            self.fields[key] = Span(kept.raw, not kept.full, start, self._base + self._at)

    def _word(self, kept: _Capture | None) -> Generator[None, None, None]:
        word = b""
        while True:
            end = _end_of(_word, self._data, self._at)
            word += self._data[self._at : end]
            self._at = end
            if len(word) > _MAX_SCALAR:
                raise NotReadError(f"not JSON: a number of more than {_MAX_SCALAR} digits")
            if end < len(self._data) or not (yield from self._refill()):
                break
        if _scalar(word) is None:
            raise NotReadError(f"not JSON: no value at byte {self._base + self._at - len(word)}")
        if kept is not None:
            kept.add(word, 0, len(word))

    def _string(self, kept: _Capture | None) -> Generator[None, None, None]:
        start = self._at
        if kept is not None:
            kept.add(self._data, start, start + 1)
            kept.open(0)
        self._at += 1
        yield from self._rest_of_string(kept, escaped=False)

    def _rest_of_string(self, kept: _Capture | None, *, escaped: bool) -> Generator[None, None, None]:
        """Go behind the closing quote of the string that is open."""
        while True:
            data, start = self._data, self._at
            at = start
            if escaped and at < len(data):
                at += 1
                escaped = False
            quote = data.find(b'"', at)
            slash = data.find(b"\\", at, quote if quote >= 0 else len(data))
            if slash >= 0:
                quote = _end_of(_inside, data, slash)
                if quote == len(data):
                    quote = -1
                elif data[quote] != _QUOTE:  # a backslash at the end of the window
                    escaped, quote = True, -1
            end = quote if quote >= 0 else len(data)
            if kept is not None:
                kept.add(data, start, end)
            self._at = end
            if quote >= 0:
                if kept is not None:
                    kept.close()
                    kept.add(data, end, end + 1)
                self._at = end + 1
                return
            if not (yield from self._refill()):
                raise NotReadError("not JSON: it ends within a string")

    def _nested(self, kept: _Capture | None) -> Generator[None, None, None]:
        """Go behind the bracket that closes the one here."""
        nest = Nest()
        while True:
            start = self._at
            end = nest.scan(self._data, start)
            if nest.fault:
                raise NotReadError(nest.fault)
            stop = end if end >= 0 else len(self._data)
            if kept is not None:
                kept.add(self._data, start, stop)
            self._at = stop
            if end >= 0:
                return
            if nest.in_string:
                if kept is not None:
                    kept.open(stop - nest.string_at - 1)
                if not (yield from self._refill()):
                    raise NotReadError("not JSON: it ends within a string")
                yield from self._rest_of_string(kept, escaped=nest.escaped)
                if self._at == len(self._data) and not (yield from self._refill()):
                    raise NotReadError("not JSON: it ends within brackets")
            elif not (yield from self._refill()):
                raise NotReadError("not JSON: it ends within brackets")


def _end_of(match: Callable[[bytes, int], re.Match[bytes] | None], data: bytes, at: int) -> int:
    found = match(data, at)
    return at if found is None else found.end()
