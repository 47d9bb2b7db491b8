"""Failed handshakes: how often they are logged, and for how long they count."""

import logging

import pytest

from endpoint_picker.observability.handshakes import LOG_INTERVAL_S, RECENT_S, HandshakeFailures
from endpoint_picker.observability.metrics import PickerMetrics
from inference_api import picker_health
from lean_grpc import FailedHandshake, HandshakeFailure


class Stage:
    def __init__(self) -> None:
        self.now = 1000.0
        self.metrics = PickerMetrics()
        self.failures = HandshakeFailures(self.metrics, lambda: self.now)

    def fail(self, kind: HandshakeFailure, times: int = 1) -> None:
        for _ in range(times):
            self.failures.note(FailedHandshake(kind, "10.0.0.7", ""))

    def count(self, kind: HandshakeFailure) -> float:
        return self.metrics.failed_handshakes.labels(kind.value).value


def test_every_failure_is_counted_and_few_are_logged_with_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    stage.fail(HandshakeFailure.CLEARTEXT_HTTP2, 1000)
    assert stage.count(HandshakeFailure.CLEARTEXT_HTTP2) == 1000
    assert len(caplog.records) == 1
    assert "DestinationRule" in caplog.text
    stage.now += LOG_INTERVAL_S
    stage.fail(HandshakeFailure.CLEARTEXT_HTTP2)
    assert len(caplog.records) == 2
    assert caplog.records[1].__dict__["untold"] == 999


def test_kinds_are_logged_apart_and_probes_not_at_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stage = Stage()
    for kind in HandshakeFailure:
        stage.fail(kind, 3)
    assert len(caplog.records) == len(HandshakeFailure) - 1
    assert HandshakeFailure.CLOSED.value not in {each.__dict__["kind"] for each in caplog.records}


def test_a_failure_is_recent_for_five_minutes() -> None:
    stage = Stage()
    assert stage.failures.recent() == ()
    stage.fail(HandshakeFailure.UNTRUSTED)
    stage.now += RECENT_S - 1
    stage.fail(HandshakeFailure.CLEARTEXT_HTTP2)
    assert stage.failures.recent() == ("cleartext_http2", "untrusted")
    stage.now += 2
    assert stage.failures.recent() == ("cleartext_http2",)


def test_the_operator_knows_the_kinds_by_the_transports_names() -> None:
    shared = {picker_health.CLEARTEXT_HTTP2, picker_health.NO_HTTP2, picker_health.UNTRUSTED}
    assert shared == {
        HandshakeFailure.CLEARTEXT_HTTP2.value,
        HandshakeFailure.NO_HTTP2.value,
        HandshakeFailure.UNTRUSTED.value,
    }
    assert len(HandshakeFailure) <= picker_health.MOST_KINDS
