"""What is read of a request's headers."""

from typing import cast

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2

from endpoint_picker.extproc.headers import RequestHeaders
from endpoint_picker.extproc.wire import HttpHeaders


def read(*pairs: tuple[str, bytes]) -> RequestHeaders:
    message = external_processor_pb2.HttpHeaders()
    for name, value in pairs:
        message.headers.headers.add(key=name, raw_value=value)
    return RequestHeaders(cast("HttpHeaders", message))


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
