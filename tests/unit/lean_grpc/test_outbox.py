"""Properties of the sending half: what the windows allow is sent when output is taken."""

from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from http2_wire import Wire, setting, uint
from lean_grpc.http2 import codes
from lean_grpc.http2.codes import frame
from lean_grpc.limits import DEFAULT_WINDOW, Limits

SIZES = st.one_of(st.integers(1, 300), st.integers(1, 40_000), st.integers(100_000, 1_000_000))
STREAMS = st.integers(0, 5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), STREAMS, SIZES),
        st.tuples(st.just("finish"), STREAMS, st.just(0)),
        st.tuples(st.just("lift"), STREAMS, SIZES),
        st.tuples(st.just("lift connection"), st.just(0), SIZES),
        st.tuples(st.just("initial window"), st.just(0), SIZES),
        st.tuples(st.just("frame size"), st.just(0), st.integers(16_384, 100_000)),
        st.tuples(st.just("reset"), STREAMS, st.just(0)),
        st.tuples(st.just("pause"), st.just(0), st.just(0)),
        st.tuples(st.just("resume"), st.just(0), st.just(0)),
        st.tuples(st.just("write"), st.just(0), st.integers(1, 3)),
        st.tuples(st.just("drain"), st.just(0), st.just(0)),
    ),
    max_size=30,
)
#: A stream's window has run dry and is lifted by more than `output_high`, as Envoy's default windows do.
LIFTED_AT_ONCE = [
    ("send", 0, 400_000),
    ("drain", 0, 0),
    ("lift connection", 0, 1_000_000),
    ("lift", 0, 300_000),
]
LIFTED_BY_SETTINGS = [
    ("send", 0, 400_000),
    ("lift connection", 0, 1_000_000),
    ("drain", 0, 0),
    ("initial window", 0, 300_000),
]


@dataclass
class Sender:
    """A server with open streams, and what its peer knows of the windows."""

    limits: Limits
    streams: int
    initial: int
    paused: bool = False
    connection_window: int = DEFAULT_WINDOW
    windows: dict[int, int] = field(default_factory=dict)
    unsent: dict[int, int] = field(default_factory=dict)
    blocked: dict[int, int] = field(default_factory=dict)
    """Streams that `data` returned False for, and how often `on_writable` had been called before."""

    def __post_init__(self) -> None:
        self.wire = Wire(limits=self.limits)
        ids = range(1, 2 * self.streams, 2)
        self.wire.send(frame(codes.SETTINGS, 0, 0, setting(codes.INITIAL_WINDOW_SIZE, self.initial)))
        self.wire.send(*[self.wire.request(stream_id, end=True) for stream_id in ids])
        self.windows = dict.fromkeys(ids, self.initial)
        self.unsent = dict.fromkeys(ids, 0)
        for stream_id in ids:
            self.wire.core.outbox.headers(self.wire.owner.streams[stream_id], ((b":status", b"200"),))

    def step(self, what: str, which: int, size: int) -> None:
        """Apply one event of the server, its peer or the socket."""
        outbox = self.wire.core.outbox
        stream_id = 1 + 2 * (which % self.streams)
        stream = self.wire.owner.streams[stream_id]
        match what:
            case "send" if stream_id in self.windows and not stream.finishing:
                self.unsent[stream_id] += size
                if not outbox.data(stream, [b"d" * size], size):
                    self.blocked[stream_id] = self._calls(stream_id)
            case "finish" if stream_id in self.windows and not stream.finishing:
                outbox.headers(stream, ((b"grpc-status", b"0"),), end=True)
            case "lift" if stream_id in self.windows:
                self.windows[stream_id] += size
                self.wire.core.receive(frame(codes.WINDOW_UPDATE, 0, stream_id, uint(size)))
            case "lift connection":
                self.connection_window += size
                self.wire.core.receive(frame(codes.WINDOW_UPDATE, 0, 0, uint(size)))
            case "initial window":
                for each in self.windows:
                    self.windows[each] += size - self.initial
                self.initial = size
                payload = setting(codes.INITIAL_WINDOW_SIZE, size)
                self.wire.core.receive(frame(codes.SETTINGS, 0, 0, payload))
            case "frame size":
                payload = setting(codes.MAX_FRAME_SIZE, size)
                self.wire.core.receive(frame(codes.SETTINGS, 0, 0, payload))
            case "reset" if stream_id in self.windows:
                self.wire.core.receive(frame(codes.RST_STREAM, 0, stream_id, uint(8)))
                self._forget(stream_id)
            case "pause":
                self.paused = True
                outbox.pause()
            case "resume" if self.paused:
                self.paused = False
                outbox.resume()
            case "write":
                for _ in range(size):
                    self._take()
            case "drain":
                self.drain()
            case _:
                pass  # the stream is over, or nothing was paused

    def drain(self) -> None:
        """Take output until there is none, like a link on a socket that is never full."""
        self.step("resume", 0, 0)
        while self._take():
            pass

    def stuck(self) -> dict[int, int]:
        """Return the unsent bytes of each stream that its windows allow to send."""
        if self.connection_window <= 0:
            return {}
        return {each: left for each, left in self.unsent.items() if left and self.windows[each] > 0}

    def left_waiting(self) -> set[int]:
        """Return the streams that were blocked, have nothing unsent, and got no `on_writable` since."""
        return {
            each
            for each, calls in self.blocked.items()
            if not self.unsent[each] and self._calls(each) == calls
        }

    def _calls(self, stream_id: int) -> int:
        return self.wire.events.count(("writable", stream_id))

    def _take(self) -> bool:
        answers = [
            answer
            for answer in _frames(self.wire.core.outbox.take())
            if answer[0] in (codes.DATA, codes.HEADERS)
        ]
        for kind, flags, stream_id, size in answers:
            if kind == codes.DATA:
                self.connection_window -= size
                assert self.connection_window >= 0
            if stream_id not in self.windows:
                continue  # framed before the peer's reset was read
            if kind == codes.DATA:
                self.windows[stream_id] -= size
                self.unsent[stream_id] -= size
            if flags & codes.END_STREAM:
                assert not self.unsent[stream_id]
                self._forget(stream_id)
        return bool(answers)

    def _forget(self, stream_id: int) -> None:
        del self.windows[stream_id], self.unsent[stream_id]
        self.blocked.pop(stream_id, None)


