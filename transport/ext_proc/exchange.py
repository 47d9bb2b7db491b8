"""One HTTP request and its response: messages of the proxy in, replies out. A pure state machine.

It takes bytes and the time, and returns the bytes to send; it does no I/O, reads no clock and never awaits.
The processor gives a request its meaning. It is asked once the body is whole, and the reply to the request
headers is held until it has answered; then come headers, body and trailers in this order, as full-duplex
streaming demands. The response is let through piece by piece. Where the proxy buffers request bodies, the
reply to the body carries the answer; where it shows none before the headers have their reply, the processor
is asked without a body.

The tables at the end of this file say which message may come when, what takes it, and the state after it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final, Generic, NamedTuple, TypeVar

from ext_proc import wire
from ext_proc.budget import HEAP_BYTES, BodyBudget
from ext_proc.head import Head, MalformedMessageError
from ext_proc.processor import Edit, Ending, Forward, Late, Processor, Reply, Waiting
from ext_proc.segments import Segments
from ext_proc.states import (
    AFTER_RESPONSE_HEADERS,
    AFTER_WAITING,
    EXPECTED_IN_MODE,
    WHILE_WAITING,
    WITHOUT_HOLDING,
    Request,
    Response,
)
from ext_proc.wire import Held, Piece
from lean_grpc.status import StatusCode

#: Envoy asks for pieces of at most 64 KiB; the same bound as other pickers use.
CHUNK_BYTES: Final = 62_000
#: Pieces of a request body handed out at a time, so that a slow proxy does not double a body's memory.
BATCH_CHUNKS: Final = 16
#: The same of a body that is decoded meanwhile, which takes time.
BATCH_DECODED: Final = 2

#: Messages for the proxy, in order.
Replies = Sequence[bytes]
_NOTHING: Final[tuple[bytes, ...]] = ()
#: States in which the request is on its way to a model server, or there.
_AT_A_SERVER: Final = (Request.ANSWERED, Request.UNSEEN, Request.PASSING, Request.STEPPING)
#: States in which no response has come.
_NOT_BEGUN: Final = frozenset(EXPECTED_IN_MODE.values())
_UNKNOWN_MODE: Final = (
    "processing_mode must set each body mode to FULL_DUPLEX_STREAMED, BUFFERED, STREAMED or NONE; "
    "BUFFERED_PARTIAL may cut a body off"
)


class Status(NamedTuple):
    """How a stream is to end: the code, and for anything but OK one sentence for the proxy's log."""

    code: StatusCode
    message: str = ""


OK: Final = Status(StatusCode.OK)


