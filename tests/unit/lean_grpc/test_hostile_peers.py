"""What a hostile peer gets and can make us hold: one attack a test, as in the table of docs/transport.md."""

import pytest

from http2_wire import REQUEST, Wire, goaway_code, message, reset_code, setting, uint
from lean_grpc.calls.messages import MessageReader, deflate, inflate
from lean_grpc.http2 import codes
from lean_grpc.http2.codes import PREFACE, ErrorCode, frame
from lean_grpc.http2.guard import HeldMessages
from lean_grpc.limits import Limits
from lean_grpc.status import CallError, StatusCode

OK = ((b":status", b"200"), (b"content-type", b"application/grpc"))
CALM = ErrorCode.ENHANCE_YOUR_CALM


def sent_until_closed(wire: Wire, one: bytes, most: int) -> int:
    """Send the same frame until the connection ends; return how many it took."""
    for number in range(1, most + 1):
        if goaway_code(wire.send(one)) is not None:
            return number
    pytest.fail(f"{most} of them were taken")


def test_rapid_reset_ends_the_connection() -> None:
    wire = Wire(limits=Limits(early_resets=50, max_concurrent_streams=10))
    for number in range(51):
        stream_id = 2 * number + 1
        answers = wire.send(wire.request(stream_id), frame(codes.RST_STREAM, 0, stream_id, uint(8)))
    assert goaway_code(answers) == CALM
    assert len(wire.core.streams) == 0


def test_resets_of_answered_streams_are_free() -> None:
    wire = Wire(limits=Limits(early_resets=5, max_concurrent_streams=5))
    for number in range(50):
        stream_id = 2 * number + 1
        wire.send(wire.request(stream_id))
        stream = wire.owner.streams[stream_id]
        wire.core.outbox.headers(stream, OK)
        wire.core.outbox.data(stream, [b"x"], 1)
        wire.send(frame(codes.RST_STREAM, 0, stream_id, uint(8)))
    assert wire.core.fault is None


def test_streams_made_faulty_count_like_resets() -> None:
    wire = Wire(limits=Limits(early_resets=50, max_concurrent_streams=10))
    for number in range(51):
        stream_id = 2 * number + 1
        answers = wire.send(wire.request(stream_id), frame(codes.WINDOW_UPDATE, 0, stream_id, uint(0)))
    assert goaway_code(answers) == CALM


def test_refused_streams_count_like_resets() -> None:
    wire = Wire(limits=Limits(early_resets=50, max_concurrent_streams=0))
    for number in range(51):
        answers = wire.send(wire.request(2 * number + 1))
    assert goaway_code(answers) == CALM


def test_a_sweep_resets_the_counters() -> None:
    wire = Wire(limits=Limits(unproductive_frames=10))
    for _ in range(10):
        wire.core.sweep()
        wire.send(*[frame(codes.PING, 0, 0, bytes(8))] * 10)
    assert wire.core.fault is None


def test_continuation_flood_by_size() -> None:
    wire = Wire(limits=Limits(max_header_block=20_000))
    more = frame(codes.CONTINUATION, 0, 1, bytes(10_000))
    assert goaway_code(wire.send(frame(codes.HEADERS, 0, 1, b""), more, more, more)) == CALM


def test_continuation_flood_by_number() -> None:
    wire = Wire()
    wire.send(frame(codes.HEADERS, 0, 1, b""))
    assert sent_until_closed(wire, frame(codes.CONTINUATION, 0, 1), 100) == Limits().max_continuations + 1