def _frames(output: bytes) -> list[tuple[int, int, int, int]]:
    """Return kind, flags, stream and size of each frame."""
    found = []
    at = 0
    while at < len(output):
        high, low, kind, flags, stream_id = codes.FRAME_HEADER.unpack_from(output, at)
        size = high << 8 | low
        found.append((kind, flags, stream_id, size))
        at += 9 + size
    return found


@settings(deadline=None, max_examples=200)
@given(
    steps=STEPS,
    streams=st.integers(1, 6),
    initial=st.one_of(st.integers(0, 1_000), st.integers(0, 300_000)),
    output_high=st.one_of(st.integers(1, 2_000), st.integers(1, 300_000)),
    low=st.integers(0, 70_000),
    high=st.integers(1, 70_000),
    connection_high=st.integers(2, 2_000_000),
)
@example(LIFTED_AT_ONCE, 1, 65_535, 262_144, 16_384, 65_536, 2_000_000)
@example(LIFTED_BY_SETTINGS, 1, 10, 50_000, 16_384, 65_536, 2_000_000)
def test_all_that_may_be_sent_is_sent_once_output_is_taken(
    steps: list[tuple[str, int, int]],
    streams: int,
    initial: int,
    output_high: int,
    low: int,
    high: int,
    connection_high: int,
) -> None:
    """No further event of the peer is needed, and every blocked stream gets `on_writable`."""
    limits = Limits(
        output_high=output_high,
        stream_send_low=low,
        stream_send_high=high,
        stream_send_limit=10**9,
        connection_send_limit=connection_high,
        unproductive_frames=10**6,
    )
    sender = Sender(limits, streams, initial)
    for step in steps:
        sender.step(*step)
    sender.drain()
    assert sender.stuck() == {}
    assert sender.left_waiting() == set()


def test_a_small_answer_is_not_kept_behind_many_large_ones() -> None:
    """Streams take turns across writes; sixteen large frames fill one write."""
    wire = Wire(limits=Limits(stream_send_limit=10**9))
    wire.send(frame(codes.SETTINGS, 0, 0, setting(codes.INITIAL_WINDOW_SIZE, 10**9)))
    ids = range(1, 81, 2)
    wire.send(*[wire.request(stream_id, end=True) for stream_id in ids])
    wire.send(frame(codes.WINDOW_UPDATE, 0, 0, uint(10**9)))
    outbox = wire.core.outbox
    for stream_id in ids:
        stream = wire.owner.streams[stream_id]
        outbox.headers(stream, ((b":status", b"200"),))
        size = 100 if stream_id == ids[-1] else 1_000_000
        outbox.data(stream, [bytes(size)], size)
    seen: list[int] = []
    while ids[-1] not in seen:
        seen += [stream_id for kind, _, stream_id, _ in _frames(outbox.take()) if kind == codes.DATA]
    assert max(map(seen.count, ids)) <= 20
