"""Token usage from OpenAI responses as their bytes pass by. Pure, bounded; never raises on bad input."""

import json
import re
from typing import Final, Protocol

#: Bytes of a response that are kept, at most, while usage is looked for.
MAX_KEPT_BYTES: Final = 64 * 1024
#: Occurrences of the key that are tried as a usage object in a piece of JSON, last first, and events that are
#: tried in a chunk. Each try costs up to 50 us, and the model server decides how often the key occurs.
MAX_TRIES: Final = 4
_KEY: Final = b'"usage"'
#: A model server that counts usage writes `"usage": null` into all events but the last.
_OBJECT: Final = re.compile(rb'"usage"\s*:\s*\{')
_decode_at: Final = json.JSONDecoder().raw_decode


class Usage:
    """Token counts as the model server reports them; 0 for a count that it leaves out."""

    __slots__ = ("cached_tokens", "input_tokens", "output_tokens")

    def __init__(self, input_tokens: int, output_tokens: int, cached_tokens: int) -> None:
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.cached_tokens = cached_tokens


class UsageReader(Protocol):
    """Reads usage from the chunks of one response body."""

    usage: Usage | None
    """The last usage seen; for plain JSON known after `close`."""

    def feed(self, chunk: bytes) -> None:
        """Look at one chunk, in order."""
        ...

    def close(self) -> None:
        """Note the end of the body."""
        ...


class StreamUsage:
    """Usage from server-sent events, whatever the cuts between chunks."""

    __slots__ = ("_carry", "_skip", "usage")

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self._carry = b""
        self._skip = False  # inside a line that exceeds MAX_KEPT_BYTES

    def feed(self, chunk: bytes) -> None:
        """Scan the complete lines. Most chunks end with one and hold no usage: they cost one search."""
        if self._carry:
            chunk = self._carry + chunk
        end = chunk.rfind(b"\n") + 1
        if end == len(chunk):
            lines, self._carry = chunk, b""
        else:
            lines, self._carry = chunk[:end], chunk[end:]
        if self._skip and end:
            lines = lines[lines.find(b"\n") + 1 :]
            self._skip = False
        if len(self._carry) > MAX_KEPT_BYTES:
            self._carry = b""
            self._skip = True
        elif self._skip:
            self._carry = b""
        at = lines.find(_KEY)
        if at >= 0 and _OBJECT.search(lines, at):
            self._scan(lines)

    def close(self) -> None:
        """Scan a last line that has no newline."""
        if not self._skip and _KEY in self._carry:
            self._scan(self._carry)

    def _scan(self, lines: bytes) -> None:
        end = len(lines)
        for _ in range(MAX_TRIES):
            at = lines.rfind(_KEY, 0, end)
            if at < 0:
                return
            start = lines.rfind(b"\n", 0, at) + 1
            if lines.startswith(b"data:", start):
                line_end = lines.find(b"\n", at)
                found = find_usage(lines[start : line_end if line_end >= 0 else len(lines)])
                if found is not None:
                    self.usage = found
                    return
            end = start


class DocumentUsage:
    """Usage from one JSON document. Only its last part is kept: servers write usage after choices."""

    __slots__ = ("_tail", "usage")

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self._tail = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Keep the end of the body so far: at least MAX_KEPT_BYTES of it, at most twice that."""
        self._tail += chunk[-MAX_KEPT_BYTES:]
        if len(self._tail) > 2 * MAX_KEPT_BYTES:
            del self._tail[:-MAX_KEPT_BYTES]

    def close(self) -> None:
        """Look for the usage object."""
        self.usage = find_usage(bytes(self._tail))
        self._tail.clear()


def find_usage(text: bytes) -> Usage | None:
    """Return the last usage object in a piece of JSON text.

    Inside a JSON string the key's quotes are escaped, so the search cannot hit generated text.
    """
    at = len(text)
    for _ in range(MAX_TRIES):
        at = text.rfind(_KEY, 0, at)
        if at < 0:
            return None
        value = text[at + len(_KEY) : at + len(_KEY) + 4096].lstrip()
        if value.startswith(b":"):
            usage = _usage(value[1:].lstrip())
            if usage is not None:
                return usage
    return None


def _usage(value: bytes) -> Usage | None:
    if not value.startswith(b"{"):
        return None
    try:
        found, _ = _decode_at(value.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    details = found.get("prompt_tokens_details") or found.get("input_tokens_details")
    return Usage(
        _count(found, "prompt_tokens", "input_tokens"),
        _count(found, "completion_tokens", "output_tokens"),
        _count(details, "cached_tokens") if isinstance(details, dict) else 0,
    )


def _count(fields: dict[str, object], *names: str) -> int:
    for name in names:
        value = fields.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53:
            return value
    return 0
