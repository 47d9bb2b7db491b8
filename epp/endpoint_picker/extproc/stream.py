"""The life of one request at the picker: messages of Envoy in, replies out. A pure state machine.

It is fed bytes and the time, and returns the bytes to send; it does no I/O, reads no clock and never awaits.
The reply to the request headers is held until the body is complete, because the pick needs the body; then
come headers, body and trailers in this order, as full-duplex streaming demands. The response is let through
piece by piece and only looked at. Whatever ends the exchange, its reservation is released exactly once.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from itertools import islice
from typing import Final, NamedTuple

from endpoint_picker.body import openai
from endpoint_picker.body.usage import DocumentUsage, StreamUsage, UsageReader
from endpoint_picker.decision import Decision, Refusal, Router, Waiting
from endpoint_picker.extproc import wire
from endpoint_picker.extproc.buffers import BufferBudget
from endpoint_picker.extproc.headers import DROPPED_REASON, RequestHeaders, ResponseHeaders, is_json
from endpoint_picker.extproc.wire import ProcessingRequest
from endpoint_picker.outcomes import Outcome
from endpoint_picker.record import Ending, Observer, Record
from endpoint_picker.request import InferenceRequest
from lean_grpc.status import StatusCode

#: Envoy asks for pieces of at most 64 KiB; the same bound as other pickers use.
CHUNK_BYTES: Final = 62_000
#: Pieces of a request body handed out at a time, so that a slow proxy does not double a body's memory.
BATCH_CHUNKS: Final = 16

_NOTHING: Final[tuple[bytes, ...]] = ()


class _Request(IntEnum):
    """How far the request has come."""

    EXPECTED = 0
    BUFFERING = 1
    FORWARDED = 2
    """Decided on, and its last piece seen."""
    ABANDONED = 3
    """A response came before the request was complete, or before any of it: Envoy answered by itself."""
    UNSEEN = 4
    """Decided on; the proxy does not show its body, whose trailers may follow."""


class _Response(IntEnum):
    """How far the response has come."""

    EXPECTED = 0
    STREAMING = 1
    OVER = 2


class Status(NamedTuple):
    """How a stream is to end: the code, and for anything but OK one sentence for the proxy's log."""

    code: StatusCode
    message: str = ""


OK: Final = Status(StatusCode.OK)


class OutOfOrderError(Exception):
    """A message came that the protocol does not allow here; the text says which."""


