"""Where JSON values end, found in numpy: a few nanoseconds a byte whatever stands there. Pure.

It reads structure only: quotes, escapes, brackets, commas. Whether `[` is closed by `]` and what stands
between commas is for the model server to judge.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]

#: Bytes looked at in one step.
WINDOW_BYTES: Final = 65_536
#: Bytes of a list of numbers that are laid out in one step.
_RUN_BYTES: Final = 32_768
_QUOTE, _BACKSLASH, _COMMA = 34, 92, 44
_OPEN, _CLOSE = 0x7B, 0x7D  # of `[`, `{` and of `]`, `}` with bit 5 set


#: Deepest nesting that is read. Model servers fail near a thousand levels.
MAX_DEPTH: Final = 512


class Nest:
    """How far a scan inside brackets has come. Its windows begin outside strings."""

    __slots__ = ("depth", "escaped", "fault", "in_string", "string_at")

    def __init__(self) -> None:
        self.depth = 0
        self.fault = ""
        """Why the scan cannot go on; the first of the reasons."""
        self.in_string = False
        """The window ended within a string."""
        self.escaped = False
        """It ended with a backslash that escapes the next byte."""
        self.string_at = 0
        """Place in the window of the quote that opened that string."""

    def scan(self, data: bytes, start: int) -> int:
        """Go on at data[start:]; return the place after the bracket that closes depth 0, -1 without one."""
        window: Bytes = np.frombuffer(data, np.uint8, offset=start)
        slashes: Places = np.flatnonzero(window == _BACKSLASH)
        quotes, self.escaped = _quotes(window, slashes)
        places, steps = _brackets(window, quotes)
        depths = self.depth + np.cumsum(steps)
        stray = _first(_outside(slashes, quotes)) if slashes.size else _NOWHERE
        deep = _first(places[depths > MAX_DEPTH])
        end = _first(places[depths == 0])
        if end < min(stray, deep):
            return start + end + 1
        if stray < _NOWHERE or deep < _NOWHERE:
            self.fault = "nested too deeply" if deep < stray else "not JSON: a backslash is outside strings"
            return -1
        if depths.size:
            self.depth = int(depths[-1])
        self.in_string = bool(quotes.size & 1)
        if self.in_string:
            self.string_at = start + int(quotes[-1])
        return -1


_NOWHERE: Final = 1 << 62


def _first(places: Places) -> int:
    return int(places[0]) if places.size else _NOWHERE


def _quotes(window: Bytes, slashes: Places) -> tuple[Places, bool]:
    """Return the places of the quotes that no backslash escapes, and whether the byte after the end is."""
    quotes: Places = np.flatnonzero(window == _QUOTE)
    if not slashes.size:
        return quotes, False
    begins = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
    lengths = np.diff(np.append(begins, slashes.size))
    after = (slashes[begins] + lengths)[lengths % 2 == 1]
    ends_escaped = bool(after.size and after[-1] == window.size)
    escaped = np.zeros(window.size + 1, dtype=np.bool_)
    escaped[after] = True
    return quotes[~escaped[quotes]], ends_escaped


def _outside(places: Places, quotes: Places) -> Places:
    return places[np.searchsorted(quotes, places) % 2 == 0] if quotes.size else places


def _brackets(window: Bytes, quotes: Places) -> tuple[Places, NDArray[Any]]:
    """Return the places of the brackets outside strings, and +1 or -1 for each."""
    folded = window | 0x20
    opens = _outside(np.flatnonzero(folded == _OPEN), quotes)
    closes = _outside(np.flatnonzero(folded == _CLOSE), quotes)
    places = np.concatenate((opens, closes))
    steps = np.ones(places.size, dtype=np.int64)
    steps[opens.size :] = -1
    order = np.argsort(places, kind="stable")
    return places[order], steps[order]


def commas(raw: bytes) -> int:
    """Return how many commas there are, within strings as well: a bound on the elements of an array."""
    return int(np.count_nonzero(np.frombuffer(raw, np.uint8) == _COMMA))


def elements(raw: bytes) -> Iterator[bytes]:
    """Yield the elements of a JSON array, window by window; of an array that is cut off, the last is, too."""
    begin, at, depth = 1, 1, 1
    inside = False  # the window begins within a string
    while at < len(raw):
        window: Bytes = np.frombuffer(raw, np.uint8, min(WINDOW_BYTES, len(raw) - at), at)
        quotes, escaped = _quotes(window, np.flatnonzero(window == _BACKSLASH))
        if escaped and at + window.size < len(raw):  # an escape is not cut
            window = window[:-1]
        if inside:
            quotes = np.concatenate((np.array([-1]), quotes))
        places, steps = _brackets(window, quotes)
        depths = depth + np.cumsum(steps)
        ends = np.flatnonzero(depths == 0)
        close = int(places[ends[0]]) if ends.size else -1
        places_of_commas = _outside(np.flatnonzero(window == _COMMA), quotes)
        before = np.searchsorted(places, places_of_commas)
        level = np.concatenate((np.array([depth]), depths))[before]
        for comma in places_of_commas[level == 1].tolist():
            if 0 <= close < comma:
                break
            yield raw[begin : at + comma].strip()
            begin = at + comma + 1
        if close >= 0:
            if last := raw[begin : at + close].strip():
                yield last
            return
        inside = bool(quotes.size & 1)
        depth = int(depths[-1]) if depths.size else depth
        at += window.size
    if last := raw[begin:].strip():
        yield last


def runs(raw: bytes, whole: bool) -> Iterator[bytes]:
    """Yield the inside of an array of numbers in runs of some KiB; a number that is cut off is left out."""
    end = len(raw) - 1 if whole and raw.endswith(b"]") else len(raw)
    at = 1
    while at < end:
        stop = raw.rfind(b",", at, at + _RUN_BYTES) if end - at > _RUN_BYTES or not whole else end
        if stop < 0:
            return
        if run := raw[at:stop].strip():
            yield run
        at = stop + 1
