"""Messages of Pub/Sub's gRPC API, those that a subscriber needs, in protobuf. Pure.

Field numbers are those of google/pubsub/v1/pubsub.proto.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

PUBLISH: Final = "/google.pubsub.v1.Publisher/Publish"
PULL: Final = "/google.pubsub.v1.Subscriber/Pull"
STREAMING_PULL: Final = "/google.pubsub.v1.Subscriber/StreamingPull"
ACKNOWLEDGE: Final = "/google.pubsub.v1.Subscriber/Acknowledge"
MODIFY_ACK_DEADLINE: Final = "/google.pubsub.v1.Subscriber/ModifyAckDeadline"

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it was received."""

    ack_id: str
    data: bytes
    attributes: Mapping[str, str]
    message_id: str
    published_at: float
    """Unix time, seconds."""
    attempt: int
    """Which delivery this is; 0 where the subscription has no dead-letter policy."""


def publish_request(topic: str, messages: Iterable[tuple[bytes, Mapping[str, str]]]) -> bytes:
    """Return a PublishRequest of (data, attributes)."""
    return text(1, topic) + b"".join(block(2, _message(*message)) for message in messages)


def published_ids(payload: bytes) -> list[str]:
    """Return the message ids of a PublishResponse."""
    return [_text(value) for number, value in fields(payload) if number == 1]


def streaming_request(subscription: str, deadline_s: int, client: str, messages: int, size: int) -> bytes:
    """Return the first StreamingPullRequest: ack deadline, and what may be outstanding on the stream."""
    return (
        text(1, subscription)
        + number(5, deadline_s)
        + text(6, client)
        + number(7, messages)
        + number(8, size)
    )


def pull_request(subscription: str, most: int) -> bytes:
    """Return a PullRequest that does not wait."""
    return text(1, subscription) + number(2, 1) + number(3, most)


def acknowledge_request(subscription: str, ack_ids: Sequence[str]) -> bytes:
    """Return an AcknowledgeRequest."""
    return text(1, subscription) + b"".join(text(2, ack_id) for ack_id in ack_ids)


def deadline_request(subscription: str, ack_ids: Sequence[str], seconds: int) -> bytes:
    """Return a ModifyAckDeadlineRequest; 0 seconds give the messages back."""
    return text(1, subscription) + number(3, seconds) + b"".join(text(4, ack_id) for ack_id in ack_ids)


def received(payload: bytes) -> list[Message]:
    """Return the messages of a PullResponse or StreamingPullResponse. Raises ValueError."""
    return [_received(_bytes(value)) for number, value in fields(payload) if number == 1]


def _received(payload: bytes) -> Message:
    ack_id, attempt = "", 0
    data, attributes, message_id, published_at = b"", {}, "", 0.0
    for place, value in fields(payload):
        if place == 1:
            ack_id = _text(value)
        elif place == 3 and isinstance(value, int):
            attempt = value
        elif place == 2:
            for inner, content in fields(_bytes(value)):
                if inner == 1:
                    data = _bytes(content)
                elif inner == 2:
                    pair = {at: _text(part) for at, part in fields(_bytes(content))}
                    attributes[pair.get(1, "")] = pair.get(2, "")
                elif inner == 3:
                    message_id = _text(content)
                elif inner == 4:
                    time = {at: part for at, part in fields(_bytes(content)) if isinstance(part, int)}
                    published_at = time.get(1, 0) + time.get(2, 0) / 1e9
    return Message(ack_id, data, attributes, message_id, published_at, attempt)


def _message(data: bytes, attributes: Mapping[str, str]) -> bytes:
    pairs = (block(2, text(1, name) + text(2, value)) for name, value in attributes.items())
    return block(1, data) + b"".join(pairs)


def text(place: int, value: str) -> bytes:
    """Return a field of text."""
    return block(place, value.encode())


def block(place: int, value: bytes) -> bytes:
    """Return a field of bytes or of a message."""
    return _varint(place << 3 | _BYTES) + _varint(len(value)) + value


def number(place: int, value: int) -> bytes:
    """Return a field of a whole number, 0 or more."""
    return _varint(place << 3 | _VARINT) + _varint(value)


def fields(payload: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value) of a message; fixed-size numbers are left out. Raises ValueError."""
    at, end = 0, len(payload)
    while at < end:
        key, at = _read_varint(payload, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _read_varint(payload, at)
            yield key >> 3, value
        elif kind == _BYTES:
            size, at = _read_varint(payload, at)
            if at + size > end:
                raise ValueError("a field is longer than its message")
            yield key >> 3, payload[at : at + size]
            at += size
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            msg = f"unknown wire type {kind}"
            raise ValueError(msg)


def _read_varint(payload: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(payload) or shift > 63:
            raise ValueError("a number has no end")
        byte = payload[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where a message should be")
    return value


def _text(value: int | bytes) -> str:
    return _bytes(value).decode()
