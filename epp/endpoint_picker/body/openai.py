"""OpenAI request bodies: model, stream flag and prompt material from JSON. Pure; never changes a body.

The prompt material is what the prefix index hashes: the parts of the body that become tokens, in the order in
which a server lays them out, so that two requests with equal beginnings give equal first bytes. Whether a
prompt is well formed is the model server's to say; here only the JSON and the model are required.

A body is read in one go on the event loop, and all other requests wait for it: what it may hold is bounded by
what that costs.
"""

import json
from array import array
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from itertools import islice
from typing import Final

#: Last path segments of the APIs whose bodies are always JSON with a model.
_API_PATHS: Final = (
    "/chat/completions",
    "/completions",
    "/embeddings",
    "/responses",
)
#: Bodies above this size are looked at before they are parsed: small JSON values take many times their bytes.
_LARGE_BYTES: Final = 1024 * 1024
#: Most commas, opening brackets and (twice) colons of a large body: a bound on its values, half a second and
#: some 100 MB at worst. A million token ids, or 20 MB of source text, hold fewer.
_MAX_VALUES: Final = 1_500_000
#: Prompt material goes on to this many bytes, twice what is ever matched, and stops at this many pieces.
MAX_MATERIAL_BYTES: Final = 1024 * 1024
_MAX_PIECES: Final = 65_536
#: Longest whole number that is read exactly: Python's way to read one grows with the square of its digits.
_MAX_DIGITS: Final = 64
#: Longest model name, characters; it becomes a key in several places.
MAX_MODEL: Final = 1024
#: A string longer than this that stands for an image or a file enters the prompt as a digest.
_MAX_REFERENCE: Final = 256
#: json.loads would first guess the encoding; JSON between systems is UTF-8 (RFC 8259, 8.1).
_decode: Final = json.JSONDecoder(
    parse_int=lambda digits: int(digits) if len(digits) <= _MAX_DIGITS else float(digits)
).decode
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode
_START, _NEXT, _MEDIA = b"\x01", b"\x02", b"\x03"  # bytes that no UTF-8 text of a prompt needs


class InvalidBodyError(Exception):
    """The body cannot be routed; the text is one sentence for the client."""


class ParsedBody:
    """What a request body says about routing."""

    __slots__ = ("model", "prompt", "stream")

    def __init__(self, model: str, prompt: bytes, stream: bool) -> None:
        self.model = model
        self.prompt = prompt
        self.stream = stream


def is_api_path(path: str) -> bool:
    """Tell whether a path (without query) is one of the APIs that this parser knows."""
    return path.endswith(_API_PATHS)


def parse(path: str, body: bytes) -> ParsedBody:
    """Read a JSON body. Raises InvalidBodyError when it is not a JSON object or names no model."""
    if not body:
        raise InvalidBodyError("the request has no body; send a JSON object with a model")
    if len(body) > _LARGE_BYTES and _values(body) > _MAX_VALUES:
        raise InvalidBodyError("the request body holds too many values")
    try:
        document = _decode(body.decode())
    except RecursionError:
        raise InvalidBodyError("the request body is nested too deeply") from None
    except ValueError as error:
        message = f"the request body is not JSON: {error}"
        raise InvalidBodyError(message) from None
    if not isinstance(document, dict):
        raise InvalidBodyError("the request body is not a JSON object")
    model = document.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidBodyError("model not found in request body")
    if len(model) > MAX_MODEL or not _is_text(model):
        message = f"the model must be text of at most {MAX_MODEL} characters"
        raise InvalidBodyError(message)
    try:
        prompt = _bounded(_material(path, document))
    except RecursionError:
        raise InvalidBodyError("the request body is nested too deeply") from None
    return ParsedBody(model, prompt, document.get("stream") is True)


def _values(body: bytes) -> int:
    """Return a bound on the values; a key counts twice more, as an object's entry costs that much."""
    return body.count(b",") + body.count(b"[") + body.count(b"{") + 2 * body.count(b":")


def _is_text(name: str) -> bool:
    """Tell whether UTF-8 can hold the name: JSON may hold half a surrogate pair, labels and hashes cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _bounded(pieces: Iterable[bytes]) -> bytes:
    """Join pieces until there is more than will ever be matched; what follows is not even laid out."""
    kept: list[bytes] = []
    size = 0
    for piece in pieces:
        kept.append(piece)
        size += len(piece)
        if size >= MAX_MATERIAL_BYTES or len(kept) >= _MAX_PIECES:
            break
    return b"".join(kept)[:MAX_MATERIAL_BYTES]


def _material(path: str, document: dict[str, object]) -> Iterable[bytes]:
    for suffix, field, lay_out in _BY_PATH:
        if path.endswith(suffix):
            return lay_out(document) if field in document else ()
    for _, field, lay_out in _BY_PATH:  # an API that we do not know by its path: go by the fields
        if field in document:
            return lay_out(document)
    return ()


def _chat(document: dict[str, object]) -> Iterator[bytes]:
    """Tools first, as chat templates put them, then each message: role, name, content, calls."""
    yield from _tools(document)
    yield from _messages(document["messages"])


def _completion(document: dict[str, object]) -> Iterator[bytes]:
    return _sequence(document["prompt"])


def _embedding(document: dict[str, object]) -> Iterator[bytes]:
    return _sequence(document["input"])


def _responses(document: dict[str, object]) -> Iterator[bytes]:
    yield from _tools(document)
    instructions = document.get("instructions")
    if isinstance(instructions, str):
        yield from (_START, b"system", _NEXT, _text(instructions))
    given = document["input"]
    if isinstance(given, str):
        yield from (_START, b"user", _NEXT, _text(given))
    else:
        yield from _messages(given)


_BY_PATH: Final[tuple[tuple[str, str, Callable[[dict[str, object]], Iterator[bytes]]], ...]] = (
    ("/chat/completions", "messages", _chat),
    ("/completions", "prompt", _completion),
    ("/responses", "input", _responses),
    ("/embeddings", "input", _embedding),
)


def _text(text: str) -> bytes:
    """Return as much of the text as can matter; JSON may hold half a surrogate pair."""
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
                yield _MEDIA
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
            pass  # no token ids; the server will say so
    return _canonical(value)
