"""grpc.health.v1 as a probe or a proxy sees it."""

from typing import Any

import pytest
from grpc_health.v1 import health_pb2 as _untyped

from endpoint_picker.health import SERVICES, Health, health_routes
from endpoint_picker.transport.seam import OK, StatusCode
from recording_stream import RecordingStream

health_pb2: Any = _untyped
CHECK, LIST, WATCH = (f"/grpc.health.v1.Health/{name}" for name in ("Check", "List", "Watch"))


def call(health: Health, method: str, payload: bytes) -> RecordingStream:
    stream = RecordingStream()
    handler = health_routes(health)[method](stream)
    handler.opened(())
    handler.received(payload)
    handler.ended()
    return stream


def check(health: Health, service: str) -> str:
    stream = call(health, CHECK, health_pb2.HealthCheckRequest(service=service).SerializeToString())
    assert stream.status is OK
    (payload,) = stream.sent
    return str(
        health_pb2.HealthCheckResponse.ServingStatus.Name(
            health_pb2.HealthCheckResponse.FromString(payload).status
        )
    )


def test_liveness_serves_while_the_process_answers_the_rest_follows_the_pool() -> None:
    health = Health()
    seen = [{name: check(health, name) for name in SERVICES}]
    health.synced()
    seen.append({name: check(health, name) for name in SERVICES})
    health.drain()
    seen.append({name: check(health, name) for name in SERVICES})
    others = [name for name in SERVICES if name != "liveness"]
    assert [each["liveness"] for each in seen] == ["SERVING"] * 3
    for name in others:
        assert [each[name] for each in seen] == ["NOT_SERVING", "SERVING", "NOT_SERVING"]


def test_an_unknown_service_is_not_found() -> None:
    stream = call(Health(), CHECK, health_pb2.HealthCheckRequest(service="x" * 300).SerializeToString())
    assert stream.status is not None
    assert stream.status.code is StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    "payload", [b"\x0a", b"\x0a\x05ab", b"\x0a\x80", b"\x12\x01a", b"\x0a\x7f" + b"x" * 9000]
)
@pytest.mark.parametrize("method", [CHECK, WATCH])
def test_garbage_is_an_invalid_argument(method: str, payload: bytes) -> None:
    stream = call(Health(), method, payload)
    assert stream.status is not None
    assert stream.status.code is StatusCode.INVALID_ARGUMENT


def test_list_names_all_services() -> None:
    health = Health()
    health.synced()
    (payload,) = call(health, LIST, b"").sent
    statuses = health_pb2.HealthListResponse.FromString(payload).statuses
    assert {name: entry.status for name, entry in statuses.items()} == dict.fromkeys(SERVICES, 1)


def test_watch_tells_each_change_once() -> None:
    health = Health()
    stream = RecordingStream()
    handler = health_routes(health)[WATCH](stream)
    handler.received(health_pb2.HealthCheckRequest(service="readiness").SerializeToString())
    handler.ended()
    health.synced()
    health.synced()
    health.drain()
    told = [health_pb2.HealthCheckResponse.FromString(payload).status for payload in stream.sent]
    assert told == [2, 1, 2]
    assert stream.status is None
    handler.aborted(StatusCode.CANCELLED)
    health.synced()
    assert len(stream.sent) == 3


def test_watch_of_an_unknown_service_says_so_and_goes_on() -> None:
    stream = call(Health(), WATCH, health_pb2.HealthCheckRequest(service="x").SerializeToString())
    assert health_pb2.HealthCheckResponse.FromString(stream.sent[0]).status == 3
    assert stream.status is None