class Exchange:
    """One HTTP request and its response. `status` is set when the stream is to be finished with it."""

    __slots__ = (
        "_backlog",
        "_body_unseen",
        "_budget",
        "_chunks",
        "_clock",
        "_headers",
        "_held",
        "_note_gap",
        "_observer",
        "_pick",
        "_request",
        "_response",
        "_router",
        "_subset",
        "_usage",
        "record",
        "status",
    )

    def __init__(
        self,
        router: Router,
        budget: BufferBudget,
        observer: Observer,
        now: float,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Begin at time `now`. `clock`, when given, times the decision itself."""
        self._router = router
        self._budget = budget
        self._observer = observer
        self._clock = clock
        self._request = _Request.EXPECTED
        self._response = _Response.EXPECTED
        self._headers: RequestHeaders | None = None
        self._subset: tuple[str, ...] | None = None
        self._chunks: list[bytes] = []
        self._held = 0
        self._backlog: Iterator[bytes] | None = None
        self._pick: Decision | None = None
        self._usage: UsageReader | None = None
        self._note_gap: Callable[[float], None] | None = None
        self._body_unseen = False  # the proxy does not show response bodies: their end is the stream's
        self.status: Status | None = None
        self.record = Record(now)
        observer.started()

    @property
    def has_more(self) -> bool:
        """There are replies left that `more` hands out."""
        return self._backlog is not None

    def received(self, payload: bytes, now: float) -> Sequence[bytes]:
        """Take one message and return the replies to it, in order; then look at `status` and `has_more`."""
        if self.status is not None:
            return _NOTHING
        try:
            kind, message = wire.decode(payload)
            return _STEPS[kind](self, message, now)
        except OutOfOrderError as error:
            return self._fail(StatusCode.FAILED_PRECONDITION, str(error), now)
        except wire.MalformedMessageError:
            return self._fail(StatusCode.INVALID_ARGUMENT, "the message is no ProcessingRequest", now)

    def more(self) -> Sequence[bytes]:
        """Return the next replies of a large request body; empty when there are none left."""
        if self._backlog is None:
            return _NOTHING
        batch = list(islice(self._backlog, BATCH_CHUNKS))
        if len(batch) < BATCH_CHUNKS:
            self._backlog = None
        return batch

    def closed(self, ending: Ending, now: float) -> None:
        """Note that the stream is over, for whatever reason; a second call does nothing."""
        record = self.record
        if record.ending is not None:
            return
        if ending is Ending.DISCONNECTED and self._body_unseen and self._response is _Response.STREAMING:
            ending = Ending.COMPLETED
        record.ending = ending
        record.ended_at = now
        if self._usage is not None:
            self._usage.close()
            record.usage = self._usage.usage
            self._usage = None
        self._release()
        self._drop_body()
        self._observer.ended(record)

    # Request

    def _request_headers(self, message: ProcessingRequest, now: float) -> Sequence[bytes]:
        if self._request is not _Request.EXPECTED:
            raise OutOfOrderError("request_headers came twice")
        self._headers = RequestHeaders(message.request_headers)
        self.record.request_id = self._headers.request_id
        self._subset = wire.subset_hint(message)
        modes = wire.body_modes(message)
        if modes is not None and not wire.are_supported(modes):
            return self._fail(
                StatusCode.FAILED_PRECONDITION,
                "processing_mode must set both body modes to FULL_DUPLEX_STREAMED (or NONE)",
                now,
            )
        self._body_unseen = modes is not None and modes[1] == wire.BODY_MODE_NONE
        if message.request_headers.end_of_stream:
            self._request = _Request.FORWARDED
            return self._decide(b"", now, has_body=False)
        if modes is not None and modes[0] == wire.BODY_MODE_NONE:  # the body will not be shown to us
            self._request = _Request.UNSEEN
            return self._decide(b"", now, has_body=False, unseen=True)
        self._request = _Request.BUFFERING
        return _NOTHING

    def _request_body(self, message: ProcessingRequest, now: float) -> Sequence[bytes]:
        piece = message.request_body
        chunk = piece.body
        if self._request is not _Request.BUFFERING:
            if self._request is _Request.EXPECTED:
                raise OutOfOrderError("request_body came before request_headers")
            if chunk and self._request is not _Request.ABANDONED:
                raise OutOfOrderError("request_body came after its end of stream")
            return _NOTHING  # Envoy sends the empty last piece twice now and then
        if chunk:
            if self._held + len(chunk) > self._budget.max_request_bytes:
                limit = self._budget.max_request_bytes
                return self._refuse(Outcome.TOO_LARGE, f"the request body is larger than {limit} bytes", now)
            if not self._budget.take(len(chunk)):
                return self._refuse(Outcome.OVERLOADED, "the picker's body buffers are full", now)
            self._held += len(chunk)
            self._chunks.append(chunk)
        if not piece.end_of_stream:
            return _NOTHING
        self._request = _Request.FORWARDED
        return self._decide(self._body(), now, has_body=True)

    def _request_trailers(self, _message: ProcessingRequest, now: float) -> Sequence[bytes]:
        if self._request is _Request.UNSEEN:
            self._request = _Request.FORWARDED
            return (wire.REQUEST_TRAILERS_REPLY,)
        if self._request is _Request.ABANDONED:
            return (wire.REQUEST_TRAILERS_REPLY,)
        if self._request is not _Request.BUFFERING:
            raise OutOfOrderError("request_trailers came before request_headers or after the end of stream")
        self._request = _Request.FORWARDED
        return self._decide(self._body(), now, has_body=True, trailers=True)

    def _body(self) -> bytes:
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)

    def _decide(
        self, body: bytes, now: float, *, has_body: bool, trailers: bool = False, unseen: bool = False
    ) -> Sequence[bytes]:
        """Parse, route and lay out the replies: headers, body, trailers."""
        self._chunks.clear()
        headers, record = self._headers, self.record
        assert headers is not None  # noqa: S101 - every way here passes request_headers
        record.request_bytes = len(body)
        request = InferenceRequest(
            request_id=headers.request_id,
            objective=headers.objective,
            body_bytes=len(body),
            headers=headers.all,
        )
        if not unseen and headers.call_for_json(has_body):
            try:
                parsed = openai.parse(headers.path, body)
            except openai.InvalidBodyError as error:
                return self._refuse(Outcome.BAD_REQUEST, str(error), now)
            record.model = request.model = parsed.model
            request.prompt = parsed.prompt
            record.streaming = request.stream = parsed.stream
        begun = self._clock() if self._clock else 0.0
        answer = self._router.decide(request, self._subset, self._resumed)
        took = self._clock() - begun if self._clock else 0.0
        record.priority = request.priority
        if isinstance(answer, Refusal):
            return self._refuse(answer.outcome, answer.message, now, took)
        assert not isinstance(answer, Waiting)  # noqa: S101 - no router puts a decision off yet
        self._pick = answer
        record.endpoint = answer.endpoint
        record.outcome = Outcome.PICKED
        record.decided_at = now
        self._observer.decided(record, took)
        length = len(body) if has_body and not trailers else None
        reply = wire.headers_reply(answer.destination, length, headers.remove)
        if not has_body:
            return (reply,)
        return self._forward(reply, body, trailers)

    def _resumed(self, answer: Decision | Refusal) -> None:
        raise AssertionError(answer)

    def _forward(self, reply: bytes, body: bytes, trailers: bool) -> Sequence[bytes]:
        """Return the headers reply with the body, or with its first piece and the rest as backlog."""
        if len(body) <= CHUNK_BYTES and not trailers:
            self._drop_body()
            return reply, wire.request_body_reply(body, end=True)
        self._backlog = self._pieces(body, trailers)
        return reply, *self.more()

    def _pieces(self, body: bytes, trailers: bool) -> Iterator[bytes]:
        for at in range(0, len(body), CHUNK_BYTES):
            end = at + CHUNK_BYTES >= len(body)
            yield wire.request_body_reply(body[at : at + CHUNK_BYTES], end and not trailers)
        self._drop_body()
        if trailers:
            yield wire.REQUEST_TRAILERS_REPLY

    def _refuse(self, outcome: Outcome, message: str, now: float, took: float = 0.0) -> Sequence[bytes]:
        record = self.record
        record.outcome = outcome
        record.decided_at = now
        self._observer.decided(record, took)
        headers = [("content-type", "text/plain")]
        if outcome is not Outcome.BAD_REQUEST:
            headers.append((DROPPED_REASON, outcome.value))
        text = f"inference error: {outcome.code} - {message}"
        self.status = OK
        self.closed(Ending.REFUSED, now)
        return (wire.immediate_reply(outcome.http_status, headers, text, outcome.value),)

    # Response

    def _response_headers(self, message: ProcessingRequest, now: float) -> Sequence[bytes]:
        if self._response is not _Response.EXPECTED:
            raise OutOfOrderError("response_headers came twice")
        if self._request not in (_Request.FORWARDED, _Request.UNSEEN):
            self._request = _Request.ABANDONED
            self._drop_body()
        self._response = _Response.STREAMING
        record = self.record
        headers = ResponseHeaders(message.response_headers)
        record.response_status = headers.status
        served = wire.served_endpoint(message)
        if served:
            record.served_by = served
        record.streaming = headers.content_type == "text/event-stream"
        if headers.status < 400 and not headers.encoded:
            if record.streaming:
                self._usage = StreamUsage()
            elif is_json(headers.content_type):
                self._usage = DocumentUsage()
        if message.response_headers.end_of_stream:
            self._complete(now)
        return (wire.RESPONSE_HEADERS_REPLY,)

    def _response_body(self, message: ProcessingRequest, now: float) -> Sequence[bytes]:
        piece = message.response_body
        chunk = piece.body
        if self._response is not _Response.STREAMING:
            if self._response is _Response.EXPECTED:
                raise OutOfOrderError("response_body came before response_headers")
            if chunk:
                raise OutOfOrderError("response_body came after its end of stream")
            return _NOTHING  # the empty last piece once more: it has had its answer
        if chunk:
            self._observe(chunk, now)
        end = piece.end_of_stream
        if end:
            self._complete(now)
        if len(chunk) <= CHUNK_BYTES:
            return (wire.response_body_reply(chunk, end),)
        starts = range(0, len(chunk), CHUNK_BYTES)
        return [
            wire.response_body_reply(chunk[at : at + CHUNK_BYTES], end and at == starts[-1]) for at in starts
        ]

    def _response_trailers(self, _message: ProcessingRequest, now: float) -> Sequence[bytes]:
        if self._response is not _Response.STREAMING:
            raise OutOfOrderError("response_trailers came before response_headers or after the end of stream")
        self._complete(now)
        return (wire.RESPONSE_TRAILERS_REPLY,)

    def _observe(self, chunk: bytes, now: float) -> None:
        record = self.record
        record.response_bytes += len(chunk)
        record.response_chunks += 1
        if record.response_chunks == 1:
            record.first_byte_at = now
            if self._pick is not None:
                self._router.first_byte(self._pick, record)
        elif record.streaming:
            if self._note_gap is None:
                self._note_gap = self._observer.gap_counter(record)
            self._note_gap(now - record.last_byte_at)
        record.last_byte_at = now
        if self._usage is not None:
            self._usage.feed(chunk)

    # Ends

    def _complete(self, now: float) -> None:
        self._response = _Response.OVER
        self.closed(Ending.COMPLETED, now)

    def _unknown(self, _message: ProcessingRequest, now: float) -> Sequence[bytes]:
        return self._fail(StatusCode.INVALID_ARGUMENT, "the message holds none of the known requests", now)

    def _fail(self, code: StatusCode, message: str, now: float) -> Sequence[bytes]:
        self.status = Status(code, message)
        self._backlog = None
        self.closed(Ending.PROTOCOL_ERROR, now)
        return _NOTHING

    def _release(self) -> None:
        if self._pick is not None:
            self._router.ended(self._pick, self.record)
            self._pick = None

    def _drop_body(self) -> None:
        self._chunks.clear()
        self._budget.give(self._held)
        self._held = 0


_Step = Callable[[Exchange, ProcessingRequest, float], Sequence[bytes]]
_STEPS: Final[dict[str, _Step]] = {
    "request_headers": Exchange._request_headers,
    "request_body": Exchange._request_body,
    "request_trailers": Exchange._request_trailers,
    "response_headers": Exchange._response_headers,
    "response_body": Exchange._response_body,
    "response_trailers": Exchange._response_trailers,
    "": Exchange._unknown,
}