@pytest.mark.parametrize(
    "one",
    [
        frame(codes.SETTINGS, 0, 0, setting(codes.INITIAL_WINDOW_SIZE, 100)),
        frame(codes.SETTINGS, codes.ACK, 0),
        frame(codes.PING, 0, 0, bytes(8)),
        frame(codes.PING, codes.ACK, 0, bytes(8)),
        frame(codes.PRIORITY, 0, 1, bytes(5)),
        frame(codes.DATA, 0, 1),
        frame(codes.WINDOW_UPDATE, 0, 0, uint(1)),
        frame(codes.WINDOW_UPDATE, 0, 1, uint(1)),
        frame(codes.GOAWAY, 0, 0, bytes(8)),
        frame(0xFE, 0, 0),
    ],
    ids=[
        "settings",
        "settings-ack",
        "ping",
        "ping-ack",
        "priority",
        "empty-data",
        "window-0",
        "window-1",
        "goaway",
        "unknown",
    ],
)
def test_floods_of_unproductive_frames(one: bytes) -> None:
    wire = Wire(limits=Limits(unproductive_frames=100))
    wire.core.sweep()
    wire.send(wire.request())
    allowed = 100 + Limits().unproductive_per_useful
    assert sent_until_closed(wire, one, 1_000) == allowed + 1


def test_padding_alone_is_unproductive() -> None:
    wire = Wire(limits=Limits(unproductive_frames=100))
    wire.send(wire.request())
    padded = frame(codes.DATA, codes.PADDED, 1, b"\x00")
    assert sent_until_closed(wire, padded, 1_000) < 200


def test_window_updates_that_follow_data_are_no_flood() -> None:
    wire = Wire(limits=Limits(unproductive_frames=10))
    wire.send(wire.request())
    stream = wire.owner.streams[1]
    wire.core.outbox.headers(stream, OK)
    for _ in range(500):
        wire.core.outbox.data(stream, [bytes(100)], 100)
        wire.send(*[frame(codes.WINDOW_UPDATE, 0, at, uint(100)) for at in (0, 1)])
    assert wire.core.fault is None


def test_answers_that_are_not_read_end_the_connection() -> None:
    wire = Wire(limits=Limits(unproductive_frames=1_000_000, paused_control_bytes=10_000))
    wire.core.outbox.pause()
    ping = frame(codes.PING, 0, 0, bytes(8))
    held = 0
    while wire.core.fault is None:
        wire.core.receive(ping * 100)
        held += len(wire.core.outbox.take())
        assert held < 20_000
    assert wire.core.fault.code == CALM


def test_streams_that_are_not_read_stay_open_and_count() -> None:
    """A peer that opens streams and reads nothing stops at `max_concurrent_streams`."""
    wire = Wire(limits=Limits(max_concurrent_streams=10))
    wire.core.outbox.pause()
    for number in range(30):
        stream_id = 2 * number + 1
        wire.core.receive(wire.request(stream_id, end=True))
        if stream_id in wire.owner.streams:
            wire.core.outbox.headers(wire.owner.streams[stream_id], OK)
            wire.core.outbox.data(wire.owner.streams[stream_id], [bytes(1_000)], 1_000, True)
    assert len(wire.core.streams) == 10
    assert len(wire.core.outbox.take()) < 1_000
    wire.core.outbox.resume()
    assert len([a for a in wire.answers() if a.kind == codes.DATA]) == 10


def test_hpack_bomb_of_indexed_fields() -> None:
    wire = Wire()
    wire.send(wire.request(1, fields=(*REQUEST, (b"x-bomb", b"b" * 3_900))))
    bomb = b"\xbe" * 15_000
    assert goaway_code(wire.send(frame(codes.HEADERS, codes.END_HEADERS, 3, bomb))) == CALM


def test_header_list_beyond_the_soft_limit_is_marked() -> None:
    wire = Wire()
    wire.send(wire.request(fields=(*REQUEST, *((b"x-%d" % at, bytes(b"v" * 500)) for at in range(20)))))
    assert wire.core.fault is None
    wire = Wire(limits=Limits(max_header_list=1_000))
    wire.send(wire.request(fields=(*REQUEST, (b"x", b"v" * 2_000))))
    assert wire.core.fault is None


