"""The destination in the reply to request headers: the same string as header and as metadata."""

from hypothesis import example, given
from hypothesis import strategies as st

import envoy_messages as support
from endpoint_picker.extproc.steering import steer
from ext_proc import wire


@example("a" * 511, 7, [])
@example("a" * 512, None, ["x"])
@given(st.text(max_size=700), st.none() | st.integers(0, 1 << 40), st.lists(st.text(max_size=40), max_size=9))
def test_a_destination_of_any_length_reads_back(
    destination: str, length: int | None, remove: list[str]
) -> None:
    answer = steer(destination, remove)
    (message,) = support.read([wire.headers_reply(answer.mutation, answer.metadata, length)])
    mutation = message.request_headers.response.header_mutation
    found = support.set_headers(message)
    assert found["x-gateway-destination-endpoint"] == destination
    assert found.get("content-length") == (None if length is None else str(length))
    assert list(mutation.remove_headers) == remove
    assert message.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"] == destination


@given(st.dictionaries(st.text(min_size=1, max_size=30), st.floats(0, 100), min_size=1, max_size=20))
def test_scores_read_back_beside_the_destination(scores: dict[str, float]) -> None:
    answer = steer("10.0.0.1:8000", [], scores=list(scores.items()))
    (message,) = support.read([wire.headers_reply(answer.mutation, answer.metadata, None)])
    found = message.dynamic_metadata["envoy.lb"]
    assert found["x-gateway-destination-endpoint"] == "10.0.0.1:8000"
    assert dict(found["x-gateway-destination-endpoint-scores"]) == scores
