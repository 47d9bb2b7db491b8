"""The receiving half of a connection, for both roles: one pass over the bytes of a read, frame by frame.

`receive` calls the owners of streams directly: one event object a frame would cost more than the parsing.
Frames to send collect in `outbox`. Nothing here opens a socket, reads a clock or schedules.
"""

from struct import Struct

from lean_grpc.http2 import codes
from lean_grpc.http2.codes import ErrorCode
from lean_grpc.http2.errors import ProtocolError, StreamError
from lean_grpc.http2.fields import Head, Kind
from lean_grpc.http2.guard import USEFUL_INCREMENT
from lean_grpc.http2.header_blocks import HeaderDecoder
from lean_grpc.http2.lifecycle import ConnectionOwner, End, StreamLifecycle
from lean_grpc.http2.settings import announcement
from lean_grpc.http2.states import HALF_CLOSED_REMOTE, IDLE, ON_RECEIVE_DATA, ON_RECEIVE_HEADERS, OPEN
from lean_grpc.http2.stream import Stream
from lean_grpc.limits import MAX_WINDOW, Limits

_unpack_header = Struct(">IBI").unpack_from
"""Length and type in one number, flags, stream id with its reserved bit."""
_LARGEST = codes.DEFAULT_FRAME_SIZE
_unpack_uint = codes.UINT32.unpack_from
_SETTINGS_ACK = codes.frame(codes.SETTINGS, codes.ACK, 0)


