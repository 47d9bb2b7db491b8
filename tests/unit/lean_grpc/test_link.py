"""The link's time-outs and writes, on a clock that the test sets and a transport that it reads."""

import asyncio
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from http2_wire import Frame, Wire, goaway_code, message, read_frames, setting, uint
from lean_grpc import Limits
from lean_grpc.aio.link import CLOSE_PATIENCE, Link
from lean_grpc.http2 import codes
from lean_grpc.http2.codes import PREFACE, ErrorCode, frame
from lean_grpc.http2.fields import Head
from lean_grpc.http2.stream import Stream

GREETING = PREFACE + frame(codes.SETTINGS, 0, 0) + frame(codes.SETTINGS, codes.ACK, 0)


class Clock:
    """The part of an event loop that a link uses: a time, and callbacks that `turn` runs."""

    def __init__(self) -> None:
        self.now = 100.0
        self.soon: list[Any] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Any) -> None:
        self.soon.append(callback)

    def turn(self) -> None:
        callbacks, self.soon = self.soon, []
        for callback in callbacks:
            callback()


class Socket(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = self.aborted = False

    @override
    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    @override
    def close(self) -> None:
        self.closed = True

    @override
    def abort(self) -> None:
        self.aborted = True

    def frames(self) -> list[Frame]:
        said, self.written = b"".join(self.written), []
        return read_frames(said)


class Answering(Link):
    """A server's link that keeps its streams open."""

    opened: list[Stream]

    @override
    def on_stream(self, stream: Stream, head: Head, ended: bool) -> None:
        self.opened = [*getattr(self, "opened", []), stream]


def connected(limits: Limits | None = None, *, greet: bool = True) -> tuple[Answering, Socket, Clock]:
    clock, socket = Clock(), Socket()
    link = Answering(cast("asyncio.AbstractEventLoop", clock), limits or Limits(), server=True)
    link.connection_made(socket)
    if greet:
        link.data_received(GREETING)
    socket.frames()
    return link, socket, clock


def pass_time(link: Link, clock: Clock, seconds: float) -> None:
    """Sweep once a second."""
    for _ in range(int(seconds)):
        clock.now += 1
        link.sweep(clock.now)


def test_one_write_a_read() -> None:
    link, socket, _ = connected()
    link.data_received(frame(codes.PING, 0, 0, bytes(8)) * 20)
    assert len(socket.written) == 1


def test_output_outside_a_read_is_written_once_in_the_next_turn() -> None:
    link, socket, clock = connected()
    for _ in range(5):
        link.core.ping(bytes(8))
    assert (socket.written, len(clock.soon)) == ([], 1)
    clock.turn()
    assert len(socket.written) == 1
    assert len(socket.frames()) == 5


def test_no_greeting_in_time() -> None:
    link, socket, clock = connected(greet=False)
    pass_time(link, clock, 10)
    assert not socket.closed
    pass_time(link, clock, 1)
    assert goaway_code(socket.frames()) == ErrorCode.SETTINGS_TIMEOUT
    assert socket.closed


def test_closing_takes_no_longer_than_its_patience() -> None:
    link, socket, clock = connected(greet=False)
    pass_time(link, clock, 11 + CLOSE_PATIENCE)
    assert not socket.aborted
    pass_time(link, clock, 1)
    assert socket.aborted


def test_idle_time_counts_from_the_last_call_even_if_no_sweep_saw_it() -> None:
    link, socket, clock = connected(Limits(idle_timeout=20, keepalive_interval=0))
    wire = Wire()
    for number in range(10):
        pass_time(link, clock, 15)
        link.data_received(wire.request(2 * number + 1))
        link.core.reset(link.opened[-1], ErrorCode.CANCEL)
    assert goaway_code(socket.frames()) is None
    pass_time(link, clock, 22)
    assert goaway_code(socket.frames()) == ErrorCode.NO_ERROR
    assert socket.closed


def test_keepalive_pings_and_any_frame_is_an_answer() -> None:
    link, socket, clock = connected(Limits(idle_timeout=0))
    for _ in range(5):
        pass_time(link, clock, 62)
        assert [answer.kind for answer in socket.frames()] == [codes.PING]
        link.data_received(frame(codes.PRIORITY, 0, 1, bytes(5)))
    pass_time(link, clock, 62 + 19)
    assert not socket.aborted
    pass_time(link, clock, 3)
    assert socket.aborted


def test_a_frame_may_take_its_time_but_not_for_ever() -> None:
    link, socket, clock = connected(Limits(keepalive_interval=0))
    wire = Wire()
    slow = wire.request() + wire.data(message(bytes(100)))
    for at in range(len(slow) - 1):
        link.data_received(slow[at : at + 1])
        if at % 40 == 0:
            pass_time(link, clock, 5)
    assert not socket.closed
    pass_time(link, clock, 32)
    assert goaway_code(socket.frames()) == ErrorCode.PROTOCOL_ERROR


def test_drain_waits_for_the_ping_or_a_while() -> None:
    link, socket, clock = connected()
    link.drain()
    clock.turn()
    goaway, ping = socket.frames()
    assert goaway.number == codes.LARGEST_STREAM_ID
    link.data_received(frame(codes.PING, codes.ACK, 0, ping.payload))
    assert [answer.number for answer in socket.frames()] == [0]
    assert socket.closed
    link, socket, clock = connected()
    link.drain()
    pass_time(link, clock, CLOSE_PATIENCE + 1)
    assert socket.closed


def test_a_full_socket_holds_data_back_until_it_has_room() -> None:
    link, socket, clock = connected()
    wire = Wire()
    link.data_received(wire.request())
    link.pause_writing()
    link.core.outbox.headers(link.opened[0], ((b":status", b"200"),))
    link.core.outbox.data(link.opened[0], [b"x"], 1)
    clock.turn()
    assert socket.frames() == []
    link.resume_writing()
    clock.turn()
    assert [answer.kind for answer in socket.frames()] == [codes.HEADERS, codes.DATA]


class NarrowSocket(Socket):
    """A transport whose buffer, while it is narrow, is full after each write, until the test empties it."""

    link: Link
    narrow = False
    full = False

    @override
    def write(self, data: Any) -> None:
        super().write(data)
        if self.narrow and not self.full:
            self.full = True
            self.link.pause_writing()

    def empty(self) -> None:
        if self.full:
            self.full = False
            self.link.resume_writing()


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(st.integers(1, 300_000), st.sampled_from(["empty", "turn", "narrow", "wide"])), max_size=12
    ),
    st.integers(0, 100_000),
    st.integers(1, 300_000),
)
def test_all_that_windows_allow_reaches_a_socket_that_is_emptied_now_and_then(
    steps: list[Any], initial: int, output_high: int
) -> None:
    clock, socket = Clock(), NarrowSocket()
    limits = Limits(output_high=output_high, stream_send_limit=10**9)
    link = Answering(cast("asyncio.AbstractEventLoop", clock), limits, server=True)
    socket.link = link
    link.connection_made(socket)
    link.data_received(
        PREFACE
        + frame(codes.SETTINGS, 0, 0, setting(codes.INITIAL_WINDOW_SIZE, initial))
        + frame(codes.SETTINGS, codes.ACK, 0)
        + frame(codes.WINDOW_UPDATE, 0, 0, uint(10**9))
        + Wire().request(end=True)
    )
    window = initial
    outbox = link.core.outbox
    outbox.headers(link.opened[0], ((b":status", b"200"),))
    outbox.data(link.opened[0], [bytes(1_000_000)], 1_000_000)
    for step in steps:
        if step in {"narrow", "wide"}:
            socket.narrow = step == "narrow"
        elif step == "empty":
            socket.empty()
        elif step == "turn":
            clock.turn()
        else:
            window += step
            link.data_received(frame(codes.WINDOW_UPDATE, 0, 1, uint(step)))
    while socket.full or clock.soon:
        socket.empty()
        clock.turn()
    sent = sum(len(each.payload) for each in socket.frames() if each.kind == codes.DATA)
    assert sent == min(window, 1_000_000)
