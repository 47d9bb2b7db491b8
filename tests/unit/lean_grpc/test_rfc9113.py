"""Conformance of the sans-IO core, case by case, named by the section of RFC 9113 that asks for it."""

import pytest

from http2_wire import REQUEST, Frame, Wire, goaway_code, message, reset_code, setting, uint
from lean_grpc.http2 import codes
from lean_grpc.http2.codes import PREFACE, ErrorCode, frame
from lean_grpc.http2.errors import MisuseError
from lean_grpc.limits import Limits

OK = ((b":status", b"200"), (b"content-type", b"application/grpc"))


def opened() -> Wire:
    """Return a server with stream 1 open."""
    wire = Wire()
    wire.send(wire.request())
    return wire


# 3.4 HTTP/2 connection preface


def test_3_4_server_begins_with_settings_and_acknowledges_the_clients() -> None:
    wire = Wire(greet=False)
    answers = wire.send(PREFACE + frame(codes.SETTINGS, 0, 0, setting(codes.INITIAL_WINDOW_SIZE, 70_000)))
    assert wire.opening[3] == codes.SETTINGS
    assert answers == [Frame(codes.SETTINGS, codes.ACK, 0, b"")]


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 24, PREFACE[:-1] + b"x", b"\x16\x03\x01"]
)
def test_3_4_anything_but_the_preface_ends_the_connection(garbage: bytes) -> None:
    wire = Wire(greet=False)
    assert goaway_code(wire.send(garbage)) == ErrorCode.PROTOCOL_ERROR


def test_3_4_first_frame_must_be_settings() -> None:
    wire = Wire(greet=False)
    assert goaway_code(wire.send(PREFACE, wire.request())) == ErrorCode.PROTOCOL_ERROR


def test_3_4_first_frame_must_not_be_an_acknowledgement() -> None:
    wire = Wire(greet=False)
    assert goaway_code(wire.send(PREFACE, frame(codes.SETTINGS, codes.ACK, 0))) == ErrorCode.PROTOCOL_ERROR


def test_3_4_client_begins_with_the_preface() -> None:
    assert Wire(server=False, greet=False).opening.startswith(PREFACE)


# 4.1, 4.2 frame format and size


def test_4_1_unknown_frame_types_are_ignored() -> None:
    wire = Wire()
    assert wire.send(frame(0xFE, 0xFF, 0, b"whatever")) == []
    assert wire.core.fault is None


def test_4_1_undefined_flags_and_the_reserved_bit_are_ignored() -> None:
    wire = Wire()
    ping = bytearray(frame(codes.PING, 0xFE, 0, b"12345678"))
    ping[5] |= 0x80
    assert wire.send(bytes(ping)) == [Frame(codes.PING, codes.ACK, 0, b"12345678")]


@pytest.mark.parametrize("kind", [codes.DATA, codes.HEADERS, codes.PING, 0xFE])
def test_4_2_frame_beyond_max_frame_size_ends_the_connection(kind: int) -> None:
    wire = opened()
    header = bytes((0, 0x40, 1, kind, 0)) + uint(1)
    assert goaway_code(wire.send(header)) == ErrorCode.FRAME_SIZE_ERROR


def test_4_2_frame_of_max_frame_size_is_taken() -> None:
    wire = opened()
    wire.send(wire.data(bytes(16_384)))
    assert wire.events[-1] == ("data", 1, bytes(16_384), False)


# 4.3 field section compression


