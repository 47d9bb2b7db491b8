"""The client's side of one call. Sans-IO: the channel starts it and ends it at its deadline."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from lean_grpc.calls import metadata as md
from lean_grpc.calls.messages import PREFIX_SIZE, MessageReader, prefixed
from lean_grpc.calls.metadata import Metadata
from lean_grpc.http2.codes import ErrorCode
from lean_grpc.http2.fields import Field, Head
from lean_grpc.http2.guard import HeldMessages
from lean_grpc.http2.lifecycle import StreamLifecycle
from lean_grpc.http2.stream import NO_OWNER, Stream
from lean_grpc.limits import Limits
from lean_grpc.status import CallError, StatusCode, from_error_code, from_http, from_wire

_log = logging.getLogger("lean_grpc.client")

_STEADY_TAIL: Final = (
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
    (b"user-agent", b"lean-grpc"),
    (b"grpc-accept-encoding", b"gzip"),
)
_GZIP_TAIL: Final = (*_STEADY_TAIL, (b"grpc-encoding", b"gzip"))


@dataclass(frozen=True, slots=True)
class Status:
    """How a call ended. `retryable` means that the server has certainly not processed it."""

    code: StatusCode
    message: str = ""
    trailers: Metadata = ()
    retryable: bool = False

    def error(self) -> CallError:
        """Return the status as the exception that a caller gets."""
        return CallError(self.code, self.message, self.trailers, retryable=self.retryable)


class ResponseHandler(Protocol):
    """Receives the answers of one call. Callbacks come from the event loop's thread and must not block."""

    def opened(self, metadata: Metadata) -> None:
        """Take the server's initial metadata; not called if the answer is trailers only, or never begins."""

    def received(self, payload: bytes) -> None:
        """Take one message."""

    def ended(self, status: Status) -> None:
        """Learn how the call ended; always the last callback, and always called unless `cancel` was."""

    def writable(self) -> None:
        """Learn that there is room again after `send` had returned False."""


