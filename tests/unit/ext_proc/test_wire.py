"""Reply bytes laid out by hand, compared with the generated classes."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

import envoy_messages as support
from ext_proc import wire
from ext_proc.head import MalformedMessageError


@given(st.integers(0, 200_000), st.booleans(), st.booleans())
def test_body_replies_are_what_protobuf_would_write(length: int, end: bool, response: bool) -> None:
    body = b"x" * length
    kind = "response_body" if response else "request_body"
    message = support.pb.ProcessingResponse()
    part = getattr(message, kind).response.body_mutation.streamed_response
    part.body, part.end_of_stream = body, end
    part.SetInParent()
    encode = wire.response_body_reply if response else wire.request_body_reply
    assert encode(body, end) == message.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (wire.REQUEST_TRAILERS_REPLY, "request_trailers"),
        (wire.RESPONSE_HEADERS_REPLY, "response_headers"),
        (wire.RESPONSE_TRAILERS_REPLY, "response_trailers"),
    ],
)
def test_constant_replies(payload: bytes, kind: str) -> None:
    message = support.pb.ProcessingResponse()
    getattr(message, kind).SetInParent()
    assert message.SerializeToString() == payload


@given(
    st.lists(st.tuples(st.text(max_size=40), st.binary(max_size=300)), max_size=9),
    st.none() | st.integers(0, 1 << 40),
    st.lists(st.text(max_size=40), max_size=9),
    st.text(max_size=300),
)
def test_headers_reply_reads_back(
    sets: list[tuple[str, bytes]], length: int | None, remove: list[str], value: str
) -> None:
    mutation = b"".join([wire.set_header(*each) for each in sets] + [wire.remove_header(n) for n in remove])
    metadata = wire.dynamic_metadata("space", "key", value.encode())
    (message,) = support.read([wire.headers_reply(mutation, metadata, length)])
    response = message.request_headers.response
    found = [(each.header.key, each.header.raw_value) for each in response.header_mutation.set_headers]
    assert found == sets + ([] if length is None else [("content-length", b"%d" % length)])
    overwrite = support.pb.HeaderMutation().set_headers.add().OVERWRITE_IF_EXISTS_OR_ADD
    assert {each.append_action for each in response.header_mutation.set_headers} <= {overwrite}
    assert list(response.header_mutation.remove_headers) == remove
    assert response.clear_route_cache
    assert message.dynamic_metadata["space"]["key"] == value


@given(st.text(max_size=400))
def test_immediate_reply_reads_back(text: str) -> None:
    (message,) = support.read([wire.immediate_reply(503, [("content-type", text)], text, "why")])
    answer = message.immediate_response
    assert (answer.status.code, answer.body.decode(), answer.details) == (503, text, "why")
    assert answer.headers.set_headers[0].header.raw_value.decode() == text


METADATA = st.none() | st.dictionaries(
    st.text(max_size=20), st.dictionaries(st.text(max_size=20), st.text(max_size=300), max_size=3), max_size=3
)


def body_message(kind: str, body: bytes, end: bool, metadata: dict[str, dict[str, str]] | None) -> bytes:
    message = support.pb.ProcessingRequest()
    part = getattr(message, kind)
    part.body, part.end_of_stream = body, end
    part.SetInParent()
    if metadata is not None:
        message.metadata_context.SetInParent()
        for namespace, fields in metadata.items():
            message.metadata_context.filter_metadata[namespace].update(fields)
    return bytes(message.SerializeToString())


@pytest.mark.parametrize("length", [0, 1, 117, 118, 119, 120, 121, 122, 127, 128, 16_375, 16_384, 3_000_000])
@pytest.mark.parametrize("kind", ["request_body", "response_body"])
@given(end=st.booleans(), metadata=METADATA)
def test_a_piece_of_a_body_is_read_as_protobuf_reads_it(
    kind: str, length: int, end: bool, metadata: dict[str, dict[str, str]] | None
) -> None:
    body = b"\x10\x01" * (length // 2) + b"B" * (length % 2)
    assert wire.decode(body_message(kind, body, end, metadata)) == (kind, (body, end))


@given(st.sampled_from(["request_body", "response_body"]), st.binary(max_size=150), st.data())
def test_what_is_no_piece_of_a_body_for_protobuf_is_none_here(
    kind: str, body: bytes, data: st.DataObject
) -> None:
    """A message that is cut, or has a byte changed, is what protobuf says it is."""
    payload = bytearray(body_message(kind, body, data.draw(st.booleans()), None))
    at = data.draw(st.integers(0, len(payload) - 1))
    if data.draw(st.booleans()):
        payload = payload[:at]
    else:
        payload[at] = data.draw(st.integers(0, 255))
    try:
        message = support.pb.ProcessingRequest.FromString(bytes(payload))
    except DecodeError:
        with pytest.raises(MalformedMessageError):
            wire.decode(bytes(payload))
        return
    found, read = wire.decode(bytes(payload))
    assert found == (message.WhichOneof("request") or "")
    if found.endswith("_body"):
        part = getattr(message, found)
        assert read == (part.body, part.end_of_stream)
