"""The joint between an exchange and its call: back-pressure, late answers, ends and failures."""

import gc
from itertools import pairwise
from typing import Any

import pytest

import envoy_messages as wire
from ext_proc.budget import BodyBudget
from ext_proc.exchange import Exchange
from ext_proc.handler import ProcessHandler
from ext_proc.processor import Ending, Forward, Processor, Reply
from lean_grpc import StatusCode
from recording_stream import RecordingStream
from stand_in_processor import FORWARD, REPLY, StandInProcessor

HEADERS, END = wire.request_headers(), wire.request_body(b"", end=True)
LARGE = b"x" * 5_000_000


class Call:
    """A handler with its stream and processor."""

    def __init__(self, answer: Forward | Reply | None = FORWARD, fails_in: str = "") -> None:
        self.stream = RecordingStream()
        self.processor = StandInProcessor(answer, fails_in)
        self.budget = BodyBudget()
        self.faults: list[tuple[Exception, Processor[Any]]] = []
        self.handler = ProcessHandler(
            self.stream, Exchange(self.processor, self.budget), lambda: 1.0, self._note
        )
        self.handler.opened(())

    def feed(self, *payloads: bytes) -> None:
        for payload in payloads:
            self.handler.received(payload)

    def resume(self, late: Forward | Reply) -> None:
        assert self.processor.resume is not None
        self.processor.resume(late)

    def write_on(self) -> list[int]:
        """Tell the handler of room until all of the body is sent; return the counts of sent messages."""
        counts = [len(self.stream.sent)]
        while not any(end for _, end in wire.pieces(self.stream.sent, "request_body")):
            self.handler.writable()
            counts.append(len(self.stream.sent))
            assert len(counts) < 100
        return counts

    def _note(self, fault: Exception, processor: Processor[Any]) -> None:
        self.faults.append((fault, processor))


@pytest.mark.parametrize("late", [False, True])
def test_a_slow_peer_is_given_a_large_body_as_it_takes_it(late: bool) -> None:
    call = Call(None if late else FORWARD)
    call.stream.room = False
    call.feed(HEADERS, wire.request_body(LARGE, end=True))
    if late:
        assert call.stream.sent == []
        call.resume(FORWARD)
    counts = call.write_on()
    assert b"".join(part for part, _ in wire.pieces(call.stream.sent, "request_body")) == LARGE
    assert max(after - before for before, after in pairwise([0, *counts])) < 20
    assert len(counts) > 4
    assert call.budget.held_bytes == 0


def test_a_response_is_answered_while_a_large_body_waits_for_room() -> None:
    call = Call()
    call.stream.room = False
    call.feed(HEADERS, wire.request_body(LARGE, end=True), wire.response_headers(status="413", end=True))
    assert wire.kinds(call.stream.sent[-1:]) == ["response_headers"]
    assert call.processor.endings == [Ending.COMPLETED]


def test_a_late_forward_is_sent_and_the_stream_goes_on() -> None:
    call = Call(None)
    call.feed(HEADERS, END)
    assert call.stream.sent == []
    call.resume(FORWARD)
    assert wire.kinds(call.stream.sent) == ["request_headers", "request_body"]
    call.feed(wire.response_headers(end=True))
    assert wire.kinds(call.stream.sent[-1:]) == ["response_headers"]
    assert call.stream.status is None


def test_a_request_that_is_taken_back_finishes_the_stream_and_drops_the_rest_of_its_body() -> None:
    call = Call(None)
    call.stream.room = False
    call.feed(HEADERS, wire.request_body(LARGE, end=True))
    call.resume(FORWARD)
    assert call.budget.held_bytes > 0
    call.handler.writable()
    call.resume(REPLY)
    call.handler.writable()
    assert wire.kinds(call.stream.sent[-1:]) == ["immediate_response"]
    assert call.stream.status is StatusCode.OK
    assert call.budget.held_bytes == 0
    assert call.processor.endings == [Ending.REFUSED]


