"""The sending half of a connection: framing, flow control, and queues while a window or the socket is full.

Frames that may go are appended to one list, which the shell takes and writes at once. Data and headers of a
stream that may not go stay with their stream, in order, so that a peer that stops reading costs no more than
the bounds in `limits`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final

from lean_grpc.http2 import codes
from lean_grpc.http2.codes import ErrorCode
from lean_grpc.http2.errors import MisuseError, ProtocolError
from lean_grpc.http2.fields import Field
from lean_grpc.http2.guard import FloodGuard
from lean_grpc.http2.header_blocks import HeaderEncoder
from lean_grpc.http2.settings import PeerSettings
from lean_grpc.http2.states import IDLE, ON_SEND_DATA, ON_SEND_HEADERS, OPEN
from lean_grpc.http2.stream import Stream
from lean_grpc.limits import DEFAULT_WINDOW, MAX_WINDOW, Limits

USEFUL_PART: Final = 256
"""Bytes from which a part of a message counts as a useful frame. If smaller parts did, a peer that opens its
window byte by byte would raise the limit on its own window updates."""

_pack_header = codes.FRAME_HEADER.pack
#: The header of a DATA frame, its length and type in one number, and the prefix of the message in it.
_pack_message = Struct(">IBIBI").pack
_LARGEST: Final = codes.DEFAULT_FRAME_SIZE


class Outbox:
    """Frames on their way out.

    `ended` is called when END_STREAM of a stream has been framed. `notify` is called when output appears
    while the outbox is not corked; the owner of the socket then takes it soon.
    """

    __slots__ = (
        "_control_bytes",
        "_encoder",
        "_ended",
        "_flush_wanted",
        "_guard",
        "_limits",
        "_output_high",
        "corked",
        "frames",
        "notify",
        "overflowing",
        "paused",
        "peer",
        "pending_bytes",
        "queued",
        "ripe",
        "waiting",
        "window",
    )

    def __init__(self, limits: Limits, guard: FloodGuard, ended: Callable[[Stream], None]) -> None:
        self._limits = limits
        self._guard = guard
        self._output_high = limits.output_high
        self._ended = ended
        self._encoder = HeaderEncoder()
        self._control_bytes = 0
        self._flush_wanted = False
        self.peer = PeerSettings()
        self.window = DEFAULT_WINDOW
        self.frames: list[bytes | memoryview] = []
        self.queued = 0
        self.pending_bytes = 0
        self.corked = False
        self.paused = False
        self.overflowing = False
        self.waiting: dict[Stream, None] = {}
        self.ripe = False
        self.notify: Callable[[], None] = _nothing

    def control(self, frame: bytes) -> None:
        """Queue a frame that flow control does not apply to."""
        self.frames.append(frame)
        if self.paused:
            self._control_bytes += len(frame)
            if self._control_bytes > self._limits.paused_control_bytes:
                self.overflowing = True
        if not self.corked:
            self._want_flush()

    def headers(
        self, stream: Stream, steady: tuple[Field, ...], varying: tuple[Field, ...] = (), *, end: bool = False
    ) -> None:
        """Send a header list; it waits behind the data of its stream, and while the outbox is paused.

        Raises:
            MisuseError: The stream's local side has ended.
        """
        if stream.finishing or ON_SEND_HEADERS[stream.state] < 0:
            raise MisuseError("headers on a stream whose local side has ended")
        stream.finishing = end
        if stream.pending or self.paused:
            self._queue(stream, (steady, varying, end), 0)
        else:
            self._emit_headers(stream, steady, varying, end)
        if not self.corked:
            self._want_flush()

    def message(self, stream: Stream, payload: bytes, length: int) -> bool:
        """Send a gRPC message of `length` bytes unless it has to wait; where this is False, use `data`."""
        size = length + 5
        if (
            size <= stream.send_window
            and size <= self.window
            and size <= _LARGEST
            and stream.state == OPEN
            and not (stream.pending or stream.finishing or self.paused)
            and self.queued < self._output_high
        ):
            stream.send_window -= size
            self.window -= size
            self.queued += size
            self._guard.useful += 1
            stream.answered = True
            self.frames += (_pack_message(size << 8, 0, stream.id, 0, length), payload)
            if not self.corked:
                self._want_flush()
            return True
        return False

    def data(self, stream: Stream, chunks: Sequence[bytes], size: int, end: bool = False) -> bool:
        """Send `chunks`, `size` bytes together; return False if the sender should await `on_writable`.

        Raises:
            MisuseError: The stream's local side has ended.
        """
        if stream.finishing or ON_SEND_DATA[stream.state] < 0:
            raise MisuseError("data on a stream whose local side has ended")
        if (
            size <= stream.send_window
            and size <= self.window
            and size <= codes.DEFAULT_FRAME_SIZE
            and not stream.pending
            and not self.paused
            and self.queued < self._output_high
        ):
            stream.send_window -= size
            self.window -= size
            self.queued += size
            self._guard.useful += 1
            stream.answered = True
            self.frames.append(_pack_header(size >> 8, size & 0xFF, 0, 1 if end else 0, stream.id))
            self.frames += chunks
            if end:
                stream.finishing = True
                self._ended(stream)
            if not self.corked:
                self._want_flush()
            return True
        stream.finishing = end
        self._queue(stream, b"".join(chunks), size, end=end)
        self._emit_waiting(stream)
        if not self.corked:
            self._want_flush()
        limits = self._limits
        # Never block a stream with nothing queued: `on_writable` fires only when queued data is sent.
        if not stream.pending or (
            stream.pending_bytes < limits.stream_send_high
            and self.pending_bytes < limits.connection_send_limit // 2
        ):
            return True
        stream.blocked = True
        return False

    def full(self, stream: Stream) -> bool:
        """Tell whether a stream, or the connection, holds more unsent data than its limit."""
        limits = self._limits
        return (
            stream.pending_bytes > limits.stream_send_limit
            or self.pending_bytes > limits.connection_send_limit
        )

    def forget(self, stream: Stream) -> None:
        """Drop the queue of a stream."""
        self.pending_bytes -= stream.pending_bytes
        stream.pending = None
        stream.pending_bytes = 0
        self.waiting.pop(stream, None)

    def lift_window(self, increment: int) -> None:
        """Take a WINDOW_UPDATE for the connection.

        Raises:
            ProtocolError: The window would grow beyond 2**31-1.
        """
        self.window += increment
        self.ripe = True
        if self.window > MAX_WINDOW:
            raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, "connection window above 2**31-1")

    def lift_stream(self, stream: Stream, increment: int) -> None:
        """Change one stream's window and send what it then allows. The caller has checked the new window."""
        stream.send_window += increment
        if stream.pending:
            self._emit_waiting(stream)

    def resize_table(self, size: int) -> None:
        """Use the header table size of the peer's SETTINGS."""
        self._encoder.resize(size)

    def take(self) -> bytes:
        """Return and remove all output that may be written now."""
        self._flush_wanted = False
        if self.ripe and not self.paused and self.queued < self._output_high:
            self._pump()
        frames = self.frames
        if not frames:
            return b""
        out = b"".join(frames)
        frames.clear()
        self.queued = 0
        return out

    def pause(self) -> None:
        """Hold data and headers back: the socket's buffer is full."""
        self.paused = True

    def resume(self) -> None:
        """Send them again. Heads that open streams go first: their ids must appear in order (5.1.1)."""
        self.paused = False
        for stream in [stream for stream in self.waiting if stream.state == IDLE]:
            self._emit_one(stream)
        self.ripe = True
        self._control_bytes = 0
        self._want_flush()

    def _want_flush(self) -> None:
        if not self._flush_wanted:
            self._flush_wanted = True
            self.notify()

    def _queue(
        self,
        stream: Stream,
        item: bytes | tuple[tuple[Field, ...], tuple[Field, ...], bool],
        size: int,
        *,
        end: bool = False,
    ) -> None:
        if stream.pending is None:
            stream.pending = deque()
        stream.pending.append(item)
        if end:
            # A block without fields marks the data before it: that frame gets END_STREAM.
            stream.pending.append(((), (), True))
        stream.pending_bytes += size
        self.pending_bytes += size
        self.waiting[stream] = None
        self.ripe = True

    def _pump(self) -> None:
        """Give each waiting stream one frame in turn, until nothing may go or the output is full."""
        corked, self.corked = self.corked, True
        # After this pass no stream can send until a window opens or more is queued; both set `ripe`.
        self.ripe = False
        progress = True
        while progress and self.waiting and not self.paused:
            progress = False
            turn = list(self.waiting)
            for at, stream in enumerate(turn):
                if self.queued >= self._output_high:
                    self.ripe = True
                    self._pass_turn(turn[:at])
                    self.corked = corked
                    return
                if self._emit_one(stream):
                    progress = True
        self.corked = corked

    def _pass_turn(self, served: list[Stream]) -> None:
        """Move streams behind all others: else the first few would fill every write until their data ends."""
        for stream in served:
            if stream in self.waiting:
                del self.waiting[stream]
                self.waiting[stream] = None

    def _emit_waiting(self, stream: Stream) -> None:
        """Send what a stream may send now.

        At `output_high` it sets `ripe`, so that `take` sends the rest: the window is still open, so the peer
        sends no WINDOW_UPDATE that would.
        """
        while not self.paused and stream.pending:
            if self.queued >= self._output_high:
                self.ripe = True
                return
            if not self._emit_one(stream):
                return

    def _emit_one(self, stream: Stream) -> bool:
        """Frame the next item of a stream; return whether one was framed."""
        pending = stream.pending
        if not pending:
            return False
        item = pending[0]
        if isinstance(item, tuple):
            pending.popleft()
            self._settle(stream)
            self._emit_headers(stream, *item)
            return True
        room = min(stream.send_window, self.window, self.peer.max_frame_size, self._output_high)
        size = len(item)
        if room <= 0 < size:
            return False
        if 0 < room < size:
            view = memoryview(item)
            pending[0] = view[room:]
            item, size = view[:room], room
        else:
            pending.popleft()
        end = bool(pending) and pending[0] == ((), (), True)
        if end:
            pending.popleft()
        stream.send_window -= size
        self.window -= size
        self.queued += size
        if size >= USEFUL_PART:
            self._guard.useful += 1
        stream.answered = True
        stream.pending_bytes -= size
        self.pending_bytes -= size
        self.frames.append(_pack_header(size >> 8, size & 0xFF, 0, 1 if end else 0, stream.id))
        self.frames.append(item)
        self._settle(stream)
        if end:
            self._ended(stream)
        elif stream.blocked and stream.pending_bytes <= self._limits.stream_send_low:
            stream.blocked = False
            stream.owner.on_writable()
        return True

    def _settle(self, stream: Stream) -> None:
        if not stream.pending:
            stream.pending = None
            self.waiting.pop(stream, None)

    def _emit_headers(
        self, stream: Stream, steady: tuple[Field, ...], varying: tuple[Field, ...], end: bool
    ) -> None:
        block = self._encoder.encode(steady, varying)
        size = len(block)
        stream.state = ON_SEND_HEADERS[stream.state]
        if size <= codes.DEFAULT_FRAME_SIZE:
            flags = codes.END_HEADERS | codes.END_STREAM if end else codes.END_HEADERS
            self.frames.append(_pack_header(size >> 8, size & 0xFF, codes.HEADERS, flags, stream.id) + block)
        else:
            self._emit_long_block(stream, block, end)
        self.queued += size
        if end:
            self._ended(stream)

    def _emit_long_block(self, stream: Stream, block: bytes, end: bool) -> None:
        step = codes.DEFAULT_FRAME_SIZE
        kind, flags = codes.HEADERS, codes.END_STREAM if end else 0
        for at in range(0, len(block), step):
            if at + step >= len(block):
                flags |= codes.END_HEADERS
            self.frames.append(codes.frame(kind, flags, stream.id, block[at : at + step]))
            kind, flags = codes.CONTINUATION, 0


def _nothing() -> None:
    """Default of `Outbox.notify`, until a shell sets it."""