class Exchange(Generic[Late]):
    """One HTTP request and its response. `status` is set when the stream is to be finished with it."""

    __slots__ = (
        "_batch",
        "_budget",
        "_chunks",
        "_ended",
        "_has_body",
        "_held",
        "_in_one",
        "_owed",
        "_request",
        "_response",
        "_response_unseen",
        "_segments",
        "_trailers",
        "_waiting",
        "backlog",
        "on_resume",
        "processor",
        "status",
    )

    def __init__(self, processor: Processor[Late], budget: BodyBudget) -> None:
        self.processor = processor
        self.status: Status | None = None
        self.on_resume: Callable[[Late], None] | None = None
        """Called with a late answer. The handler sets it while `waits` is true, and after a late answer until
        the end: `evict` takes another."""
        self._budget = budget
        self._request = Request.EXPECTED
        self._response = Response.EXPECTED
        self._chunks: list[Held] = []
        self._segments: Segments | None = None  # where the pieces of a large body are
        self._held = 0  # bytes of this exchange in the budget
        self._has_body = False  # the body goes through here, in pieces
        self._in_one = False  # the proxy holds the headers until it has the reply to the whole body
        self._batch = BATCH_CHUNKS
        self._owed = 0  # replies to pieces that came while the headers had none
        self._trailers = False  # a reply to request trailers is owed
        self.backlog: Iterator[bytes] | None = None
        """Replies that `more` hands out; None when there are none left."""
        self._waiting: Waiting | None = None
        self._response_unseen = False  # the proxy does not show response bodies: their end is the stream's
        self._ended = False

    @property
    def states(self) -> tuple[Request, Response]:
        """How far both sides have come."""
        return self._request, self._response

    @property
    def waits(self) -> bool:
        """The processor has the whole request and has not answered yet."""
        return self._waiting is not None

    def received(self, payload: bytes, now: float) -> Replies:
        """Take one message and return the replies to it, in order; then look at `status` and `backlog`."""
        if self.status is not None:
            return _NOTHING
        # Most messages are pieces of a body: these two cases are those of the tables, without their look-ups.
        if self._response is _STREAMING:
            if payload[:1] == wire.RESPONSE_BODY and (piece := wire.piece_of(payload)) is not None:
                return self._response_body(piece, _PASSES, now)
        elif self._request is _BUFFERING and payload[:1] == wire.REQUEST_BODY:
            piece = wire.piece_of(payload)
            if piece is not None:
                return self._hold_piece(piece, _IS_HELD, now)
        try:
            kind, message = wire.decode(payload, self.processor.names)
            row = _REQUEST_ROWS.get(kind)
            cell = _RESPONSE_ROWS[kind][self._response] if row is None else row[self._request]
            return cell.take(self, message, cell, now)
        except MalformedMessageError:
            return self._fail(StatusCode.INVALID_ARGUMENT, "the message is no ProcessingRequest", now)

    def resumed(self, late: Late, now: float) -> None:
        """Take what the processor waited for; the replies are in `more`, then look at `status`.

        Where it has the answer already, this is another in its place: see `evict`.
        """
        if self._waiting is None:
            self.evict(late, now)
            return
        self._waiting = self.on_resume = None
        self._request = AFTER_WAITING[self._request]
        replies = self._answered(self.processor.resumed(late, now), now)
        if replies:
            self.backlog = chain(replies, self.backlog or ())

    def evict(self, late: Late, now: float) -> None:
        """Take the request back from its server: the processor's reply goes to the client.

        Does nothing unless the request was answered late and its response has not begun.
        """
        if self._ended or self._response not in _NOT_BEGUN or self._request not in _AT_A_SERVER:
            return
        self.backlog = iter(self._reply(self.processor.evicted(late, now), now))

    def more(self) -> Replies:
        """Return the next replies of the backlog; empty when there are none left."""
        if self.backlog is None:
            return _NOTHING
        most = self._batch
        batch = list(islice(self.backlog, most))
        if len(batch) < most:
            self.backlog = None
        return batch

    def closed(self, ending: Ending, now: float) -> None:
        """Note that the stream is over, for whatever reason; nothing is held or taken afterwards."""
        if self.status is None:
            self.status = OK
        if ending is Ending.DISCONNECTED and self._response_unseen and self._response is Response.STREAMING:
            ending = Ending.COMPLETED
        try:
            self._end(ending, now)
        finally:
            self.backlog = None
            self._drop_body()

    # Request

    def _request_headers(self, head: Head, cell: "Cell[Request]", now: float) -> Replies:
        modes, mode = head.modes, wire.BODY_MODE_FULL_DUPLEX_STREAMED
        if modes is not None and modes != wire.FULL_DUPLEX:
            mode = modes[0]
            if not EXPECTED_IN_MODE.keys() >= {*modes}:
                return self._fail(StatusCode.FAILED_PRECONDITION, _UNKNOWN_MODE, now)
            self._take_response_mode(modes[1])
        if len(head.payload) > self._budget.small_headers and (refused := self._refuse_headers(head, now)):
            return refused
        holds = self.processor.request_headers(head, now)
        if head.end_of_stream:
            self._request = cell.ended
            return self._ask(None, now)
        if mode != wire.BODY_MODE_FULL_DUPLEX_STREAMED:
            return self._headers_in_mode(mode, holds, now)
        self._has_body = True
        if not holds:
            self._request = WITHOUT_HOLDING[cell.then]
            return self._ask(None, now)
        self._request = cell.then
        return _NOTHING

    def _refuse_headers(self, head: Head, now: float) -> Replies:
        """Refuse headers beyond the limits; return nothing for others."""
        budget, payload = self._budget, head.payload
        # The tag of a field is a line feed: there are at least as many of these as fields, and counting them
        # takes a twentieth of the time.
        if len(payload) <= budget.max_header_bytes and payload.count(b"\n") <= budget.max_header_fields:
            return _NOTHING
        fields, size = head.sizes()
        if fields <= budget.max_header_fields and size <= budget.max_header_bytes:
            return _NOTHING
        self.processor.request_headers(head, now)
        reply = self.processor.headers_too_large(budget.max_header_fields, budget.max_header_bytes, now)
        return self._reply(reply, now)

    def _take_response_mode(self, mode: int) -> None:
        self._response = EXPECTED_IN_MODE[mode]
        self._response_unseen = mode == wire.BODY_MODE_NONE

    def _headers_in_mode(self, mode: int, holds: bool, now: float) -> Replies:
        """Answer headers whose body is not streamed in full duplex."""
        if mode == wire.BODY_MODE_BUFFERED and holds:
            self._request = Request.WHOLE
            return (wire.REQUEST_HEADERS_REPLY,)
        self._request = Request.UNSEEN if mode == wire.BODY_MODE_NONE else Request.STEPPING
        return self._ask(None, now)

    def _take_whole(self, piece: Piece, cell: "Cell[Request]", now: float) -> Replies:
        """Ask about a request whose buffered body is here; without `end` trailers follow."""
        self._in_one = True
        return self._hold_piece(
            (piece[0], True), cell._replace(ended=cell.ended if piece[1] else cell.then), now
        )

    def _step(self, _piece: Piece, cell: "Cell[Request]", _now: float) -> Replies:
        self._request = cell.then
        return (wire.REQUEST_BODY_REPLY,)

    def _owe_step(self, _piece: Piece, cell: "Cell[Request]", _now: float) -> Replies:
        """Reply to the piece after the headers, which wait."""
        self._request = cell.then
        self._owed += 1
        return _NOTHING

    def _hold_piece(self, piece: Piece, cell: "Cell[Request]", now: float) -> Replies:
        chunk, end = piece
        if chunk:
            budget = self._budget
            if self._held + len(chunk) > budget.max_request_bytes:
                return self._reply(self.processor.body_too_large(budget.max_request_bytes, now), now)
            if not budget.take(len(chunk)):
                return self._reply(self.processor.buffers_full(now), now)
            self._held += len(chunk)
            self._chunks.append(chunk)
        self._request = cell.ended if end else cell.then
        if self._waiting is not None:
            return _NOTHING
        if end:
            return self._ask(self._chunks, now)
        self.processor.request_part(self._chunks, self._held)
        if self._held > HEAP_BYTES and chunk:
            self._set_apart(chunk)
        return _NOTHING

    def _set_apart(self, chunk: bytes) -> None:
        """Move the last piece of a large body out of the heap."""
        if self._segments is None:
            self._segments = Segments()
        self._chunks[-1] = self._segments.keep(chunk)

    def _pass_piece(self, piece: Piece, cell: "Cell[Request]", _now: float) -> Replies:
        chunk, end = piece
        if end:
            self._request = cell.ended
        if self.backlog is not None:  # behind what was held
            self.backlog = chain(self.backlog, _cut(iter((chunk,)), end))
            return _NOTHING
        if len(chunk) <= CHUNK_BYTES:
            return (wire.request_body_reply(chunk, end),)
        return [*_cut(iter((chunk,)), end)]

    def _end_body_by_trailers(self, _message: None, cell: "Cell[Request]", now: float) -> Replies:
        self._request = cell.ended
        self._trailers = True
        return self._ask(self._chunks, now)

    def _owe_trailers(self, _message: None, cell: "Cell[Request]", _now: float) -> Replies:
        """Reply to the trailers after the headers, which wait."""
        self._request = cell.ended
        self._trailers = True
        return _NOTHING

    def _pass_trailers(self, _message: None, cell: "Cell[Request]", _now: float) -> Replies:
        self._request = cell.ended
        return (wire.REQUEST_TRAILERS_REPLY,)

    def _ask(self, body: Sequence[Held] | None, now: float) -> Replies:
        return self._answered(self.processor.request(body, self._resume, now), now)

    def _answered(self, answer: Forward | Reply | Waiting, now: float) -> Replies:
        if isinstance(answer, Forward):
            return self._forward(answer)
        if isinstance(answer, Reply):
            return self._reply(answer, now)
        self._waiting = answer
        self._request = WHILE_WAITING[self._request]
        return _NOTHING

    def _resume(self, late: Late) -> None:
        """Pass on what the processor waited for; what comes after the end is dropped."""
        if self.on_resume is not None:
            self.on_resume(late)

    def _forward(self, answer: Forward) -> Replies:
        """Return the headers reply with the body, or with its first pieces and the rest as backlog."""
        trailers = self._trailers
        if not self._has_body:
            if self._in_one:
                reply = self._whole_body_reply(answer)
            else:
                reply = wire.headers_reply(answer.mutation, answer.metadata, None)
            steps = (wire.REQUEST_BODY_REPLY,) * self._owed
            return (reply, *steps, wire.REQUEST_TRAILERS_REPLY) if trailers else (reply, *steps)
        chunks, edit = self._chunks, answer.edit
        passing = self._request is Request.PASSING
        if edit is None and len(chunks) == 1 and self._held <= CHUNK_BYTES and not (trailers or passing):
            reply = wire.headers_reply(answer.mutation, answer.metadata, self._held)
            body = wire.request_body_reply(chunks[0], end=True)
            self._drop_body()
            return reply, body
        length: int | None = self._held
        if trailers or passing:
            length = None
        elif edit is not None:
            length = edit.length(self._held)
        reply = wire.headers_reply(answer.mutation, answer.metadata, length)
        if passing and not chunks:
            return (reply,)
        if edit is not None and edit.decoder is not None:
            self._batch = BATCH_DECODED
        self.backlog = self._pieces(edit, not (trailers or passing))
        return reply, *self.more()

    def _whole_body_reply(self, answer: Forward) -> bytes:
        body = None if answer.edit is None else b"".join(answer.edit.applied(iter(self._chunks)))
        self._drop_body()
        return wire.whole_body_reply(answer.mutation, answer.metadata, body)

    def _pieces(self, edit: Edit | None, end: bool) -> Iterator[bytes]:
        """Yield the replies that bring the body; it is freed on the way, and given back at the end."""
        chunks = _taken(self._chunks)
        yield from _cut(chunks if edit is None else edit.applied(chunks), end)
        self._drop_body()
        if self._trailers:
            yield wire.REQUEST_TRAILERS_REPLY

    def _reply(self, answer: Reply, now: float) -> Replies:
        self.status = OK
        self.closed(Ending.REFUSED, now)
        return (answer.payload,)

    # Response

    def _response_headers(self, head: Head, cell: "Cell[Response]", now: float) -> Replies:
        self._request = AFTER_RESPONSE_HEADERS[self._request]
        if self._request is Request.ABANDONED:
            modes = head.modes  # of a proxy that answered before it asked
            if modes is not None and modes[1] in EXPECTED_IN_MODE:
                self._take_response_mode(modes[1])
                cell = _RESPONSE_ROWS["response_headers"][self._response]
            self._drop_body()
            if self._waiting is not None:
                self._cancel()
        end = head.end_of_stream
        self._response = cell.ended if end else cell.then
        mutation = self.processor.response_headers(head, now)
        reply = wire.response_headers_reply(mutation) if mutation else wire.RESPONSE_HEADERS_REPLY
        return (reply + self._complete(now) if end else reply,)

    def _response_body(self, piece: Piece, cell: "Cell[Response]", now: float) -> Replies:
        chunk, end = piece
        if chunk:
            changed = self.processor.response_body(chunk, now)
            if changed is not None:
                chunk = changed
                if not chunk and not end:
                    return _NOTHING
        metadata = b""
        if end:
            self._response = cell.ended
            rest = self.processor.response_rest()
            if rest:
                chunk += rest
            metadata = self._complete(now)
        elif (head := wire.passing_heads.get(len(chunk))) is not None:
            return (head + chunk,)
        if len(chunk) <= CHUNK_BYTES:
            reply = wire.response_body_reply(chunk, end)
            return (reply + metadata if metadata else reply,)
        starts = range(0, len(chunk), CHUNK_BYTES)
        replies = [
            wire.response_body_reply(chunk[at : at + CHUNK_BYTES], end and at == starts[-1]) for at in starts
        ]
        replies[-1] += metadata
        return replies

    def _response_step(self, piece: Piece, cell: "Cell[Response]", now: float) -> Replies:
        """Reply to a piece that the proxy holds until then; a body in one piece ends with it."""
        chunk, end = piece
        if self._ended:
            self._response = cell.ended
            return (wire.RESPONSE_BODY_REPLY,) if not chunk else self._out_of_order(piece, cell, now)
        changed = self.processor.response_body(chunk, now) if chunk else None
        metadata = b""
        if end or cell.then is Response.WHOLE:
            rest = self.processor.response_rest()
            if rest:
                changed = (chunk if changed is None else changed) + rest
            metadata = self._complete(now)
        self._response = cell.ended if end else cell.then
        reply = wire.RESPONSE_BODY_REPLY if changed is None else wire.response_piece_reply(changed)
        return (reply + metadata,)

    def _response_trailers(self, _message: None, cell: "Cell[Response]", now: float) -> Replies:
        self._response = cell.ended
        rest = b"" if self._ended else self.processor.response_rest()
        trailers = wire.RESPONSE_TRAILERS_REPLY + self._complete(now)
        return (wire.response_body_reply(rest, end=False), trailers) if rest else (trailers,)

    # Either side

    def _repeated_end(self, piece: Piece, cell: "Cell[Any]", now: float) -> Replies:
        """Pass over the empty last piece, which Envoy sends twice now and then; refuse bytes after it."""
        return self._out_of_order(piece, cell, now) if piece[0] else _NOTHING

    def _ignore(self, _piece: Piece, _cell: "Cell[Any]", _now: float) -> Replies:
        return _NOTHING

    def _out_of_order(self, _message: Head | Piece | None, cell: "Cell[Any]", now: float) -> Replies:
        request, response = self.states
        text = f"{cell.kind} is out of order (request {request.name}, response {response.name})"
        return self._fail(StatusCode.FAILED_PRECONDITION, text, now)

    def _unknown(self, _message: None, _cell: "Cell[Any]", now: float) -> Replies:
        return self._fail(StatusCode.INVALID_ARGUMENT, "the message holds none of the known requests", now)

    # Ends

    def _fail(self, code: StatusCode, message: str, now: float) -> Replies:
        self.status = Status(code, message)
        self.closed(Ending.PROTOCOL_ERROR, now)
        return _NOTHING

    def _complete(self, now: float) -> bytes:
        """End the exchange after the whole response; return the processor's metadata for the last reply."""
        metadata = b"" if self._ended else self.processor.response_complete(now)
        self._end(Ending.COMPLETED, now)
        return metadata

    def _end(self, ending: Ending, now: float) -> None:
        """End the exchange once. Replies of the backlog, and the body that they are cut from, stay."""
        if self._ended:
            return
        self._ended = True
        self.on_resume = None
        try:
            if self._waiting is not None:
                self._cancel()
        finally:
            self.processor.ended(ending, now)

    def _cancel(self) -> None:
        waiting, self._waiting, self.on_resume = self._waiting, None, None
        if waiting is not None:
            waiting.cancel()

    def _drop_body(self) -> None:
        """Free the body and give its bytes back."""
        self._chunks.clear()
        self._segments = None
        self._budget.give(self._held)
        self._held = 0


