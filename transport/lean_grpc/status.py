"""gRPC status codes, and the tables from HTTP/2 error codes and HTTP status codes to them. Values only."""

from enum import IntEnum
from typing import Final

from lean_grpc.http2.codes import ErrorCode


class StatusCode(IntEnum):
    """How a call ended."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class CallError(Exception):
    """A call that ended with another status than OK.

    A channel raises it to its caller; a unary handler raises it to set the status of its answer. `retryable`
    means that the peer has certainly not processed the call.
    """

    def __init__(
        self,
        code: StatusCode,
        message: str = "",
        trailers: tuple[tuple[str, str | bytes], ...] = (),
        *,
        retryable: bool = False,
    ) -> None:
        super().__init__(f"{code.name}: {message}" if message else code.name)
        self.code = code
        self.message = message
        self.trailers = trailers
        self.retryable = retryable


_FROM_ERROR: Final = {
    ErrorCode.CANCEL: StatusCode.CANCELLED,
    ErrorCode.REFUSED_STREAM: StatusCode.UNAVAILABLE,
    ErrorCode.CONNECT_ERROR: StatusCode.UNAVAILABLE,
    ErrorCode.ENHANCE_YOUR_CALM: StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: StatusCode.PERMISSION_DENIED,
}

_FROM_HTTP: Final = {
    400: StatusCode.INTERNAL,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.UNIMPLEMENTED,
    429: StatusCode.UNAVAILABLE,
    502: StatusCode.UNAVAILABLE,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.UNAVAILABLE,
}


def from_error_code(code: ErrorCode) -> StatusCode:
    """Return the status of a call whose stream was reset (gRPC's table of HTTP/2 error codes)."""
    return _FROM_ERROR.get(code, StatusCode.INTERNAL)


def from_http(status: int) -> StatusCode:
    """Return the status of a response that is not gRPC (gRPC's table of HTTP status codes)."""
    return _FROM_HTTP.get(status, StatusCode.UNKNOWN)


def from_wire(value: bytes) -> StatusCode:
    """Return the status in a `grpc-status` field; UNKNOWN if it is not a known number."""
    try:
        return StatusCode(int(value))
    except ValueError:
        return StatusCode.UNKNOWN
