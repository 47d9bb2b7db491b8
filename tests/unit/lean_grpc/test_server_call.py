"""The server's calls over the sans-IO core: what handlers and peers get, what ends a call. No socket."""

import asyncio
import gc
import logging
from collections.abc import Callable
from typing import Any

import pytest

from http2_wire import REQUEST, Frame, Wire, message, reset_code, setting, uint
from lean_grpc import CallError, Limits, Metadata, ServerCall, StatusCode
from lean_grpc.aio.unary import unary_handler
from lean_grpc.calls.messages import deflate
from lean_grpc.calls.request import read_request
from lean_grpc.http2 import codes
from lean_grpc.http2.codes import ErrorCode, frame
from lean_grpc.http2.fields import Head, Kind
from lean_grpc.http2.stream import Stream


class Diary:
    """A handler that writes down its callbacks."""

    def __init__(self, call: ServerCall) -> None:
        self.call = call
        self.entries: list[object] = []
        self.on_payload: Callable[[bytes], object] = lambda payload: None

    def opened(self, metadata: Metadata) -> None:
        self.entries.append(("opened", metadata))

    def received(self, payload: bytes) -> None:
        self.entries.append(payload)
        self.on_payload(payload)

    def ended(self) -> None:
        self.entries.append("ended")

    def aborted(self, code: StatusCode) -> None:
        self.entries.append(("aborted", code))

    def writable(self) -> None:
        self.entries.append("writable")


class Desk:
    """A server core that makes a call and a `Diary` for each stream."""

    def __init__(self, limits: Limits | None = None, factory: Callable[[ServerCall], Any] = Diary) -> None:
        self.limits = limits or Limits()
        self.wire = Wire(limits=self.limits)
        self.factory = factory
        self.diaries: list[Any] = []
        self.calls: list[ServerCall] = []
        self.wire.core.owner = self

    def on_stream(self, stream: Stream, head: Head, ended: bool) -> None:
        call = ServerCall(self.wire.core, stream, read_request(head), self.limits)
        self.calls.append(call)

        def make(call: ServerCall) -> Any:
            self.diaries.append(self.factory(call))
            return self.diaries[-1]

        call.start(make, ended)

    def on_goaway(self, code: ErrorCode) -> None:
        pass

    def on_ping_ack(self, payload: bytes) -> None:
        pass

    def on_room(self) -> None:
        pass

    def open(self, *more: tuple[bytes, bytes], stream_id: int = 1) -> Any:
        """Open a call; return its diary."""
        self.wire.send(self.wire.request(stream_id, fields=(*REQUEST, *more)))
        return self.diaries[-1]

    def status(self, frames: list[Frame]) -> tuple[int, str, bool]:
        """Return grpc-status and message in the answers, and whether the last head came alone."""
        heads = [answer for answer in frames if answer.kind == codes.HEADERS]
        fields: dict[bytes, bytes] = {}
        for head in heads:
            fields.update(dict(self.wire.decoder.decode(head.payload, raw=True)))
        assert heads[-1].flags & codes.END_STREAM
        return int(fields[b"grpc-status"]), fields.get(b"grpc-message", b"").decode(), len(heads) == 1


def test_a_call_from_its_beginning_to_its_end() -> None:
    desk = Desk()
    diary = desk.open((b"x-key", b"value"))
    desk.wire.send(desk.wire.data(message(b"one") + message(b"two")), desk.wire.data(message(b""), end=True))
    assert diary.entries == [("opened", (("x-key", "value"),)), b"one", b"two", b"", "ended"]
    diary.call.send(b"a", b"bc")
    diary.call.finish()
    head, data, trailers = desk.wire.answers()
    assert data == Frame(codes.DATA, 0, 1, message(b"a") + message(b"bc"))
    assert (head.flags, trailers.flags) == (codes.END_HEADERS, codes.END_HEADERS | codes.END_STREAM)
    assert desk.wire.core.streams == {}


def test_after_the_end_nothing_has_an_effect() -> None:
    desk = Desk()
    diary = desk.open()
    diary.call.finish(StatusCode.NOT_FOUND, "gone")
    assert desk.status(desk.wire.answers()) == (5, "gone", True)
    diary.call.finish()
    diary.call.cancel()
    diary.call.resume()
    diary.call.send_initial_metadata()
    assert diary.call.send(b"x") is False
    assert desk.wire.answers() == []


