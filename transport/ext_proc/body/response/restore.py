"""The name that the client asked for, put back into a response in place of the model's. Pure, bounded.

Where a request's model was rewritten, the model server answers with the name that it was given. In a JSON
document, and in each server-sent event, the first string under `model`, `response.model` or `message.model`
is replaced if it is that name. All other bytes stay, and none is held but those of such a string whose end
has not come.
"""

import json
import re
from typing import Final

from ext_proc.body.response.slim import Keep, Slimmer, Tree
from ext_proc.body.response.sse import Lines, Part

_TREE: Final[Tree] = {
    "model": Keep.SPAN,
    "response": {"model": Keep.SPAN},
    "message": {"model": Keep.SPAN},
}
_string: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL).match
#: Bytes of an escape, at most, for one character of a name, and of the quotes.
_ESCAPED: Final = 12
#: Longest beginning of an event that is remembered, in bytes.
_MAX_PREFIX: Final = 4096


class NameRestorer:
    """Edits one response body."""

    __slots__ = (
        "_after", "_before", "_done", "_held", "_lines", "_longest", "_name", "_out", "_over", "_sent",
        "_slimmer", "_started",
    )  # fmt: skip

    def __init__(self, asked: str, sent: str, *, events: bool) -> None:
        """Put `asked` in place of `sent`; `events` for server-sent events, else one document."""
        self._sent = sent
        self._name = json.dumps(asked, ensure_ascii=False).encode()
        self._longest = _ESCAPED * len(sent) + 2
        self._lines = Lines() if events else None
        self._slimmer = Slimmer(_TREE)
        self._started = False  # a value is under way
        self._over = False  # its model has been seen, or it is over
        self._held = b""  # the beginning of a model's string, from its quote
        # Of the piece under way:
        self._out: list[bytes] = []  # what goes on
        self._done = 0  # bytes of the piece that are in `_out`, held or replaced
        # An event that begins with `_before` is edited by putting `_after` in its place.
        self._before = self._after = b""

    def feed(self, piece: bytes) -> bytes:
        """Return what goes on to the client for one piece: the piece, as a rule, and perhaps nothing."""
        lines = self._lines
        if lines is None:
            self._value(piece, 0, len(piece))
            return self._edited(piece)
        before, fresh = self._before, lines.between and not self._started
        if before and fresh and piece.startswith(before) and _is_one_event(piece, len(before)):
            return self._after + piece[len(before) :]
        for part, start, end in lines.parts(piece):
            if part is Part.DATA:
                self._started = True
                self._value(piece, start, end)
            elif part is Part.EVENT_END or self._slimmer.done:
                self._end_value()
            elif self._held:  # a line ends in a string: no JSON
                self._give_up()
        out = self._out
        alone = fresh and len(out) == 2 and out[1] is self._name and _is_one_event(piece, self._done)
        if alone and self._done < _MAX_PREFIX:
            self._before, self._after = piece[: self._done], b"".join(out)
        return self._edited(piece)

    def rest(self) -> bytes:
        """Return what is held at the end of the body."""
        held, self._held = self._held, b""
        return held

    def _edited(self, piece: bytes) -> bytes:
        out, done = self._out, self._done
        if not out and not done:
            return piece
        self._out, self._done = [], 0
        out.append(piece[done:])
        return b"".join(out)

    def _value(self, piece: bytes, start: int, end: int) -> None:
        """Take bytes of a JSON value."""
        at = self._string(piece, start, end) if self._held else start
        while at < end and not self._over:
            at = self._slimmer.feed(piece, at, end)
            if self._slimmer.at_span:
                at = self._string(piece, at, end)
            elif self._slimmer.done:
                self._over = True

    def _string(self, piece: bytes, at: int, end: int) -> int:
        """Take a model's string from its quote on, or the next part of one that is held.

        Return the position after it, or `end`.
        """
        held = self._held
        text = held + piece[at : min(end, at + self._longest + 1)]
        found = _string(text)
        if found is None and len(text) > self._longest:
            self._give_up()
            return end
        if not held:
            self._out.append(piece[self._done : at])
        if found is None:
            self._held, self._done = text, end
            return end
        self._held, self._over = b"", True
        self._out.append(self._name if self._is_sent(found[0]) else found[0])
        self._done = at + found.end() - len(held)
        return self._done

    def _give_up(self) -> None:
        """Leave the rest of the value as it is."""
        if self._held:
            self._out.append(self._held)
            self._held = b""
        self._over = True

    def _is_sent(self, raw: bytes) -> bool:
        try:
            return bool(json.loads(raw) == self._sent)
        except ValueError:
            return False

    def _end_value(self) -> None:
        if self._held:
            self._give_up()
        self._over = self._started = False
        self._slimmer = Slimmer(_TREE)


def _is_one_event(piece: bytes, start: int) -> bool:
    """Tell whether the line of `start` is the last of the piece, but for the empty one after it."""
    return piece.find(b"\n", start) == len(piece) - 2 and piece.endswith(b"\n")
