"""Reads usage and tokens from a response of vLLM's gRPC engine while its pieces pass. Pure, bounded.

A GenerateResponse holds a chunk in field 1 or the complete answer in field 2. Field 1 of both has token ids;
the counts of prompt, completion and cached tokens follow. Of an EmbedResponse field 2 counts the prompt.
"""

from collections.abc import Mapping
from typing import Final

from ext_proc.body.usage import Usage, UsageMerge

#: Bytes before each message: whether it is compressed, and its length.
_PREFIX_BYTES: Final = 5
#: Longest key with its varint, in bytes.
_MOST_HELD: Final = 20
#: By field of a GenerateResponse: what its fields count.
_COUNTS: Final[Mapping[int, Mapping[int, str]]] = {
    1: {2: "prompt_tokens", 3: "completion_tokens", 4: "cached_tokens"},
    2: {3: "prompt_tokens", 4: "completion_tokens", 5: "cached_tokens"},
}
_CHUNK: Final = 1
_TOKEN_IDS: Final = 1
_EMBEDDED: Final[Mapping[int, str]] = {2: "prompt_tokens"}
_NOTHING: Final[Mapping[int, str]] = {}


class EngineReader:
    """Reads one body; a `readers.ResponseReader`. What is not as the engine sends it ends the reading."""

    __slots__ = (
        "_broken", "_counts", "_embeds", "_held", "_left", "_merge", "_outer", "_seen", "_skip", "_token",
        "failed", "response_id", "tokens",
    )  # fmt: skip

    def __init__(self, *, embeds: bool = False) -> None:
        """`embeds`: the body holds an EmbedResponse."""
        self.tokens = 0
        self.failed = False
        self.response_id = ""
        self._embeds = embeds
        self._merge = UsageMerge()
        self._broken = False
        self._held = b""  # of a prefix or a key that is cut off
        self._left = 0  # bytes of the message that are to come
        self._skip = 0  # of these: bytes of a value that is not read
        self._outer = True  # the next field is one of the whole message
        self._counts = _NOTHING
        self._seen: dict[str, int] = {}
        self._token = False

    def feed(self, piece: bytes) -> bool:
        """Look at one piece; tell whether a message with tokens ended in it."""
        before = self.tokens
        data, at = self._held + piece, 0
        self._held = b""
        while at < len(data) and not self._broken:
            if not self._left:
                if len(data) - at < _PREFIX_BYTES:
                    break
                self._begin(data[at], int.from_bytes(data[at + 1 : at + _PREFIX_BYTES]))
                at += _PREFIX_BYTES
            elif self._skip:
                taken = min(self._skip, len(data) - at)
                at += taken
                self._skip -= taken
                self._left -= taken
            else:
                size = self._field(data, at)
                if not size:
                    self._broken = len(data) - at >= min(_MOST_HELD, self._left)
                    break
                at += size
                self._left -= size
            if not self._left and not self._broken:
                self._end()
        if not self._broken:
            self._held = data[at:]
        return self.tokens > before

    def close(self) -> Usage | None:
        """Note the end of the body; return the usage."""
        return self._merge.usage

    def _begin(self, compressed: int, length: int) -> None:
        self._left, self._skip = length, length if compressed else 0
        self._outer = not self._embeds
        self._counts = _EMBEDDED if self._embeds else _NOTHING
        self._seen = {}
        self._token = False

    def _field(self, data: bytes, at: int) -> int:
        """Take a key with a number, or with the length of its value; return their bytes, 0 when cut off."""
        start = at
        key, at = _varint(data, at)
        kind = key & 7
        value = 0
        if kind in (0, 2):
            value, at = _varint(data, at)
        if at < 0 or at - start > self._left:
            return 0
        number = key >> 3
        if kind == 2:
            if self._outer and number in _COUNTS:
                self._outer, self._counts = False, _COUNTS[number]
                return at - start
            self._token |= number == _TOKEN_IDS and value > 0 and self._counts is _COUNTS[_CHUNK]
            self._skip = value
        elif kind == 0:
            if number in self._counts:
                self._seen[self._counts[number]] = value
        elif kind in (1, 5):
            self._skip = 8 if kind == 1 else 4
        else:
            self._broken = True
        if self._skip > self._left - (at - start):
            self._broken = True
        return at - start

    def _end(self) -> None:
        if self._seen:
            self._merge.add(self._seen)
        if self._token:
            self.tokens += 1
        self._seen, self._token = {}, False


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a varint and the offset behind it: below 0 when it is cut off or longer than 64 bits."""
    if at < 0:
        return 0, at
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    return 0, -1