class Connection(StreamLifecycle):
    """One HTTP/2 connection.

    After each call, the owner of the socket writes `outbox.take()`, and then closes the socket if `fault` is
    set or `finished` is true. `frames_seen` counts the frames received.
    """

    __slots__ = (
        "_block",
        "_block_ended",
        "_block_stream",
        "_continuations",
        "_decoder",
        "_partial",
        "_preface_left",
        "_wanted",
        "frames_seen",
    )

    def __init__(self, *, server: bool, limits: Limits, owner: ConnectionOwner) -> None:
        super().__init__(server=server, limits=limits, owner=owner)
        self.frames_seen = 0
        self._decoder = HeaderDecoder(limits.max_header_list, limits.max_header_list_hard)
        self._partial = bytearray()
        self._wanted = 0
        self._preface_left = codes.PREFACE if server else b""
        self._block: list[bytes] = []
        self._block_stream = 0
        self._block_ended = False
        self._continuations = 0
        self.outbox.control((b"" if server else codes.PREFACE) + announcement(limits, server=server))

    @property
    def midway(self) -> bool:
        """Tell whether a frame or a header block has begun and is still incomplete."""
        return bool(self._partial or self._block_stream)

    def receive(self, data: bytes) -> None:
        """Take bytes from the socket, split anywhere. Never raises: a fault of the peer sets `fault`."""
        if self.fault is not None:
            return
        outbox = self.outbox
        outbox.corked = True
        try:
            self._parse(data)
            if outbox.overflowing:
                raise ProtocolError(
                    ErrorCode.ENHANCE_YOUR_CALM, "the peer asks for answers that it does not read"
                )
        except ProtocolError as fault:
            self.fail(fault)
        finally:
            outbox.corked = False

    def _parse(self, data: bytes) -> None:
        if self._preface_left:
            data = self._take_preface(data)
        partial = self._partial
        if partial:
            partial += data
            if len(partial) < self._wanted:
                return
            data = bytes(partial)
            partial.clear()
        at, size = 0, len(data)
        streams, enough = self.streams, self._enough
        frames = useful = taken = 0  # since they were last added up
        between = self.greeted and not self._block_stream
        while size - at >= 9:
            length, flags, stream_id = _unpack_header(data, at)
            kind = length & 0xFF
            length >>= 8
            if length > _LARGEST:
                raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "frame larger than SETTINGS_MAX_FRAME_SIZE")
            start = at + 9
            stop = start + length
            if stop > size:
                self._wanted = 9 + length
                break
            at = stop
            frames += 1
            if between and not (kind or flags):
                # Most frames: the next message of a call. `_on_data` takes those with anything special.
                stream = streams.get(stream_id)
                if (
                    stream is not None
                    and stream.state == OPEN
                    and stream.plain
                    and 0 < length <= stream.recv_window
                ):
                    useful += 1
                    taken += length
                    stream.recv_window -= length
                    if stream.owner.on_data(data, start, stop, False):
                        stream.recv_due = due = stream.recv_due + length
                        if due > enough:
                            self.consume(stream, 0)
                    continue
            self._add_up(frames, useful, taken)
            frames = useful = taken = 0
            try:
                if kind == codes.DATA and between:
                    self._on_data(data, start, stop, flags, stream_id & codes.STREAM_ID_MASK)
                else:
                    self._on_frame(kind, flags, stream_id & codes.STREAM_ID_MASK, data[start:stop])
                    between = self.greeted and not self._block_stream
            except StreamError as fault:
                self._end_faulty(fault)
        else:
            self._wanted = codes.FRAME_HEADER_SIZE
        self._add_up(frames, useful, taken)
        if at < size:
            partial += data[at:]

    def _add_up(self, frames: int, useful: int, taken: int) -> None:
        """Count frames of a read, those that bring data of calls, and their bytes."""
        self.frames_seen += frames
        self._guard.useful += useful
        self._recv_window -= taken
        if self._recv_window < self._half_window:
            self._lift_connection()

    def _take_preface(self, data: bytes) -> bytes:
        """Compare the client's preface (RFC 9113, 3.4) as far as it has come; return what follows it."""
        expected = self._preface_left
        size = min(len(expected), len(data))
        if data[:size] != expected[:size]:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "the client does not begin with the HTTP/2 preface")
        self._preface_left = expected[size:]
        return data[size:]

    def _on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Handle every frame but a DATA frame after SETTINGS and outside a header block."""
        if self._block_stream and (kind != codes.CONTINUATION or stream_id != self._block_stream):
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")
        if not self.greeted and (kind != codes.SETTINGS or flags & codes.ACK):
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if kind == codes.HEADERS:
            self._on_headers(flags, stream_id, payload)
        elif kind == codes.WINDOW_UPDATE:
            self._on_window_update(stream_id, payload)
        elif kind == codes.RST_STREAM:
            self._on_reset(stream_id, payload)
        elif kind == codes.CONTINUATION:
            self._on_continuation(flags, payload)
        elif kind == codes.SETTINGS:
            self._on_settings(flags, stream_id, payload)
        elif kind == codes.PING:
            self._on_ping(flags, stream_id, payload)
        elif kind == codes.GOAWAY:
            self._on_goaway(stream_id, payload)
        elif kind == codes.PRIORITY:
            self._on_priority(stream_id, payload)
        elif kind == codes.PUSH_PROMISE:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE, but push is off")
        else:
            self._guard.note_unproductive()

    def _on_data(self, data: bytes, start: int, stop: int, flags: int, stream_id: int) -> None:
        size = stop - start
        if size:
            self._guard.useful += 1
            self._recv_window -= size
            if self._recv_window < self._half_window:
                self._lift_connection()
        elif not flags & codes.END_STREAM:
            self._guard.note_unproductive()
        stream = self.streams.get(stream_id)
        if stream is None:
            self._stray(stream_id, "DATA")
            return
        state = ON_RECEIVE_DATA[stream.state]
        if state < 0:
            raise self._refuse(stream_id, state)
        stream.recv_window -= size
        if stream.recv_window < 0:
            raise StreamError(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "data beyond the stream's window")
        if not stream.head_seen:
            raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "data before a final response head")
        padding = 0
        if flags & codes.PADDED:
            padding = _padding(data[start] if size else None, size)
            start += 1
            stop -= padding - 1
            if start == stop and not flags & codes.END_STREAM:
                self._guard.useful -= 1
                self._guard.note_unproductive()
        if stream.content_left is not None:
            self._count_content(stream, stop - start, bool(flags & codes.END_STREAM))
        if flags & codes.END_STREAM:
            self._remote_end(stream)
            stream.owner.on_data(data, start, stop, True)
        elif stream.owner.on_data(data, start, stop, False):
            stream.recv_due += size
            if stream.recv_due > self._enough:
                self.consume(stream, 0)
        elif padding:
            self.consume(stream, padding)

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "HEADERS on stream 0")
        start, stop = 0, len(payload)
        if flags & codes.PADDED:
            stop -= _padding(payload[0] if payload else None, stop) - 1
            start = 1
        if flags & codes.PRIORITISED:
            start += 5
            if start > stop:
                raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for its priority")
        block = payload if stop - start == len(payload) else payload[start:stop]
        ended = bool(flags & codes.END_STREAM)
        if flags & codes.END_HEADERS:
            self._on_block(stream_id, block, ended)
            return
        self._block_stream = stream_id
        self._block_ended = ended
        self._block = [block]
        self._continuations = 0

    def _on_continuation(self, flags: int, payload: bytes) -> None:
        if not self._block_stream:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without a header block")
        self._continuations += 1
        self._block.append(payload)
        limits = self._limits
        size = sum(map(len, self._block))
        if self._continuations > limits.max_continuations or size > limits.max_header_block:
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "a header block of too many bytes or frames")
        if flags & codes.END_HEADERS:
            stream_id, self._block_stream = self._block_stream, 0
            block, self._block = b"".join(self._block), []
            self._on_block(stream_id, block, self._block_ended)

    def _on_block(self, stream_id: int, block: bytes, ended: bool) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._on_more_headers(stream, block, ended)
            return
        if not self.server or stream_id <= self.last_remote_id:
            # Decode a block that is not used, too: it may change the dynamic table.
            self._decoder.decode(block, Kind.TRAILERS)
            self._stray(stream_id, "HEADERS")
            return
        if not stream_id & 1:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "a client's stream has an even id")
        self.last_remote_id = stream_id
        head = self._decoder.decode(block, Kind.REQUEST)
        if self._goaway_sent is not None and stream_id > self._goaway_sent:
            return
        self._open_remote(stream_id, head, ended)

    def _open_remote(self, stream_id: int, head: Head, ended: bool) -> None:
        if len(self.streams) >= self._limits.max_concurrent_streams:
            raise StreamError(stream_id, ErrorCode.REFUSED_STREAM, "more streams than SETTINGS allow")
        if head.malformed is not None:
            raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, head.malformed)
        self._guard.useful += 1
        stream = Stream(
            stream_id,
            HALF_CLOSED_REMOTE if ended else OPEN,
            self.outbox.peer.initial_window,
            self._limits.stream_window,
        )
        stream.head_seen = True
        self.streams[stream_id] = stream
        if head.content_length is not None:
            stream.content_left = head.content_length
            self._count_content(stream, 0, ended)
        else:
            stream.plain = True
        self.owner.on_stream(stream, head, ended)

    def _on_more_headers(self, stream: Stream, block: bytes, ended: bool) -> None:
        """Handle a response head or trailers."""
        kind = Kind.TRAILERS if stream.head_seen else Kind.RESPONSE
        head = self._decoder.decode(block, kind)
        if stream.state == IDLE:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "an answer on a stream that was never opened")
        state = ON_RECEIVE_HEADERS[stream.state]
        if state < 0:
            raise self._refuse(stream.id, state)
        if head.malformed is not None:
            raise StreamError(stream.id, ErrorCode.PROTOCOL_ERROR, head.malformed)
        if head.oversized:
            raise StreamError(stream.id, ErrorCode.ENHANCE_YOUR_CALM, "header list larger than announced")
        if not ended and (stream.head_seen or head.informational):
            if stream.head_seen:
                raise StreamError(stream.id, ErrorCode.PROTOCOL_ERROR, "trailers that do not end the stream")
            self._guard.note_unproductive()
            stream.owner.on_headers(head, False)
            return
        if ended and head.informational:
            raise StreamError(
                stream.id, ErrorCode.PROTOCOL_ERROR, "an informational response ends the stream"
            )
        if not stream.head_seen:
            stream.head_seen = True
            stream.content_left = head.content_length
        self._guard.useful += 1
        if ended:
            if stream.content_left is not None and kind is Kind.TRAILERS:
                self._count_content(stream, 0, True)
            self._remote_end(stream)
        stream.owner.on_headers(head, ended)

    def _on_window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE is not of 4 bytes")
        increment = _unpack_uint(payload)[0] & MAX_WINDOW
        if not stream_id:
            if not increment:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0 on the connection")
            self._guard.note_unproductive(0 if increment >= USEFUL_INCREMENT else len(self.outbox.waiting))
            self.outbox.lift_window(increment)
            return
        self._guard.note_unproductive()
        stream = self.streams.get(stream_id)
        if stream is None or stream.state == IDLE:
            if self._is_idle(stream_id):
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE on an idle stream")
            return
        if not increment:
            raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        if stream.send_window + increment > MAX_WINDOW:
            raise StreamError(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "stream window above 2**31-1")
        self.outbox.lift_stream(stream, increment)

    def _on_reset(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM is not of 4 bytes")
        stream = self.streams.get(stream_id)
        if stream is None or stream.state == IDLE:
            if self._is_idle(stream_id):
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "RST_STREAM on an idle stream")
            self._guard.note_unproductive()
            return
        code = codes.error_code(_unpack_uint(payload)[0])
        if not stream.answered:
            self._guard.note_early_reset()
        self._forget(stream, End.RESET_BY_PEER)
        stream.owner.on_reset(code, code is not ErrorCode.REFUSED_STREAM)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & codes.ACK:
            if payload:
                raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "a SETTINGS acknowledgement with a payload")
            if self.acknowledged:
                self._guard.note_unproductive()
            self.acknowledged = True
            return
        outbox = self.outbox
        before = outbox.peer.initial_window
        tables = outbox.peer.apply(payload, from_server=not self.server)
        self._guard.note_unproductive(0 if outbox.peer.initial_window == before else len(self.streams))
        for size in tables:
            outbox.resize_table(size)
        self.greeted = True
        # Acknowledge before sending data that the new values allow: till then the peer enforces the old ones.
        outbox.control(_SETTINGS_ACK)
        if change := outbox.peer.initial_window - before:
            for stream in list(self.streams.values()):
                if stream.send_window + change > MAX_WINDOW:
                    raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window above 2**31-1")
                outbox.lift_stream(stream, change)
        self.owner.on_room()

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "PING is not of 8 bytes")
        self._guard.note_unproductive()
        if flags & codes.ACK:
            self.owner.on_ping_ack(payload)
        else:
            self.outbox.control(codes.frame(codes.PING, codes.ACK, 0, payload))

    def _on_goaway(self, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY is shorter than 8 bytes")
        self._guard.note_unproductive()
        self.goaway_received = True
        last = _unpack_uint(payload)[0] & codes.STREAM_ID_MASK
        code = codes.error_code(_unpack_uint(payload, 4)[0])
        if not self.server:
            for stream in [stream for stream in self.streams.values() if stream.id > last]:
                self._forget(stream, End.RESET_BY_PEER)
                stream.owner.on_reset(ErrorCode.REFUSED_STREAM, False)
        self.owner.on_goaway(code)

    def _on_priority(self, stream_id: int, payload: bytes) -> None:
        """Check the form of the frame (6.3); ignore the priority, which RFC 9113 deprecates (5.3.2)."""
        if not stream_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
        self._guard.note_unproductive()
        if len(payload) != 5:
            raise StreamError(stream_id, ErrorCode.FRAME_SIZE_ERROR, "PRIORITY is not of 5 bytes")


def _padding(first: int | None, size: int) -> int:
    """Return the bytes that padding takes of a payload, its length byte included (RFC 9113, 6.1)."""
    if first is None:
        raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "a padded frame without its pad length")
    if first >= size:
        raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "padding as long as the payload or longer")
    return first + 1
