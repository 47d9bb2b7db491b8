"""Endpoint discovery as a proxy sees it."""

from typing import Any

import pytest
from envoy.config.endpoint.v3 import endpoint_pb2 as _endpoint
from envoy.service.discovery.v3 import discovery_pb2 as _discovery

from endpoint_picker.eds import STREAM_METHOD, TYPE_URL, EndpointFeed, eds_routes
from endpoint_picker.transport import Handler, StatusCode
from recording_stream import RecordingStream

endpoint_pb2: Any = _endpoint
discovery_pb2: Any = _discovery


def request(
    nonce: str = "", names: tuple[str, ...] = ("pool",), refused: str = "", kind: str = TYPE_URL
) -> bytes:
    message = discovery_pb2.DiscoveryRequest(type_url=kind, resource_names=names, response_nonce=nonce)
    if refused:
        message.error_detail.message = refused
    payload: bytes = message.SerializeToString()
    return payload


def open_stream(feed: EndpointFeed, *payloads: bytes) -> tuple[RecordingStream, Handler]:
    stream = RecordingStream()
    handler = eds_routes(feed)[STREAM_METHOD](stream)
    handler.opened(())
    for payload in payloads:
        handler.received(payload)
    return stream, handler


def answers(stream: RecordingStream) -> list[Any]:
    return [discovery_pb2.DiscoveryResponse.FromString(payload) for payload in stream.sent]


def addresses(response: Any) -> list[tuple[str, int]]:
    (resource,) = response.resources
    assignment = endpoint_pb2.ClusterLoadAssignment()
    assert resource.Unpack(assignment)
    assert assignment.cluster_name == "pool"
    return [
        (entry.endpoint.address.socket_address.address, entry.endpoint.address.socket_address.port_value)
        for locality in assignment.endpoints
        for entry in locality.lb_endpoints
    ]


def test_nothing_is_said_before_the_pool_is_known() -> None:
    feed = EndpointFeed("e")
    stream, _ = open_stream(feed, request())
    assert stream.sent == []
    feed.publish(())
    (answer,) = answers(stream)
    assert addresses(answer) == []


def test_changes_are_pushed_to_all_streams_and_repeats_are_not() -> None:
    feed = EndpointFeed("e")
    feed.publish(["10.0.0.2:8000", "10.0.0.1:8000"])
    first, _ = open_stream(feed, request())
    second, _ = open_stream(feed, request())
    feed.publish(["10.0.0.1:8000", "10.0.0.2:8000"])
    feed.publish(["[fd00::1]:8000"])
    for stream in (first, second):
        told = answers(stream)
        assert [addresses(each) for each in told] == [
            [("10.0.0.1", 8000), ("10.0.0.2", 8000)],
            [("fd00::1", 8000)],
        ]
        assert len({each.version_info for each in told}) == 2
        assert all(each.type_url == TYPE_URL for each in told)


def test_an_ack_is_silent_and_a_nack_is_not_answered_with_the_same() -> None:
    feed = EndpointFeed("e")
    feed.publish(["10.0.0.1:8000"])
    stream, handler = open_stream(feed, request())
    handler.received(request(answers(stream)[0].nonce))
    handler.received(request(answers(stream)[0].nonce, refused="no"))
    assert len(stream.sent) == 1
    feed.publish(["10.0.0.2:8000"])
    assert len(stream.sent) == 2


def test_an_answer_to_a_superseded_version_is_ignored() -> None:
    feed = EndpointFeed("e")
    feed.publish(["10.0.0.1:8000"])
    stream, handler = open_stream(feed, request())
    old = answers(stream)[0].nonce
    feed.publish(["10.0.0.2:8000"])
    handler.received(request(old))
    assert len(stream.sent) == 2


def test_another_cluster_is_not_answered_until_the_pool_is_asked_for() -> None:
    feed = EndpointFeed("e")
    feed.publish(["10.0.0.1:8000"])
    stream, handler = open_stream(feed, request(names=("other",)))
    assert stream.sent == []
    handler.received(request(names=("other", "pool")))
    assert len(stream.sent) == 1


def test_a_slow_proxy_gets_the_latest_only() -> None:
    feed = EndpointFeed("e")
    feed.publish(["10.0.0.1:8000"])
    stream = RecordingStream()
    stream.room = False
    handler = eds_routes(feed)[STREAM_METHOD](stream)
    handler.opened(())
    handler.received(request())
    for port in range(9000, 9100):
        feed.publish([f"10.0.0.1:{port}"])
    assert len(stream.sent) == 1
    handler.writable()
    assert addresses(answers(stream)[-1]) == [("10.0.0.1", 9099)]
    assert len(stream.sent) == 2


@pytest.mark.parametrize("payload", [b"\xff", request(kind="type.googleapis.com/x")])
def test_what_is_no_endpoint_request_ends_the_stream(payload: bytes) -> None:
    feed = EndpointFeed("e")
    stream, _ = open_stream(feed, payload)
    assert stream.status is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("end", ["ended", "aborted"])
def test_a_stream_that_is_over_is_told_nothing(end: str) -> None:
    feed = EndpointFeed("e")
    stream, handler = open_stream(feed, request())
    if end == "ended":
        handler.ended()
    else:
        handler.aborted(StatusCode.CANCELLED)
    feed.publish(["10.0.0.1:8000"])
    assert stream.sent == []


def test_a_closed_feed_ends_its_streams() -> None:
    feed = EndpointFeed("e")
    feed.publish(["10.0.0.1:8000"])
    streams = [open_stream(feed, request())[0] for _ in range(2)]
    feed.close()
    feed.publish(["10.0.0.2:8000"])
    for stream in streams:
        assert stream.status is StatusCode.OK
        assert len(stream.sent) == 1
