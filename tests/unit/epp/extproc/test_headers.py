"""What is read of a request's headers."""

import pytest

import envoy_messages as support
from endpoint_picker.extproc.headers import NAMES, RequestHeaders, ResponseHeaders
from ext_proc import wire
from ext_proc.head import Head


def decoded(message: bytes) -> Head:
    head = wire.decode(message, NAMES)[1]
    assert isinstance(head, Head)
    return head


def read(*pairs: tuple[str, bytes]) -> RequestHeaders:
    message = support.pb.ProcessingRequest()
    message.request_headers.SetInParent()
    for name, value in pairs:
        message.request_headers.headers.headers.add(key=name, raw_value=value)
    return RequestHeaders(decoded(message.SerializeToString()))


def test_every_header_can_be_looked_up_by_its_lower_case_name() -> None:
    seen = read(("X-Team", b"blue"), ("x-empty", b"")).all
    assert seen["x-team"] == "blue"
    assert seen.get("x-absent") is None
    assert list(seen) == ["x-team", "x-empty"]


@pytest.mark.parametrize("name", ["x-gateway-destination-endpoint", "X-Gateway-Destination-Endpoint"])
def test_a_client_sent_destination_is_named_for_removal(name: str) -> None:
    assert read((":path", b"/"), (name, b"10.0.0.1:8000")).remove == ["x-gateway-destination-endpoint"]


def test_the_newer_objective_header_wins() -> None:
    both = read(("x-gateway-inference-objective", b"old"), ("x-llm-d-inference-objective", b"new"))
    assert both.objective == "new"
    assert read(("x-gateway-inference-objective", b"old")).objective == "old"


def test_a_header_given_as_text_is_read_too() -> None:
    message = support.pb.ProcessingRequest()
    message.request_headers.headers.headers.add(key=":path", value="/v1/completions?x=1")
    message.request_headers.headers.headers.add(key="Content-Type", value="Application/JSON; charset=utf-8")
    found = RequestHeaders(decoded(message.SerializeToString()))
    assert (found.path, found.content_type) == ("/v1/completions", "application/json")


@pytest.mark.parametrize(("status", "read"), [("200", 200), ("", 0), ("abc", 0), ("1000000", 0), ("²00", 0)])
def test_response_status(status: str, read: int) -> None:
    found = ResponseHeaders(decoded(support.response_headers(status=status)))
    assert found.status == read
