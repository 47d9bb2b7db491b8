"""The joint between transport and exchange: back-pressure, ends and faults."""

import logging
from collections.abc import Callable, Sequence

import pytest
from typing_extensions import override

import envoy_messages as wire
from counting_router import CountingRouter
from endpoint_picker.decision import Decision, Refusal, Resume, Waiting
from endpoint_picker.extproc.route import process_route
from endpoint_picker.observability.metrics import PickerMetrics
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.transport import Handler, StatusCode
from ext_proc.budget import BodyBudget
from recording_stream import RecordingStream

A = "10.0.0.1:8000"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.5
        return self.now


def handler_on(
    stream: RecordingStream, router: CountingRouter, metrics: PickerMetrics | None = None
) -> Handler:
    handler = process_route(router, BodyBudget(), metrics or PickerMetrics(), Clock())(stream)
    handler.opened(())
    return handler


@pytest.mark.parametrize("end", ["ended", "aborted"])
def test_the_end_of_a_stream_releases(end: str) -> None:
    stream, router = RecordingStream(), CountingRouter(A)
    handler = handler_on(stream, router)
    handler.received(wire.request_headers(end=True, method="GET"))
    assert router.held
    if end == "ended":
        handler.ended()
        assert stream.status is StatusCode.OK
    else:
        handler.aborted(StatusCode.CANCELLED)
    assert not router.held


def test_a_refusal_finishes_the_stream_after_its_answer() -> None:
    stream = RecordingStream()
    handler = handler_on(stream, CountingRouter())
    handler.received(wire.request_headers(end=True, method="GET"))
    assert wire.kinds(stream.sent) == ["immediate_response"]
    assert stream.status is StatusCode.OK


class FaultyRouter(CountingRouter):
    """Picks, and then fails on the first token."""

    @override
    def first_byte(self, decision: Decision, record: Record) -> None:
        raise ZeroDivisionError


def test_a_fault_of_ours_ends_one_stream_and_holds_nothing(caplog: pytest.LogCaptureFixture) -> None:
    stream, router, metrics = RecordingStream(), FaultyRouter(A), PickerMetrics()
    handler = handler_on(stream, router, metrics)
    for message in (
        wire.request_headers(end=True, method="GET"),
        wire.response_headers(),
        wire.response_body(b"x", end=False),
    ):
        handler.received(message)
    assert stream.status is StatusCode.INTERNAL
    assert "ZeroDivision" not in stream.message
    assert not router.held
    assert metrics.open_exchanges == 0
    assert "exchange failed" in caplog.text


class FaultyMetrics(PickerMetrics):
    """Fails when a decision is noted."""

    @override
    def decided(self, record: Record, seconds: float) -> None:
        super().decided(record, seconds)
        raise ZeroDivisionError


class LateRouter(CountingRouter):
    """Decides when the test says so."""

    def __init__(self, *endpoints: str) -> None:
        super().__init__(*endpoints)
        self.decide_now: Callable[[], None] = lambda: None

    @override
    def decide(
        self, request: InferenceRequest, subset: Sequence[str] | None, resume: Resume
    ) -> Decision | Refusal | Waiting:
        answer = super().decide(request, subset, resume)
        assert not isinstance(answer, Waiting)
        self.decide_now = lambda: resume(answer)
        return Never()


class Never(Waiting):
    """Waits; these tests do not cancel."""

    @override
    def cancel(self) -> None:
        raise AssertionError


@pytest.mark.parametrize("late", [False, True])
def test_a_fault_after_the_decision_leaves_no_reservation(late: bool) -> None:
    stream, metrics = RecordingStream(), FaultyMetrics()
    router = LateRouter(A) if late else CountingRouter(A)
    handler = handler_on(stream, router, metrics)
    handler.received(wire.request_headers(end=True, method="GET"))
    if isinstance(router, LateRouter):
        router.decide_now()
    assert stream.status is StatusCode.INTERNAL
    assert router.ends == 1
    assert not router.held
    assert metrics.open_exchanges == 0


def test_requests_are_logged_at_debug_only(caplog: pytest.LogCaptureFixture) -> None:
    for level in (logging.INFO, logging.DEBUG):
        with caplog.at_level(level, "endpoint_picker"):
            handler = handler_on(RecordingStream(), CountingRouter(A))
            handler.received(wire.request_headers(end=True, method="GET"))
            handler.ended()
    (entry,) = [each for each in caplog.records if each.message == "exchange over"]
    logged = vars(entry)
    assert (logged["endpoint"], logged["outcome"], logged["ending"]) == (A, "picked", "disconnected")


class BrokenPlugin(CountingRouter):
    """Fails on every request."""

    @override
    def decide(
        self, request: InferenceRequest, subset: Sequence[str] | None, resume: Resume
    ) -> Decision | Refusal | Waiting:
        raise ZeroDivisionError


def test_a_fault_of_every_request_fails_each_and_is_logged_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    router, metrics = BrokenPlugin(A), PickerMetrics()
    factory = process_route(router, BodyBudget(), metrics, lambda: 5.0)
    for _ in range(100):
        stream = RecordingStream()
        handler = factory(stream)
        handler.opened(())
        handler.received(wire.request_headers(end=True, method="GET"))
        assert stream.status is StatusCode.INTERNAL
    assert metrics.open_exchanges == 0
    assert caplog.text.count("exchange failed") == 1