def test_cancel_resets_without_a_callback() -> None:
    desk = Desk()
    diary = desk.open()
    diary.call.cancel()
    assert reset_code(desk.wire.answers()) == ErrorCode.CANCEL
    assert diary.entries == [("opened", ())]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(codes.RST_STREAM, 0, 1, uint(ErrorCode.CANCEL)), StatusCode.CANCELLED),
        (frame(codes.RST_STREAM, 0, 1, uint(ErrorCode.NO_ERROR)), StatusCode.CANCELLED),
        (frame(codes.RST_STREAM, 0, 1, uint(ErrorCode.INTERNAL_ERROR)), StatusCode.INTERNAL),
        (frame(codes.PING, 0, 0, b"bad"), StatusCode.INTERNAL),
        (frame(codes.DATA, codes.END_STREAM, 1, b"\0\0\0"), StatusCode.INTERNAL),
        (frame(codes.DATA, 0, 1, b"\0" + uint(2**30)), StatusCode.RESOURCE_EXHAUSTED),
        (frame(codes.DATA, 0, 1, message(b"x", 1)), StatusCode.INTERNAL),
        (frame(codes.DATA, 0, 1, message(b"x", 7)), StatusCode.INTERNAL),
    ],
)
def test_abort_comes_once_and_last(sent: bytes, code: StatusCode) -> None:
    desk = Desk()
    diary = desk.open()
    desk.wire.send(sent)
    desk.wire.core.lose()
    assert diary.entries == [("opened", ()), ("aborted", code)]
    assert desk.calls[0].done


def test_lost_connection_aborts_every_call() -> None:
    desk = Desk()
    diaries = [desk.open(stream_id=at) for at in (1, 3)]
    desk.wire.core.lose()
    assert [diary.entries[-1] for diary in diaries] == [("aborted", StatusCode.UNAVAILABLE)] * 2