@pytest.mark.parametrize("late", [False, True])
def test_an_immediate_reply_finishes_the_stream(late: bool) -> None:
    call = Call(None if late else REPLY)
    call.feed(HEADERS, END)
    if late:
        assert call.stream.status is None
        call.resume(REPLY)
    assert wire.kinds(call.stream.sent) == ["immediate_response"]
    assert call.stream.status is StatusCode.OK
    assert call.processor.endings == [Ending.REFUSED]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("end", ["ended", "aborted"])
def test_the_end_of_the_call_is_the_end_of_the_exchange(end: str, waits: bool) -> None:
    call = Call(None if waits else FORWARD)
    call.feed(HEADERS, wire.request_body(LARGE, end=True))
    sent = len(call.stream.sent)
    if end == "ended":
        call.handler.ended()
        assert call.stream.status is StatusCode.OK
    else:
        call.handler.aborted(StatusCode.CANCELLED)
    assert call.processor.endings == [Ending.DISCONNECTED]
    assert call.processor.waiting.cancelled == waits
    if waits:
        call.resume(FORWARD)
    call.handler.writable()
    assert len(call.stream.sent) == sent
    assert call.budget.held_bytes == 0


SEQUENCE = (
    HEADERS,
    wire.request_body(b"x" * 100, end=True),
    wire.response_headers(),
    wire.response_body(b"y", end=True),
)


@pytest.mark.parametrize(
    "fails_in", ["request_headers", "request", "resumed", "response_headers", "response_body", "ended"]
)
def test_a_processor_that_fails_ends_one_stream_and_holds_nothing(fails_in: str) -> None:
    call = Call(None if fails_in == "resumed" else FORWARD, fails_in)
    call.feed(*SEQUENCE[:2])
    if fails_in == "resumed":
        call.resume(FORWARD)
    else:
        call.feed(*SEQUENCE[2:])
    assert call.stream.status is StatusCode.INTERNAL
    assert "ZeroDivision" not in call.stream.message
    assert len(call.processor.endings) == 1
    assert call.budget.held_bytes == 0
    assert [(type(fault), processor) for fault, processor in call.faults] == [
        (ZeroDivisionError, call.processor)
    ]
    call.handler.aborted(StatusCode.CANCELLED)
    assert len(call.processor.endings) == 1


def test_a_call_that_fails_while_the_backlog_is_sent_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*payloads: bytes) -> bool:
        raise ZeroDivisionError

    call = Call()
    call.stream.room = False
    call.feed(HEADERS, wire.request_body(LARGE, end=True))
    monkeypatch.setattr(call.stream, "send", fail)
    call.handler.writable()
    assert call.processor.endings == [Ending.INTERNAL_ERROR]
    assert call.budget.held_bytes == 0
    assert len(call.faults) == 1


@pytest.mark.parametrize("end", ["ended", "aborted"])
def test_a_processor_that_fails_at_the_end_of_the_call_is_reported(end: str) -> None:
    call = Call(fails_in="ended")
    call.feed(HEADERS, wire.request_body(LARGE, end=True))
    if end == "ended":
        call.handler.ended()
        assert call.stream.status is StatusCode.INTERNAL
    else:
        call.handler.aborted(StatusCode.CANCELLED)
    assert len(call.faults) == 1
    assert call.budget.held_bytes == 0


@pytest.mark.parametrize("waits", [False, True])
def test_an_exchange_that_is_over_is_freed_without_the_garbage_collector(waits: bool) -> None:
    def run() -> None:
        processor = StandInProcessor(None if waits else FORWARD)
        exchange = Exchange(processor, BodyBudget())
        handler = ProcessHandler(RecordingStream(), exchange, lambda: 1.0, lambda fault, processor: None)
        for payload in SEQUENCE[:2]:
            handler.received(payload)
        if processor.resume is not None:
            processor.resume(FORWARD)
            processor.resume = None
        for payload in SEQUENCE[2:]:
            handler.received(payload)
        handler.ended()
        assert processor.endings == [Ending.COMPLETED]

    run()
    gc.collect()
    gc.disable()
    try:
        run()
        assert gc.collect() == 0
    finally:
        gc.enable()
