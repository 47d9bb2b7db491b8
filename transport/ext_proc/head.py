"""The headers of a request or a response, read from the bytes of their message. Pure.

Most messages with headers are laid out alike. Of those protobuf only finds where each header begins and ends:
an object for each would take twice the time, and most headers are the same with each request of a client, so
that a dict knows what they say. Any other layout is read by protobuf alone; the tests hold one against the
other. Field
numbers are those of envoy/service/ext_proc/v3/external_processor.proto and envoy/config/core/v3/base.proto.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, cast

from envoy.config.core.v3.base_pb2 import HeaderValue as HeaderValueMessage
from envoy.service.ext_proc.v3 import external_processor_pb2 as _pb
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

#: Headers that are not remembered: secrets, and what differs from request to request.
_NOT_KEPT: Final = frozenset(
    {"api-key", "authorization", "content-length", "cookie", "proxy-authorization", "x-api-key"}
    | {"traceparent", "x-request-id"}
)
#: Longest header that `Names` remembers, in bytes, and how many: clients choose them.
_LONGEST: Final = 64
_REMEMBERED: Final = 1024
#: Longest rest of a message that is remembered, in bytes, and how many: most requests have the same one.
_LONGEST_REST: Final = 64
_RESTS: Final = 64


class MalformedMessageError(Exception):
    """The bytes are no ProcessingRequest."""


class HeaderValue(Protocol):
    """One header; `raw_value` wins over `value` when it is not empty."""

    key: str
    value: str
    raw_value: bytes


class _HeaderMap(Protocol):
    headers: Sequence[HeaderValue]

    def SerializeToString(self) -> bytes: ...  # noqa: N802


class HttpHeaders(Protocol):
    """Headers of a request or a response."""

    headers: _HeaderMap
    end_of_stream: bool


class _ProtocolConfig(Protocol):
    request_body_mode: int
    response_body_mode: int


class _Metadata(Protocol):
    filter_metadata: Mapping[str, Any]


class ProcessingRequest(Protocol):
    """One message of the proxy."""

    request_headers: HttpHeaders
    response_headers: HttpHeaders
    metadata_context: _Metadata
    protocol_config: _ProtocolConfig

    def WhichOneof(self, group: str) -> str | None: ...  # noqa: N802, D102
    def HasField(self, name: str) -> bool: ...  # noqa: N802, D102


def _entries_class() -> Any:
    """Return a message that is HeaderMap on the wire, with its headers as bytes: objects cost more."""
    file = FileDescriptorProto(name="ext_proc/head.proto", package="ext_proc", syntax="proto3")
    field = file.message_type.add(name="Entries").field.add(name="headers", number=1)
    field.type, field.label = field.TYPE_BYTES, field.LABEL_REPEATED
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("ext_proc.Entries"))


_entries: Final = _entries_class().FromString
_header: Final[Callable[[bytes], HeaderValue]] = cast("Any", HeaderValueMessage).FromString
parse: Final[Callable[[bytes], ProcessingRequest]] = cast("Any", _pb.ProcessingRequest).FromString
"""Reads a message. Raises protobuf's DecodeError."""


Said = tuple[str, str] | tuple[()]
"""A wanted header's name and value; empty for another header."""


class Names:
    """The headers that are read: their names in lower case, and what came of them so far."""

    __slots__ = ("_spelt", "_wanted", "said")

    def __init__(self, wanted: Iterable[str]) -> None:
        self._wanted = frozenset(wanted)
        self._spelt: dict[bytes, tuple[str, bool]] = {}
        # Beginning of a header up to its value, to its name, "" for an unwanted one, and whether it is kept.

        self.said: dict[bytes, Said] = {}
        """Headers as they came (HeaderValue), to what they say: most recur with each request of a client."""

    def read(self, entry: bytes) -> Said:
        """Read a header. Raises DecodeError."""
        at = 2 + entry[1] if len(entry) > 1 else 0
        known = self._spelt.get(entry[:at])
        if known is None or entry[at : at + 2] != _VALUES.get(len(entry) - at - 2):
            header = _header(entry)
            known = self._learn(header.key, entry[:at])
            text = text_of(header)
        else:
            text = entry[at + 2 :].decode("utf-8", "replace") if known[0] else ""
        name, is_kept = known
        said: Said = (name, text) if name else ()
        if is_kept and len(entry) <= _LONGEST:
            if len(self.said) >= _REMEMBERED:
                self.said.clear()
            self.said[entry] = said
        return said

    def _learn(self, key: str, start: bytes) -> tuple[str, bool]:
        name = key.lower()
        known = name if name in self._wanted else "", name not in _NOT_KEPT
        written = key.encode()
        if start == b"\x0a%c%b" % (len(written) & 0x7F, written) and len(written) <= _LONGEST:
            if len(self._spelt) >= _REMEMBERED:
                self._spelt.clear()
            self._spelt[start] = known
        return known


