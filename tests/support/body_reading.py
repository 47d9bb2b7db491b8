"""Reads request bodies to the end, in one go or in pieces."""

import json
from collections.abc import Iterable
from typing import Any

from ext_proc.body.apis import api_of
from ext_proc.body.reading import WHOLE_BYTES, InvalidBodyError, ParsedBody, Reading, read


def parse(path: str, body: bytes, *, boundary: bytes = b"") -> ParsedBody:
    """Read a body as the picker does: a small one in one go, a large one in steps."""
    if len(body) > WHOLE_BYTES:
        return in_pieces(path, [body], boundary=boundary)
    found = read(api_of(path), body, boundary=boundary)
    return found if isinstance(found, ParsedBody) else to_the_end(found)


def in_pieces(path: str, pieces: Iterable[bytes], **more: Any) -> ParsedBody:
    """Read a body in steps, as many as can be taken after each piece."""
    reading = Reading(api_of(path), **more)
    for piece in pieces:
        reading.feed(piece)
        while not reading.done and not reading.starved:
            reading.advance()
    reading.end()
    return to_the_end(reading)


def to_the_end(reading: Reading) -> ParsedBody:
    """Take all steps."""
    while not reading.done:
        assert not reading.starved
        reading.advance()
    return reading.result()


def prompt(path: str, **fields: Any) -> bytes:
    """Return the prompt material of a JSON body with these fields."""
    return parse(path, json.dumps({"model": "m", **fields}).encode()).prompt


def refusal(path: str, body: bytes) -> str:
    """Return why a body is refused; "" when it is not."""
    try:
        parse(path, body)
    except InvalidBodyError as error:
        return str(error)
    return ""
