"""Prompt material of OpenAI request bodies. Pure; never changes a body.

Prompt material is what the prefix index hashes: the parts of the body that become tokens, in the order in
which a server lays them out, so that two requests with equal beginnings give equal first bytes. The model
server judges whether a prompt is well formed; whatever JSON stands in its place is laid out.
"""

import json
from array import array
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import islice
from typing import Final

#: Limits on prompt material: bytes (twice the longest matched prefix) and pieces.
MAX_MATERIAL_BYTES: Final = 1024 * 1024
_MAX_PIECES: Final = 65_536
#: A message's part that is no text (an image, a file) enters as a digest when its JSON is longer, in bytes.
_MAX_REFERENCE: Final = 256
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode
_START, _NEXT, _MEDIA, _OTHER = b"\x01", b"\x02", b"\x03", b"\x04"  # bytes that no UTF-8 text needs
#: Types of a message's parts that an encoder turns into embeddings.
_MEDIA_TYPES: Final = frozenset({"image_url", "video_url", "audio_url", "input_audio"})


def bounded(pieces: Iterable[bytes]) -> bytes:
    """Join pieces up to the limits; later pieces are not even laid out."""
    kept: list[bytes] = []
    size = 0
    for piece in pieces:
        kept.append(piece)
        size += len(piece)
        if size >= MAX_MATERIAL_BYTES or len(kept) >= _MAX_PIECES:
            break
    return b"".join(kept)[:MAX_MATERIAL_BYTES]


def has_media(prompt: bytes) -> bool:
    """Tell whether the prompt material of a chat has an image, video or audio.

    Text that holds the byte U+0003 counts as well.
    """
    return _MEDIA in prompt


def chat(document: dict[str, object]) -> Iterator[bytes]:
    """Tools first, as chat templates put them, then each message: role, name, content, calls."""
    yield from _tools(document)
    yield from _messages(document["messages"])


def completion(document: dict[str, object]) -> Iterator[bytes]:
    """Lay out `prompt`."""
    return _sequence(document["prompt"])


def embedding(document: dict[str, object]) -> Iterator[bytes]:
    """Lay out `input` as a prompt."""
    return _sequence(document["input"])


def responses(document: dict[str, object]) -> Iterator[bytes]:
    """Lay out tools, instructions as a system message, then `input`: one user message, or a list of items."""
    yield from _tools(document)
    instructions = document.get("instructions")
    if isinstance(instructions, str):
        yield from (_START, b"system", _NEXT, _text(instructions))
    given = document["input"]
    if isinstance(given, str):
        yield from (_START, b"user", _NEXT, _text(given))
    else:
        yield from _messages(given)


def _text(text: str) -> bytes:
    """Encode the text up to the limit, and half a surrogate pair, which JSON may hold, as it is."""
    return text[:MAX_MATERIAL_BYTES].encode("utf-8", "surrogatepass")


def _canonical(value: object) -> bytes:
    """Return the value as JSON; of a very long list or object, its first entries."""
    if isinstance(value, list):
        value = value[:_MAX_PIECES]
    elif isinstance(value, dict) and len(value) > _MAX_PIECES:
        value = dict(islice(value.items(), _MAX_PIECES))
    return _encode(value).encode()


def _tools(document: dict[str, object]) -> list[bytes]:
    tools = document.get("tools")
    return [_START, b"tools", _NEXT, _canonical(tools)] if tools else []


def _messages(messages: object) -> Iterator[bytes]:
    if not isinstance(messages, list):
        yield _canonical(messages)
        return
    for message in messages:
        yield _START
        if not isinstance(message, dict):
            yield _canonical(message)
            continue
        role = message.get("role")
        yield _text(role) if isinstance(role, str) else b""
        yield _NEXT
        yield from _content(message.get("content"))
        for key, value in message.items():
            if key not in {"role", "content"} and value is not None:
                yield _NEXT
                yield _canonical([key, value])


def _content(content: object) -> Iterator[bytes]:
    """Lay out the content of a message: a string, or parts of text, images, audio, files."""
    if isinstance(content, str):
        yield _text(content)
    elif isinstance(content, list):
        for part in content:
            text = part.get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                yield _text(text)
            else:
                reference = _canonical(part)
                kind = part.get("type") if isinstance(part, dict) else None
                yield _MEDIA if isinstance(kind, str) and kind in _MEDIA_TYPES else _OTHER
                yield reference if len(reference) <= _MAX_REFERENCE else blake2b(reference).digest()
    elif content is not None:
        yield _canonical(content)


def _sequence(value: object) -> Iterator[bytes]:
    """Lay out a prompt: text, token ids (four bytes each), or a list of either."""
    if isinstance(value, list) and value and not isinstance(value[0], int):
        for number, item in enumerate(value):
            if number:
                yield _START
            yield _text_or_ids(item)
    elif value is not None:
        yield _text_or_ids(value)


def _text_or_ids(value: object) -> bytes:
    if isinstance(value, str):
        return _text(value)
    if value == []:
        return b""
    if isinstance(value, list):
        try:
            return array("I", value).tobytes()
        except (OverflowError, TypeError):
            pass  # not token ids: the model server will refuse them
    return _canonical(value)