NO_NAMES: Final = Names(())


class MetadataKey:
    """A key in a namespace of the proxy's metadata; each is shorter than 128 bytes."""

    __slots__ = ("_before", "_heads", "_within", "key", "namespace")

    def __init__(self, namespace: str, key: str) -> None:
        self.namespace = namespace
        self.key = key
        # What stands before the fields of the namespace, and before the value, up to their lengths.
        self._within = b"\x0a%c%b\x12" % (len(namespace), namespace.encode())
        self._before = b"\x0a%c%b\x12" % (len(key), key.encode())
        self._heads: dict[int, bytes] = {}

    def text_in(self, metadata: bytes) -> str | None:
        """Return the key's text, "" without the key, None for metadata of another layout than Envoy's.

        `metadata` is the field metadata_context, read if it has one namespace and short texts.
        """
        stop = len(metadata)
        head = self._heads.get(stop)
        if head is None:
            head = self._head(stop)
        if not metadata.startswith(head):
            return None
        at, before = len(head), self._before
        try:
            while at < stop:
                size = metadata[at + 1]
                if metadata[at] != _FIRST or size >= 0x80:
                    return None
                at += 2
                end = at + size
                if metadata.startswith(before, at):
                    at += len(before)
                    size = end - at - 3
                    if metadata[at] != size + 2 or metadata[at + 1 : at + 3] != _VALUES.get(size):
                        return None
                    return metadata[at + 3 : end].decode()
                at = end
        except (IndexError, UnicodeDecodeError):
            return None
        return "" if at == stop else None

    def _head(self, size: int) -> bytes:
        """Return how metadata of `size` bytes begins that has the one namespace, up to its fields."""
        head, left = b"", size
        for tag in (b"\x42", b"\x0a", self._within):  # metadata_context, filter_metadata, the namespace
            for length in range(left - len(tag) - 3, left - len(tag)):
                start = tag + varint(max(0, length))
                if len(start) + length == left:
                    break
            else:
                return bytes(size + 1)  # nothing begins so
            head, left = head + start, length
        if len(self._heads) < len(METADATA_HEADS):
            self._heads[size] = head
        return head


class Head:
    """A message with headers."""

    __slots__ = ("_message", "_rest", "end_of_stream", "found", "has_metadata", "modes", "payload")

    def __init__(self, payload: bytes, rest: bytes, found: dict[str, str], end_of_stream: bool) -> None:
        """`rest` is the part of the message that has the metadata."""
        self.found = found
        """The wanted headers by name; of a repeated one the first."""
        self.end_of_stream = end_of_stream
        self.modes: tuple[int, int] | None = None
        """The (request, response) body modes that the proxy runs with; None when it does not say."""
        self.has_metadata = False
        """The proxy sent metadata along."""
        self.payload = payload
        """The whole message."""
        self._rest = rest
        self._message: ProcessingRequest | None = None

    def metadata(self, key: MetadataKey) -> Any:
        """Return the protobuf Value of a key in the proxy's metadata; None when it is not there.

        Raises MalformedMessageError, as does `text`.
        """
        if not self.has_metadata:
            return None
        spaces = self._parsed().metadata_context.filter_metadata
        return spaces[key.namespace].fields.get(key.key) if key.namespace in spaces else None

    def text(self, key: MetadataKey) -> str:
        """Return the text of a key in the proxy's metadata; "" when it is not there, or no text."""
        if not self.has_metadata:
            return ""
        found = key.text_in(self._rest)
        if found is None:
            value = self.metadata(key)
            found = "" if value is None else str(value.string_value)
        return found

    def all(self) -> Iterator[tuple[str, HeaderValue]]:
        """Yield each header with its name in lower case."""
        for header in _headers_of(self._parsed()).headers.headers:
            yield header.key.lower(), header

    def sizes(self) -> tuple[int, int]:
        """Return the number of headers, and the bytes of their names and values together."""
        sizes = [len(name.encode()) + len(each.raw_value or each.value.encode()) for name, each in self.all()]
        return len(sizes), sum(sizes)

    def _parsed(self) -> ProcessingRequest:
        message = self._message
        if message is None:
            try:
                message = self._message = parse(self.payload)
            except DecodeError as error:  # in the metadata, which nothing has read before
                raise MalformedMessageError(str(error)) from None
        return message


