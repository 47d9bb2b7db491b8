"""Prompt material: the parts of a body that become tokens, in the order in which a server sees them. Pure.

The prefix index hashes it, so requests whose tokens begin alike must give material that begins alike, and
others must not. JSON values are laid out as they are written, without being built in memory; a string with
a \\u escape is decoded. The model server judges whether a prompt is well formed: whatever stands in its
place is laid out.

Everything here is a generator of pieces, so that a caller does a bounded number of them at a time. An empty
piece marks work without output.
"""

import json
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
from xxhash import xxh3_128_hexdigest

from ext_proc.body import brackets

#: Limit on prompt material, in bytes: twice the longest matched prefix.
MAX_MATERIAL_BYTES: Final = 1024 * 1024
#: Limit on its pieces.
MAX_PIECES: Final = 65_536
#: A string above this length, in bytes, that begins like base64 is laid out as a digest.
LONG_BYTES: Final = 65_536
#: Bytes of such a string that are looked at.
OPAQUE_BYTES: Final = 1024
#: What a digest begins with.
DIGEST: Final = b"xxh3:"
#: A part that is no text (an image, a file) is laid out as a digest when its JSON is longer, in bytes.
_MAX_REFERENCE: Final = 256
#: Marks between pieces: bytes that JSON text never holds.
START, NEXT, MEDIA, SALT, ADAPTER, OTHER = b"\x01", b"\x02", b"\x03", b"\x04", b"\x05", b"\x06"
#: Types of a message's parts that an encoder turns into embeddings.
_MEDIA_TYPES: Final = frozenset(
    b'"%b"' % kind
    for kind in (b"image_url", b"video_url", b"audio_url", b"input_audio", b"image", b"input_image")
)

#: The key of a chat's messages.
MESSAGES: Final = "messages"

#: JSON text: a value as it is written.
Raw = bytes | msgspec.Raw

#: Longest string, in bytes, whose \\u escapes are decoded: looking for them takes longer than all the rest.
_MAX_UNESCAPED: Final = 16_384
#: Elements of an array that are found in one step, at most: some milliseconds.
_MOST_AT_ONCE: Final = 32_768
_QUOTE: Final = ord('"')
_OPAQUE: Final = re.compile(rb'(?:data:[^,"\\]{0,256},)?[A-Za-z0-9+/=_-]{512}')
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_as_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_as_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_as_messages: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_as_ids: Final = msgspec.json.Decoder(list[int]).decode
_as_text: Final = msgspec.json.Decoder(str).decode


class Ids(bytes):
    """Token ids as a piece of prompt material: four bytes each, little-endian."""

    __slots__ = ()


class Value:
    """A JSON value, perhaps only its beginning."""

    __slots__ = ("listed", "raw", "whole")

    def __init__(
        self, raw: bytes, *, whole: bool = True, listed: list[dict[str, msgspec.Raw]] | None = None
    ) -> None:
        self.raw = raw
        self.whole = whole
        """False: the value goes on beyond `raw`."""
        self.listed = listed
        """The objects of a list, where they have been found already: `raw` is empty then."""


def bounded(pieces: Iterable[bytes], size: int = 0, count: int = 0) -> Iterator[bytes]:
    """Yield the pieces up to the limits, after `count` of `size` bytes; later ones are not even laid out."""
    for number, piece in enumerate(pieces, count + 1):
        size += len(piece)
        if size <= MAX_MATERIAL_BYTES:
            yield piece
        else:
            cut = piece[: MAX_MATERIAL_BYTES - size]
            yield Ids(cut) if type(piece) is Ids else cut
        if size >= MAX_MATERIAL_BYTES or number >= MAX_PIECES:
            return


def is_opaque(inner: bytes) -> bool:
    """Tell whether the inside of a long string is base64, by its beginning."""
    return _OPAQUE.match(inner) is not None


def digest(inner: bytes) -> bytes:
    """Return what stands for the inside of a long string."""
    return DIGEST + xxh3_128_hexdigest(inner).encode()


def condensed(raw: bytes) -> bytes:
    """Return the JSON text with its long base64 strings replaced by digests."""
    half = LONG_BYTES // 2
    for at in range(0, len(raw) - half, half):
        if raw.find(b'"', at, at + half) < 0:  # any long string of base64 spans such a stretch
            return _STRING.sub(_condense, raw)
    return raw


