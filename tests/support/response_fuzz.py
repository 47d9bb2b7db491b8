"""Reads one fuzzed response in many ways and checks that they agree."""

import json
import random
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from ext_proc.body.response.readers import DocumentReader, StreamReader
from ext_proc.body.response.restore import NameRestorer

ASKED, SENT = 'as"ked', "sent/model"
Signature = tuple[Any, ...]


def cut(text: bytes, places: Iterable[int]) -> list[bytes]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(edges)]


def is_json(text: bytes) -> bool:
    """Tell whether each line of data is a JSON value, or the end of a stream."""
    for line in text.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        value = line.removeprefix(b"data:").strip()
        if line.startswith(b"data:") and value != b"[DONE]":
            try:
                json.loads(value)
            except (ValueError, RecursionError):
                return False
    return True


def events(text: bytes) -> list[bytes]:
    """Return the pieces that a server sends which flushes after each event."""
    return cut(text, [at + 2 for at in range(len(text)) if text.startswith(b"\n\n", at)])


def facts(pieces: list[bytes], *, stream: bool) -> Signature:
    reader = StreamReader() if stream else DocumentReader()
    for piece in pieces:
        reader.feed(piece)
    usage = reader.close()
    found = (usage.input_tokens, usage.output_tokens, usage.cached_tokens) if usage else None
    return found, reader.tokens, reader.failed, reader.response_id


def restored(pieces: list[bytes], *, stream: bool) -> bytes:
    restorer = NameRestorer(ASKED, SENT, events=stream)
    return b"".join([restorer.feed(piece) for piece in pieces]) + restorer.rest()


def run(data: bytes) -> Signature:
    """Check one input; return what it showed. Its first byte chooses the form, its second the cuts."""
    if len(data) < 3:
        return ()
    stream, text = bool(data[0] & 1), data[2:]
    rng = random.Random(data[1])
    ways = [
        [text],
        events(text),
        cut(text, [rng.randrange(len(text) + 1) for _ in range(8)]),
        cut(text, range(0, len(text), 7)),
        cut(text, range(len(text))),
    ]
    seen = [facts(way, stream=stream) for way in ways]
    if not is_json(text):
        # An event that is no JSON, but begins and ends like the one before, counts as a token in some pieces.
        seen = [(usage, 0, failed, response_id) for usage, _, failed, response_id in seen]
    assert all(each == seen[0] for each in seen), seen
    edited = [restored(way, stream=stream) for way in ways]
    assert all(each == edited[0] for each in edited), edited
    if edited[0] != text:
        assert b"model" in text or b"\\u" in text
        assert len(edited[0]) <= len(text) * 2
    usage, tokens, failed, response_id = seen[0]
    shape = None if usage is None else tuple(bool(count) for count in usage)
    return stream, shape, min(tokens, 3), failed, bool(response_id), edited[0] != text
