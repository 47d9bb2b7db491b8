"""The streams of a connection: opening, ending, closed ones, receive windows, GOAWAY. No parsing."""

from collections import OrderedDict
from enum import IntEnum
from typing import Final, Protocol

from lean_grpc.http2 import codes
from lean_grpc.http2.codes import ErrorCode
from lean_grpc.http2.errors import MisuseError, ProtocolError, StreamError
from lean_grpc.http2.fields import Field, Head
from lean_grpc.http2.guard import FloodGuard, HeldMessages
from lean_grpc.http2.outbox import Outbox
from lean_grpc.http2.states import (
    CLOSED,
    HALF_CLOSED_LOCAL,
    HALF_CLOSED_REMOTE,
    IDLE,
    ON_RECEIVE_END,
    ON_SEND_END,
    Refusal,
)
from lean_grpc.http2.stream import Stream, StreamOwner
from lean_grpc.limits import Limits

REMEMBERED_STREAMS: Final = 256
"""Closed streams whose end is remembered: it decides whether a further frame is late or a fault."""

DRAIN_PING: Final = b"lean:end"
"""Payload of the PING whose acknowledgement shows that the peer has seen our first GOAWAY."""


class ConnectionOwner(Protocol):
    """The layer above, called for the connection."""

    def on_stream(self, stream: Stream, head: Head, ended: bool) -> None:
        """Take a stream that the peer opened; set `stream.owner`."""

    def on_goaway(self, code: ErrorCode) -> None:
        """Learn that the peer takes no new streams."""

    def on_ping_ack(self, payload: bytes) -> None:
        """Learn that the peer acknowledged a PING."""

    def on_room(self) -> None:
        """Learn that room for new streams may have changed: SETTINGS came, or a client's stream closed."""


class End(IntEnum):
    """How a remembered stream ended."""

    BOTH_SIDES = 0
    RESET_BY_PEER = 1
    RESET_BY_US = 2


