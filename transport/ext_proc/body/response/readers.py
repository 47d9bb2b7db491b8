"""Readers of one response body as its pieces pass: server-sent events, or one JSON document. Pure, bounded.

No piece is changed or held. A stream costs one comparison and two searches an event: events that begin with
the same bytes as the one before, up to what was generated, need no parser; what was generated is not checked.
"""

from typing import Final, Protocol

from ext_proc.body.response.event import TREE, Said, read_event
from ext_proc.body.response.slim import Slimmer, string_at
from ext_proc.body.response.sse import BOM, DATA, Lines, Part
from ext_proc.body.usage import Usage, UsageMerge

#: Bytes of a document that are held and read at its end; a longer one is read as it passes.
MAX_HELD: Final = 16 * 1024
#: A beginning that no text in UTF-8 has.
_NEVER: Final = b"\xff" * 8
_DONE: Final = b"[DONE]"
_USAGE: Final = b'"usage"'
_META: Final = b'"meta_info"'  # SGLang's usage is in every event
_QUOTE: Final = 0x22
#: Longest beginning of an event that is remembered, in bytes.
_MAX_PREFIX: Final = 4096
#: Bytes of a line that are held until the rest of it comes; a longer one is read as it passes.
MAX_CARRY: Final = 4096
#: Longer events, in bytes, are searched for usage rather than decoded when they begin like the one before.
_LONG: Final = 1024
#: How often in a stream the beginning is looked for, unless it is found to recur.
_MAX_LEARNS: Final = 16


class ResponseReader(Protocol):
    """Reads the body of one response."""

    tokens: int
    """Events with a token so far; 0 for a document."""
    failed: bool
    """The server said in the body that it failed."""
    response_id: str
    """The `id` of an answer of the responses API; "" of others, and while it is not known."""

    def feed(self, piece: bytes) -> bool:
        """Look at one piece, in order; tell whether an event with a token ended in it."""
        ...

    def close(self) -> Usage | None:
        """Note the end of the body, whole or cut off; return the usage."""
        ...