def test_a_handler_that_raises_ends_its_call_only(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    diary = desk.open()
    diary.on_payload = lambda payload: payload[99]
    with caplog.at_level(logging.CRITICAL, "lean_grpc.server"):
        answers = desk.wire.send(desk.wire.data(message(b"one")))
    assert desk.status(answers) == (2, "the handler failed", True)
    assert diary.entries[-1] == ("aborted", StatusCode.UNKNOWN)
    assert desk.open(stream_id=3).entries == [("opened", ())]


def test_a_factory_that_raises_is_an_error_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    def broken(call: ServerCall) -> Any:
        raise ZeroDivisionError

    desk = Desk(factory=broken)
    with caplog.at_level(logging.CRITICAL, "lean_grpc.server"):
        answers = desk.wire.send(desk.wire.request())
    assert desk.status(answers)[0] == StatusCode.UNKNOWN


def test_deadline_ends_both_sides() -> None:
    desk = Desk()
    diary = desk.open((b"grpc-timeout", b"10m"))
    assert desk.calls[0].request.timeout == pytest.approx(0.01)
    desk.calls[0].expire()
    assert desk.status(desk.wire.answers())[0] == StatusCode.DEADLINE_EXCEEDED
    assert diary.entries[-1] == ("aborted", StatusCode.DEADLINE_EXCEEDED)


def test_deadline_with_unsent_data_resets() -> None:
    desk = Desk()
    diary = desk.open()
    diary.call.send(bytes(200_000))
    desk.wire.answers()
    desk.calls[0].expire()
    assert reset_code(desk.wire.answers()) == ErrorCode.CANCEL
    assert diary.entries[-1] == ("aborted", StatusCode.DEADLINE_EXCEEDED)


def test_paused_calls_hold_back_and_lose_nothing() -> None:
    desk = Desk()
    diary = desk.open()
    diary.call.pause()
    sent = [bytes((at,)) * 8_000 for at in range(8)]
    answers = desk.wire.send(*[desk.wire.data(message(payload)) for payload in sent[:7]])
    answers += desk.wire.send(desk.wire.data(message(sent[7]), end=True))
    assert [answer for answer in answers if answer.stream_id] == []
    assert diary.entries == [("opened", ())]
    diary.on_payload = lambda payload: diary.call.pause()
    diary.call.resume()
    assert diary.entries == [("opened", ()), sent[0]]
    diary.on_payload = lambda payload: None
    diary.call.resume()
    assert diary.entries == [("opened", ()), *sent, "ended"]


def test_the_window_opens_again_after_a_pause() -> None:
    desk = Desk()
    diary = desk.open()
    diary.call.pause()
    desk.wire.send(*[desk.wire.data(message(bytes(15_000)))] * 4)
    diary.call.resume()
    assert [(a.kind, a.number) for a in desk.wire.answers()] == [(codes.WINDOW_UPDATE, 60_020)]


def test_sending_without_end_to_a_peer_that_does_not_read_ends_the_call() -> None:
    desk = Desk(Limits(stream_send_limit=300_000))
    diary = desk.open()
    room = [diary.call.send(bytes(50_000)) for _ in range(20)]
    assert room[:2] == [True, True]
    assert not any(room[2:])
    assert diary.entries[-1] == ("aborted", StatusCode.RESOURCE_EXHAUSTED)
    assert desk.wire.core.outbox.pending_bytes == 0


def test_all_calls_of_a_connection_share_a_bound() -> None:
    desk = Desk(Limits(connection_send_limit=1_000_000))
    for number in range(40):
        desk.open(stream_id=2 * number + 1).call.send(bytes(60_000))
        for _ in range(3):
            desk.diaries[-1].call.send(bytes(60_000))
    assert desk.wire.core.outbox.pending_bytes <= 1_060_005
    assert ("aborted", StatusCode.RESOURCE_EXHAUSTED) in desk.diaries[-1].entries


def test_answer_larger_than_allowed_is_refused() -> None:
    desk = Desk(Limits(max_send_message=10))
    diary = desk.open()
    diary.call.send(bytes(11))
    assert desk.status(desk.wire.answers())[0] == StatusCode.RESOURCE_EXHAUSTED


def test_gzip_both_ways() -> None:
    desk = Desk()
    diary = desk.open((b"grpc-encoding", b"gzip"), (b"grpc-accept-encoding", b"identity, gzip"))
    diary.call.compress = True
    desk.wire.send(desk.wire.data(message(deflate(b"z" * 500), 1) + message(b"plain")))
    assert diary.entries[1:] == [b"z" * 500, b"plain"]
    diary.call.send(b"y" * 500)
    head, data = desk.wire.answers()
    assert (b"grpc-encoding", b"gzip") in list(desk.wire.decoder.decode(head.payload, raw=True))
    assert data.payload[0] == 1
    assert len(data.payload) < 100


def test_no_gzip_for_clients_that_do_not_take_it() -> None:
    desk = Desk()
    diary = desk.open()
    diary.call.compress = True
    diary.call.send(b"y" * 500)
    assert desk.wire.answers()[-1].payload == message(b"y" * 500)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ((b"grpc-timeout", b"soon"), StatusCode.INTERNAL),
        ((b"grpc-timeout", b"123456789S"), StatusCode.INTERNAL),
        ((b"grpc-encoding", b"br"), StatusCode.UNIMPLEMENTED),
        ((b"x-bad-bin", b"!!!"), StatusCode.INTERNAL),
        ((b"x-large", b"v" * 17_000), StatusCode.RESOURCE_EXHAUSTED),
    ],
)
def test_requests_that_cannot_be_read_are_refused(more: tuple[bytes, bytes], code: StatusCode) -> None:
    refusal = read_request(Head((*REQUEST, more), kind=Kind.REQUEST, limit=16_384)).refusal
    assert refusal is not None
    assert refusal[0] is code


def test_metadata_that_is_not_valid_is_refused_to_the_handler() -> None:
    desk = Desk()
    call = desk.open().call
    bad_keys = (("Upper", "x"), ("grpc-x", "x"), ("te", "x"))
    bad_values = (("x", "a\nb"), ("x", b"x"), ("x-bin", "x"), ("x", " x"))
    for pair in (*bad_keys, *bad_values):
        with pytest.raises(ValueError, match="metadata key"):
            call.set_initial_metadata([pair])


