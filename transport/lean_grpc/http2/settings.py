"""SETTINGS of both sides: our announcement, and the peer's values, validated (RFC 9113, 6.5.2)."""

from lean_grpc.http2 import codes
from lean_grpc.http2.codes import ErrorCode
from lean_grpc.http2.errors import ProtocolError
from lean_grpc.limits import DEFAULT_WINDOW, MAX_WINDOW, Limits

HEADER_TABLE_DEFAULT = 4_096


class PeerSettings:
    """The peer's current settings. Unknown ones are ignored, as the RFC asks."""

    __slots__ = (
        "header_table_size",
        "initial_window",
        "max_concurrent_streams",
        "max_frame_size",
        "max_header_list",
    )

    def __init__(self) -> None:
        self.header_table_size = HEADER_TABLE_DEFAULT
        self.initial_window = DEFAULT_WINDOW
        self.max_concurrent_streams = MAX_WINDOW
        self.max_frame_size = codes.DEFAULT_FRAME_SIZE
        self.max_header_list = MAX_WINDOW

    def apply(self, payload: bytes, *, from_server: bool) -> list[int]:
        """Take the entries of one SETTINGS frame in order.

        Returns the header table sizes to signal: the smallest and the last one named, without repetition.

        Raises:
            ProtocolError: The length is no multiple of six, or a value is outside its range.
        """
        if len(payload) % codes.SETTING.size:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS length is no multiple of 6")
        tables: list[int] = []
        for name, value in codes.SETTING.iter_unpack(payload):
            if name == codes.HEADER_TABLE_SIZE:
                tables.append(value)
            elif name == codes.ENABLE_PUSH:
                if value > 1 or (value and from_server):
                    raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH outside its range")
            elif name == codes.MAX_CONCURRENT_STREAMS:
                self.max_concurrent_streams = value
            elif name == codes.INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW:
                    raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE above 2**31-1")
                self.initial_window = value
            elif name == codes.MAX_FRAME_SIZE:
                if not codes.DEFAULT_FRAME_SIZE <= value <= codes.LARGEST_FRAME_SIZE:
                    raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE outside its range")
                self.max_frame_size = value
            elif name == codes.MAX_HEADER_LIST_SIZE:
                self.max_header_list = value
        if not tables:
            return tables
        self.header_table_size = tables[-1]
        smallest = min(tables)
        return [smallest] if smallest == tables[-1] else [smallest, tables[-1]]


def announcement(limits: Limits, *, server: bool) -> bytes:
    """Return our first frames: SETTINGS, and the WINDOW_UPDATE that lifts the connection's window."""
    entries = [
        (codes.MAX_CONCURRENT_STREAMS, limits.max_concurrent_streams if server else 0),
        (codes.INITIAL_WINDOW_SIZE, limits.stream_window),
        (codes.MAX_HEADER_LIST_SIZE, limits.max_header_list),
    ]
    if not server:
        entries.append((codes.ENABLE_PUSH, 0))
    said = codes.frame(codes.SETTINGS, 0, 0, b"".join(codes.SETTING.pack(*entry) for entry in entries))
    more = limits.connection_window - DEFAULT_WINDOW
    return said + codes.frame(codes.WINDOW_UPDATE, 0, 0, codes.UINT32.pack(more)) if more else said
