"""The picker's processor of one exchange. Pure; the clock is passed in.

It reads the complete request and calls `Router.decide`, then reads the response as it passes. However the
exchange ends, `Router.ended` is called exactly once for its decision.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from sys import intern
from typing import Any, ClassVar, Final

from endpoint_picker.decision import BodyReading, Decision, Refusal, Router
from endpoint_picker.extproc.headers import NAMES, WITH_BODY, RequestHeaders, ResponseHeaders, is_json
from endpoint_picker.extproc.refusals import refusal_reply
from endpoint_picker.extproc.steering import served_endpoint, steer, subset_hint
from endpoint_picker.flowcontrol.queued import Queued
from endpoint_picker.outcomes import Outcome
from endpoint_picker.record import Observer, Record
from endpoint_picker.request import ASKED_MODEL, ConditionalRequest, InferenceRequest
from endpoint_picker.rewrites import Rewrites
from ext_proc import wire
from ext_proc.body.api import Form
from ext_proc.body.apis import state_in
from ext_proc.body.encodings import decoder
from ext_proc.body.material import MAX_MATERIAL_BYTES
from ext_proc.body.reading import (
    WHOLE_BYTES,
    InvalidBodyError,
    ParsedBody,
    Reading,
    model_span,
    read,
    unread_encoding,
)
from ext_proc.body.response.encoded import EncodedReader
from ext_proc.body.response.readers import DocumentReader, ResponseReader, StreamReader
from ext_proc.body.response.restore import NameRestorer
from ext_proc.head import Head, Names
from ext_proc.processor import Edit, Ending, Forward, Reply, Waiting
from ext_proc.turns import Turn, Turns
from ext_proc.wire import Held

#: Encoded bodies up to this size, in bytes, are read at once when they are whole, in this many steps at most.
_AT_ONCE_BYTES: Final = 16_384
_STEPS_AT_ONCE: Final = 4
_UNSEEN: Final = (
    "the pool has model rewrites, for which the picker needs the request body before it picks; set "
    "request_body_mode to FULL_DUPLEX_STREAMED or BUFFERED in the proxy"
)


class BodyRead:
    """What an exchange is resumed with when the reading of its body is over."""

    __slots__ = ()


BODY_READ: Final = BodyRead()
Late = Decision | Refusal | BodyRead


class Picking:
    """An `ext_proc.processor.Processor` that asks a router about one request and keeps the record."""

    names: ClassVar[Names] = NAMES

    __slots__ = (
        "_clock",
        "_decision",
        "_edit",
        "_headers",
        "_note_gap",
        "_observer",
        "_reader",
        "_request",
        "_restore",
        "_restorer",
        "_resume",
        "_router",
        "_subset",
        "_turn",
        "_turns",
        "record",
    )

    def __init__(
        self,
        router: Router,
        observer: Observer,
        now: float,
        clock: Callable[[], float],
        turns: Turns,
    ) -> None:
        """Begin at time `now`. `clock` measures how long `Router.decide` takes."""
        self._router = router
        self._turns = turns
        self._observer = observer
        self._clock = clock
        self._headers: RequestHeaders | None = None
        self._subset: tuple[str, ...] | None = None
        self._request: InferenceRequest | None = None
        self._turn: Turn | None = None  # of a reading that takes turns
        self._resume: Callable[[Late], None] | None = None  # set while such a reading is waited for
        self._edit: Edit | None = None
        self._decision: Decision | None = None
        self._reader: ResponseReader | None = None
        self._restore: tuple[str, str] | None = None
        """(model that the client asked for, model that the server was sent) of a rewritten request."""
        self._restorer: NameRestorer | None = None
        self._note_gap: Callable[[float], None] | None = None
        self.record = Record(now)
        observer.started()

    # Request

    def request_headers(self, head: Head, now: float) -> bool:
        """Keep the headers and the subset hint; return whether to wait for the body."""
        self._headers = headers = RequestHeaders(head)
        if head.has_metadata:
            self._subset = subset_hint(head)
        self.record.request_id = headers.request_id
        self.record.objective = headers.objective
        return headers.holds

    def request_part(self, chunks: Sequence[Held], size: int) -> None:
        """Begin to read a body that is too large to be read in one go, while it comes."""
        turn = self._turn
        if turn is not None:
            turn.feed(chunks)
        elif size > WHOLE_BYTES and self._is_read(self._router.reading()):
            self._turn = self._begin_turn(chunks)

    def request(
        self, body: Sequence[Held] | None, resume: Callable[[Late], None], now: float
    ) -> Forward | Reply | Waiting:
        """Read the body and decide. A large body is read in turns first."""
        headers, record = self._headers, self.record
        assert headers is not None  # noqa: S101 - the exchange calls request_headers first
        size = 0
        if body:
            size = len(body[0]) if len(body) == 1 else sum(map(len, body))
        record.request_bytes = size
        kind = ConditionalRequest if headers.if_available else InferenceRequest
        self._request = kind(
            request_id=headers.request_id, objective=headers.objective, body_bytes=size, headers=headers.all
        )
        if body:
            self._request.chunks = body
        if headers.api is None and "/responses/" in headers.path:
            self._request.state = state_in(headers.path)
        self._request.arrived_at = now
        reading = self._router.reading()
        if not (headers.ends if body is None else headers.holds) or not self._is_read(reading):
            if body is None and headers.holds and reading.rewrites is not None and self._is_read(reading):
                return self._refuse_unrouted(Outcome.INTERNAL, _UNSEEN, now)
            return self._decide(resume, now)  # the body is not seen, or not read
        if not body or not size:
            if headers.api is None or not headers.api.needs_model or headers.method not in WITH_BODY:
                return self._decide(resume, now)
            text = "the request has no body; send a JSON object with a model"
            return self._refuse_unrouted(Outcome.BAD_REQUEST, text, now)
        try:
            if size <= WHOLE_BYTES and not headers.encoding and self._turn is None:
                whole: Any = body[0] if len(body) == 1 else b"".join(body)
                found = read(headers.api, whole, prompt=reading.prompt, boundary=headers.boundary)
                parsed = found if isinstance(found, ParsedBody) else self._begun(found)
            else:
                parsed = self._parsed(headers, body, size)
            if parsed is None:
                return self._wait_for_turns(resume)
            self._take(parsed, body, reading)
        except InvalidBodyError as error:
            return self._refuse_body(error, now)
        answer = self._decide(resume, now)
        if isinstance(answer, Queued):
            headers.share_texts()
            record.model = answer.request.model = intern(answer.request.model)
            if parsed.prompt and self._turn is None:
                # Most of the body is in the prompt: a queued request keeps the body alone, and is read again.
                answer.set_aside(_prompt_of, headers, body)
        return answer

    def resumed(self, late: Late, now: float) -> Forward | Reply | Waiting:
        """Answer the request whose decision, or whose body's reading, has waited.

        The wait does not count as decision time.
        """
        if isinstance(late, BodyRead):
            return self._has_been_read(now)
        request, self._request = self._request, None
        assert request is not None  # noqa: S101 - `request` set it when the decision began to wait
        if isinstance(late, Decision):
            self._decision = late
            return self._picked(late, request, now, 0.0)
        self.record.priority = request.priority
        return self._refuse(late, now)

    def evicted(self, late: Late, now: float) -> Reply:
        """Answer the client of a request that the router takes back from its server."""
        assert isinstance(late, Refusal)  # noqa: S101 - the router has decided before
        self.record.outcome = late.outcome
        return Reply(refusal_reply(self._headers, late.outcome, late.message, late.retry_after, None))

    def _decide(self, resume: Callable[[Late], None], now: float) -> Forward | Reply | Waiting:
        request, clock = self._request, self._clock
        assert request is not None  # noqa: S101 - set before
        begun = clock()
        answer = self._router.decide(request, self._subset, resume)
        if isinstance(answer, Decision):
            self._decision = answer
            return self._picked(answer, request, now, clock() - begun)
        if isinstance(answer, Refusal):
            self.record.priority = request.priority
            return self._refuse(answer, now, clock() - begun)
        return answer

    # Reading the body

    def _is_read(self, reading: BodyReading) -> bool:
        """Tell whether the body is read. One in an encoding that is not read counts if a model is needed."""
        headers = self._headers
        assert headers is not None  # noqa: S101 - the exchange calls request_headers first
        if not headers.is_read(reading):
            return False
        return not headers.encoding or headers.needs_model or decoder(headers.encoding) is not None

    def _begun(self, reading: Reading) -> ParsedBody | None:
        """Go on with a reading in turns; return what it says if it is done."""
        turn = self._turn = self._turns.begin(reading)
        turn.wake()
        return reading.result() if reading.done else None

    def _parsed(self, headers: RequestHeaders, body: Sequence[Held], size: int) -> ParsedBody | None:
        """Return what a large or encoded body says; None when its reading takes turns.

        Raises InvalidBodyError.
        """
        turn = self._turn
        if turn is None:
            turn = self._turn = self._begin_turn(body)
        else:
            turn.feed(body)
        reading = turn.reading
        assert reading is not None  # noqa: S101 - only the end of the exchange takes it away
        reading.end()
        if size <= _AT_ONCE_BYTES:
            for _ in range(_STEPS_AT_ONCE):
                reading.advance()
        turn.wake()
        return reading.result() if reading.done else None

    def _begin_turn(self, chunks: Sequence[Held]) -> Turn:
        """Return the place of a new reading, with its first steps asked for.

        Raises InvalidBodyError for an encoding that is not read.
        """
        headers = self._headers
        assert headers is not None  # noqa: S101 - the exchange calls request_headers first
        decodes = None
        if headers.encoding:
            decodes = decoder(headers.encoding)
            if decodes is None:
                raise unread_encoding(headers.encoding)
        reading = Reading(
            headers.api,
            prompt=self._router.reading().prompt,
            decoder=decodes,
            limit=self._turns.max_decoded_bytes,
            boundary=headers.boundary,
        )
        turn = self._turns.begin(reading)
        turn.feed(chunks)
        return turn

    def _wait_for_turns(self, resume: Callable[[Late], None]) -> Turn:
        turn = self._turn
        assert turn is not None  # noqa: S101 - `_parsed` has begun it
        self._resume = resume
        turn.on_done = partial(resume, BODY_READ)
        turn.wake()
        return turn

    def _has_been_read(self, now: float) -> Forward | Reply | Waiting:
        turn, resume, self._turn, self._resume = self._turn, self._resume, None, None
        assert turn is not None and turn.reading is not None and resume is not None  # noqa: S101, PT018
        try:
            self._take(turn.reading.result(), (), self._router.reading())
        except InvalidBodyError as error:
            return self._refuse_body(error, now)
        return self._decide(resume, now)

    def _take(self, parsed: ParsedBody, body: Sequence[Held], reading: BodyReading) -> None:
        """Note what the body says. Raises InvalidBodyError when its model is to change and cannot."""
        request, record = self._request, self.record
        assert request is not None  # noqa: S101 - set before
        record.model = request.model = parsed.model
        request.prompt = parsed.prompt
        request.ids_at = parsed.ids_at
        size = len(parsed.prompt)
        request.prompt_bytes = size if 0 < size < MAX_MATERIAL_BYTES else request.body_bytes
        record.streaming = request.stream = parsed.stream
        request.max_tokens = parsed.max_tokens
        if parsed.state:
            request.state = parsed.state
        if reading.rewrites is not None:
            self._rewrite(reading.rewrites, parsed, body)

    def _rewrite(self, rewrites: Rewrites, parsed: ParsedBody, body: Sequence[Held]) -> None:
        """Choose the model that is served, and change its name in the body."""
        headers, request = self._headers, self._request
        assert headers is not None and request is not None  # noqa: S101, PT018 - set before
        choice = rewrites.choose(parsed.model) if parsed.model else None
        if choice is None:
            return
        target = choice.target
        self._observer.rewritten(choice.source, choice.matched, target)
        self.record.target_model = request.model = target
        request.attributes[ASKED_MODEL] = parsed.model
        if target == parsed.model:
            return
        form = Form.JSON if headers.api is None else headers.api.form
        if form is Form.GRPC:
            raise InvalidBodyError("the model of a gRPC call cannot be rewritten; send it as JSON over HTTP")
        if headers.encoding and form is not Form.JSON:
            raise InvalidBodyError("the model of an encoded form cannot be rewritten; send it not encoded")
        span = parsed.model_span or model_span(body)
        if span is None:
            raise InvalidBodyError("the model cannot be rewritten in a body of this kind")
        text = target if form is Form.MULTIPART else json.dumps(target, ensure_ascii=False)
        if headers.encoding:
            self._edit = Edit(*span, text.encode(), decoder(headers.encoding), parsed.decoded_bytes)
            headers.remove.append("content-encoding")
        else:
            self._edit = Edit(*span, text.encode())
        self._restore = (parsed.model, target)
        headers.remove.append("accept-encoding")  # so that the name can be given back in the response

    def headers_too_large(self, fields: int, size: int, now: float) -> Reply:
        """Refuse with 431."""
        text = f"the request has more than {fields} header fields, or more than {size} bytes of them"
        return self._refuse_unrouted(Outcome.HEADERS_TOO_LARGE, text, now)

    def body_too_large(self, limit: int, now: float) -> Reply:
        """Refuse with 413."""
        return self._refuse_unrouted(Outcome.TOO_LARGE, f"the request body is larger than {limit} bytes", now)

    def buffers_full(self, now: float) -> Reply:
        """Refuse with 503."""
        return self._refuse_unrouted(Outcome.OVERLOADED, "the picker's body buffers are full", now)

    def _picked(self, decision: Decision, request: InferenceRequest, now: float, took: float) -> Forward:
        headers, record = self._headers, self.record
        assert headers is not None  # noqa: S101 - the exchange calls request_headers first
        record.priority = request.priority
        record.endpoint = decision.endpoint
        record.outcome = Outcome.PICKED
        record.decided_at = now
        self._observer.decided(record, took)
        forward = steer(decision.destination, headers.remove, decision.headers, decision.scores)
        forward.edit = self._edit
        return forward

    def _refuse_body(self, error: InvalidBodyError, now: float) -> Reply:
        outcome = Outcome.TOO_LARGE if error.too_large else Outcome.BAD_REQUEST
        if error.unsupported:
            outcome = Outcome.UNREAD_ENCODING
        return self._refuse_unrouted(outcome, str(error), now, error.param)

    def _refuse_unrouted(self, outcome: Outcome, message: str, now: float, param: str | None = None) -> Reply:
        headers = self._headers
        assert headers is not None  # noqa: S101 - the exchange calls request_headers first
        request = InferenceRequest(request_id=headers.request_id, objective=headers.objective)
        refusal = Refusal(outcome, message)
        self._router.unrouted(request, refusal)
        return self._refuse(refusal, now, param=param)

    def _refuse(self, refusal: Refusal, now: float, took: float = 0.0, param: str | None = None) -> Reply:
        outcome, record = refusal.outcome, self.record
        record.outcome = outcome
        record.decided_at = now
        self._observer.decided(record, took)
        return Reply(refusal_reply(self._headers, outcome, refusal.message, refusal.retry_after, param))

    # Response

    def response_headers(self, head: Head, now: float) -> bytes:
        """Note the status and the server, choose the reader of usage that fits, and set plugins' headers."""
        record = self.record
        headers = ResponseHeaders(head)
        record.response_status = headers.status
        served = served_endpoint(head)
        if served:
            record.served_by = served
        asked_stream, record.streaming = record.streaming, headers.content_type == "text/event-stream"
        mutation = b""
        if headers.status < 400:
            reader: ResponseReader | None = None
            if record.streaming:
                reader = StreamReader()
            elif is_json(headers.content_type):
                reader = DocumentReader()
            elif headers.content_type.startswith("application/grpc"):
                api = None if self._headers is None else self._headers.api
                if api is not None and api.reader is not None:
                    reader, record.streaming = api.reader(), asked_stream
            if headers.encoding:
                coded = decoder(headers.encoding)
                reader = EncodedReader(reader, coded) if reader is not None and coded is not None else None
            elif self._restore is not None and reader is not None:
                self._restorer = NameRestorer(*self._restore, events=record.streaming)
                mutation = wire.remove_header("content-length")
            self._reader = reader
        elif self._decision is not None:
            self._router.failed(record.request_id, headers.status)
        decision = self._decision
        if decision is None or not decision.hooks.response_headers:
            return mutation
        added = self._router.response_headers(decision, record)
        return mutation + b"".join([wire.set_header(name, value.encode()) for name, value in added])

    def response_body(self, piece: bytes, now: float) -> bytes | None:
        """Note when the piece and its tokens came, and put the model's name back."""
        record = self.record
        record.response_bytes += len(piece)
        reader = self._reader
        if not record.first_byte_at:
            record.first_byte_at = now
            if reader is None or not record.streaming:
                self._answered(now)
        if reader is not None and reader.feed(piece):
            if self._note_gap is not None:
                self._note_gap(now - record.last_token_at)
            else:
                self._answered(now)
                self._note_gap = self._observer.gap_counter(record)
            record.last_token_at = now
        return None if self._restorer is None else self._restorer.feed(piece)

    def _answered(self, now: float) -> None:
        self.record.first_token_at = now
        if self._decision is not None:
            self._router.first_byte(self._decision, self.record)

    def response_rest(self) -> bytes:
        """Return what is held of a model's name that is cut off."""
        return b"" if self._restorer is None else self._restorer.rest()

    def response_complete(self, now: float) -> bytes:
        """Complete the usage, and return plugins' metadata about the response."""
        self._close_reader()
        decision = self._decision
        if decision is None or not decision.hooks.response_complete:
            return b""
        return wire.dynamic_numbers(self._router.response_complete(decision, self.record))

    # End

    def ended(self, ending: Ending, now: float) -> None:
        """Complete the record and pass it to router and observer, even when one of these steps raises."""
        record = self.record
        record.ending = ending
        record.ended_at = now
        decision, self._decision = self._decision, None
        if self._turn is not None:
            self._turn.cancel()
        try:
            self._close_reader()
        finally:
            try:
                if decision is not None:
                    self._router.ended(decision, record)
            finally:
                self._observer.ended(record)

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is None:
            return
        record = self.record
        record.usage = reader.close()
        record.tokens_seen = reader.tokens
        record.failed_in_body = reader.failed
        record.response_id = reader.response_id
        if not record.first_token_at and record.output_tokens:
            # A stream in a form of its own: its events show no tokens.
            record.first_token_at = record.first_byte_at


def _prompt_of(headers: RequestHeaders, body: Sequence[Held]) -> bytes:
    """Return the prompt material of a body that has been read before."""
    found = read(headers.api, b"".join(body), prompt=True, boundary=headers.boundary)
    return found.prompt if isinstance(found, ParsedBody) else b""