class DocumentReader:
    """Reads one JSON document."""

    __slots__ = ("_held", "_merge", "_slimmer", "failed", "response_id", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.failed = False
        self.response_id = ""
        self._merge = UsageMerge()
        self._held = b""
        self._slimmer: Slimmer | None = None

    def feed(self, piece: bytes) -> bool:
        """Hold a short document; walk over a longer one."""
        if self._slimmer is None:
            if len(self._held) + len(piece) <= MAX_HELD:
                self._held += piece
                return False
            self._slimmer = Slimmer(TREE)
            self._slimmer.feed(self._held, 0, len(self._held))
            self._held = b""
        self._slimmer.feed(piece, 0, len(piece))
        return False

    def close(self) -> Usage | None:
        """Read what the document says."""
        slimmer = self._slimmer
        said = None
        if slimmer is None:
            said = read_event(self._held, self._merge)
            if said is None:
                slimmer = Slimmer(TREE)
                slimmer.feed(self._held, 0, len(self._held))
                self._held = b""
        if slimmer is not None:
            said = read_event(slimmer.closed(), self._merge)
        if said is not None:
            self.failed = said.error
            self.response_id = said.response_id
        return self._merge.usage


class StreamReader:
    """Reads server-sent events, whatever the cuts between pieces. Lines end with LF or CR LF."""

    __slots__ = (
        "_begins", "_carry", "_learned_at", "_learns", "_lines", "_merge", "_parked", "_prefix", "_rest",
        "_size", "_slimmer", "_suffix", "_tail", "failed", "response_id", "tokens",
    )  # fmt: skip

    def __init__(self) -> None:
        self.tokens = 0
        self.failed = False
        self.response_id = ""
        self._merge = UsageMerge()
        # An event with a token began with `_prefix`, up to the quote before what was generated, and ended
        # with `_suffix` from the quote after it. Inside a line the prefix is parked.
        self._prefix = self._parked = _NEVER
        self._suffix = b""
        self._size = self._rest = 0  # their lengths
        self._tail = 0  # length from the first newline of the suffix
        self._learns = _MAX_LEARNS
        """How often the prefix may be looked for; in vain where each event has a number of its own."""
        self._learned_at = 0  # tokens at that time
        self._carry = b""  # the beginning of a line
        # Inside a longer line, or a value of several lines:
        self._lines = Lines(begun=True)
        self._begins = True  # no byte of the stream has been read
        self._slimmer: Slimmer | None = None

    def feed(self, piece: bytes) -> bool:
        """Look at one piece. Most are one event that is like the one before."""
        if piece.startswith(self._prefix):
            size = self._size
            if size < piece.find(b'"', size) == len(piece) - self._rest and piece.endswith(self._suffix):
                self.tokens += 1
                return True
            if len(piece) > _LONG and self._is_alike(piece, size):
                self.tokens += 1
                return True
        tokens = self.tokens
        self._feed(piece)
        return self.tokens > tokens

    def _is_alike(self, piece: bytes, size: int) -> bool:
        """Tell whether the rest of a long event, as with logprobs, says no more than that it is a token."""
        if piece.find(b"\n", size) != len(piece) - self._tail or piece[size] == _QUOTE:
            return False
        if piece.find(_META, size) >= 0:
            return False
        return not _says_usage(piece, size)

    def close(self) -> Usage | None:
        """Read a last event that has no end, and return the usage."""
        if self._carry:
            carry, self._carry = self._carry, b""
            self._walk(carry)
        slimmer, self._slimmer = self._slimmer, None
        if slimmer is not None:
            self._note(read_event(slimmer.closed(), self._merge))
        return self._merge.usage

    def _feed(self, piece: bytes) -> None:
        if self._carry:
            piece = self._carry + piece
            self._carry = b""
            self._prefix, self._parked = self._parked, _NEVER
        if self._begins and (len(piece) >= len(BOM) or piece.endswith(b"\n")):
            self._begins = False
            piece = piece.removeprefix(BOM)
            if not piece:
                return
        if self._walks():
            self._walk(piece)
            return
        end = piece.rfind(b"\n") + 1
        if end:
            self._whole_lines(piece if end == len(piece) else piece[:end])
        if end == len(piece):
            return
        rest = piece[end:]
        if len(rest) <= MAX_CARRY and not self._walks():
            self._carry = rest
            self._prefix, self._parked = _NEVER, self._prefix
        else:
            self._walk(rest)

    def _walks(self) -> bool:
        return self._slimmer is not None or not self._lines.between

    def _whole_lines(self, piece: bytes) -> None:
        """Take whole lines; go over to `_walk` where a line's data is not the whole value.

        A proxy puts events that come close together into one piece. Those that begin and end like the event
        remembered are compared, as in `feed`.
        """
        at, size, found, tokens = 0, len(piece), None, self.tokens
        prefix, suffix = self._prefix, self._suffix
        while at < size:
            if piece.startswith(prefix, at):
                begin = at + self._size
                quote = piece.find(b'"', begin)
                if begin < quote and piece.startswith(suffix, quote):
                    self.tokens += 1
                    at = quote + self._rest
                    continue
            end = piece.find(b"\n", at)
            if piece.startswith(DATA, at):
                value = piece[at + 5 : end]
                said = read_event(value, self._merge)
                if said is None and value.strip() != _DONE:
                    self._walk(piece[at:])
                    return
                if said is not None:
                    self._note(said)
                    found = said if said.token else None
            at = end + 1
        if found is not None and self._learns and self.tokens == tokens + 1:
            self._learn(piece, found)

    def _learn(self, piece: bytes, said: Said) -> None:
        """Remember how the event began and ended, when the piece is this event alone."""
        self._prefix = _NEVER
        self._learns = self._learns - 1 if self.tokens - self._learned_at < _MAX_LEARNS else _MAX_LEARNS
        self._learned_at = self.tokens
        if not said.key or _META in piece or _says_usage(piece, 0):
            return
        at = _string_of(piece, said)
        if at is None:
            return
        start, end = at
        self._suffix = piece[end:]
        self._size, self._rest = start, len(piece) - end
        newline = piece.find(b"\n", start)
        self._tail = len(piece) - newline
        if newline + 1 >= len(piece.rstrip(b"\r\n")):
            self._prefix = piece[:start]

    def _walk(self, piece: bytes) -> None:
        """Take bytes cut anywhere."""
        self._prefix = _NEVER
        for part, start, end in self._lines.parts(piece):
            slimmer = self._slimmer
            if part is Part.DATA:
                if slimmer is None:
                    slimmer = self._slimmer = Slimmer(TREE)
                slimmer.feed(piece, start, end)
            elif part is Part.EVENT_END:
                self._slimmer = None
            elif slimmer is not None and slimmer.done:
                self._note(read_event(slimmer.slim, self._merge))
                self._slimmer = None

    def _note(self, said: Said | None) -> None:
        if said is None:
            return
        if said.error:
            self.failed = True
        if said.response_id:
            self.response_id = said.response_id
        if said.token:
            self.tokens += 1


def _string_of(piece: bytes, said: Said) -> tuple[int, int] | None:
    """Return where in the piece the string that holds the token begins and ends, quotes not counted."""
    for colon in (b'":"', b'": "'):
        key = b'"' + said.key.encode() + colon
        at = piece.find(key, 0, _MAX_PREFIX)
        if at >= 0:
            start = at + len(key)
            found, end = string_at(piece, start)
            if found == said.text:
                return start, end
    return None


def _says_usage(piece: bytes, start: int) -> bool:
    """Tell whether usage that is not null may stand in the piece from `start` on."""
    at = piece.find(_USAGE, start)
    while at >= 0:
        if piece[at + 7 : at + 12] != b":null" and piece[at + 7 : at + 13] != b": null":
            return True
        at = piece.find(_USAGE, at + 7)
    return False
