"""The picker's processor of one exchange. Pure; the clock is passed in.

It reads the complete request and calls `Router.decide`, then reads the response as it passes. However the
exchange ends, `Router.ended` is called exactly once for its decision.
"""

from collections.abc import Callable

from endpoint_picker.decision import Decision, Refusal, Resume, Router
from endpoint_picker.extproc.headers import RequestHeaders, ResponseHeaders, is_json
from endpoint_picker.extproc.refusals import refusal_reply
from endpoint_picker.extproc.steering import served_endpoint, steer, subset_hint
from endpoint_picker.outcomes import Outcome
from endpoint_picker.record import Observer, Record
from endpoint_picker.request import ConditionalRequest, InferenceRequest
from ext_proc import wire
from ext_proc.body import apis
from ext_proc.body.response.readers import DocumentReader, ResponseReader, StreamReader
from ext_proc.body.response.restore import NameRestorer
from ext_proc.processor import Ending, Forward, Reply, Waiting
from ext_proc.wire import ProcessingRequest


class Picking:
    """An `ext_proc.processor.Processor` that asks a router about one request and keeps the record."""

    __slots__ = (
        "_clock",
        "_decision",
        "_headers",
        "_note_gap",
        "_observer",
        "_reader",
        "_request",
        "_restore",
        "_restorer",
        "_router",
        "_subset",
        "record",
    )

    def __init__(self, router: Router, observer: Observer, now: float, clock: Callable[[], float]) -> None:
        """Begin at time `now`. `clock` measures how long `Router.decide` takes."""
        self._router = router
        self._observer = observer
        self._clock = clock
        self._headers: RequestHeaders | None = None
        self._subset: tuple[str, ...] | None = None
        self._request: InferenceRequest | None = None  # set while its decision waits
        self._decision: Decision | None = None
        self._reader: ResponseReader | None = None
        self._restore: tuple[str, str] | None = None
        """(model that the client asked for, model that the server was sent) of a rewritten request."""
        self._restorer: NameRestorer | None = None
        self._note_gap: Callable[[float], None] | None = None
        self.record = Record(now)
        observer.started()

    # Request

    def request_headers(self, message: ProcessingRequest, now: float) -> None:
        """Keep the headers and the subset hint for the decision."""
        self._headers = headers = RequestHeaders(message.request_headers)
        self._subset = subset_hint(message)
        self.record.request_id = headers.request_id
        self.record.objective = headers.objective

    def request(self, body: bytes | None, resume: Resume, now: float) -> Forward | Reply | Waiting:
        """Read the body and decide; `RequestHeaders.call_for_json` says whether the body must be JSON."""
        headers, record = self._headers, self.record
        assert headers is not None  # noqa: S101 - the exchange calls request_headers first
        size = len(body) if body else 0
        record.request_bytes = size
        kind = ConditionalRequest if headers.if_available else InferenceRequest
        request = kind(
            request_id=headers.request_id, objective=headers.objective, body_bytes=size, headers=headers.all
        )
        if headers.call_for_json(body) and self._router.reads_body(of_known_api=headers.api is not None):
            try:
                parsed = apis.parse(headers.api, body or b"")
            except apis.InvalidBodyError as error:
                return self._refuse_unrouted(Outcome.BAD_REQUEST, str(error), now)
            record.model = request.model = parsed.model
            request.prompt = parsed.prompt
            record.streaming = request.stream = parsed.stream
            request.max_tokens = parsed.max_tokens
        clock = self._clock
        begun = clock()
        answer = self._router.decide(request, self._subset, resume)
        if isinstance(answer, Decision):
            self._decision = answer
            return self._picked(answer, request, now, clock() - begun)
        if isinstance(answer, Refusal):
            record.priority = request.priority
            return self._refuse(answer, now, clock() - begun)
        self._request = request
        return answer

    def resumed(self, late: Decision | Refusal, now: float) -> Forward | Reply:
        """Answer the request whose decision waited; the wait does not count as decision time."""
        if isinstance(late, Decision):
            self._decision = late
        request, self._request = self._request, None
        assert request is not None  # noqa: S101 - `request` set it when the decision began to wait
        if isinstance(late, Decision):
            return self._picked(late, request, now, 0.0)
        self.record.priority = request.priority
        return self._refuse(late, now)

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
        return steer(decision.destination, headers.remove, decision.headers, decision.scores)

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

    def response_headers(self, message: ProcessingRequest, now: float) -> bytes:
        """Note the status and the server, choose the reader of usage that fits, and set plugins' headers."""
        record = self.record
        headers = ResponseHeaders(message.response_headers)
        record.response_status = headers.status
        served = served_endpoint(message)
        if served:
            record.served_by = served
        record.streaming = headers.content_type == "text/event-stream"
        mutation = b""
        if headers.status < 400 and not headers.encoded:
            if record.streaming:
                self._reader = StreamReader()
            elif is_json(headers.content_type):
                self._reader = DocumentReader()
            if self._restore is not None and self._reader is not None:
                self._restorer = NameRestorer(*self._restore, events=record.streaming)
                mutation = wire.remove_header("content-length")
        decision = self._decision
        if decision is None or not decision.hooks.response_headers:
            return mutation
        added = self._router.response_headers(decision, record)
        return mutation + b"".join([wire.set_header(name, value.encode()) for name, value in added])

    def response_body(self, piece: bytes, now: float) -> bytes | None:
        """Note when the piece and its tokens came, and put the model's name back."""
        record = self.record
        record.response_bytes += len(piece)
        record.response_chunks += 1
        record.last_byte_at = now
        reader = self._reader
        if record.response_chunks == 1:
            record.first_byte_at = now
            if reader is None or not record.streaming:
                self._answered(now)
        if reader is not None and reader.feed(piece):
            last, record.last_token_at = record.last_token_at, now
            if last:
                if self._note_gap is None:
                    self._note_gap = self._observer.gap_counter(record)
                self._note_gap(now - last)
            else:
                self._answered(now)
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
