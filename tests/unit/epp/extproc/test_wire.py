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