def test_block_of_table_updates_only() -> None:
    answers = Wire().send(frame(codes.HEADERS, codes.END_HEADERS, 1, b"\x20" * 16_000))
    assert goaway_code(answers) == ErrorCode.COMPRESSION_ERROR


def test_table_larger_than_announced() -> None:
    answers = Wire().send(frame(codes.HEADERS, codes.END_HEADERS, 1, b"\x3f\xe2\x1f"))
    assert goaway_code(answers) == ErrorCode.COMPRESSION_ERROR


def test_a_huge_table_of_the_peers_is_not_used() -> None:
    wire = Wire()
    wire.send(frame(codes.SETTINGS, 0, 0, setting(codes.HEADER_TABLE_SIZE, 2**31)))
    for number in range(200):
        stream_id = 2 * number + 1
        wire.send(wire.request(stream_id))
        wire.core.outbox.headers(
            wire.owner.streams[stream_id], (*OK, (b"x-%d" % number, b"v" * 500)), end=True
        )
        # The peer's decoder has the default size: it would not find entries that we index beyond it.
        (head,) = [a for a in wire.answers() if a.kind == codes.HEADERS]
        assert list(wire.decoder.decode(head.payload, raw=True))[-1] == (b"x-%d" % number, b"v" * 500)


def test_one_byte_at_a_time_is_the_same_as_at_once() -> None:
    wire = Wire(greet=False)
    sent = PREFACE + frame(codes.SETTINGS, 0, 0) + wire.request() + wire.data(bytes(3_000), end=True)
    for at in range(len(sent)):
        wire.core.receive(sent[at : at + 1])
    assert wire.events[0] == ("stream", 1, REQUEST, False)
    assert wire.events[1] == ("data", 1, bytes(3_000), True)


def test_a_message_of_a_gigabyte_is_refused_by_its_prefix() -> None:
    reader = MessageReader(4_194_304, HeldMessages(Limits()))
    reader.feed(b"\0" + uint(2**30), 0, 5)
    with pytest.raises(CallError) as refused:
        reader.next()
    assert refused.value.code is StatusCode.RESOURCE_EXHAUSTED


def test_a_gzip_bomb_is_stopped_at_the_limit() -> None:
    with pytest.raises(CallError) as refused:
        inflate(deflate(bytes(50_000_000)), 1_000)
    assert refused.value.code is StatusCode.RESOURCE_EXHAUSTED


def test_garbage_after_the_preface() -> None:
    wire = Wire(greet=False)
    assert goaway_code(wire.send(PREFACE, b"\xff" * 40)) in (
        ErrorCode.PROTOCOL_ERROR,
        ErrorCode.FRAME_SIZE_ERROR,
    )
    assert wire.send(wire.request()) == []


def test_a_window_of_one_byte_sends_one_byte() -> None:
    wire = Wire()
    wire.send(frame(codes.SETTINGS, 0, 0, setting(codes.INITIAL_WINDOW_SIZE, 0)), wire.request())
    stream = wire.owner.streams[1]
    wire.core.outbox.headers(stream, OK)
    wire.answers()
    wire.core.outbox.data(stream, [bytes(50_000)], 50_000)
    for _ in range(20):
        (answer,) = wire.send(frame(codes.WINDOW_UPDATE, 0, 1, uint(1)))
        assert answer.payload == b"\0"
    assert stream.pending_bytes == 50_000 - 20


def test_send_is_refused_at_the_high_mark_and_writable_at_the_low() -> None:
    wire = Wire()
    wire.send(wire.request())
    stream = wire.owner.streams[1]
    wire.core.outbox.headers(stream, OK)
    sends = [wire.core.outbox.data(stream, [bytes(30_000)], 30_000) for _ in range(5)]
    assert sends == [True, True, True, True, False]
    wire.answers()
    wire.send(frame(codes.WINDOW_UPDATE, 0, 0, uint(100_000)))
    wire.send(frame(codes.WINDOW_UPDATE, 0, 1, uint(50_000)))
    assert ("writable", 1) not in wire.events
    wire.send(frame(codes.WINDOW_UPDATE, 0, 1, uint(40_000)))
    assert wire.events[-1] == ("writable", 1)