def test_a_peer_that_shrinks_its_window_is_waited_for() -> None:
    desk = Desk()
    diary = desk.open()
    desk.wire.send(frame(codes.SETTINGS, 0, 0, setting(codes.INITIAL_WINDOW_SIZE, 0)))
    diary.call.send(b"x" * 100)
    diary.call.finish()
    assert [answer.kind for answer in desk.wire.answers()] == [codes.HEADERS]
    answers = desk.wire.send(frame(codes.WINDOW_UPDATE, 0, 1, uint(1_000)))
    assert [answer.kind for answer in answers][:2] == [codes.DATA, codes.HEADERS]


def test_unary_refuses_what_is_no_single_message() -> None:
    for sent in ([], [b"a", b"b"]):
        desk = Desk(factory=unary_handler(lambda payload, call: payload))
        frames = [desk.wire.request(), *(desk.wire.data(message(payload)) for payload in sent)]
        answers = desk.wire.send(*frames, desk.wire.data(b"", end=True))
        assert desk.status(answers)[0] == StatusCode.INTERNAL


def test_unary_answers_with_the_status_that_it_raises() -> None:
    def refuse(payload: bytes, call: ServerCall) -> bytes:
        raise CallError(StatusCode.ALREADY_EXISTS, "twice")

    desk = Desk(factory=unary_handler(refuse))
    answers = desk.wire.send(desk.wire.request(), desk.wire.data(message(b"x"), end=True))
    assert desk.status(answers) == (6, "twice", True)


def test_a_call_that_passes_the_bound_of_unfinished_messages_ends() -> None:
    desk = Desk(Limits(connection_receive_limit=25_000))
    part = message(bytes(50_000))[:30_000]
    for number in range(6):
        stream_id = 2 * number + 1
        desk.open(stream_id=stream_id)
        desk.wire.send(desk.wire.data(part[:16_000], stream_id), desk.wire.data(part[16_000:], stream_id))
    assert desk.wire.core.held_messages.held <= 100_000
    assert [diary.entries[-1] == ("opened", ()) for diary in desk.diaries[:3]] == [True] * 3
    assert desk.diaries[3].entries[-1] == ("aborted", StatusCode.RESOURCE_EXHAUSTED)
    desk.wire.core.lose()
    assert desk.wire.core.held_messages.held == 0


class Sender:
    """Sends a message on one stream, as far as the stream's window allows."""

    def __init__(self, desk: Desk, stream_id: int, payload: bytes) -> None:
        self.desk, self.stream_id = desk, stream_id
        self.left, self.window = message(payload), desk.limits.stream_window
        desk.open(stream_id=stream_id)

    def step(self) -> list[Frame]:
        size = min(16_000, self.window)
        part, self.left = self.left[:size], self.left[size:]
        self.window -= len(part)
        return self.desk.wire.send(self.desk.wire.data(part, self.stream_id)) if part else []


