"""The spans of an exchange on a clock of its own: a decision that waited, and what plugins timed."""

import asyncio
import threading
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from typing_extensions import override

import envoy_messages as wire
from counting_router import CountingRouter
from endpoint_picker.decision import Decision, Refusal, Reservation, Resume, Waiting
from endpoint_picker.extproc.traced import Asks, TracedPicking
from endpoint_picker.observability.metrics import PickerMetrics
from endpoint_picker.observability.tracing import (
    DECISION_SPAN,
    NAME_LIMIT,
    QUEUE_SPAN,
    REQUEST_SPAN,
    Tracing,
)
from endpoint_picker.outcomes import Outcome
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from ext_proc.budget import BodyBudget
from ext_proc.exchange import Exchange
from ext_proc.processor import Ending
from ext_proc.turns import Turns

A = "10.0.0.1:8000"
#: Nanoseconds of the epoch at 0 s of the exchange's clock.
EPOCH = 1_700_000_000_000_000_000


class Held(Waiting):
    """A decision that a test answers."""

    @override
    def cancel(self) -> None: ...


class HoldingRouter(CountingRouter):
    """Puts every decision off; times a prediction."""

    resume: Resume

    @override
    def decide(
        self, request: InferenceRequest, subset: Sequence[str] | None, resume: Resume
    ) -> Decision | Refusal | Waiting:
        self.resume = resume
        assert request.timed is not None
        request.timed.append(("predict", 103.0, 103.5))
        return Held()


def answers() -> list[Decision | Refusal]:
    decision = Decision(destination=A, endpoint=A, reservations=(Reservation(row=0, generation=0, tokens=1),))
    return [decision, Refusal(Outcome.SATURATED, "too much")]


@pytest.mark.parametrize("answer", answers(), ids=["picked", "refused"])
def test_a_wait_and_what_plugins_timed_are_children_of_the_decision(answer: Decision | Refusal) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = Tracing(provider, lambda: 0.0, lambda: EPOCH)
    router = HoldingRouter(A)
    picking = TracedPicking(
        Asks(router), PickerMetrics(), 100.0, lambda: 100.0, Turns(None, 1000), tracing.begin
    )
    exchange = Exchange(picking, BodyBudget())
    exchange.received(wire.request_headers(), 101.0)
    exchange.received(wire.request_body(wire.body_of(), end=True), 102.0)
    if isinstance(answer, Decision):
        router.held.append(answer)
    exchange.resumed(answer, 107.0)
    exchange.closed(Ending.DISCONNECTED, 110.0)
    spans = {each.name: each for each in exporter.get_finished_spans()}
    assert {name: seconds(span) for name, span in spans.items()} == {
        # A refusal is the end of its exchange.
        REQUEST_SPAN: (100.0, 110.0 if isinstance(answer, Decision) else 107.0),
        DECISION_SPAN: (102.0, 107.0),
        QUEUE_SPAN: (102.0, 107.0),
        "predict": (103.0, 103.5),
    }
    decision = spans[DECISION_SPAN]
    assert decision.parent == spans[REQUEST_SPAN].context
    assert spans[QUEUE_SPAN].parent == spans["predict"].parent == decision.context
    assert decision.status.is_ok is isinstance(answer, Decision)


class HangingExporter(InMemorySpanExporter):
    """A collector that takes a connection and never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()

    @override
    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self.answers.wait(60)


async def test_a_collector_that_hangs_does_not_keep_the_picker_from_ending() -> None:
    exporter, provider = HangingExporter(), TracerProvider()
    provider.add_span_processor(FlushingProcessor(exporter))
    tracing = Tracing(provider, lambda: 0.0, lambda: EPOCH)
    async with asyncio.timeout(30):
        await tracing.flush()
    assert not exporter.answers.is_set()
    exporter.answers.set()


class FlushingProcessor(SimpleSpanProcessor):
    """Flushes its exporter, as the SDK's batching one does."""

    @override
    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self.span_exporter.force_flush(timeout_millis)


def seconds(span: ReadableSpan) -> tuple[float, float]:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.start_time - EPOCH) / 1e9, (span.end_time - EPOCH) / 1e9


def test_what_clients_send_neither_swells_spans_nor_reaches_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = Tracing(provider, lambda: 0.0, lambda: EPOCH)
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    for carrier in (
        {"traceparent": "0" * 600},
        {"traceparent": parent, "tracestate": "no pair\nWARNING forged"},
        {"traceparent": parent, "tracestate": "a=1," * 4_000},
        {"traceparent": parent, "tracestate": "a=1,a=2"},
    ):
        trace = tracing.begin(carrier, 1.0)
        assert trace is not None
        record = Record(1.0)
        record.request_id = record.objective = record.model = record.served_by = "x" * 60_000
        trace.decided(record, InferenceRequest(request_id="r"), None, (1.0, 2.0), None)
        trace.ended(record)
    lengths = {
        len(value)
        for span in exporter.get_finished_spans()
        for value in (span.attributes or {}).values()
        if isinstance(value, str)
    }
    assert max(lengths) == NAME_LIMIT
    assert caplog.records == []