class ClientCall:
    """One call, as its caller sees it. Before it has a connection, `send` queues, within the limits."""

    __slots__ = (
        "_connection",
        "_done",
        "_ended",
        "_handler",
        "_limits",
        "_paused",
        "_queued",
        "_queued_end",
        "_queued_size",
        "_reader",
        "_stream",
        "_unconsumed",
        "_varying",
        "compress",
        "deadline",
        "path",
    )

    def __init__(
        self,
        path: bytes,
        handler: ResponseHandler,
        limits: Limits,
        metadata: Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        """Prepare a call.

        Raises:
            ValueError: A metadata key or value is not valid.
        """
        self.path = path
        self.deadline: float | None = None
        self.compress = False
        self._handler: ResponseHandler = handler
        self._limits = limits
        self._varying = md.encode(metadata) if metadata else ()
        self._connection: StreamLifecycle | None = None
        self._stream: Stream | None = None
        self._reader: MessageReader | None = None
        self._queued: list[bytes] = []
        self._queued_size = 0
        self._queued_end = False
        self._paused = False
        self._ended: Status | None = None
        self._done = False
        self._unconsumed = 0

    @property
    def done(self) -> bool:
        """Tell whether the call is over."""
        return self._done

    def send(self, *payloads: bytes, end: bool = False) -> bool:
        """Send messages; `end` ends the request.

        Returns False if the caller should wait for `writable`. A caller that goes on loses the call at
        `Limits.stream_send_limit`.
        """
        if self._done:
            return False
        chunks: list[bytes] = []
        size = 0
        for payload in payloads:
            if len(payload) > self._limits.max_send_message:
                self._fail(
                    Status(StatusCode.RESOURCE_EXHAUSTED, f"a request of {len(payload)} bytes is too large")
                )
                return False
            prefix, payload = prefixed(payload, compress=self.compress)
            chunks += (prefix, payload)
            size += PREFIX_SIZE + len(payload)
        stream = self._stream
        if stream is None or self._connection is None:
            full = self._queued_size > self._limits.stream_send_limit
        else:
            full = self._connection.outbox.full(stream)
        if full:
            self._fail(
                Status(StatusCode.RESOURCE_EXHAUSTED, "the server does not read what the client sends")
            )
            return False
        if stream is None or self._connection is None:
            self._queued += chunks
            self._queued_size += size
            self._queued_end = self._queued_end or end
            return self._queued_size < self._limits.stream_send_high
        return self._connection.outbox.data(stream, chunks, size, end)

    def end(self) -> None:
        """End the request: no more messages follow."""
        self.send(end=True)

    def cancel(self) -> None:
        """Reset the call; the handler gets no further callback."""
        if not self._done:
            self._release(ErrorCode.CANCEL)

    def pause(self) -> None:
        """Stop `received`: the server is held back once the stream's window is used up."""
        self._paused = True

    def resume(self) -> None:
        """Go on with `received`, first with what has arrived meanwhile."""
        if not self._paused:
            return
        self._paused = False
        self._deliver()
        if not self._paused and self._unconsumed:
            size, self._unconsumed = self._unconsumed, 0
            if self._connection is not None and self._stream is not None:
                self._connection.consume(self._stream, size)

    # What the channel calls.

    def start(
        self, connection: StreamLifecycle, scheme: bytes, authority: bytes, timeout: float | None
    ) -> None:
        """Open the stream on a connection that `can_open`, and send what was queued."""
        steady = (
            (b":method", b"POST"),
            (b":scheme", scheme),
            (b":path", self.path),
            (b":authority", authority),
            *(_GZIP_TAIL if self.compress else _STEADY_TAIL),
        )
        varying: tuple[Field, ...] = self._varying
        if timeout is not None:
            varying = ((b"grpc-timeout", md.encode_timeout(timeout)), *varying)
        self._connection = connection
        self._stream = connection.open_stream(self, steady, varying)
        if not self._queued and not self._queued_end:
            return
        chunks, self._queued = self._queued, []
        room = connection.outbox.data(self._stream, chunks, self._queued_size, self._queued_end)
        if room and self._queued_size >= self._limits.stream_send_high:
            self.on_writable()

    def fail(self, status: Status) -> None:
        """End the call from outside: the handler gets the status, the server RST_STREAM."""
        self._fail(status)

    # What the stream calls.

    def on_headers(self, head: Head, ended: bool) -> None:
        """Take a response head, or the status in trailers or in a trailers-only answer."""
        if self._done or head.informational:
            return
        first = head.pseudo.get(b":status")
        if first is not None and (refusal := _not_grpc(head, first)) is not None:
            self._fail(refusal)
        elif ended:
            self._finish(_status(head))
        else:
            self._open(head)

    def on_data(self, buffer: bytes, start: int, stop: int, ended: bool) -> bool:
        """Take data of the answer."""
        size = stop - start
        if size and not self._done:
            reader = self._reader
            if reader is None:
                reader = self._reader = MessageReader(self._limits.max_receive_message, self._held())
            reader.feed(buffer, start, stop)
            self._deliver()
        if ended and not self._done:
            self._finish(Status(StatusCode.INTERNAL, "the answer ends without a status"))
        if self._paused and not self._done:
            self._unconsumed += size
            return False
        return True

    def on_reset(self, code: ErrorCode, processed: bool) -> None:
        """End the call: the server reset it, or the connection is gone."""
        # A complete answer is not lost with its stream: a paused handler has not read all of it yet.
        if not self._done and self._ended is None:
            what = (
                "the connection is lost" if code is ErrorCode.CONNECT_ERROR else f"stream reset: {code.name}"
            )
            self._fail(Status(from_error_code(code), what, retryable=not processed))

    def on_writable(self) -> None:
        """Pass `writable` on to the handler."""
        if not self._done:
            try:
                self._handler.writable()
            except Exception:
                self._crash()

    def _held(self) -> HeldMessages:
        if self._connection is None:
            raise AssertionError("data comes on a connection only")
        return self._connection.held_messages

    def _open(self, head: Head) -> None:
        encoding = dict(head.fields).get(b"grpc-encoding")
        self._reader = MessageReader(self._limits.max_receive_message, self._held(), encoding)
        try:
            self._handler.opened(md.decode(head.fields))
        except ValueError as error:
            self._fail(Status(StatusCode.INTERNAL, str(error)))
        except Exception:
            self._crash()

    def _deliver(self) -> None:
        """Hand over messages as long as the handler takes them, then the end if it has come."""
        reader = self._reader
        try:
            while reader is not None and not self._paused and not self._done:
                payload = reader.next()
                if payload is None:
                    break
                self._handler.received(payload)
            if reader is not None and not self._done:
                reader.settle()
        except CallError as error:
            self._fail(Status(error.code, error.message))
        except Exception:
            self._crash()
        if self._ended is not None:
            self._finish(self._ended)

    def _finish(self, status: Status) -> None:
        """End the call once the handler has had all messages."""
        if self._done:
            return
        reader = self._reader
        if self._paused and reader is not None and not reader.empty:
            self._ended = status
            return
        if status.code is StatusCode.OK and reader is not None and not reader.empty:
            status = Status(StatusCode.INTERNAL, "the answer ends in the midst of a message")
        self._fail(status)

    def _fail(self, status: Status) -> None:
        if self._done:
            return
        handler = self._handler
        # NO_ERROR after a complete answer: nothing failed, the rest is just not needed (RFC 9113, 8.1).
        self._release(ErrorCode.CANCEL if status.code is not StatusCode.OK else ErrorCode.NO_ERROR)
        try:
            handler.ended(status)
        except Exception:
            _log.exception("a response handler of %r failed in ended()", self.path)

    def _crash(self) -> None:
        _log.exception("a response handler of %r failed", self.path)
        self._fail(Status(StatusCode.INTERNAL, "the response handler failed"))

    def _release(self, code: ErrorCode) -> None:
        self._done = True
        if self._connection is not None and self._stream is not None:
            self._connection.reset(self._stream, code)
            self._stream.owner = NO_OWNER
        self._handler = _SILENT
        if self._reader is not None:
            self._reader.drop()
            self._reader = None
        self._queued = []
        self._connection = None


def _status(head: Head) -> Status:
    fields = dict(head.fields)
    value = fields.get(b"grpc-status")
    if value is None:
        return Status(StatusCode.UNKNOWN, "the answer ends without grpc-status")
    try:
        trailers = md.decode(head.fields)
    except ValueError as error:
        return Status(StatusCode.INTERNAL, str(error))
    return Status(from_wire(value), md.decode_message(fields.get(b"grpc-message", b"")), trailers)


def _not_grpc(head: Head, http_status: bytes) -> Status | None:
    """Return the status for the answer of a plain HTTP server or proxy, or None if the answer is gRPC."""
    fields = dict(head.fields)
    if b"grpc-status" in fields:
        return None
    if http_status != b"200":
        return Status(from_http(int(http_status)), f"HTTP status {http_status.decode()}")
    content = fields.get(b"content-type", b"")
    if not content.startswith(b"application/grpc"):
        return Status(StatusCode.UNKNOWN, f"content-type {content.decode('latin-1')!r} is not gRPC")
    return None


class _Silent:
    """Handler of a call that is over."""

    __slots__ = ()

    def opened(self, metadata: Metadata) -> None:
        pass

    def received(self, payload: bytes) -> None:
        pass

    def ended(self, status: Status) -> None:
        pass

    def writable(self) -> None:
        pass


_SILENT: ResponseHandler = _Silent()
