"""The record of one open stream, and the interface of its owner. It decides nothing."""

from collections import deque
from typing import Protocol

from lean_grpc.http2.codes import ErrorCode
from lean_grpc.http2.fields import Field, Head

Block = tuple[tuple[Field, ...], tuple[Field, ...], bool]
"""Header lists that wait to be sent: steady, varying, and whether they end the stream."""


class StreamOwner(Protocol):
    """The layer above, called for one stream. No call comes after `on_reset`, nor after both sides ended."""

    def on_headers(self, head: Head, ended: bool) -> None:
        """Take a response head (informational ones too) or trailers."""

    def on_data(self, buffer: bytes, start: int, stop: int, ended: bool) -> bool:
        """Take `buffer[start:stop]`; return whether it is consumed, else call `Connection.consume` later."""

    def on_reset(self, code: ErrorCode, processed: bool) -> None:
        """Learn that the stream is gone; `processed` is False if the peer has certainly not processed it."""

    def on_writable(self) -> None:
        """Learn that unsent data has fallen to `stream_send_low`, after `Outbox.data` had returned False."""


class Stream:
    """One stream. `pending` holds bytes and header lists that wait for a window, in order."""

    __slots__ = (
        "answered",
        "blocked",
        "content_left",
        "finishing",
        "head_seen",
        "id",
        "owner",
        "pending",
        "pending_bytes",
        "plain",
        "recv_due",
        "recv_window",
        "send_window",
        "state",
    )

    def __init__(self, stream_id: int, state: int, send_window: int, recv_window: int) -> None:
        self.id = stream_id
        self.state = state
        self.owner: StreamOwner = NO_OWNER
        self.send_window = send_window
        self.recv_window = recv_window
        self.recv_due = 0
        self.pending: deque[bytes | memoryview | Block] | None = None
        self.pending_bytes = 0
        self.blocked = False
        self.finishing = False
        self.head_seen = False
        self.answered = False
        self.content_left: int | None = None
        self.plain = False  # no content-length: data of a request needs no count


class _NoOwner:
    """Owner of a stream that no call has claimed, or that its call has released: it consumes and ignores."""

    __slots__ = ()

    def on_headers(self, head: Head, ended: bool) -> None:
        pass

    def on_data(self, buffer: bytes, start: int, stop: int, ended: bool) -> bool:
        return True

    def on_reset(self, code: ErrorCode, processed: bool) -> None:
        pass

    def on_writable(self) -> None:
        pass


NO_OWNER: StreamOwner = _NoOwner()
