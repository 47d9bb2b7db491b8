"""Hand-laid reply bytes, held against the generated classes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ext_proc as support
from endpoint_picker.extproc import wire
from endpoint_picker.extproc.headers import RequestHeaders, ResponseHeaders


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


@given(st.text(max_size=300), st.none() | st.integers(0, 1 << 40), st.lists(st.text(max_size=40), max_size=9))
def test_headers_reply_reads_back(destination: str, length: int | None, remove: list[str]) -> None:
    (message,) = support.read([wire.headers_reply(destination, length, remove)])
    mutation = message.request_headers.response.header_mutation
    found = support.set_headers(message)
    assert found["x-gateway-destination-endpoint"] == destination
    assert found.get("content-length") == (None if length is None else str(length))
    assert list(mutation.remove_headers) == remove
    assert message.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"] == destination


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Messages as Envoy sends them, in any mix of parts, and now and then two of them in one."""
    message = support.pb.ProcessingRequest()
    kind = draw(st.sampled_from(["request_body", "response_body", "request_headers", "request_trailers"]))
    part = getattr(message, kind)
    part.SetInParent()
    if kind.endswith("body"):
        part.body = b"x" * draw(st.integers(0, 300) | st.sampled_from([16_383, 16_384, 70_000]))
        part.end_of_stream = draw(st.booleans())
    if draw(st.booleans()):
        names = st.dictionaries(st.text(max_size=9), st.text(max_size=200), max_size=3)
        message.metadata_context.filter_metadata["envoy.lb"].update(draw(names))
    if draw(st.integers(0, 5)) == 0:
        message.attributes["a"].update({"b": 1})
    payload: bytes = message.SerializeToString()
    return payload


def as_protobuf_reads(payload: bytes) -> wire.BodyPiece | None:
    kind, message = wire.decode(payload)
    if kind not in {"request_body", "response_body"}:
        return None
    part: wire.HttpBody = getattr(message, kind)
    return kind == "request_body", part.body, part.end_of_stream


@given(st.lists(requests(), min_size=1, max_size=2).map(b"".join))
def test_a_body_piece_is_what_protobuf_reads(payload: bytes) -> None:
    assert wire.body_piece(payload) in (as_protobuf_reads(payload), None)


@given(requests(), st.data())
def test_a_damaged_message_is_read_as_protobuf_reads_it_or_not_at_all(
    payload: bytes, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(payload)))
    damaged = payload[:at] + data.draw(st.binary(max_size=2)) + payload[at + data.draw(st.integers(0, 2)) :]
    piece = wire.body_piece(damaged)
    if piece is not None:
        try:
            assert piece == as_protobuf_reads(damaged)
        except wire.MalformedMessageError:
            assert damaged[:1] in b'"*'  # what is broken is the metadata, which nobody reads


@pytest.mark.parametrize("size", [0, 1, 250, 62_000])
@pytest.mark.parametrize("end", [False, True])
def test_the_usual_messages_are_read_without_protobuf(size: int, end: bool) -> None:
    for is_request, encode in ((True, support.request_body), (False, support.response_body)):
        payload = encode(b"x" * size, end=end)
        assert wire.body_piece(payload) == (is_request, b"x" * size, end)


@given(st.text(max_size=400))
def test_immediate_reply_reads_back(text: str) -> None:
    (message,) = support.read([wire.immediate_reply(503, [("content-type", text)], text, "why")])
    answer = message.immediate_response
    assert (answer.status.code, answer.body.decode(), answer.details) == (503, text, "why")
    assert answer.headers.set_headers[0].header.raw_value.decode() == text


def headers(message: bytes, kind: str) -> wire.HttpHeaders:
    found: wire.HttpHeaders = getattr(wire.decode(message)[1], kind)
    return found


def test_a_header_given_as_text_is_read_too() -> None:
    message = support.pb.ProcessingRequest()
    message.request_headers.headers.headers.add(key=":path", value="/v1/completions?x=1")
    message.request_headers.headers.headers.add(key="Content-Type", value="Application/JSON; charset=utf-8")
    found = RequestHeaders(headers(message.SerializeToString(), "request_headers"))
    assert (found.path, found.content_type) == ("/v1/completions", "application/json")


@pytest.mark.parametrize(("status", "read"), [("200", 200), ("", 0), ("abc", 0), ("1000000", 0), ("²00", 0)])
def test_response_status(status: str, read: int) -> None:
    found = ResponseHeaders(headers(support.response_headers(status=status), "response_headers"))
    assert found.status == read
