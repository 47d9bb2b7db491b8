"""The server's side of one call, as its handler gets it. Sans-IO: the server expires it."""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from lean_grpc.calls import metadata as md
from lean_grpc.calls.handler import SILENT, Handler
from lean_grpc.calls.messages import PREFIX, PREFIX_SIZE, MessageReader, prefixed
from lean_grpc.calls.metadata import Metadata
from lean_grpc.calls.request import CallRequest
from lean_grpc.http2.codes import ErrorCode
from lean_grpc.http2.fields import Field, Head
from lean_grpc.http2.lifecycle import StreamLifecycle
from lean_grpc.http2.states import CLOSED, OPEN
from lean_grpc.http2.stream import NO_OWNER, Stream
from lean_grpc.limits import Limits
from lean_grpc.status import CallError, StatusCode, from_error_code

_BY_HANDLER: Final = 1
_BY_PEER: Final = 2
"""Bits of `_paused`, why no message is handed over: the handler called `pause`; the client does not read."""

LONGEST_MESSAGE: Final = 1_024
"""Characters of a status message that are sent: it travels in a header list, which peers bound."""

_log = logging.getLogger("lean_grpc.server")

_CONTENT: Final = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_GZIP_CONTENT: Final = (*_CONTENT, (b"grpc-encoding", b"gzip"))
_STATUS: Final = {code: (b"grpc-status", b"%d" % code) for code in StatusCode}
_TRAILERS: Final = {code: (field,) for code, field in _STATUS.items()}
_TRAILERS_ONLY: Final = {code: (*_CONTENT, field) for code, field in _STATUS.items()}
_ACCEPT: Final = ((b"grpc-accept-encoding", b"gzip"),)

_unpack_prefix = PREFIX.unpack_from
_pack_prefix = PREFIX.pack