def read_head(payload: bytes, names: Names) -> Head | None:
    """Read a message that begins with headers; None for a layout that is left to protobuf."""
    try:
        at, size = 2, payload[1]
        if size >= 0x80:
            at, size = 3, size + (payload[2] - 1 << 7)
            if payload[2] >= 0x80:
                return None
        stop = at + size
        size = payload[at + 1]
        if payload[at] != _FIRST:
            return None
        at += 2
        if size >= 0x80:
            size += payload[at] - 1 << 7
            if payload[at] >= 0x80:
                return None
            at += 1
    except IndexError:
        return None
    last = at + size
    end = payload[last:stop]
    if stop > len(payload) or last > stop or (end and end != _END_OF_STREAM):
        return None
    try:
        found = _find(payload[at:last], names)
    except DecodeError:
        return None
    rest = payload[stop:]
    head = Head(payload, rest, found, bool(end))
    if rest:
        settings = _known_rests.get(rest) or _settings(rest)
        if settings is None:
            return None
        head.modes, head.has_metadata = settings
    return head


def _find(entries: bytes, names: Names) -> dict[str, str]:
    """Return the wanted ones of the headers in a HeaderMap. Raises DecodeError."""
    found: dict[str, str] = {}
    known = names.said.get
    for entry in _entries(entries).headers:
        said = known(entry)
        if said is None:
            said = names.read(entry)
        if said and said[0] not in found:
            found[said[0]] = said[1]
    return found


def _settings(rest: bytes) -> tuple[tuple[int, int] | None, bool] | None:
    """Return modes and whether there is metadata, of what follows the headers; None for another layout."""
    size = len(rest)
    if 2 < size < len(METADATA_HEADS) and rest.startswith(METADATA_HEADS[size]):
        return None, True
    try:
        message = parse(rest)
    except DecodeError:
        return None
    if message.WhichOneof("request") is not None:
        return None
    settings = _modes(message), bool(message.metadata_context.filter_metadata)
    if size <= _LONGEST_REST and len(_known_rests) < _RESTS:
        _known_rests[rest] = settings
    return settings


def head_of(payload: bytes, message: ProcessingRequest, names: Names) -> Head:
    """Return what protobuf has read of a message with headers."""
    headers = _headers_of(message)
    found = _find(headers.headers.SerializeToString(), names)
    head = Head(payload, payload, found, headers.end_of_stream)
    head.modes = _modes(message)
    head.has_metadata = bool(message.metadata_context.filter_metadata)
    head._message = message
    return head


def _headers_of(message: ProcessingRequest) -> HttpHeaders:
    is_request = message.WhichOneof("request") == "request_headers"
    return message.request_headers if is_request else message.response_headers


def _modes(message: ProcessingRequest) -> tuple[int, int] | None:
    if not message.HasField("protocol_config"):
        return None
    config = message.protocol_config
    return config.request_body_mode, config.response_body_mode


def text_of(header: HeaderValue) -> str:
    """Return a header's value."""
    raw = header.raw_value
    return raw.decode("utf-8", "replace") if raw else header.value


def _metadata_head(size: int) -> bytes:
    """Return how metadata begins that fills `size` bytes; what nothing begins with where none does."""
    for length in range(max(0, size - 3), size - 1):
        head = b"\x42" + varint(length)
        if len(head) + length == size:
            return head
    return bytes(size + 1)


def varint(number: int) -> bytes:
    """Encode a number that is not negative."""
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


#: How metadata that follows something else begins, by the bytes that are left for it.
METADATA_HEADS: Final = tuple(_metadata_head(size) for size in range(1024))
#: The field end_of_stream of headers, set.
_END_OF_STREAM: Final = b"\x18\x01"
#: Tags of length-delimited fields.
_FIRST: Final = 0x0A
#: The tag of raw_value, which is that of string_value as well, and a length below 128.
_VALUES: Final = {size: bytes((0x1A, size)) for size in range(0x80)}
_known_rests: Final[dict[bytes, tuple[tuple[int, int] | None, bool]]] = {}