def test_4_3_undecodable_block_is_a_compression_error() -> None:
    wire = Wire()
    answers = wire.send(frame(codes.HEADERS, codes.END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"))
    assert goaway_code(answers) == ErrorCode.COMPRESSION_ERROR


def test_4_3_index_outside_the_table_is_a_compression_error() -> None:
    wire = Wire()
    assert goaway_code(wire.send(frame(codes.HEADERS, 4, 1, b"\xfe"))) == ErrorCode.COMPRESSION_ERROR


@pytest.mark.parametrize("kind", [codes.DATA, codes.PING, codes.HEADERS, codes.PRIORITY, 0xFE])
def test_4_3_header_block_must_not_be_interrupted(kind: int) -> None:
    wire = Wire()
    answers = wire.send(frame(codes.HEADERS, 0, 1, wire.block(*REQUEST)), frame(kind, 0, 1, bytes(8)))
    assert goaway_code(answers) == ErrorCode.PROTOCOL_ERROR


def test_4_3_continuation_of_another_stream_interrupts_too() -> None:
    wire = Wire()
    answers = wire.send(frame(codes.HEADERS, 0, 1, wire.block(*REQUEST)), frame(codes.CONTINUATION, 4, 3))
    assert goaway_code(answers) == ErrorCode.PROTOCOL_ERROR


def test_4_3_refused_streams_still_change_the_table() -> None:
    wire = Wire(limits=Limits(max_concurrent_streams=1))
    wire.send(wire.request(1))
    custom = (*REQUEST, (b"x-first", b"seen once"))
    assert reset_code(wire.send(wire.request(3, fields=custom)), 3) == ErrorCode.REFUSED_STREAM
    wire.send(frame(codes.RST_STREAM, 0, 1, uint(8)))
    wire.send(wire.request(5, fields=custom))
    assert wire.events[-1] == ("stream", 5, custom, False)


# 5.1 stream states


@pytest.mark.parametrize(
    "sent",
    [
        frame(codes.DATA, 0, 1, b"x"),
        frame(codes.RST_STREAM, 0, 1, uint(8)),
        frame(codes.WINDOW_UPDATE, 0, 1, uint(1)),
        frame(codes.CONTINUATION, codes.END_HEADERS, 1),
        frame(codes.DATA, 0, 2, b"x"),
    ],
)
def test_5_1_idle_streams_take_headers_and_priority_only(sent: bytes) -> None:
    assert goaway_code(Wire().send(sent)) == ErrorCode.PROTOCOL_ERROR


def test_5_1_half_closed_remote_takes_no_data() -> None:
    wire = Wire()
    wire.send(wire.request(end=True))
    assert reset_code(wire.send(wire.data(b"x"))) == ErrorCode.STREAM_CLOSED
    assert wire.events[-1] == ("reset", 1, ErrorCode.STREAM_CLOSED, True)


def test_5_1_half_closed_remote_takes_no_headers() -> None:
    wire = Wire()
    wire.send(wire.request(end=True))
    assert reset_code(wire.send(wire.request(end=True))) == ErrorCode.STREAM_CLOSED


def test_5_1_half_closed_remote_takes_window_updates_and_resets() -> None:
    wire = Wire()
    wire.send(wire.request(end=True))
    assert wire.send(frame(codes.WINDOW_UPDATE, 0, 1, uint(10))) == []
    assert wire.send(frame(codes.RST_STREAM, 0, 1, uint(8))) == []
    assert wire.events[-1] == ("reset", 1, ErrorCode.CANCEL, True)


@pytest.mark.parametrize("kind", [codes.DATA, codes.HEADERS])
def test_5_1_closed_by_both_sides_takes_nothing(kind: int) -> None:
    wire = Wire()
    wire.send(wire.request(end=True))
    wire.core.outbox.headers(wire.owner.streams[1], OK, end=True)
    late = wire.data(b"x") if kind == codes.DATA else wire.request(end=True)
    assert goaway_code(wire.send(late)) == ErrorCode.STREAM_CLOSED


def test_5_1_after_our_reset_late_frames_are_ignored() -> None:
    wire = opened()
    wire.core.reset(wire.owner.streams[1], ErrorCode.CANCEL)
    assert reset_code(wire.answers()) == ErrorCode.CANCEL
    late = (
        wire.data(b"x"),
        frame(codes.WINDOW_UPDATE, 0, 1, uint(1)),
        frame(codes.RST_STREAM, 0, 1, uint(8)),
    )
    assert wire.send(*late, wire.request(end=True)) == []
    assert wire.core.fault is None


def test_5_1_after_the_peers_reset_data_is_a_stream_error() -> None:
    wire = opened()
    wire.send(frame(codes.RST_STREAM, 0, 1, uint(8)))
    assert reset_code(wire.send(wire.data(b"x"))) == ErrorCode.STREAM_CLOSED
    assert wire.core.fault is None


def test_5_1_local_side_cannot_send_after_its_end() -> None:
    wire = opened()
    stream = wire.owner.streams[1]
    wire.core.outbox.headers(stream, OK)
    wire.core.outbox.headers(stream, OK, end=True)
    with pytest.raises(MisuseError):
        wire.core.outbox.data(stream, [b"x"], 1)
    with pytest.raises(MisuseError):
        wire.core.outbox.headers(stream, OK)


# 5.1.1 stream identifiers, 5.1.2 concurrency


def test_5_1_1_even_ids_are_not_the_clients() -> None:
    wire = Wire()
    assert goaway_code(wire.send(wire.request(2))) == ErrorCode.PROTOCOL_ERROR


def test_5_1_1_ids_only_grow() -> None:
    wire = Wire()
    assert goaway_code(wire.send(wire.request(5), wire.request(3))) == ErrorCode.PROTOCOL_ERROR


def test_5_1_1_headers_on_stream_0_end_the_connection() -> None:
    wire = Wire()
    assert goaway_code(wire.send(wire.request(0))) == ErrorCode.PROTOCOL_ERROR


def test_5_1_2_streams_above_the_limit_are_refused() -> None:
    wire = Wire(limits=Limits(max_concurrent_streams=2))
    answers = wire.send(wire.request(1), wire.request(3), wire.request(5))
    assert [(a.kind, a.stream_id, a.number) for a in answers] == [
        (codes.RST_STREAM, 5, ErrorCode.REFUSED_STREAM)
    ]


def test_5_1_2_client_keeps_to_the_servers_limit() -> None:
    wire = Wire(server=False)
    wire.send(frame(codes.SETTINGS, 0, 0, setting(codes.MAX_CONCURRENT_STREAMS, 0)))
    assert not wire.core.can_open


# 5.3, 6.3 priority


def test_5_3_priority_is_ignored_in_every_state() -> None:
    wire = Wire()
    signal = uint(0) + b"\x10"
    assert wire.send(frame(codes.PRIORITY, 0, 1, signal), wire.request(1)) == []
    assert wire.send(frame(codes.PRIORITY, 0, 1, signal), frame(codes.PRIORITY, 0, 99, signal)) == []


def test_6_3_priority_of_wrong_size_is_a_stream_error() -> None:
    wire = opened()
    assert reset_code(wire.send(frame(codes.PRIORITY, 0, 1, b"abc"))) == ErrorCode.FRAME_SIZE_ERROR


def test_6_3_priority_on_stream_0_ends_the_connection() -> None:
    assert goaway_code(Wire().send(frame(codes.PRIORITY, 0, 0, bytes(5)))) == ErrorCode.PROTOCOL_ERROR


# 6.1 DATA


def test_6_1_padding_is_removed_and_counts_against_the_window() -> None:
    wire = opened()
    wire.send(frame(codes.DATA, codes.PADDED, 1, b"\x03abc" + bytes(3)))
    assert wire.events[-1] == ("data", 1, b"abc", False)
    assert wire.owner.streams[1].recv_window == Limits().stream_window - 7


@pytest.mark.parametrize("payload", [b"\x01", b"\x05abc"])
def test_6_1_padding_as_long_as_the_payload_ends_the_connection(payload: bytes) -> None:
    wire = opened()
    assert goaway_code(wire.send(frame(codes.DATA, codes.PADDED, 1, payload))) == ErrorCode.PROTOCOL_ERROR


def test_6_1_padded_frame_without_length_is_a_size_error() -> None:
    wire = opened()
    assert goaway_code(wire.send(frame(codes.DATA, codes.PADDED, 1))) == ErrorCode.FRAME_SIZE_ERROR


def test_6_1_data_on_stream_0_ends_the_connection() -> None:
    assert goaway_code(Wire().send(frame(codes.DATA, 0, 0, b"x"))) == ErrorCode.PROTOCOL_ERROR


# 6.2 HEADERS, 6.10 CONTINUATION


def test_6_2_padding_and_priority_are_removed() -> None:
    wire = Wire()
    payload = b"\x02" + uint(0) + b"\x01" + wire.block(*REQUEST) + bytes(2)
    flags = codes.END_HEADERS | codes.PADDED | codes.PRIORITISED
    wire.send(frame(codes.HEADERS, flags, 1, payload))
    assert wire.events == [("stream", 1, REQUEST, False)]


def test_6_2_padding_beyond_the_payload_ends_the_connection() -> None:
    wire = Wire()
    sent = frame(codes.HEADERS, codes.END_HEADERS | codes.PADDED, 1, b"\xff" + wire.block(*REQUEST))
    assert goaway_code(wire.send(sent)) == ErrorCode.PROTOCOL_ERROR


def test_6_2_too_short_for_its_priority_is_a_size_error() -> None:
    sent = frame(codes.HEADERS, codes.END_HEADERS | codes.PRIORITISED, 1, b"abc")
    assert goaway_code(Wire().send(sent)) == ErrorCode.FRAME_SIZE_ERROR


def test_6_10_a_block_may_be_continued() -> None:
    wire = Wire()
    block = wire.block(*REQUEST)
    wire.send(
        frame(codes.HEADERS, codes.END_STREAM, 1, block[:3]),
        frame(codes.CONTINUATION, 0, 1, block[3:9]),
        frame(codes.CONTINUATION, 0, 1),
        frame(codes.CONTINUATION, codes.END_HEADERS, 1, block[9:]),
    )
    assert wire.events == [("stream", 1, REQUEST, True)]


def test_6_10_continuation_without_a_block_ends_the_connection() -> None:
    wire = opened()
    assert goaway_code(wire.send(frame(codes.CONTINUATION, 4, 1))) == ErrorCode.PROTOCOL_ERROR


# 6.4 RST_STREAM


def test_6_4_reset_reaches_the_owner_with_its_code() -> None:
    wire = opened()
    wire.send(frame(codes.RST_STREAM, 0, 1, uint(ErrorCode.REFUSED_STREAM)))
    assert wire.events[-1] == ("reset", 1, ErrorCode.REFUSED_STREAM, False)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(codes.RST_STREAM, 0, 0, uint(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(codes.RST_STREAM, 0, 1, b"abc"), ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_6_4_bad_resets_end_the_connection(sent: bytes, code: ErrorCode) -> None:
    assert goaway_code(opened().send(sent)) == code


# 6.5 SETTINGS


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(codes.SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
        (frame(codes.SETTINGS, codes.ACK, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(codes.SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(codes.SETTINGS, 0, 0, setting(codes.ENABLE_PUSH, 2)), ErrorCode.PROTOCOL_ERROR),
        (
            frame(codes.SETTINGS, 0, 0, setting(codes.INITIAL_WINDOW_SIZE, 2**31)),
            ErrorCode.FLOW_CONTROL_ERROR,
        ),
        (frame(codes.SETTINGS, 0, 0, setting(codes.MAX_FRAME_SIZE, 16_383)), ErrorCode.PROTOCOL_ERROR),
        (frame(codes.SETTINGS, 0, 0, setting(codes.MAX_FRAME_SIZE, 2**24)), ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_6_5_bad_settings_end_the_connection(sent: bytes, code: ErrorCode) -> None:
    assert goaway_code(Wire().send(sent)) == code


def test_6_5_2_unknown_settings_are_ignored_and_acknowledged() -> None:
    answers = Wire().send(frame(codes.SETTINGS, 0, 0, setting(0xFEFE, 1)))
    assert answers == [Frame(codes.SETTINGS, codes.ACK, 0, b"")]


def test_6_5_2_a_server_must_not_allow_push() -> None:
    wire = Wire(server=False)
    sent = frame(codes.SETTINGS, 0, 0, setting(codes.ENABLE_PUSH, 1))
    assert goaway_code(wire.send(sent)) == ErrorCode.PROTOCOL_ERROR


def test_6_5_3_table_size_changes_are_signalled_in_the_next_block() -> None:
    wire = opened()
    wire.send(frame(codes.SETTINGS, 0, 0, setting(1, 0) + setting(1, 100)))
    wire.core.outbox.headers(wire.owner.streams[1], OK)
    block = wire.answers()[-1].payload
    assert block[:2] == b"\x20\x3f"
    assert wire.decoder.decode(block, raw=True) == list(OK)
    wire.send(wire.request(3))
    wire.core.outbox.headers(wire.owner.streams[3], OK)
    assert wire.answers()[-1].payload[0] & 0xE0 != 0x20


# 6.6 PUSH_PROMISE, 6.7 PING


@pytest.mark.parametrize("server", [True, False])
def test_6_6_push_promise_ends_the_connection(server: bool) -> None:
    sent = frame(codes.PUSH_PROMISE, codes.END_HEADERS, 1, uint(2))
    assert goaway_code(Wire(server=server).send(sent)) == ErrorCode.PROTOCOL_ERROR


def test_6_7_ping_is_answered_with_its_payload() -> None:
    assert Wire().send(frame(codes.PING, 0, 0, b"abcdefgh")) == [Frame(codes.PING, 1, 0, b"abcdefgh")]


def test_6_7_acknowledgement_is_not_answered() -> None:
    wire = Wire()
    assert wire.send(frame(codes.PING, codes.ACK, 0, b"abcdefgh")) == []
    assert wire.events == [("ping", b"abcdefgh")]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(codes.PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(codes.PING, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_6_7_bad_pings_end_the_connection(sent: bytes, code: ErrorCode) -> None:
    assert goaway_code(Wire().send(sent)) == code


# 6.8 GOAWAY


def test_6_8_graceful_drain_names_the_right_last_stream() -> None:
    wire = opened()
    wire.core.announce_drain()
    first, ping = wire.answers()
    assert (first.number, ping.kind) == (codes.LARGEST_STREAM_ID, codes.PING)
    wire.send(wire.request(3))
    wire.core.drain()
    assert [answer.number for answer in wire.answers()] == [3]
    wire.send(wire.request(5), wire.data(b"x", 5))
    assert [event[1] for event in wire.events if event[0] == "stream"] == [1, 3]
    assert not wire.core.finished
    for stream in list(wire.core.streams.values()):
        wire.core.reset(stream, ErrorCode.CANCEL)
    assert wire.core.finished
    assert wire.core.fault is None


def test_6_8_connection_errors_name_the_last_stream_taken() -> None:
    wire = Wire()
    answers = wire.send(wire.request(1), wire.request(7), frame(codes.PING, 0, 0, b"bad"))
    assert answers[-1].number == 7
    assert [event for event in wire.events if event[0] == "reset"] == [
        ("reset", 1, ErrorCode.FRAME_SIZE_ERROR, True),
        ("reset", 7, ErrorCode.FRAME_SIZE_ERROR, True),
    ]


def test_6_8_client_learns_which_streams_were_not_processed() -> None:
    wire = Wire(server=False)
    for _ in range(3):
        wire.open()
    wire.send(frame(codes.GOAWAY, 0, 0, uint(3) + uint(0)))
    assert [event for event in wire.events if event[0] in ("reset", "goaway")] == [
        ("reset", 5, ErrorCode.REFUSED_STREAM, False),
        ("goaway", ErrorCode.NO_ERROR),
    ]
    assert not wire.core.can_open
    assert sorted(wire.core.streams) == [1, 3]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(codes.GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(codes.GOAWAY, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_6_8_bad_goaways_end_the_connection(sent: bytes, code: ErrorCode) -> None:
    assert goaway_code(Wire().send(sent)) == code


# 6.9 WINDOW_UPDATE and flow control


def test_6_9_zero_increment_on_a_stream_is_a_stream_error() -> None:
    assert reset_code(opened().send(frame(codes.WINDOW_UPDATE, 0, 1, uint(0)))) == ErrorCode.PROTOCOL_ERROR


def test_6_9_zero_increment_on_the_connection_ends_it() -> None:
    assert goaway_code(Wire().send(frame(codes.WINDOW_UPDATE, 0, 0, uint(0)))) == ErrorCode.PROTOCOL_ERROR


def test_6_9_wrong_size_ends_the_connection() -> None:
    assert goaway_code(Wire().send(frame(codes.WINDOW_UPDATE, 0, 0, b"abc"))) == ErrorCode.FRAME_SIZE_ERROR


def test_6_9_1_overflow_on_a_stream_is_a_stream_error() -> None:
    sent = frame(codes.WINDOW_UPDATE, 0, 1, uint(2**31 - 1))
    assert reset_code(opened().send(sent)) == ErrorCode.FLOW_CONTROL_ERROR


def test_6_9_1_overflow_on_the_connection_ends_it() -> None:
    sent = frame(codes.WINDOW_UPDATE, 0, 0, uint(2**31 - 1))
    assert goaway_code(Wire().send(sent)) == ErrorCode.FLOW_CONTROL_ERROR


def test_6_9_1_data_beyond_the_streams_window_is_a_stream_error() -> None:
    wire = opened()
    wire.owner.consume = False
    answers = wire.send(*[wire.data(bytes(16_384))] * 4)
    assert reset_code(answers) == ErrorCode.FLOW_CONTROL_ERROR


def test_6_9_2_initial_window_of_the_peer_rules_what_goes() -> None:
    wire = Wire()
    wire.send(frame(codes.SETTINGS, 0, 0, setting(codes.INITIAL_WINDOW_SIZE, 3)), wire.request())
    stream = wire.owner.streams[1]
    wire.core.outbox.headers(stream, OK)
    wire.core.outbox.data(stream, [b"abcdefgh"], 8, True)
    sent = [answer for answer in wire.answers() if answer.kind == codes.DATA]
    assert sent == [Frame(codes.DATA, 0, 1, b"abc")]
    assert wire.send(frame(codes.WINDOW_UPDATE, 0, 1, uint(2))) == [Frame(codes.DATA, 0, 1, b"de")]
    raised = wire.send(frame(codes.SETTINGS, 0, 0, setting(codes.INITIAL_WINDOW_SIZE, 100)))
    # The peer enforces the old window until it has the acknowledgement, so the acknowledgement goes first.
    assert raised[0] == Frame(codes.SETTINGS, codes.ACK, 0, b"")
    assert raised[1] == Frame(codes.DATA, codes.END_STREAM, 1, b"fgh")


def test_6_9_2_a_window_may_become_negative() -> None:
    wire = opened()
    stream = wire.owner.streams[1]
    wire.core.outbox.headers(stream, OK)
    wire.core.outbox.data(stream, [bytes(100)], 100)
    wire.send(frame(codes.SETTINGS, 0, 0, setting(codes.INITIAL_WINDOW_SIZE, 50)))
    assert stream.send_window == -50
    wire.core.outbox.data(stream, [b"later"], 5)
    assert wire.send(frame(codes.WINDOW_UPDATE, 0, 1, uint(50))) == []
    assert wire.send(frame(codes.WINDOW_UPDATE, 0, 1, uint(5))) == [Frame(codes.DATA, 0, 1, b"later")]


def test_6_9_2_settings_that_overflow_a_window_end_the_connection() -> None:
    wire = opened()
    wire.send(frame(codes.WINDOW_UPDATE, 0, 1, uint(2**31 - 1 - 65_535)))
    sent = frame(codes.SETTINGS, 0, 0, setting(codes.INITIAL_WINDOW_SIZE, 65_536))
    assert goaway_code(wire.send(sent)) == ErrorCode.FLOW_CONTROL_ERROR


def test_6_9_1_an_empty_frame_passes_a_shut_window() -> None:
    wire = Wire()
    wire.send(frame(codes.SETTINGS, 0, 0, setting(codes.INITIAL_WINDOW_SIZE, 0)), wire.request())
    stream = wire.owner.streams[1]
    wire.core.outbox.headers(stream, OK)
    wire.answers()
    wire.core.outbox.data(stream, [], 0, True)
    assert wire.answers()[0] == Frame(codes.DATA, codes.END_STREAM, 1, b"")


def test_6_9_windows_open_by_consumption() -> None:
    wire = opened()
    wire.owner.consume = False
    answers = wire.send(*[wire.data(bytes(16_000))] * 4)
    assert [a for a in answers if a.stream_id] == []
    wire.core.consume(wire.owner.streams[1], 48_000)
    assert [(a.kind, a.stream_id, a.number) for a in wire.answers()] == [(codes.WINDOW_UPDATE, 1, 48_000)]


def test_6_9_a_waiting_stream_does_not_stop_its_neighbours() -> None:
    wire = Wire(limits=Limits(connection_window=65_535))
    wire.owner.consume = False
    updates = []
    for stream_id in range(1, 21, 2):
        answers = wire.send(wire.request(stream_id), *[wire.data(bytes(16_000), stream_id)] * 4)
        updates += [answer for answer in answers if answer.stream_id == 0]
    assert wire.core.fault is None
    assert sum(answer.number for answer in updates) > 500_000


# 8.1 messages, 8.2, 8.3 fields


def fields_without(name: bytes) -> tuple[tuple[bytes, bytes], ...]:
    return tuple(field for field in REQUEST if field[0] != name)


MALFORMED = {
    "upper-case name": (*REQUEST, (b"X-Upper", b"1")),
    "space in name": (*REQUEST, (b"x y", b"1")),
    "empty name": (*REQUEST, (b"", b"1")),
    "newline in value": (*REQUEST, (b"x", b"a\nb")),
    "nul in value": (*REQUEST, (b"x", b"a\0b")),
    "outer space in value": (*REQUEST, (b"x", b" a")),
    "connection": (*REQUEST, (b"connection", b"close")),
    "transfer-encoding": (*REQUEST, (b"transfer-encoding", b"chunked")),
    "te": (*fields_without(b"te"), (b"te", b"gzip")),
    "pseudo after regular": (*REQUEST, (b":authority", b"x")),
    "unknown pseudo": ((b":what", b"x"), *REQUEST),
    "response pseudo": ((b":status", b"200"), *REQUEST),
    "two paths": ((b":path", b"/a"), *REQUEST),
    "no method": fields_without(b":method"),
    "no scheme": fields_without(b":scheme"),
    "no path": fields_without(b":path"),
    "empty path": ((b":path", b""), *fields_without(b":path")),
    "bad content-length": (*REQUEST, (b"content-length", b"x")),
    "two content-lengths": (*REQUEST, (b"content-length", b"1"), (b"content-length", b"2")),
    "connect with path": ((b":method", b"CONNECT"), (b":path", b"/"), (b":authority", b"x")),
}


@pytest.mark.parametrize("fields", MALFORMED.values(), ids=MALFORMED.keys())
def test_8_1_1_malformed_requests_are_stream_errors(fields: tuple[tuple[bytes, bytes], ...]) -> None:
    wire = Wire()
    assert reset_code(wire.send(wire.request(fields=fields))) == ErrorCode.PROTOCOL_ERROR
    wire.send(wire.request(3))
    assert wire.events == [("stream", 3, REQUEST, False)]


@pytest.mark.parametrize("sent", [b"abc", b"abcdef"])
def test_8_1_1_content_length_must_match(sent: bytes) -> None:
    wire = Wire()
    wire.send(wire.request(fields=(*REQUEST, (b"content-length", b"4"))))
    assert reset_code(wire.send(wire.data(sent, end=True))) == ErrorCode.PROTOCOL_ERROR


def test_8_1_trailers_must_end_the_stream() -> None:
    wire = opened()
    sent = frame(codes.HEADERS, codes.END_HEADERS, 1, wire.block((b"x", b"1")))
    assert reset_code(wire.send(sent)) == ErrorCode.PROTOCOL_ERROR


def test_8_1_trailers_have_no_pseudo_fields() -> None:
    wire = opened()
    assert reset_code(wire.send(wire.request(end=True))) == ErrorCode.PROTOCOL_ERROR


def test_8_1_trailers_are_taken() -> None:
    wire = opened()
    wire.send(frame(codes.HEADERS, codes.END_HEADERS | codes.END_STREAM, 1, wire.block((b"x", b"1"))))
    assert wire.events[-1] == ("headers", 1, ((b"x", b"1"),), True)


def test_8_1_server_may_answer_before_the_request_ends() -> None:
    wire = opened()
    wire.core.outbox.headers(wire.owner.streams[1], OK, end=True)
    answers = wire.answers()
    assert [a.kind for a in answers] == [codes.HEADERS, codes.RST_STREAM]
    assert reset_code(answers) == ErrorCode.NO_ERROR
    assert wire.send(wire.data(b"late", end=True)) == []


def client() -> Wire:
    wire = Wire(server=False)
    wire.open()
    wire.answers()
    return wire


def response(wire: Wire, *fields: tuple[bytes, bytes], end: bool = False) -> bytes:
    return frame(codes.HEADERS, codes.END_HEADERS | end, 1, wire.block(*fields))


def test_8_1_informational_heads_come_before_the_final_one() -> None:
    wire = client()
    early = (b":status", b"103")
    wire.send(response(wire, early), response(wire, early), response(wire, *OK))
    assert [event[2] for event in wire.events] == [(early,), (early,), OK]
    wire.send(response(wire, (b"grpc-status", b"0"), end=True))
    assert wire.events[-1] == ("headers", 1, ((b"grpc-status", b"0"),), True)


def test_8_1_informational_head_must_not_end_the_stream() -> None:
    wire = client()
    assert reset_code(wire.send(response(wire, (b":status", b"100"), end=True))) == ErrorCode.PROTOCOL_ERROR


def test_8_1_data_before_a_final_head_is_a_stream_error() -> None:
    wire = client()
    assert reset_code(wire.send(wire.data(b"x"))) == ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("fields", [(), ((b":status", b"20"),), ((b":status", b"x00"),), ((b":path", b"/"),)])
def test_8_3_2_responses_have_a_status(fields: tuple[tuple[bytes, bytes], ...]) -> None:
    wire = client()
    assert reset_code(wire.send(response(wire, *fields))) == ErrorCode.PROTOCOL_ERROR


def test_8_1_late_answers_to_cancelled_calls_are_ignored_however_many() -> None:
    wire = Wire(server=False)
    for _ in range(400):
        wire.core.reset(wire.open(), ErrorCode.CANCEL)
    wire.answers()
    late = [frame(codes.HEADERS, 4, at * 2 + 1, wire.block(*OK)) for at in range(400)]
    assert wire.send(*late, wire.data(message(b"x"))) == []
    assert wire.core.fault is None


def test_6_5_3_only_the_smallest_and_the_last_table_size_are_signalled() -> None:
    """RFC 7541, 4.2: a size between them may exceed what the peer still allows."""
    wire = opened()
    for size in (300, 4_096, 200, 2_000, 1_000):
        wire.send(frame(codes.SETTINGS, 0, 0, setting(codes.HEADER_TABLE_SIZE, size)))
    wire.core.outbox.headers(wire.owner.streams[1], OK)
    block = wire.answers()[-1].payload
    wire.decoder.max_allowed_table_size = 1_000
    assert list(wire.decoder.decode(block, raw=True)) == list(OK)
    assert block.startswith(b"\x3f\xa9\x01\x3f\xc9\x07\x88")


def test_5_1_1_streams_opened_while_the_socket_is_full_appear_in_order() -> None:
    wire = Wire(server=False)
    wire.core.outbox.pause()
    streams = [wire.open() for _ in range(3)]
    wire.core.outbox.resume()
    wire.core.outbox.data(streams[2], [b"x"], 1)
    wire.open()
    wire.core.outbox.data(streams[0], [b"x"], 1)
    heads = [answer.stream_id for answer in wire.answers() if answer.kind == codes.HEADERS]
    assert heads == [1, 3, 5, 7]


def test_7_unknown_error_codes_count_as_internal_errors() -> None:
    wire = opened()
    wire.send(frame(codes.RST_STREAM, 0, 1, uint(0xBEEF)))
    assert wire.events[-1] == ("reset", 1, ErrorCode.INTERNAL_ERROR, True)


def test_8_5_connect_reaches_the_layer_above_that_refuses_it() -> None:
    wire = Wire()
    wire.send(wire.request(fields=((b":method", b"CONNECT"), (b":authority", b"localhost"))))
    assert wire.events[0][:2] == ("stream", 1)


@pytest.mark.parametrize(
    "said",
    [frame(codes.RST_STREAM, 0, 1, uint(8)), frame(codes.WINDOW_UPDATE, 0, 1, uint(5))],
    ids=["reset", "window"],
)
def test_5_1_a_stream_whose_head_is_unsent_is_idle_to_the_peer(said: bytes) -> None:
    wire = Wire(server=False)
    wire.core.outbox.pause()
    wire.open()
    assert goaway_code(wire.send(said)) == ErrorCode.PROTOCOL_ERROR