def _taken(chunks: list[Held]) -> Iterator[Held]:
    """Yield the chunks and let go of each."""
    chunks.reverse()
    while chunks:
        yield chunks.pop()


def _cut(chunks: Iterator[Held], end: bool) -> Iterator[bytes]:
    """Yield the replies that bring the bytes, each but the last with CHUNK_BYTES; at least one."""
    parts: list[Held] = []
    size = 0
    for chunk in chunks:
        length, at = len(chunk), 0
        if size + length <= CHUNK_BYTES:
            parts.append(chunk)
            size += length
            continue
        view = memoryview(chunk)
        while at < length:
            if size == CHUNK_BYTES:
                yield wire.request_body_reply_of(parts, size, end=False)
                parts, size = [], 0
            part = view[at : at + CHUNK_BYTES - size]
            parts.append(part)
            size += len(part)
            at += len(part)
    yield wire.request_body_reply_of(parts, size, end)


_State = TypeVar("_State", Request, Response)


class Cell(NamedTuple, Generic[_State]):
    """What a message does in one state of its side of the exchange."""

    take: Callable[[Exchange[Any], Any, "Cell[Any]", float], Replies]
    then: _State
    """State of the side after a message that does not end it."""
    ended: _State
    """State of the side after a message that ends it."""
    kind: str = ""
    """The message's kind; `_rows` fills it in."""


