"""Numbers and layouts of RFC 9113: frame types, flags, settings, error codes. It decides nothing."""

from enum import IntEnum
from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

FRAME_HEADER: Final = Struct(">HBBBI")
"""Length (16 high bits, 8 low bits), type, flags, stream id with its reserved bit."""
FRAME_HEADER_SIZE: Final = 9
UINT32: Final = Struct(">I")
SETTING: Final = Struct(">HI")

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITISED: Final = 0x20

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

DEFAULT_FRAME_SIZE: Final = 16_384
LARGEST_FRAME_SIZE: Final = 2**24 - 1
STREAM_ID_MASK: Final = 0x7FFF_FFFF
LARGEST_STREAM_ID: Final = 2**31 - 1


class ErrorCode(IntEnum):
    """Why a stream or a connection ends (RFC 9113, section 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return one whole frame. Its payload must fit the peer's frame size; nothing is checked."""
    size = len(payload)
    return FRAME_HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream_id) + payload


_ERROR_CODES: Final = {int(code): code for code in ErrorCode}


def error_code(value: int) -> ErrorCode:
    """Return the code; unknown ones count as INTERNAL_ERROR (RFC 9113, section 7)."""
    return _ERROR_CODES.get(value, ErrorCode.INTERNAL_ERROR)
