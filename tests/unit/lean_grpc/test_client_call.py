"""The client's calls over the sans-IO core: what handlers get, however the server ends. No socket."""

from http2_wire import Wire, message, uint
from lean_grpc import Limits, Metadata, StatusCode
from lean_grpc.calls.client_call import ClientCall, Status
from lean_grpc.http2 import codes
from lean_grpc.http2.codes import ErrorCode, frame

HEAD = ((b":status", b"200"), (b"content-type", b"application/grpc"))
LIMITS = Limits()


class Diary:
    """A response handler that writes down its callbacks, and pauses `call`, if it is set, at each message."""

    def __init__(self) -> None:
        self.entries: list[object] = []
        self.call: ClientCall | None = None

    def opened(self, metadata: Metadata) -> None:
        self.entries.append("opened")

    def received(self, payload: bytes) -> None:
        self.entries.append(payload)
        if self.call is not None:
            self.call.pause()

    def ended(self, status: Status) -> None:
        self.entries.append(status.code)

    def writable(self) -> None:
        self.entries.append("writable")


def started(wire: Wire, diary: Diary) -> ClientCall:
    call = ClientCall(b"/test.Service/Echo", diary, LIMITS)
    call.start(wire.core, b"http", b"localhost", None)
    wire.answers()
    return call


def headers(wire: Wire, *fields: tuple[bytes, bytes], end: bool = False) -> bytes:
    flags = codes.END_HEADERS | (codes.END_STREAM if end else 0)
    return frame(codes.HEADERS, flags, 1, wire.block(*fields))


def test_a_complete_answer_outlives_its_stream() -> None:
    # A server that has answered may reset a client that still sends: trailers, then NO_ERROR (RFC 9113, 8.1).
    for late in (frame(codes.RST_STREAM, 0, 1, uint(ErrorCode.NO_ERROR)), b""):
        wire, diary = Wire(server=False), Diary()
        call = diary.call = started(wire, diary)
        wire.send(
            headers(wire, *HEAD),
            wire.data(message(b"one") + message(b"two")),
            headers(wire, (b"grpc-status", b"0"), end=True),
        )
        assert diary.entries == ["opened", b"one"]
        wire.send(late)
        wire.core.lose()
        call.resume()
        call.resume()
        assert diary.entries == ["opened", b"one", b"two", StatusCode.OK]