_R, _S = Request, Response

#: Messages of the request's side. A state without a cell: the message is out of order and fails the stream.
REQUEST_CELLS: Final[Mapping[str, Mapping[Request, Cell[Request]]]] = {
    "request_headers": {
        _R.EXPECTED: Cell(Exchange._request_headers, _R.BUFFERING, _R.ANSWERED),
    },
    "request_body": {
        _R.BUFFERING: Cell(Exchange._hold_piece, _R.BUFFERING, _R.ANSWERED),
        _R.WAITING: Cell(Exchange._repeated_end, _R.WAITING, _R.WAITING),
        _R.WAITING_UNSEEN: Cell(Exchange._repeated_end, _R.WAITING_UNSEEN, _R.WAITING_UNSEEN),
        _R.ANSWERED: Cell(Exchange._repeated_end, _R.ANSWERED, _R.ANSWERED),
        _R.PASSING: Cell(Exchange._pass_piece, _R.PASSING, _R.ANSWERED),
        _R.WAITING_PASSING: Cell(Exchange._hold_piece, _R.WAITING_PASSING, _R.WAITING),
        _R.UNSEEN: Cell(Exchange._repeated_end, _R.UNSEEN, _R.UNSEEN),
        _R.ABANDONED: Cell(Exchange._ignore, _R.ABANDONED, _R.ABANDONED),
        _R.WHOLE: Cell(Exchange._take_whole, _R.UNSEEN, _R.ANSWERED),
        _R.STEPPING: Cell(Exchange._step, _R.STEPPING, _R.STEPPING),
        _R.WAITING_STEPPING: Cell(Exchange._owe_step, _R.WAITING_STEPPING, _R.WAITING_STEPPING),
    },
    "request_trailers": {
        _R.BUFFERING: Cell(Exchange._end_body_by_trailers, _R.ANSWERED, _R.ANSWERED),
        _R.WAITING_UNSEEN: Cell(Exchange._owe_trailers, _R.WAITING, _R.WAITING),
        _R.UNSEEN: Cell(Exchange._pass_trailers, _R.ANSWERED, _R.ANSWERED),
        _R.PASSING: Cell(Exchange._pass_trailers, _R.ANSWERED, _R.ANSWERED),
        _R.WAITING_PASSING: Cell(Exchange._owe_trailers, _R.WAITING, _R.WAITING),
        _R.ABANDONED: Cell(Exchange._pass_trailers, _R.ABANDONED, _R.ABANDONED),
        _R.STEPPING: Cell(Exchange._pass_trailers, _R.ANSWERED, _R.ANSWERED),
        _R.WAITING_STEPPING: Cell(Exchange._owe_trailers, _R.WAITING, _R.WAITING),
    },
}
#: Messages of the response's side, likewise.
RESPONSE_CELLS: Final[Mapping[str, Mapping[Response, Cell[Response]]]] = {
    "response_headers": {
        _S.EXPECTED: Cell(Exchange._response_headers, _S.STREAMING, _S.OVER),
        _S.EXPECTED_STEPPING: Cell(Exchange._response_headers, _S.STEPPING, _S.OVER),
        _S.EXPECTED_WHOLE: Cell(Exchange._response_headers, _S.WHOLE, _S.OVER),
    },
    "response_body": {
        _S.STREAMING: Cell(Exchange._response_body, _S.STREAMING, _S.OVER),
        _S.OVER: Cell(Exchange._repeated_end, _S.OVER, _S.OVER),
        _S.STEPPING: Cell(Exchange._response_step, _S.STEPPING, _S.OVER),
        _S.WHOLE: Cell(Exchange._response_step, _S.WHOLE, _S.OVER),
    },
    "response_trailers": {
        _S.STREAMING: Cell(Exchange._response_trailers, _S.OVER, _S.OVER),
        _S.STEPPING: Cell(Exchange._response_trailers, _S.OVER, _S.OVER),
        _S.WHOLE: Cell(Exchange._response_trailers, _S.OVER, _S.OVER),
    },
    "": {state: Cell(Exchange._unknown, state, state) for state in _S},
}


def _rows(
    cells: Mapping[str, Mapping[_State, Cell[_State]]], states: Iterable[_State]
) -> dict[str, tuple[Cell[_State], ...]]:
    """Return the cells as tuples indexed by state, those of messages out of order filled in."""
    return {
        kind: tuple(
            row.get(state, Cell(Exchange._out_of_order, state, state))._replace(kind=kind) for state in states
        )
        for kind, row in cells.items()
    }


_REQUEST_ROWS: Final = _rows(REQUEST_CELLS, Request)
_RESPONSE_ROWS: Final = _rows(RESPONSE_CELLS, Response)
_STREAMING: Final = Response.STREAMING
_BUFFERING: Final = Request.BUFFERING
_PASSES: Final = _RESPONSE_ROWS["response_body"][_STREAMING]
_IS_HELD: Final = _REQUEST_ROWS["request_body"][_BUFFERING]