def _condense(found: re.Match[bytes]) -> bytes:
    text = found[0]
    if len(text) - 2 <= LONG_BYTES or not is_opaque(text[1 : 1 + OPAQUE_BYTES]):
        return text
    return b'"' + digest(text[1:-1]) + b'"'


def text(raw: Raw) -> bytes:
    """Return what a JSON string, or the beginning of one, holds."""
    given = raw if type(raw) is bytes else memoryview(raw)
    inner = bytes(given[1:-1] if given[-1] == _QUOTE else given[1:])
    if len(inner) > _MAX_UNESCAPED:
        if len(inner) > LONG_BYTES and is_opaque(inner):
            return digest(inner)
        return inner[:MAX_MATERIAL_BYTES]
    return _unescaped(inner) if b"\\u" in inner else inner


def _unescaped(inner: bytes) -> bytes:
    """Decode escapes; an escape that the end cuts off is left out, one that is none leaves all as written."""
    cut = inner.rfind(b"\\", max(0, len(inner) - 12))
    for end in (len(inner), cut, inner.rfind(b"\\", 0, max(cut, 0))):
        if end >= 0:
            quoted = b'"' + inner[:end] + b'"'
            try:
                return _as_text(quoted).encode()
            except (msgspec.DecodeError, UnicodeError):
                pass
            try:  # half a surrogate pair, which JSON may hold
                return str(json.loads(quoted)).encode("utf-8", "surrogatepass")
            except ValueError:
                pass
    return inner


def whole(raw: Raw) -> bytes:
    """Return a value as it is written, its long base64 strings as digests."""
    return condensed(bytes(raw))[:MAX_MATERIAL_BYTES]


def ids_at(pieces: Sequence[bytes]) -> int:
    """Return where the token ids begin that a prompt's pieces end with; -1 where it does not consist of them.

    Before them may be what keeps prompts apart, but no other part of the prompt.
    """
    if not pieces or type(pieces[-1]) is not Ids:
        return -1
    at = 0
    for number, piece in enumerate(pieces):
        if type(piece) is Ids:
            alone = number == 0 or pieces[number - 1] == NEXT  # what keeps prompts apart ends with it
            return at if alone and all(type(other) is Ids for other in pieces[number:]) else -1
        at += len(piece)
    return -1


def salt_of(beginning: bytes) -> str | None:
    """Return the salt, "" for none, of a prompt that begins so before its token ids; None: it is no text."""
    if not beginning.startswith(SALT):
        return ""
    try:
        return _as_text(beginning[1 : beginning.index(NEXT)])
    except (ValueError, UnicodeError):
        return None


def has_media(prompt: bytes) -> bool:
    """Tell whether the prompt material of a chat has an image, video or audio. Token ids may look like it."""
    return MEDIA in prompt


def tools(value: Value | None) -> Iterator[bytes]:
    """Lay out the definitions of tools, if there are any."""
    if value is not None and value.raw not in {b"null", b"[]"}:
        yield from (START, b"tools", NEXT, whole(value.raw))


def isolation(salt: Value | None, adapter: Value | None) -> Iterator[bytes]:
    """Lay out what keeps prompts apart whatever they hold: it comes before everything else."""
    for mark, value in ((SALT, salt), (ADAPTER, adapter)):
        if value is not None and value.raw != b"null":
            yield from (mark, whole(value.raw), NEXT)


def messages(value: Value) -> Iterator[bytes]:
    """Lay out a list of messages, one after the other."""
    found = value.listed
    if found is None:
        if not value.raw.startswith(b"["):
            yield whole(value.raw)
            return
        found = _objects(value)
    if found is not None:
        for fields in found:
            yield from _message(fields)
        return
    for raw in elements(value):
        try:
            fields = _as_fields(raw)
        except (msgspec.MsgspecError, RecursionError):
            yield START
            yield whole(raw)
        else:
            yield from _message(fields)


def _objects(value: Value) -> list[dict[str, msgspec.Raw]] | None:
    """Return the objects of a list that has few elements; None for another list, which may be cut."""
    try:
        return _as_messages(value.raw) if value.whole and few(value.raw) else None
    except (msgspec.MsgspecError, RecursionError):
        return None