@pytest.mark.parametrize("gone", [(), (0,), (0, 3)], ids=["all stay", "the first leaves", "two leave"])
def test_messages_that_are_too_much_together_come_one_after_the_other(gone: tuple[int, ...]) -> None:
    payload = bytes(300_000)
    desk = Desk(Limits(connection_receive_limit=200_000))
    senders = [Sender(desk, 2 * number + 1, payload) for number in range(8)]
    most = 0
    for turn in range(1_000):
        for sender in senders:
            for answer in sender.step():
                assert answer.kind != codes.RST_STREAM
                if answer.kind == codes.WINDOW_UPDATE and answer.stream_id:
                    senders[answer.stream_id // 2].window += int.from_bytes(answer.payload)
        most = max(most, desk.wire.core.held_messages.held)
        if turn == 10:
            for number in gone:
                senders[number].left = b""
                desk.wire.send(frame(codes.RST_STREAM, 0, 2 * number + 1, uint(ErrorCode.CANCEL)))
    for number, diary in enumerate(desk.diaries):
        assert (diary.entries[-1] == payload) == (number not in gone)
    # The limit, a window of each call, and one whole message; 2,400,040 bytes without turns.
    assert most <= 200_000 + 8 * desk.limits.stream_window + 300_005
    assert desk.wire.core.held_messages.held == 0


def test_messages_to_paused_calls_count_as_held() -> None:
    desk = Desk()
    diary = desk.open()
    diary.call.pause()
    desk.wire.send(desk.wire.data(message(bytes(5_000))))
    assert desk.wire.core.held_messages.held == 5_005
    diary.call.resume()
    assert desk.wire.core.held_messages.held == 0


def test_a_handler_that_only_answers_needs_no_back_pressure_of_its_own() -> None:
    """The client sends 400 messages and reads nothing: the bytes held are bounded, and no message is lost."""
    desk = Desk()
    diary = desk.open()
    diary.on_payload = diary.call.send
    sent = 0
    window = 65_535
    while window > 2_000:
        answers = desk.wire.send(desk.wire.data(message(bytes(1_000))))
        sent += 1
        window -= 1_005
        window += sum(answer.number for answer in answers if answer.stream_id == 1 and answer.kind == 8)
        assert sent < 400
    assert desk.wire.core.outbox.pending_bytes < 70_000
    assert len(diary.entries) < sent
    desk.wire.send(
        frame(codes.WINDOW_UPDATE, 0, 0, uint(10**6)), frame(codes.WINDOW_UPDATE, 0, 1, uint(10**6))
    )
    assert [entry for entry in diary.entries if isinstance(entry, bytes)] == [bytes(1_000)] * sent
    assert "writable" in diary.entries


def test_calls_that_are_over_leave_nothing_to_the_cycle_collector() -> None:
    desk = Desk(factory=unary_handler(lambda payload, call: payload))

    def serve(stream_id: int) -> None:
        frames = desk.wire.request(stream_id) + desk.wire.data(message(b"x"), stream_id, end=True)
        desk.wire.send(frames)
        desk.calls.clear()
        desk.diaries.clear()

    serve(1)
    gc.collect()
    gc.disable()
    try:
        for number in range(1, 50):
            serve(2 * number + 1)
        assert gc.collect() < 50
    finally:
        gc.enable()


def test_a_coroutine_whose_answer_is_no_answer_ends_its_call(caplog: pytest.LogCaptureFixture) -> None:
    async def nothing(payload: bytes, call: ServerCall) -> Any:
        return None

    async def bad_trailers(payload: bytes, call: ServerCall) -> bytes:
        raise CallError(StatusCode.NOT_FOUND, "gone", (("Not Valid", "x"),))

    async def ask(function: Any) -> list[Frame]:
        desk = Desk(factory=unary_handler(function))
        desk.open()
        desk.wire.send(desk.wire.data(message(b"x"), end=True))
        for _ in range(5):
            await asyncio.sleep(0)
        return desk.wire.answers()

    for function in (nothing, bad_trailers):
        assert asyncio.run(ask(function))[-1].flags & codes.END_STREAM
        assert caplog.text.count("a handler of /test.Service/Echo failed") == 1
        caplog.clear()


def test_a_status_that_does_not_exist_ends_the_call_as_a_fault_of_its_handler() -> None:
    desk = Desk()
    diary = desk.open()
    diary.on_payload = lambda payload: diary.call.finish(99)
    (answer,) = desk.wire.send(desk.wire.data(message(b"x")))[:1]
    assert answer.kind == codes.HEADERS
    assert answer.flags & codes.END_STREAM
    assert desk.calls[0].done


def test_a_message_that_waits_for_a_paused_handler_is_a_use_of_the_stream() -> None:
    desk = Desk()
    diary = desk.open()
    call = desk.calls[0]
    assert call.unused
    diary.call.pause()
    desk.wire.send(desk.wire.data(message(b"x")))
    assert not call.unused


def test_nothing_to_send_sends_nothing() -> None:
    desk = Desk()
    diary = desk.open()
    assert diary.call.send(b"x")
    desk.wire.answers()
    assert diary.call.send()
    assert desk.wire.answers() == []


def test_a_stream_with_nothing_unsent_is_not_blocked() -> None:
    # `writable` fires when queued data is sent: a stream with none would wait for ever.
    limits = Limits(connection_send_limit=60_000, stream_send_high=200_000)
    desk = Desk(limits)
    desk.wire.send(frame(codes.SETTINGS, 0, 0, setting(codes.INITIAL_WINDOW_SIZE, 0)))
    slow = desk.open(stream_id=1)
    assert not slow.call.send(bytes(40_000))
    quick = desk.open(stream_id=3)
    desk.wire.send(frame(codes.WINDOW_UPDATE, 0, 3, uint(1_000_000)))
    assert quick.call.send(bytes(20_000))
    assert sum(len(each.payload) for each in desk.wire.answers() if each.kind == codes.DATA) == 20_005
