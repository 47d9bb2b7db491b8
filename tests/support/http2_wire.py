"""A frame-level peer for tests of lean_grpc's HTTP/2 core: builds frames, reads answers, records calls."""

from dataclasses import dataclass, field
from struct import Struct

from hpack import Decoder, Encoder

from lean_grpc.http2 import codes
from lean_grpc.http2.codes import ErrorCode, frame
from lean_grpc.http2.connection import Connection
from lean_grpc.http2.fields import Head
from lean_grpc.http2.stream import Stream
from lean_grpc.limits import Limits

_HEADER = Struct(">HBBBI")

REQUEST = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/test.Service/Echo"),
    (b":authority", b"localhost"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as read from the wire."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def number(self) -> int:
        """The payload's first 32 bits: increment, error code, last stream id."""
        return int.from_bytes(self.payload[:4])


def read_frames(data: bytes) -> list[Frame]:
    """Cut whole frames; fails the test if a part is left."""
    frames = []
    at = 0
    while at < len(data):
        high, low, kind, flags, stream_id = _HEADER.unpack_from(data, at)
        stop = at + 9 + (high << 8 | low)
        assert stop <= len(data)
        frames.append(Frame(kind, flags, stream_id, data[at + 9 : stop]))
        at = stop
    return frames


def setting(name: int, value: int) -> bytes:
    return codes.SETTING.pack(name, value)


def uint(value: int) -> bytes:
    return codes.UINT32.pack(value)


def message(payload: bytes, flag: int = 0) -> bytes:
    """Return a gRPC message with its prefix."""
    return bytes((flag,)) + uint(len(payload)) + payload


@dataclass
class Recorder:
    """Owner of a connection and of all its streams; records every callback."""

    events: list[tuple[object, ...]] = field(default_factory=list)
    streams: dict[int, Stream] = field(default_factory=dict)
    consume: bool = True

    def on_stream(self, stream: Stream, head: Head, ended: bool) -> None:
        self.events.append(("stream", stream.id, head.fields, ended))
        self.streams[stream.id] = stream
        stream.owner = StreamRecorder(self, stream.id)

    def on_goaway(self, code: ErrorCode) -> None:
        self.events.append(("goaway", code))

    def on_ping_ack(self, payload: bytes) -> None:
        self.events.append(("ping", payload))

    def on_room(self) -> None:
        pass


@dataclass
class StreamRecorder:
    """Owner of one stream; records every callback in its connection's `Recorder`."""

    recorder: Recorder
    stream_id: int

    def on_headers(self, head: Head, ended: bool) -> None:
        self.recorder.events.append(("headers", self.stream_id, head.fields, ended))

    def on_data(self, buffer: bytes, start: int, stop: int, ended: bool) -> bool:
        self.recorder.events.append(("data", self.stream_id, buffer[start:stop], ended))
        return self.recorder.consume

    def on_reset(self, code: ErrorCode, processed: bool) -> None:
        self.recorder.events.append(("reset", self.stream_id, code, processed))

    def on_writable(self) -> None:
        self.recorder.events.append(("writable", self.stream_id))


class Wire:
    """A core and its peer, which can send it any frame."""

    def __init__(self, *, server: bool = True, limits: Limits | None = None, greet: bool = True) -> None:
        self.owner = Recorder()
        self.core = Connection(server=server, limits=limits or Limits(), owner=self.owner)
        self.encoder = Encoder()
        self.decoder = Decoder()
        self.opening = self.core.outbox.take()
        if greet:
            self.core.receive((codes.PREFACE if server else b"") + frame(codes.SETTINGS, 0, 0))
            self.core.receive(frame(codes.SETTINGS, codes.ACK, 0))
            self.core.outbox.take()

    def send(self, *frames: bytes) -> list[Frame]:
        """Hand frames to the core; return what it answers."""
        self.core.receive(b"".join(frames))
        return self.answers()

    def answers(self) -> list[Frame]:
        """Return the frames that the core has queued."""
        said = b""
        while more := self.core.outbox.take():
            said += more
        return read_frames(said)

    def block(self, *fields: tuple[bytes, bytes]) -> bytes:
        return self.encoder.encode(fields)

    def request(
        self, stream_id: int = 1, *, end: bool = False, fields: tuple[tuple[bytes, bytes], ...] = REQUEST
    ) -> bytes:
        """Return HEADERS that open a stream."""
        flags = codes.END_HEADERS | (codes.END_STREAM if end else 0)
        return frame(codes.HEADERS, flags, stream_id, self.encoder.encode(fields))

    def open(self) -> Stream:
        """Open a stream, as a client."""
        follower = StreamRecorder(self.owner, 0)
        stream = self.core.open_stream(follower, REQUEST)
        follower.stream_id = stream.id
        self.owner.streams[stream.id] = stream
        return stream

    def data(self, payload: bytes, stream_id: int = 1, *, end: bool = False) -> bytes:
        return frame(codes.DATA, codes.END_STREAM if end else 0, stream_id, payload)

    @property
    def events(self) -> list[tuple[object, ...]]:
        return self.owner.events


def goaway_code(frames: list[Frame]) -> int | None:
    """Return the error code of the GOAWAY among the answers."""
    for answer in frames:
        if answer.kind == codes.GOAWAY:
            return int.from_bytes(answer.payload[4:8])
    return None


def reset_code(frames: list[Frame], stream_id: int = 1) -> int | None:
    """Return the error code of the RST_STREAM for a stream among the answers."""
    for answer in frames:
        if answer.kind == codes.RST_STREAM and answer.stream_id == stream_id:
            return answer.number
    return None
