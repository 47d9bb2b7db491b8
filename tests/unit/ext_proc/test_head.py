"""Messages with headers: what is read of their bytes is what protobuf reads of them."""

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

import envoy_messages as support
from ext_proc import wire
from ext_proc.head import Head, MalformedMessageError, MetadataKey, Names

KINDS = ("request_headers", "response_headers")
WANTED = (":path", "x-one", "x-gateway-destination-endpoint-served")
KEY = MetadataKey("envoy.lb", "x-gateway-destination-endpoint-served")
NAME = st.sampled_from([*WANTED, "X-One", "accept", ":status", "é"]) | st.text(max_size=70)
VALUE = st.binary(max_size=40) | st.binary(min_size=120, max_size=135) | st.just(b"v" * 17_000)
TEXT = st.text(max_size=20) | st.just("1.2.3.4:80," * 13)
SPACES = st.none() | st.dictionaries(
    st.sampled_from([KEY.namespace, "other"]),
    st.dictionaries(st.sampled_from([KEY.key, "x-gateway-destination-endpoint", ""]), TEXT, max_size=3),
    max_size=2,
)
MODES = st.none() | st.tuples(st.integers(0, 5), st.integers(0, 5))


@st.composite
def messages(draw: st.DrawFn) -> Any:
    message = support.pb.ProcessingRequest()
    part = getattr(message, draw(st.sampled_from(KINDS)))
    part.SetInParent()
    for name, value in draw(st.lists(st.tuples(NAME, VALUE), max_size=8)):
        part.headers.headers.add(key=name, raw_value=value)
    if draw(st.integers(0, 9)) == 0:
        part.headers.headers.add(key=draw(NAME), value=draw(TEXT))
    part.end_of_stream = draw(st.booleans())
    spaces, modes = draw(SPACES), draw(MODES)
    if spaces is not None:
        message.metadata_context.SetInParent()
        for space, fields in spaces.items():
            message.metadata_context.filter_metadata[space].update(fields)
    if modes is not None:
        message.protocol_config.request_body_mode, message.protocol_config.response_body_mode = modes
    return message


def text(header: Any) -> str:
    return header.raw_value.decode("utf-8", "replace") if header.raw_value else str(header.value)


def assert_is_read(head: Head, message: Any) -> None:
    part = getattr(message, message.WhichOneof("request"))
    wanted: dict[str, str] = {}
    for header in part.headers.headers:
        if header.key.lower() in WANTED:
            wanted.setdefault(header.key.lower(), text(header))
    assert head.found == wanted
    assert head.end_of_stream == part.end_of_stream
    config = message.protocol_config
    modes = (config.request_body_mode, config.response_body_mode)
    assert head.modes == (modes if message.HasField("protocol_config") else None)
    value = message.metadata_context.filter_metadata[KEY.namespace].fields[KEY.key]
    assert head.text(KEY) == value.string_value
    assert [(name, text(header)) for name, header in head.all()] == [
        (header.key.lower(), text(header)) for header in part.headers.headers
    ]


@given(messages())
def test_headers_are_read_as_protobuf_reads_them(message: Any) -> None:
    kind, head = wire.decode(message.SerializeToString(), Names(WANTED))
    assert kind == message.WhichOneof("request")
    assert_is_read(head, message)


@given(messages(), st.data())
def test_what_is_no_message_with_headers_for_protobuf_is_none_here(message: Any, data: st.DataObject) -> None:
    """A message that is cut, or has a byte changed, is what protobuf says it is.

    The bytes of metadata behind the headers are the exception: they are read only where they are needed.
    """
    message.ClearField("metadata_context")
    payload = bytearray(message.SerializeToString())
    at = data.draw(st.integers(0, len(payload) - 1))
    if data.draw(st.booleans()):
        payload = payload[:at]
    else:
        payload[at] = data.draw(st.integers(0, 255))
    try:
        changed = support.pb.ProcessingRequest.FromString(bytes(payload))
    except DecodeError:
        with pytest.raises(MalformedMessageError):
            wire.decode(bytes(payload), Names(WANTED))
        return
    kind, head = wire.decode(bytes(payload), Names(WANTED))
    assert kind == (changed.WhichOneof("request") or "")
    if kind in KINDS:
        assert_is_read(head, changed)


def test_the_messages_of_envoy_need_no_protobuf(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout of Envoy 1.40, byte by byte; were it left to protobuf, nothing but the cost would tell."""
    request = (
        b"\x12\x24\n\x22\n\x18\n\x05:path\x1a\x0f/v1/completions\n\x06\n\x04x-noB\x00Z\x04\x08\x04\x10\x04"
    )
    response = (
        b"\x1a\x12\n\x10\n\x0e\n\x07:status\x1a\x03200"
        b"B\x4a\n\x48\n\x08envoy.lb\x12\x3c\n\x3a\n\x25x-gateway-destination-endpoint-served"
        b"\x12\x11\x1a\x0f127.0.0.9:39903"
    )
    names = Names((":path", ":status"))
    wire.decode(request, names)  # what follows the headers is remembered

    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("ext_proc.head.parse", refuse)
    monkeypatch.setattr("ext_proc.wire.parse", refuse)
    head = wire.decode(request, names)[1]
    assert (head.found, head.modes, head.text(KEY)) == ({":path": "/v1/completions"}, (4, 4), "")
    head = wire.decode(response, names)[1]
    assert (head.found, head.text(KEY)) == ({":status": "200"}, "127.0.0.9:39903")


def test_what_headers_say_is_remembered_within_bounds_and_secrets_are_not() -> None:
    names = Names(("x-one",))

    def read(name: str, value: str) -> dict[str, str]:
        message = support.pb.ProcessingRequest()
        message.request_headers.headers.headers.add(key=name, raw_value=value.encode())
        head: Head = wire.decode(message.SerializeToString(), names)[1]
        return head.found

    for number in range(5000):
        assert read("X-One", str(number)) == {"x-one": str(number)}
    assert 0 < len(names.said) <= 1024
    names.said.clear()
    read("Authorization", "Bearer secret")
    read("x-long", "x" * 100)
    assert not names.said
