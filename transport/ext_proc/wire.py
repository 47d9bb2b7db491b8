"""ext-proc messages, decoded through protobuf and encoded by hand: the one place that knows their bytes.

Replies are small and mostly constant, so their bytes are laid out here directly; the tests hold them against
the generated classes. Field numbers are those of envoy/service/ext_proc/v3/external_processor.proto.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError

from ext_proc.head import (
    METADATA_HEADS,
    NO_NAMES,
    MalformedMessageError,
    Names,
    head_of,
    parse,
    read_head,
    varint,
)

_DOUBLE: Final = struct.Struct("<d")

#: Values of ProcessingMode.BodySendMode.
BODY_MODE_NONE: Final = 0
BODY_MODE_STREAMED: Final = 1
BODY_MODE_BUFFERED: Final = 2
BODY_MODE_FULL_DUPLEX_STREAMED: Final = 4
#: Both sides as the standalone proxy has them.
FULL_DUPLEX: Final = (BODY_MODE_FULL_DUPLEX_STREAMED, BODY_MODE_FULL_DUPLEX_STREAMED)


Piece = tuple[bytes, bool]
"""One piece of a body, and whether it is the last."""
Held = bytes | memoryview
"""A piece of a body that is held."""


def decode(payload: bytes, names: Names = NO_NAMES) -> tuple[str, Any]:
    """Return the kind of message ("request_headers", ...) and what it says: a Piece, a Head, or None.

    Most messages are pieces of a body, and a proxy repeats its metadata in each. Those that are laid out as
    Envoy does, the piece first and then the metadata, are read without protobuf, in a fifth of its time;
    the metadata, which nothing reads there, is skipped. A `Head` has the headers that `names` wants. Raises
    MalformedMessageError.
    """
    start = payload[:1]
    kind = _BODIES.get(start)
    if kind is not None:
        if (piece := piece_of(payload)) is not None:
            return kind, piece
    else:
        kind = _HEADS.get(start)
        if kind is not None and (head := read_head(payload, names)) is not None:
            return kind, head
    try:
        message = parse(payload)
    except DecodeError as error:
        raise MalformedMessageError(str(error)) from None
    kind = message.WhichOneof("request") or ""
    if kind.endswith("_body"):
        body = getattr(message, kind)
        return kind, (body.body, body.end_of_stream)
    return kind, head_of(payload, message, names) if kind.endswith("_headers") else None


def piece_of(payload: bytes) -> Piece | None:
    """Read a message that begins with the tag of a piece of a body; None for another layout or a longer one.

    Pieces of one stream begin alike: where such a one begins and ends is remembered.
    """
    layout = _layouts.get(payload[:6])
    if layout is not None:
        at, stop, end = layout
        rest = len(payload) - stop
        if not rest or (0 < rest < 1024 and payload.startswith(METADATA_HEADS[rest], stop)):
            return payload[at:stop], end
    return _piece(payload)


def _piece(payload: bytes) -> Piece | None:
    """Read a piece of a body that stands before everything else; None for another layout or a longer one.

    The lengths, of at most three bytes, are read in place: a call for each would take as long as the rest.
    """
    try:
        at, size = 2, payload[1]
        if size >= 0x80:
            at, size = 3, size + (payload[2] - 1 << 7)
            if payload[2] >= 0x80:
                at, size = 4, size + (payload[3] - 1 << 14)
                if payload[3] >= 0x80:
                    return None
        stop = at + size
        body, end = b"", False
        if size and payload[at] == _BODY_FIELD:
            at, size = at + 2, payload[at + 1]
            if size >= 0x80:
                at, size = at + 1, size + (payload[at] - 1 << 7)
                if payload[at - 1] >= 0x80:
                    at, size = at + 1, size + (payload[at] - 1 << 14)
                    if payload[at - 1] >= 0x80:
                        return None
            body = payload[at : at + size]
            at += size
        if at != stop:
            if payload[at:stop] != _END_OF_STREAM:
                return None
            end = True
    except IndexError:
        return None
    rest = len(payload) - stop
    if rest and not (0 < rest < 1024 and payload.startswith(METADATA_HEADS[rest], stop)):
        return None
    if end:
        if stop == 4:
            _remember(payload, 4, 4, end=True)
    elif body and stop - len(body) <= 6 <= len(payload):
        _remember(payload, stop - len(body), stop, end=False)
    return body, end


def _remember(payload: bytes, start: int, stop: int, *, end: bool) -> None:
    """Keep where a piece begins and ends in its message, and whether it is the last, by its first bytes.

    They tell for a last piece without bytes, and where they hold both lengths.
    """
    if len(_layouts) >= _LAYOUTS:
        _layouts.clear()
    _layouts[payload[:6]] = start, stop, end


def _field(tag: int, payload: bytes) -> bytes:
    """Encode one length-delimited field; `tag` is number << 3 | 2, below 0x80."""
    return bytes((tag,)) + varint(len(payload)) + payload


def set_header(name: str, value: bytes) -> bytes:
    """Encode an entry of a HeaderMutation that sets a header, and replaces one that is there."""
    header = _field(0x0A, name.encode()) + _field(0x1A, value)
    return _field(0x0A, _field(0x0A, header) + b"\x18\x02")  # append_action OVERWRITE_IF_EXISTS_OR_ADD


def remove_header(name: str) -> bytes:
    """Encode an entry of a HeaderMutation that removes a header."""
    return _field(0x12, name.encode())


def dynamic_metadata(namespace: str, key: str, value: bytes) -> bytes:
    """Encode dynamic metadata that holds one string, UTF-8, under one key."""
    return _field(0x42, _entry(namespace, _field(0x2A, _entry(key, _field(0x1A, value)))))


def dynamic_metadata_with_numbers(
    namespace: str, key: str, value: bytes, numbers_key: str, numbers: Iterable[tuple[str, float]]
) -> bytes:
    """Encode dynamic metadata of one namespace: a string under one key, named numbers under another."""
    inner = b"".join([_entry(name, b"\x11" + _DOUBLE.pack(number)) for name, number in numbers])
    struct = _entry(key, _field(0x1A, value)) + _entry(numbers_key, _field(0x2A, inner))
    return _field(0x42, _entry(namespace, _field(0x2A, struct)))


def dynamic_numbers(numbers: Iterable[tuple[str, str, float]]) -> bytes:
    """Encode dynamic metadata that holds the numbers, each given as (namespace, key, number)."""
    spaces: dict[str, bytes] = {}
    for namespace, key, number in numbers:
        spaces[namespace] = spaces.get(namespace, b"") + _entry(key, b"\x11" + _DOUBLE.pack(number))
    fields = b"".join([_entry(namespace, _field(0x2A, inner)) for namespace, inner in spaces.items()])
    return _field(0x42, fields) if fields else b""


def _entry(key: str, value: bytes) -> bytes:
    """Encode a key of a Struct with its Value."""
    return _field(0x0A, _field(0x0A, key.encode()) + _field(0x12, value))


def _mutation_prefix(length: int) -> bytes:
    out = b""
    size = length
    for outer, beside in ((0x12, 0), (0x0A, 2), (0x0A, 0)):  # header_mutation, response, request_headers
        size += beside  # clear_route_cache stands beside the mutation
        head = bytes((outer,)) + varint(size)
        out = head + out
        size += len(head)
    return out


#: Tags of the pieces, as their messages begin, and the tag of the bytes in them.
REQUEST_BODY: Final = b"\x22"
RESPONSE_BODY: Final = b"\x2a"
_BODIES: Final = {REQUEST_BODY: "request_body", RESPONSE_BODY: "response_body"}
#: Tags of the messages with headers.
_HEADS: Final = {b"\x12": "request_headers", b"\x1a": "response_headers"}
_BODY_FIELD: Final = 0x0A
#: Where the bytes of a piece begin and end, by how its message begins.
_layouts: Final[dict[bytes, tuple[int, int, bool]]] = {}
_LAYOUTS: Final = 4096

#: The first bytes of a headers reply and of a content-length entry, by the length of what follows them.
_MUTATION_PREFIXES: Final = tuple(_mutation_prefix(length) for length in range(1024))
_CONTENT_LENGTH_PREFIXES: Final = tuple(
    set_header("content-length", b"0" * digits)[: -digits - 2] for digits in range(1, 20)
)


def headers_reply(mutation: bytes, metadata: bytes, content_length: int | None) -> bytes:
    """Encode the reply to request headers: entries of a HeaderMutation, and dynamic metadata or b"".

    Proxies drop content-length in full-duplex mode, as the body may change. Naming the length lets those that
    honour it keep it; Envoy does not and sends the body chunked. None leaves it out (no body, or one followed
    by trailers). The route is chosen anew, as it may depend on the headers.
    """
    if content_length is not None:
        digits = b"%d" % content_length
        mutation += _CONTENT_LENGTH_PREFIXES[len(digits) - 1] + digits + b"\x18\x02"
    size = len(mutation)
    prefix = _MUTATION_PREFIXES[size] if size < 1024 else _mutation_prefix(size)
    return prefix + mutation + b"\x28\x01" + metadata


_REQUEST_BODY: Final = 0x1A
_RESPONSE_BODY: Final = 0x22
#: Pieces below this length, in bytes, have the first bytes of their reply remembered: most streamed ones do.
_MEMO_BELOW: Final = 2048
#: By the piece's length times two, plus one for the last piece.
_REQUEST_HEADS: Final[dict[int, bytes]] = {}
_RESPONSE_HEADS: Final[dict[int, bytes]] = {}
passing_heads: Final[dict[int, bytes]] = {}
"""By the length of a piece of a response body that is not the last: what stands before it in its reply."""
_END_OF_STREAM: Final = b"\x10\x01"


def _body_head(tag: int, length: int, end: bool) -> bytes:
    out = b"\x0a" + varint(length) if length else b""
    size = len(out) + length + (2 if end else 0)
    for outer in (0x1A, 0x1A, 0x0A, tag):  # streamed_response, body_mutation, response, *_body
        head = bytes((outer,)) + varint(size)
        out = head + out
        size += len(head)
    if length < _MEMO_BELOW:
        (_REQUEST_HEADS if tag == _REQUEST_BODY else _RESPONSE_HEADS)[2 * length + end] = out
        if tag == _RESPONSE_BODY and not end:
            passing_heads[length] = out
    return out


def request_body_reply(body: Held, end: bool) -> bytes:
    """Encode one piece of the request body for the model server."""
    length = len(body)
    head = _REQUEST_HEADS.get(2 * length + end) or _body_head(_REQUEST_BODY, length, end)
    return head + body + _END_OF_STREAM if end else head + body


def request_body_reply_of(parts: Sequence[Held], length: int, end: bool) -> bytes:
    """Encode one piece of the request body that is in several parts, `length` bytes together."""
    head = _REQUEST_HEADS.get(2 * length + end) or _body_head(_REQUEST_BODY, length, end)
    return b"".join((head, *parts, _END_OF_STREAM) if end else (head, *parts))


def response_body_reply(body: bytes, end: bool) -> bytes:
    """Encode one piece of the response body for the client."""
    length = len(body)
    head = _RESPONSE_HEADS.get(2 * length + end) or _body_head(_RESPONSE_BODY, length, end)
    return head + body + _END_OF_STREAM if end else head + body


#: Replies that let through as they are: headers, trailers and, in other modes than full duplex, pieces.
REQUEST_HEADERS_REPLY: Final = b"\x0a\x00"
REQUEST_BODY_REPLY: Final = b"\x1a\x00"
RESPONSE_BODY_REPLY: Final = b"\x22\x00"
RESPONSE_HEADERS_REPLY: Final = b"\x12\x00"
REQUEST_TRAILERS_REPLY: Final = b"\x2a\x00"
RESPONSE_TRAILERS_REPLY: Final = b"\x32\x00"


def whole_body_reply(mutation: bytes, metadata: bytes, body: bytes | None) -> bytes:
    """Encode the reply to a buffered request body: it changes the headers, which the proxy still holds.

    `body` replaces the body; None: it stays. The route is chosen anew, as in `headers_reply`.
    """
    changed = b"" if body is None else _field(0x1A, _replaced(body))
    if body is not None:
        mutation += set_header("content-length", b"%d" % len(body))
    return _field(0x1A, _field(0x0A, _field(0x12, mutation) + changed + b"\x28\x01")) + metadata


def response_piece_reply(body: bytes) -> bytes:
    """Encode the reply that replaces a piece of the response body, in other modes than full duplex."""
    return _field(0x22, _field(0x0A, _field(0x1A, _replaced(body))))


def _replaced(body: bytes) -> bytes:
    """Encode a BodyMutation in which these bytes replace a piece."""
    return _field(0x0A, body) if body else b"\x10\x01"  # clear_body


def response_headers_reply(mutation: bytes) -> bytes:
    """Encode the reply to response headers: entries of a HeaderMutation, at least one."""
    return _field(0x12, _field(0x0A, _field(0x12, mutation)))


def immediate_reply(
    status: int,
    headers: Iterable[tuple[str, str]],
    body: str,
    details: str,
    *,
    grpc_status: int | None = None,
) -> bytes:
    """Encode an answer that Envoy gives to the client in place of the model server's.

    `details` goes to Envoy's access log as response code details; it holds no white space. With `grpc_status`
    Envoy answers a gRPC call with this status, and with the body as its message.
    """
    mutation = b"".join(set_header(name, value.encode()) for name, value in headers)
    grpc = b"" if grpc_status is None else _field(0x22, b"\x08" + varint(grpc_status))
    return _field(
        0x3A,
        _field(0x0A, b"\x08" + varint(status))
        + _field(0x12, mutation)
        + _field(0x1A, body.encode())
        + grpc
        + _field(0x2A, details.encode()),
    )
