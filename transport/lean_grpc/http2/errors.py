"""Faults of a peer, by what they end: the connection or one stream; and misuse by the local program."""

from lean_grpc.http2.codes import ErrorCode


class ProtocolError(Exception):
    """The peer broke the protocol or a limit; the connection ends with GOAWAY and `code`."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class StreamError(Exception):
    """The peer broke the rules of one stream; it ends with RST_STREAM and `code`, its neighbours go on."""

    def __init__(self, stream_id: int, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.stream_id = stream_id
        self.code = code
        self.reason = reason


class MisuseError(RuntimeError):
    """The local program called something that the state of the stream or connection does not allow."""
