"""The fuzz target of lean_grpc: feeds a core that has calls with any bytes, and checks its invariants.

An input's first two bytes choose the core's role and how the rest is split; the rest is what the peer sends.
"""

from dataclasses import dataclass, field

from http2_wire import read_frames
from lean_grpc import Limits, Metadata, ServerCall, Status, StatusCode
from lean_grpc.calls.client_call import ClientCall
from lean_grpc.calls.request import read_request
from lean_grpc.http2 import codes
from lean_grpc.http2.codes import PREFACE, ErrorCode, frame
from lean_grpc.http2.connection import Connection
from lean_grpc.http2.fields import Head
from lean_grpc.http2.guard import HARD_LIMITS
from lean_grpc.http2.stream import Stream

LIMITS = Limits(
    max_concurrent_streams=20,
    unproductive_frames=200,
    early_resets=100,
    max_receive_message=50_000,
    stream_send_limit=100_000,
    connection_send_limit=400_000,
    connection_receive_limit=60_000,
    paused_control_bytes=5_000,
)
LARGEST_ANSWER = 20_000


@dataclass
class Fuzzed:
    """A core under fuzzing, and its owner, whose handlers act by the bytes that they receive."""

    server: bool
    events: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.core = Connection(server=self.server, limits=LIMITS, owner=self)
        self.sent = bytearray(self.core.outbox.take())

    def on_stream(self, stream: Stream, head: Head, ended: bool) -> None:
        call = ServerCall(self.core, stream, read_request(head), LIMITS)
        if call.request.http_refusal:
            call.refuse(call.request.http_refusal)
        elif call.request.refusal is not None:
            call.give_up(*call.request.refusal)
        else:
            call.start(lambda made: ActingHandler(made, self.events), ended)

    def on_goaway(self, code: ErrorCode) -> None:
        self.events.append("goaway")

    def on_ping_ack(self, payload: bytes) -> None:
        self.events.append("ping")

    def on_room(self) -> None:
        pass

    def greet(self) -> None:
        """Complete the core's handshake and, when it is a client, open some calls."""
        self.core.receive((PREFACE if self.server else b"") + frame(codes.SETTINGS, 0, 0))
        if self.server:
            return
        for _ in range(4):
            call = ClientCall(b"/test.Service/Echo", ResponseHandler(self.events), LIMITS)
            call.start(self.core, b"http", b"localhost", None)
            call.send(b"hello")

    def receive(self, data: bytes) -> None:
        self.core.receive(data)
        while more := self.core.outbox.take():
            self.sent += more


class ActingHandler:
    """A handler that finishes, cancels, pauses or sends, as the payload's first byte says."""

    def __init__(self, call: ServerCall, events: list[str]) -> None:
        self.call = call
        self.events = events
        self.over = False

    def note(self, what: str) -> None:
        assert not self.over, "a callback after the last one"
        self.events.append(what)

    def opened(self, metadata: Metadata) -> None:
        self.note("opened")

    def received(self, payload: bytes) -> None:
        self.note("received")
        action = payload[0] % 8 if payload else 0
        if action == 1:
            self.call.finish()
        elif action == 2:
            self.call.cancel()
        elif action == 3:
            self.call.pause()
        elif action == 4:
            self.call.send(bytes(LARGEST_ANSWER))
        elif action == 5:
            self.call.finish(StatusCode.ABORTED, "action", [("x-action", "5")])
        else:
            self.call.send(payload)

    def ended(self) -> None:
        self.note("ended")
        self.call.finish()

    def aborted(self, code: StatusCode) -> None:
        self.note("aborted")
        self.over = True

    def writable(self) -> None:
        self.note("writable")


class ResponseHandler:
    """A response handler that fails on a callback after `ended`."""

    def __init__(self, events: list[str]) -> None:
        self.events = events
        self.over = False

    def note(self, what: str) -> None:
        assert not self.over, "a callback after the last one"
        self.events.append(what)

    def opened(self, metadata: Metadata) -> None:
        self.note("opened")

    def received(self, payload: bytes) -> None:
        self.note("received")

    def ended(self, status: Status) -> None:
        self.note(f"ended {status.code.name}")
        self.over = True

    def writable(self) -> None:
        self.note("writable")


def run(data: bytes) -> tuple[str, ...]:
    """Feed one input whole and in pieces; return a signature of the events. Fails on a broken invariant."""
    if len(data) < 2:
        return ()
    mode, step, rest = data[0], data[1] + 1, data[2:]
    ends = []
    for size in (len(rest) or 1, step):
        fuzzed = Fuzzed(server=bool(mode & 1))
        if mode & 2:
            fuzzed.greet()
        for at in range(0, len(rest), size):
            fuzzed.receive(rest[at : at + size])
            check(fuzzed)
        fault = fuzzed.core.fault
        fuzzed.core.lose()
        assert not fuzzed.core.streams
        read_frames(bytes(fuzzed.sent).removeprefix(b"" if fuzzed.server else PREFACE))
        ends.append((fuzzed.events, fault and fault.code))
    assert ends[0] == ends[1], "the split of the input changed the events"
    reason = fault.reason if fault is not None else ""
    return (str(mode & 3), reason, *sorted(set(ends[0][0])))


def check(fuzzed: Fuzzed) -> None:
    """Assert the invariants after any input: limits, and counts of bytes and streams that agree."""
    core = fuzzed.core
    assert len(core.streams) <= LIMITS.max_concurrent_streams
    held = sum(stream.pending_bytes for stream in core.streams.values())
    assert held == core.outbox.pending_bytes
    assert held <= LIMITS.connection_send_limit + LARGEST_ANSWER + LIMITS.max_receive_message + 10
    assert all(stream.id in core.streams for stream in core.outbox.waiting)
    assert core.outbox.window >= 0
    assert 0 <= core.held_messages.held <= HARD_LIMITS * LIMITS.connection_receive_limit
    assert core.streams or core.held_messages.held == 0