class StreamLifecycle:
    """The streams of one connection. `Connection` adds the parsing of received bytes."""

    __slots__ = (
        "_enough",
        "_goaway_sent",
        "_guard",
        "_half_window",
        "_limits",
        "_next_id",
        "_recent",
        "_recv_window",
        "acknowledged",
        "fault",
        "goaway_received",
        "greeted",
        "held_messages",
        "last_remote_id",
        "outbox",
        "owner",
        "server",
        "streams",
    )

    def __init__(self, *, server: bool, limits: Limits, owner: ConnectionOwner) -> None:
        self.server = server
        self.owner = owner
        self.held_messages = HeldMessages(limits)
        self.streams: dict[int, Stream] = {}
        self.fault: ProtocolError | None = None
        self.greeted = False
        self.acknowledged = False
        self.goaway_received = False
        self.last_remote_id = 0
        self._limits = limits
        self._guard = guard = FloodGuard(limits)
        self.outbox = Outbox(limits, guard, self._local_end)
        self._goaway_sent: int | None = None
        self._next_id = 1
        self._recv_window = limits.connection_window
        self._half_window = limits.connection_window // 2
        self._enough = limits.stream_window // 2
        self._recent: OrderedDict[int, End] = OrderedDict()

    # Calls of the local side.

    @property
    def can_open(self) -> bool:
        """Tell whether one more stream can be opened now."""
        return (
            self.greeted
            and self.fault is None
            and not self.goaway_received
            and self._goaway_sent is None
            and len(self.streams) < self.outbox.peer.max_concurrent_streams
            and self._next_id <= codes.LARGEST_STREAM_ID
        )

    @property
    def exhausted(self) -> bool:
        """Tell whether no stream can ever be opened on this connection again."""
        return (
            self.fault is not None
            or self.goaway_received
            or self._goaway_sent is not None
            or self._next_id > codes.LARGEST_STREAM_ID
        )

    @property
    def finished(self) -> bool:
        """Tell whether the connection has been drained: the final GOAWAY is out and no stream is left."""
        return self._goaway_sent is not None and not self.streams

    @property
    def busy(self) -> bool:
        """Tell whether a stream is open, or a useful frame was counted since the last sweep."""
        return bool(self.streams) or self._guard.useful > 0

    def open_stream(
        self,
        owner: StreamOwner,
        steady: tuple[Field, ...],
        varying: tuple[Field, ...] = (),
        *,
        end: bool = False,
    ) -> Stream:
        """Open a stream with a request head, as a client.

        Raises:
            MisuseError: `can_open` is false.
        """
        if self.server or not self.can_open:
            raise MisuseError("no stream can be opened on this connection")
        window = self.outbox.peer.initial_window
        stream = Stream(self._next_id, IDLE, window, self._limits.stream_window)
        stream.owner = owner
        # The guard counts early resets against clients. A server that resets our streams is no flood.
        stream.answered = True
        self._next_id += 2
        self.streams[stream.id] = stream
        self.outbox.headers(stream, steady, varying, end=end)
        return stream

    def consume(self, stream: Stream, size: int) -> None:
        """Return `size` consumed bytes to the stream's window; WINDOW_UPDATE goes out above half a window."""
        stream.recv_due += size
        if stream.recv_due > self._enough and stream.state not in (CLOSED, HALF_CLOSED_REMOTE):
            self._lift_stream(stream)

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """End a stream at once; its owner is not called. A closed stream is left alone."""
        if stream.state == CLOSED:
            return
        if stream.state == IDLE:
            # Its HEADERS are dropped unsent. The peer never sees this id; the next one closes it (5.1.1).
            self._forget(stream, End.RESET_BY_US)
            return
        self._forget(stream, End.RESET_BY_US)
        self.outbox.control(codes.frame(codes.RST_STREAM, 0, stream.id, codes.UINT32.pack(code)))

    def ping(self, payload: bytes) -> None:
        """Send PING; `payload` is 8 bytes and comes back in `on_ping_ack`."""
        self.outbox.control(codes.frame(codes.PING, 0, 0, payload))

    def announce_drain(self) -> None:
        """Send the first GOAWAY, which still admits streams on their way, and a PING (RFC 9113, 6.8)."""
        self._goaway(codes.LARGEST_STREAM_ID if self.server else 0, ErrorCode.NO_ERROR, b"")
        self.ping(DRAIN_PING)

    def drain(self) -> None:
        """Send the final GOAWAY: new streams are ignored, those that were taken go on to their end."""
        if self._goaway_sent is None:
            self._goaway_sent = self.last_remote_id
            self._goaway(self.last_remote_id, ErrorCode.NO_ERROR, b"")

    def fail(self, fault: ProtocolError) -> None:
        """End the connection for a fault: GOAWAY with its code, and `on_reset` for every stream."""
        if self.fault is not None:
            return
        self.fault = fault
        last = self.last_remote_id if self._goaway_sent is None else self._goaway_sent
        self._goaway(last, fault.code, fault.reason.encode())
        self._abandon(fault.code)

    def lose(self) -> None:
        """Learn that the socket is gone: `on_reset` for every stream."""
        if self.fault is None:
            self.fault = ProtocolError(ErrorCode.CONNECT_ERROR, "the connection is lost")
        self._abandon(ErrorCode.CONNECT_ERROR)

    def sweep(self) -> None:
        """Begin a new interval of the flood counters."""
        self._guard.sweep()

    # Consequences of received frames, and of the calls above.

    def _abandon(self, code: ErrorCode) -> None:
        for stream in list(self.streams.values()):
            if stream.state != CLOSED:
                self._forget(stream, End.RESET_BY_US)
                stream.owner.on_reset(code, True)

    def _goaway(self, last: int, code: ErrorCode, reason: bytes) -> None:
        payload = codes.UINT32.pack(last) + codes.UINT32.pack(code) + reason
        self.outbox.control(codes.frame(codes.GOAWAY, 0, 0, payload))

    def _is_idle(self, stream_id: int) -> bool:
        """Tell whether a stream is idle: neither its id nor a higher one of its side was on the wire."""
        if not stream_id & 1:
            return True
        if self.server:
            return stream_id > self.last_remote_id
        stream = self.streams.get(stream_id)
        return stream_id >= self._next_id or (stream is not None and stream.state == IDLE)

    def _stray(self, stream_id: int, what: str) -> None:
        """Answer DATA or HEADERS on a stream that is not open (RFC 9113, 5.1, "closed", and 5.1.1)."""
        if self._is_idle(stream_id):
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"{what} on an idle stream")
        end = self._recent.get(stream_id)
        if end is End.BOTH_SIDES:
            raise ProtocolError(ErrorCode.STREAM_CLOSED, f"{what} after END_STREAM")
        if end is End.RESET_BY_PEER:
            raise StreamError(stream_id, ErrorCode.STREAM_CLOSED, f"{what} after RST_STREAM")
        beyond = self._goaway_sent is not None and stream_id > self._goaway_sent
        if end is None and what == "HEADERS" and self.server and not beyond:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "a stream id is used again")
        self._guard.note_unproductive()

    def _refuse(self, stream_id: int, refusal: int) -> Exception:
        if refusal == Refusal.STREAM_STREAM_CLOSED:
            return StreamError(stream_id, ErrorCode.STREAM_CLOSED, "a frame after END_STREAM")
        return ProtocolError(ErrorCode.PROTOCOL_ERROR, "a frame that the state of its stream forbids")

    def _end_faulty(self, fault: StreamError) -> None:
        stream = self.streams.get(fault.stream_id)
        self.outbox.control(codes.frame(codes.RST_STREAM, 0, fault.stream_id, codes.UINT32.pack(fault.code)))
        if stream is None:
            self._remember(fault.stream_id, End.RESET_BY_US)
        else:
            self._forget(stream, End.RESET_BY_US)
            stream.owner.on_reset(fault.code, True)
        # A faulty stream costs the peer as little as a reset, and us as much: count both.
        self._guard.note_early_reset()

    def _local_end(self, stream: Stream) -> None:
        stream.state = ON_SEND_END[stream.state]
        if stream.state == CLOSED:
            self._forget(stream, End.BOTH_SIDES)
        elif self.server and stream.state == HALF_CLOSED_LOCAL:
            # The answer is complete, the rest of the request is not wanted (RFC 9113, 8.1).
            self.reset(stream, ErrorCode.NO_ERROR)

    def _remote_end(self, stream: Stream) -> None:
        stream.state = ON_RECEIVE_END[stream.state]
        if stream.state == CLOSED:
            self._forget(stream, End.BOTH_SIDES)

    def _forget(self, stream: Stream, end: End) -> None:
        stream.state = CLOSED
        if self.streams.pop(stream.id, None) is None:
            return
        if stream.pending:
            self.outbox.forget(stream)
        self._remember(stream.id, end)
        if not self.server:
            self.owner.on_room()

    def _remember(self, stream_id: int, end: End) -> None:
        recent = self._recent
        recent[stream_id] = end
        if len(recent) > REMEMBERED_STREAMS:
            recent.popitem(last=False)

    def _count_content(self, stream: Stream, size: int, ended: bool) -> None:
        """Check a body against its content-length (RFC 9113, 8.1.1)."""
        left = (stream.content_left or 0) - size
        stream.content_left = left
        if left < 0 or (ended and left):
            raise StreamError(
                stream.id, ErrorCode.PROTOCOL_ERROR, "the body is not as long as content-length says"
            )

    def _lift_stream(self, stream: Stream) -> None:
        due, stream.recv_due = stream.recv_due, 0
        stream.recv_window += due
        self.outbox.control(codes.frame(codes.WINDOW_UPDATE, 0, stream.id, codes.UINT32.pack(due)))

    def _lift_connection(self) -> None:
        """Open the connection's window on receipt: a stream whose handler waits must not stop the others."""
        due = self._limits.connection_window - self._recv_window
        self._recv_window += due
        self.outbox.control(codes.frame(codes.WINDOW_UPDATE, 0, 0, codes.UINT32.pack(due)))