class ServerCall:
    """One call, as its handler sees it. Methods may be called at any time; after the end they do nothing."""

    __slots__ = (
        "_connection",
        "_done",
        "_ended",
        "_handler",
        "_head_sent",
        "_initial",
        "_limits",
        "_outbox",
        "_paused",
        "_reader",
        "_stream",
        "_unconsumed",
        "compress",
        "deadline",
        "messages",
        "opened_at",
        "request",
    )

    def __init__(
        self, connection: StreamLifecycle, stream: Stream, request: CallRequest, limits: Limits
    ) -> None:
        self.request = request
        self.deadline: float | None = None
        self.messages = 0
        self.opened_at: float | None = None
        self.compress = False
        self._connection = connection
        self._outbox = connection.outbox
        self._stream = stream
        self._limits = limits
        self._handler: Handler = SILENT
        self._reader: MessageReader | None = None
        self._initial: tuple[Field, ...] = ()
        self._head_sent = False
        self._paused = 0
        self._ended = False
        self._done = False
        self._unconsumed = 0
        stream.owner = self

    # What the handler calls.

    @property
    def path(self) -> str:
        """The full method name, as in `/package.Service/Method`."""
        return self.request.path

    @property
    def metadata(self) -> Metadata:
        """The client's metadata."""
        return self.request.metadata

    @property
    def done(self) -> bool:
        """Tell whether the call is over: finished, cancelled or aborted."""
        return self._done

    @property
    def unused(self) -> bool:
        """Tell whether the request is still open and no message of it has arrived."""
        return not (self.messages or self._unconsumed or self._done) and self._stream.state == OPEN

    def set_initial_metadata(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Add metadata to the response head; it has no effect once the first message was sent.

        Raises:
            ValueError: A key or value is not valid.
        """
        self._initial = md.encode(metadata)

    def send_initial_metadata(self) -> None:
        """Send the response head now, ahead of the first message."""
        if not self._done and not self._head_sent:
            self._send_head()

    def send(self, *payloads: bytes) -> bool:
        """Send messages.

        Returns False if the handler should wait for `writable`. A handler that goes on loses the call at
        `Limits.stream_send_limit` with RESOURCE_EXHAUSTED. Before `writable` no message is handed over
        either, so a handler that only answers what it receives needs no back-pressure of its own.
        """
        if self._done:
            return False
        if not self._head_sent:
            self._send_head()
        stream = self._stream
        if stream.pending and self._outbox.full(stream):
            self._give_up(StatusCode.RESOURCE_EXHAUSTED, "the client does not read what the server sends")
            return False
        longest = self._limits.max_send_message
        if len(payloads) == 1 and not self.compress:
            payload = payloads[0]
            length = len(payload)
            if length <= longest and self._outbox.message(stream, payload, length):
                return True
        chunks: list[bytes] = []
        size = 0
        for payload in payloads:
            length = len(payload)
            if length > longest:
                self._give_up(StatusCode.RESOURCE_EXHAUSTED, f"an answer of {length} bytes is too large")
                return False
            if self.compress:
                prefix, payload = prefixed(payload, compress=True)
                length = len(payload)
            else:
                prefix = _pack_prefix(0, length)
            chunks += prefix, payload
            size += PREFIX_SIZE + length
        if not chunks:
            return not self._paused & _BY_PEER
        room = self._outbox.data(stream, chunks, size)
        if not room:
            self._paused |= _BY_PEER
        return room

    def finish(
        self,
        status: StatusCode = StatusCode.OK,
        message: str = "",
        trailers: Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        """End the call with a status.

        Raises:
            ValueError: A trailer's key or value is not valid, or there is no such status.
        """
        if self._done:
            return
        status = StatusCode(status)
        varying = md.encode(trailers) if trailers else ()
        if message:
            varying = ((b"grpc-message", md.encode_message(message[:LONGEST_MESSAGE])), *varying)
        self._done = True
        if self._head_sent:
            self._outbox.headers(self._stream, _TRAILERS[status], varying, end=True)
        else:
            self._outbox.headers(self._stream, _TRAILERS_ONLY[status], self._initial + varying, end=True)
        self._release()

    def cancel(self) -> None:
        """End the call at once with RST_STREAM (CANCEL); what was not sent yet is dropped."""
        if not self._done:
            self._done = True
            self._connection.reset(self._stream, ErrorCode.CANCEL)
            self._release()

    def pause(self) -> None:
        """Stop `received`: the client is held back once the stream's window is used up."""
        self._paused |= _BY_HANDLER

    def resume(self) -> None:
        """Go on with `received`, first with what has arrived meanwhile."""
        if self._paused & _BY_HANDLER:
            self._paused &= ~_BY_HANDLER
            self._go_on()

    # What the server calls.

    def start(self, factory: Callable[["ServerCall"], Handler], ended: bool) -> None:
        """Begin: hand the call over to the handler that `factory` makes."""
        try:
            handler = factory(self)
            if self._done:
                return
            self._handler = handler
            handler.opened(self.request.metadata)
        except Exception:
            self._crash()
        if ended:
            self._end()

    def refuse(self, http_status: bytes) -> None:
        """Answer a request that is no gRPC with a bare HTTP status."""
        self._done = True
        self._outbox.headers(self._stream, ((b":status", http_status),), end=True)

    def expire(self) -> None:
        """Fire the deadline."""
        self._give_up(StatusCode.DEADLINE_EXCEEDED, "the deadline has passed")

    def give_up(self, code: StatusCode, message: str) -> None:
        """End the call from outside: the client gets the status, the handler `aborted`."""
        self._give_up(code, message)

    # What the stream calls.

    def on_headers(self, head: Head, ended: bool) -> None:
        """Take a client's trailers, which gRPC does not use."""
        if ended:
            self._end()

    def on_data(self, buffer: bytes, start: int, stop: int, ended: bool) -> bool:
        """Take data; the usual frame is one whole message. After its end a call has a silent handler."""
        size = stop - start
        reader = self._reader
        if (
            reader is None
            and size >= PREFIX_SIZE
            and not self._paused
            and _unpack_prefix(buffer, start) == (0, size - PREFIX_SIZE)
            and size <= self._limits.max_receive_message
        ):
            self.messages += 1
            try:
                self._handler.received(buffer[start + PREFIX_SIZE : stop])
            except Exception:
                self._crash()
        elif size and not self._done:
            if reader is None:
                reader = self._reader = MessageReader(
                    self._limits.max_receive_message, self._connection.held_messages, self.request.encoding
                )
            reader.feed(buffer, start, stop)
            self._deliver()
            held = self._connection.held_messages
            unfinished = self._reader is not None and not (ended or self._paused)
            if unfinished and held.full and held.must_wait(self):
                self._unconsumed += size
                return False
        if ended:
            self._end()
        if self._paused:
            self._unconsumed += size
            self._connection.held_messages.release(self)
            return False
        return True

    def on_reset(self, code: ErrorCode, processed: bool) -> None:
        """End the call: the client reset it, or the connection is gone."""
        if not self._done:
            self._done = True
            reason = StatusCode.CANCELLED if code is ErrorCode.NO_ERROR else from_error_code(code)
            self._abort(reason)

    def on_writable(self) -> None:
        """Let the handler send, then hand over messages again."""
        if self._done:
            return
        self._paused &= ~_BY_PEER
        try:
            self._handler.writable()
        except Exception:
            self._crash()
        self._go_on()

    def _go_on(self) -> None:
        """Hand over the messages that waited, unless the call is still paused."""
        if self._paused | self._done:
            return
        self._deliver()
        if not self._paused and self._unconsumed:
            size, self._unconsumed = self._unconsumed, 0
            self._connection.consume(self._stream, size)

    def go_on_receiving(self) -> None:
        """Take more of a message that is not whole, after others."""
        if not self._paused and self._unconsumed:
            size, self._unconsumed = self._unconsumed, 0
            self._connection.consume(self._stream, size)

    def _deliver(self) -> None:
        """Hand over messages as long as the handler takes them, then the end if it has come."""
        reader = self._reader
        before = self.messages
        try:
            while reader is not None and not self._paused and not self._done:
                payload = reader.next()
                if payload is None:
                    break
                self.messages += 1
                self._handler.received(payload)
            if reader is not None and not self._done:
                reader.settle()
                if reader.empty:
                    self._reader = None
                if self.messages > before:
                    self._connection.held_messages.release(self)
        except CallError as error:
            self._give_up(error.code, error.message)
        except Exception:
            self._crash()
        if self._ended:
            self._end()

    def _end(self) -> None:
        self._ended = True
        if self._done or self._paused:
            return
        self._ended = False
        if self._reader is not None and not self._reader.empty:
            self._give_up(StatusCode.INTERNAL, "the request ends in the midst of a message")
            return
        try:
            self._handler.ended()
        except Exception:
            self._crash()

    def _send_head(self) -> None:
        self._head_sent = True
        self.compress = self.compress and self.request.accepts_gzip
        self._outbox.headers(self._stream, _GZIP_CONTENT if self.compress else _CONTENT, self._initial)

    def _give_up(self, code: StatusCode, message: str) -> None:
        """End the call for a reason that is not the handler's."""
        if self._done:
            return
        handler = self._handler
        if self._stream.pending:
            self._done = True
            self._connection.reset(self._stream, ErrorCode.CANCEL)
        else:
            if code is StatusCode.UNIMPLEMENTED:
                self._initial += _ACCEPT
            self.finish(code, message)
        self._handler = handler
        self._abort(code)

    def _crash(self) -> None:
        """End the call of a handler that raised; the reason goes to the log, not to the client."""
        _log.exception("a handler of %s failed", self.request.path)
        self._give_up(StatusCode.UNKNOWN, "the handler failed")

    def _abort(self, code: StatusCode) -> None:
        handler = self._handler
        self._release()
        try:
            handler.aborted(code)
        except Exception:
            _log.exception("a handler of %s failed in aborted()", self.request.path)

    def _release(self) -> None:
        """Drop the references to handler and stream: both refer to the call, and the cycle would linger."""
        self._handler = SILENT
        self._stream.owner = NO_OWNER
        if self._reader is not None:
            self._reader.drop()
            self._reader = None
            self._connection.held_messages.release(self)
        if self._unconsumed and self._stream.state != CLOSED:
            self._connection.consume(self._stream, self._unconsumed)
        self._unconsumed = 0