def test_message_across_many_frames_is_cheap_to_collect() -> None:
    reader = MessageReader(4_194_304, HeldMessages(Limits()))
    whole = message(bytes(4_000_000))
    for at in range(0, len(whole), 100):
        assert reader.next() is None
        reader.settle()
        reader.feed(whole[at : at + 100], 0, len(whole[at : at + 100]))
    assert reader.next() == bytes(4_000_000)


def test_a_short_message_after_a_long_one_is_not_waited_for_longer_than_itself() -> None:
    reader = MessageReader(4_194_304, HeldMessages(Limits()))
    wire = message(bytes(1_000)) + message(b"short")
    reader.feed(wire, 0, 10)
    assert reader.next() is None
    reader.settle()
    reader.feed(wire, 10, len(wire) - 3)
    assert reader.next() == bytes(1_000)  # the receiver pauses here: it does not ask for the next one
    reader.settle()
    reader.feed(wire, len(wire) - 3, len(wire))
    assert reader.next() == b"short"


def test_a_reset_in_the_midst_of_a_queue_drops_it() -> None:
    wire = Wire()
    wire.send(wire.request())
    stream = wire.owner.streams[1]
    wire.core.outbox.headers(stream, OK)
    wire.core.outbox.data(stream, [bytes(500_000)], 500_000)
    wire.send(frame(codes.RST_STREAM, 0, 1, uint(8)))
    wire.answers()
    assert stream.pending_bytes == 0
    assert wire.core.outbox.waiting == {}
    assert reset_code(wire.send(frame(codes.WINDOW_UPDATE, 0, 0, uint(900_000)))) is None


def test_windows_opened_by_the_byte_are_a_flood() -> None:
    wire = Wire(limits=Limits(unproductive_frames=100))
    wire.send(frame(codes.SETTINGS, 0, 0, setting(codes.INITIAL_WINDOW_SIZE, 0)), wire.request())
    stream = wire.owner.streams[1]
    wire.core.outbox.headers(stream, OK)
    wire.core.outbox.data(stream, [bytes(50_000)], 50_000)
    assert sent_until_closed(wire, frame(codes.WINDOW_UPDATE, 0, 1, uint(1)), 1_000) < 200


def test_all_streams_may_be_reset_at_once() -> None:
    wire = Wire(limits=Limits(early_resets=0, max_concurrent_streams=100))
    wire.send(*(wire.request(2 * number + 1) for number in range(100)))
    wire.send(*(frame(codes.RST_STREAM, 0, 2 * number + 1, uint(8)) for number in range(100)))
    assert wire.core.fault is None


def test_frames_that_touch_many_streams_count_for_more() -> None:
    change = [frame(codes.SETTINGS, 0, 0, setting(codes.INITIAL_WINDOW_SIZE, size)) for size in (0, 1)]
    wire = Wire(limits=Limits(unproductive_frames=1_000))
    wire.send(change[0], *(wire.request(2 * number + 1) for number in range(640)))
    for number in range(640):
        stream = wire.owner.streams[2 * number + 1]
        wire.core.outbox.headers(stream, OK)
        wire.core.outbox.data(stream, [b"x"], 1)
    wire.core.sweep()
    taken = 0
    while wire.core.fault is None:
        wire.send(frame(codes.WINDOW_UPDATE, 0, 0, uint(1)))
        taken += 1
    assert taken < 100
    wire = Wire(limits=Limits(unproductive_frames=1_000))
    wire.send(*(wire.request(2 * number + 1) for number in range(640)))
    wire.core.sweep()
    taken = 0
    while wire.core.fault is None:
        wire.send(change[taken % 2])
        taken += 1
    assert taken < 100