def _message(fields: dict[str, msgspec.Raw]) -> Iterator[bytes]:
    """Lay out one message: role, content, then the other fields in the order in which they are written."""
    given = fields.pop("role", None)
    role = b"" if given is None else text(given)
    given = fields.pop("content", None)
    raw = b"null" if given is None else bytes(given)
    if len(raw) <= _MAX_UNESCAPED and raw.startswith(b'"'):  # one piece is cheaper than four
        yield b"%b%b%b%b" % (START, role, NEXT, text(raw))
    else:
        yield b"%b%b%b" % (START, role, NEXT)
        yield from content(Value(raw))
    for key, other in fields.items():
        written = bytes(other)
        if written != b"null":
            yield NEXT
            yield key.encode("utf-8", "surrogatepass") + b":" + whole(written)


def content(value: Value) -> Iterator[bytes]:
    """Lay out the content of a message: a string, or parts of text, images, audio, files."""
    raw = value.raw
    if raw.startswith(b'"'):
        yield text(raw)
    elif not raw.startswith(b"["):
        if raw != b"null":
            yield whole(raw)
    else:
        for part in elements(value):
            yield from _part(bytes(part))


def _part(raw: bytes) -> Iterator[bytes]:
    if raw.startswith(b'"'):
        yield text(raw)
        return
    mark = OTHER
    if raw.startswith(b"{"):
        try:
            fields = _as_fields(raw)
        except (msgspec.MsgspecError, RecursionError):
            fields = {}
        given = fields.get("text")
        if given is not None and bytes(memoryview(given)[:1]) == b'"':
            yield text(given)
            return
        if "type" in fields and bytes(fields["type"]) in _MEDIA_TYPES:
            mark = MEDIA
    reference = condensed(raw)
    yield mark
    yield reference if len(reference) <= _MAX_REFERENCE else digest(reference)


def sequence(value: Value) -> Iterator[bytes]:
    """Lay out a prompt: text, token ids (four bytes each), or a list of either."""
    raw = value.raw
    if raw.startswith(b'"'):
        yield text(raw)
    elif not raw.startswith(b"["):
        if raw != b"null":
            yield whole(raw)
    elif raw[1:64].lstrip()[:1] in b"-0123456789" and raw[1:64].strip():
        yield from _ids(value)
    elif (only := _only_list(raw)) is not None:
        yield from _ids(only)
    else:
        for number, item in enumerate(elements(value)):
            if number:
                yield START
            inner = bytes(item)
            if inner.startswith(b"["):
                yield from _ids(Value(inner, whole=inner.endswith(b"]")))
            elif inner.startswith(b'"'):
                yield text(inner)
            else:
                yield whole(inner)


def _only_list(raw: bytes) -> Value | None:
    """Return the list that a list consists of, perhaps only its beginning; None for another list."""
    if raw[1:64].lstrip()[:1] != b"[":
        return None
    at = raw.index(b"[", 1)
    close = raw.find(b"]", at)
    if close < 0:
        return Value(raw[at:], whole=False)
    return Value(raw[at : close + 1]) if raw[close + 1 : close + 64].strip() in (b"]", b"") else None


def _ids(value: Value) -> Iterator[bytes]:
    """Lay out token ids; of a list that holds something else, the values as they are written."""
    for run in brackets.runs(value.raw, value.whole):
        try:
            yield Ids(array("I", _as_ids(b"[" + run + b"]")).tobytes())
        except (msgspec.MsgspecError, OverflowError, RecursionError, ValueError):
            yield whole(run)


def few(raw: bytes) -> bool:
    """Tell whether JSON text has few enough values to find all of them in one step."""
    return len(raw) <= _MOST_AT_ONCE or brackets.commas(raw) < _MOST_AT_ONCE


def elements(value: Value) -> Iterator[Raw]:
    """Yield the elements of a JSON array; of an array that goes on, the last one may be cut."""
    raw = value.raw
    if value.whole and few(raw):
        try:
            yield from _as_list(raw)
        except (msgspec.MsgspecError, RecursionError):
            yield raw
        return
    yield from brackets.elements(raw)
