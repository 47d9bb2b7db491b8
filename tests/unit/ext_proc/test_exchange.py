"""The protocol of one exchange: every state and message, answers that wait, budget, pieces and ends."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envoy_messages as wire
from ext_proc import wire as ext_proc_wire
from ext_proc.budget import HEAP_BYTES, BodyBudget
from ext_proc.exchange import CHUNK_BYTES, OK, REQUEST_CELLS, RESPONSE_CELLS
from ext_proc.processor import Edit, Ending, Forward, Reply
from ext_proc.states import Request, Response
from lean_grpc import StatusCode
from stand_in_processor import FORWARD, REPLY, Peer

HEADERS = wire.request_headers()
ONLY_HEADERS = wire.request_headers(end=True, method="GET")
UNSEEN_BODY = wire.request_headers(body_modes=(0, 4))
BUFFERED = wire.request_headers(body_modes=(2, 4))
STREAMED = wire.request_headers(body_modes=(1, 4))
PIECE = wire.request_body(b"piece", end=False)
LAST = wire.request_body(b"last", end=True)
END = wire.request_body(b"", end=True)
TRAILERS = wire.trailers("request_trailers")
RESPONSE = wire.response_headers()
RESPONSE_END = wire.response_headers(status="204", end=True)
RESPONSE_PIECE = wire.response_body(b"piece", end=False)
RESPONSE_LAST = wire.response_body(b"last", end=True)
RESPONSE_BODY_END = wire.response_body(b"", end=True)
RESPONSE_TRAILERS = wire.trailers("response_trailers")
UNKNOWN = b"\x42\x00"
MALFORMED = b"\xff\xff"

#: Messages that bring a new exchange into a state of its request; the states that wait need a waiting answer.
TO_REQUEST = {
    Request.EXPECTED: (),
    Request.BUFFERING: (HEADERS, PIECE),
    Request.WAITING: (HEADERS, PIECE, LAST),
    Request.WAITING_UNSEEN: (UNSEEN_BODY,),
    Request.ANSWERED: (HEADERS, PIECE, LAST),
    Request.UNSEEN: (UNSEEN_BODY,),
    Request.ABANDONED: (RESPONSE,),
    Request.PASSING: (HEADERS,),
    Request.WAITING_PASSING: (HEADERS,),
    Request.WHOLE: (BUFFERED,),
    Request.STEPPING: (STREAMED,),
    Request.WAITING_STEPPING: (STREAMED,),
}
WAITS = (Request.WAITING, Request.WAITING_UNSEEN, Request.WAITING_PASSING, Request.WAITING_STEPPING)
#: States of requests whose body the processor does not wait for.
PASSES = (Request.PASSING, Request.WAITING_PASSING)
#: Replies by letter: headers, body and trailers of the request in lower, of the response in upper case.
LETTERS = {
    "request_headers": "h",
    "request_body": "b",
    "request_trailers": "t",
    "response_headers": "H",
    "response_body": "B",
    "response_trailers": "T",
    "immediate_response": "i",
}
#: What each message does in each state: the replies, then the state. "!" fails the stream.
REQUEST_TABLE = """
                  HEADERS     ONLY_HEADERS  UNSEEN_BODY  BUFFERED  STREAMED    PIECE              LAST               END                TRAILERS
EXPECTED          -BUFFERING  h-ANSWERED    h-UNSEEN     h-WHOLE   h-STEPPING  !                  !                  !                  !
BUFFERING         !           !             !            !         !           -BUFFERING         hb-ANSWERED        hb-ANSWERED        hbt-ANSWERED
WAITING           !           !             !            !         !           !                  !                  -WAITING           !
WAITING_UNSEEN    !           !             !            !         !           !                  !                  -WAITING_UNSEEN    -WAITING
ANSWERED          !           !             !            !         !           !                  !                  -ANSWERED          !
UNSEEN            !           !             !            !         !           !                  !                  -UNSEEN            t-ANSWERED
ABANDONED         !           !             !            !         !           -ABANDONED         -ABANDONED         -ABANDONED         t-ABANDONED
PASSING           !           !             !            !         !           b-PASSING          b-ANSWERED         b-ANSWERED         t-ANSWERED
WAITING_PASSING   !           !             !            !         !           -WAITING_PASSING   -WAITING           -WAITING           -WAITING
WHOLE             !           !             !            !         !           b-UNSEEN           b-ANSWERED         b-ANSWERED         !
STEPPING          !           !             !            !         !           b-STEPPING         b-STEPPING         b-STEPPING         t-ANSWERED
WAITING_STEPPING  !           !             !            !         !           -WAITING_STEPPING  -WAITING_STEPPING  -WAITING_STEPPING  -WAITING
"""  # noqa: E501
RESPONSE_TABLE = """
                   RESPONSE      RESPONSE_END  RESPONSE_PIECE  RESPONSE_LAST  RESPONSE_BODY_END  RESPONSE_TRAILERS
EXPECTED           H-STREAMING   H-OVER        !               !              !                  !
STREAMING          !             !             B-STREAMING     B-OVER         B-OVER             T-OVER
OVER               !             !             !               !              -OVER              !
EXPECTED_STEPPING  H-STEPPING    H-OVER        !               !              !                  !
STEPPING           !             !             B-STEPPING      B-OVER         B-OVER             T-OVER
EXPECTED_WHOLE     H-WHOLE       H-OVER        !               !              !                  !
WHOLE              !             !             B-WHOLE         B-OVER         B-OVER             T-OVER
"""  # noqa: E501
TO_RESPONSE = {
    Response.EXPECTED: (),
    Response.STREAMING: (RESPONSE,),
    Response.OVER: (RESPONSE, RESPONSE_LAST),
    Response.EXPECTED_STEPPING: (),
    Response.STEPPING: (RESPONSE,),
    Response.EXPECTED_WHOLE: (),
    Response.WHOLE: (RESPONSE,),
}
#: The proxy's mode of response bodies in these states; FULL_DUPLEX_STREAMED in the others.
MODE_OF_RESPONSE = {
    Response.EXPECTED_STEPPING: 1,
    Response.STEPPING: 1,
    Response.EXPECTED_WHOLE: 2,
    Response.WHOLE: 2,
}
#: The state of the request when the first response headers have come.
AFTER_RESPONSE = {
    Request.EXPECTED: Request.ABANDONED,
    Request.BUFFERING: Request.ABANDONED,
    Request.WAITING: Request.ABANDONED,
    Request.WAITING_UNSEEN: Request.ABANDONED,
    Request.ANSWERED: Request.ANSWERED,
    Request.UNSEEN: Request.UNSEEN,
    Request.PASSING: Request.PASSING,
    Request.WAITING_PASSING: Request.ABANDONED,
    Request.WHOLE: Request.ABANDONED,
    Request.STEPPING: Request.STEPPING,
    Request.WAITING_STEPPING: Request.ABANDONED,
}


def cells(text: str) -> list[tuple[str, str, str]]:
    """Return (state, message, outcome) of every cell of a table."""
    head, *rows = (line.split() for line in text.strip().splitlines())
    return [(row[0], name, outcome) for row in rows for name, outcome in zip(head, row[1:], strict=True)]


def at(request: Request) -> Peer:
    """Return an exchange whose request is in this state."""
    peer = Peer(None if request in WAITS else FORWARD)
    peer.processor.holds = request not in PASSES
    peer.feed(*TO_REQUEST[request])
    assert peer.exchange.states[0] is request
    return peer


def letters(replies: list[bytes]) -> str:
    return "".join(LETTERS[kind] for kind in wire.kinds(replies))


def failed(peer: Peer) -> bool:
    """Tell whether the stream failed as one that broke the protocol must."""
    status = peer.exchange.status
    if status is None:
        return False
    assert status.code in {StatusCode.FAILED_PRECONDITION, StatusCode.INVALID_ARGUMENT}
    assert status.message
    assert peer.budget.held_bytes == 0
    assert peer.exchange.backlog is None
    assert not peer.exchange.waits
    assert len(peer.processor.endings) == 1
    assert peer.feed(HEADERS, LAST, RESPONSE) == []
    return True


def test_the_tables_here_hold_every_state_and_every_kind_of_message() -> None:
    kinds = {wire.kind(globals()[name]) for _, name, _ in cells(REQUEST_TABLE) + cells(RESPONSE_TABLE)}
    assert kinds == (REQUEST_CELLS.keys() | RESPONSE_CELLS.keys()) - {""}
    assert {state for state, _, _ in cells(REQUEST_TABLE)} == {each.name for each in Request}
    assert {state for state, _, _ in cells(RESPONSE_TABLE)} == {each.name for each in Response}


@pytest.mark.parametrize(("state", "message", "outcome"), cells(REQUEST_TABLE))
def test_a_message_of_the_request_in_each_state(state: str, message: str, outcome: str) -> None:
    peer = at(Request[state])
    replies = letters(peer.feed(globals()[message]))
    if outcome == "!":
        assert replies == ""
        assert failed(peer)
        assert peer.processor.waiting.cancelled == (Request[state] in WAITS)
    else:
        answered, _, after = outcome.partition("-")
        assert (replies, peer.exchange.states[0].name) == (answered, after)
        assert peer.exchange.status is None


BEGUN = (Response.STREAMING, Response.STEPPING, Response.WHOLE, Response.OVER)
#: The mode of request bodies, and the messages after the headers, that bring a request into a state; one is
#: abandoned with the response.
BEFORE_RESPONSE: dict[Request, tuple[int, tuple[bytes, ...]]] = {
    Request.ANSWERED: (4, (PIECE, LAST)),
    Request.UNSEEN: (0, ()),
    Request.ABANDONED: (4, (PIECE,)),
    Request.STEPPING: (1, ()),
}


@pytest.mark.parametrize("request_state", BEFORE_RESPONSE)
@pytest.mark.parametrize(("state", "message", "outcome"), cells(RESPONSE_TABLE))
def test_a_message_of_the_response_in_each_state(
    request_state: Request, state: str, message: str, outcome: str
) -> None:
    peer = Peer()
    mode, more = BEFORE_RESPONSE[request_state]
    modes = mode, MODE_OF_RESPONSE.get(Response[state], 4)
    peer.feed(wire.request_headers(body_modes=modes), *more)
    peer.feed(*TO_RESPONSE[Response[state]])
    replies = letters(peer.feed(globals()[message]))
    if outcome == "!":
        assert replies == ""
        assert failed(peer)
        return
    answered, _, after = outcome.partition("-")
    assert (replies, peer.exchange.states[1].name) == (answered, after)
    abandoned = request_state is Request.ABANDONED
    assert (peer.exchange.states[0] is request_state) == (not abandoned or peer.exchange.states[1] in BEGUN)
    whole = (state, message) == ("WHOLE", "RESPONSE_PIECE")  # trailers may follow the whole body
    assert peer.processor.endings == ([Ending.COMPLETED] if after == "OVER" or whole else [])


@pytest.mark.parametrize(("before", "after"), AFTER_RESPONSE.items())
@pytest.mark.parametrize("message", [RESPONSE, RESPONSE_END], ids=["body follows", "headers only"])
def test_response_headers_in_each_state_of_the_request(
    before: Request, after: Request, message: bytes
) -> None:
    peer = at(before)
    assert letters(peer.feed(message)) == "H"
    assert peer.exchange.states[0] is after
    assert peer.exchange.status is None
    assert peer.budget.held_bytes == 0
    assert peer.processor.waiting.cancelled == (before in WAITS)


@pytest.mark.parametrize("payload", [UNKNOWN, MALFORMED, b""], ids=["unknown", "malformed", "empty"])
@pytest.mark.parametrize("response", [Response.EXPECTED, Response.STREAMING, Response.OVER])
@pytest.mark.parametrize("request_state", Request)
def test_what_is_no_known_message_fails_the_stream_in_each_state(
    request_state: Request, response: Response, payload: bytes
) -> None:
    peer = at(request_state)
    peer.feed(
        *TO_RESPONSE[response][len(TO_REQUEST[request_state]) if request_state is Request.ABANDONED else 0 :]
    )
    completed = len(peer.processor.endings)
    peer.feed(payload)
    assert peer.exchange.status is not None
    assert peer.exchange.status.code is StatusCode.INVALID_ARGUMENT
    assert peer.processor.endings == ([Ending.COMPLETED] if completed else [Ending.PROTOCOL_ERROR])


@pytest.mark.parametrize(("request_mode", "response_mode"), [(3, 4), (2, 3), (5, 1)])
def test_another_body_mode_fails_the_stream_before_the_processor_is_asked(
    request_mode: int, response_mode: int
) -> None:
    peer = Peer()
    peer.feed(wire.request_headers(body_modes=(request_mode, response_mode)))
    assert failed(peer)
    assert peer.processor.calls == ["ended"]


EDITED = Forward(FORWARD.mutation, FORWARD.metadata)
EDITED.edit = Edit(2, 5, b"+")


@pytest.mark.parametrize("trailers", [False, True])
@pytest.mark.parametrize(("answer", "sent"), [(FORWARD, None), (EDITED, b"pi+body")], ids=["as is", "edited"])
@pytest.mark.parametrize("late", [False, True])
def test_a_buffered_body_is_asked_about_whole_and_its_reply_has_all_changes(
    answer: Forward, sent: bytes | None, trailers: bool, late: bool
) -> None:
    peer = Peer(None if late else answer)
    assert peer.feed(BUFFERED) == [b"\x0a\x00"]
    got = peer.feed(wire.request_body(b"piecebody", end=not trailers))
    if late:
        assert (got, peer.budget.held_bytes) == ([], 9)
        got = peer.resume(answer)
    assert peer.processor.body == b"piecebody"
    (reply,) = wire.read(got)
    common = reply.request_body.response
    length = {} if sent is None else {"content-length": b"7"}
    set_headers = {each.header.key: each.header.raw_value for each in common.header_mutation.set_headers}
    assert set_headers == {"x-model": b"m", **length}
    assert common.clear_route_cache
    assert reply.dynamic_metadata["space"]["key"] == "value"
    assert common.body_mutation.body == (sent or b"")
    assert common.body_mutation.WhichOneof("mutation") == (None if sent is None else "body")
    assert peer.budget.held_bytes == 0
    if trailers:
        assert letters(peer.feed(TRAILERS)) == "t"
    assert peer.exchange.status is None


def test_a_buffered_body_may_be_refused() -> None:
    peer = Peer(REPLY, budget=BodyBudget(max_request_bytes=3))
    peer.feed(BUFFERED)
    assert peer.feed(LAST) == [REPLY.payload]
    assert "body_too_large" in peer.processor.calls
    assert peer.processor.endings == [Ending.REFUSED]


def test_the_body_of_a_request_that_is_not_held_goes_on_in_any_mode() -> None:
    peer = Peer()
    peer.processor.holds = False
    assert letters(peer.feed(BUFFERED)) == "h"
    assert peer.feed(LAST) == [b"\x1a\x00"]
    assert peer.processor.body is None


def test_pieces_that_come_before_the_headers_have_their_reply_get_theirs_after_it() -> None:
    peer = Peer(None)
    assert peer.feed(STREAMED, PIECE, LAST, TRAILERS) == []
    assert letters(peer.resume(FORWARD)) == "hbbt"


@pytest.mark.parametrize("mode", [1, 2], ids=["streamed", "buffered"])
def test_a_piece_of_the_response_goes_on_or_is_replaced(mode: int) -> None:
    peer = Peer()
    peer.processor.edit = lambda piece: piece.replace(b"ab", b"") if b"ab" in piece else None
    peer.processor.metadata = ext_proc_wire.dynamic_numbers([("s", "a", 1.5)])
    peer.feed(wire.request_headers(end=True, body_modes=(4, mode)), RESPONSE)
    if mode == 1:
        assert peer.feed(RESPONSE_PIECE) == [b"\x22\x00"]
        (empty,) = wire.read(peer.feed(wire.response_body(b"ab", end=False)))
        assert empty.response_body.response.body_mutation.clear_body
    peer.processor.rest = b"kept"
    (last,) = wire.read(peer.feed(wire.response_body(b"xaby", end=True)))
    assert last.response_body.response.body_mutation.body == b"xykept"
    assert last.dynamic_metadata["s"]["a"] == 1.5
    assert peer.processor.endings == [Ending.COMPLETED]


def test_a_buffered_response_is_complete_before_its_trailers() -> None:
    peer = Peer()
    peer.feed(wire.request_headers(end=True, body_modes=(4, 2)), RESPONSE)
    assert peer.feed(RESPONSE_PIECE) == [b"\x22\x00"]
    assert peer.processor.endings == [Ending.COMPLETED]
    assert letters(peer.feed(RESPONSE_TRAILERS)) == "T"


def test_a_proxy_that_answers_before_it_asks_names_its_mode_with_the_response() -> None:
    peer = Peer()
    message = wire.pb.ProcessingRequest.FromString(RESPONSE)
    message.protocol_config.response_body_mode = 1
    peer.feed(message.SerializeToString())
    assert peer.feed(RESPONSE_LAST) == [b"\x22\x00"]
    assert peer.exchange.states == (Request.ABANDONED, Response.OVER)


def test_a_response_whose_body_is_not_shown_completes_with_the_stream() -> None:
    peer = Peer()
    peer.feed(wire.request_headers(end=True, method="GET", body_modes=(4, 0)), RESPONSE)
    assert peer.processor.endings == []
    peer.close()
    assert peer.processor.endings == [Ending.COMPLETED]


# Answers that wait

ASKS = {
    "headers only": (ONLY_HEADERS,),
    "body not shown": (UNSEEN_BODY,),
    "body": (HEADERS, PIECE, LAST),
    "body, empty end": (HEADERS, PIECE, END),
    "body, trailers": (HEADERS, PIECE, TRAILERS),
    "large body": (HEADERS, wire.request_body(b"x" * 3_000_000, end=True)),
    "large body, trailers": (HEADERS, wire.request_body(b"x" * 3_000_000, end=False), TRAILERS),
}


@pytest.mark.parametrize("answer", [FORWARD, REPLY], ids=["forward", "reply"])
@pytest.mark.parametrize("messages", ASKS.values(), ids=ASKS.keys())
def test_a_late_answer_brings_the_replies_of_one_at_once(
    messages: tuple[bytes, ...], answer: Forward | Reply
) -> None:
    at_once, late = Peer(answer), Peer(None)
    at_once.feed(*messages)
    assert late.feed(*messages) == []
    assert late.exchange.waits
    assert late.resume(answer) == at_once.replies
    assert late.processor.body == at_once.processor.body
    assert late.exchange.states == at_once.exchange.states
    assert late.exchange.status == at_once.exchange.status
    assert late.processor.endings == at_once.processor.endings
    assert late.budget.held_bytes == 0
    assert not late.exchange.waits


@pytest.mark.parametrize("messages", ASKS.values(), ids=ASKS.keys())
def test_a_request_is_taken_back_after_a_late_answer(messages: tuple[bytes, ...]) -> None:
    peer = Peer(None)
    peer.feed(*messages)
    peer.resume(FORWARD)
    assert peer.processor.endings == []
    assert peer.resume(REPLY) == [REPLY.payload]
    assert peer.exchange.status == (StatusCode.OK, "")
    assert peer.processor.endings == [Ending.REFUSED]
    assert peer.budget.held_bytes == 0
    assert peer.resume(REPLY) == []
    assert peer.feed(RESPONSE) == []


@pytest.mark.parametrize("end", [False, True])
def test_a_request_whose_response_has_begun_is_not_taken_back(end: bool) -> None:
    peer = Peer(None)
    peer.feed(HEADERS, LAST)
    peer.resume(FORWARD)
    peer.feed(wire.response_headers(end=end))
    assert peer.resume(REPLY) == []
    assert peer.exchange.status is None
    assert "evicted" not in peer.processor.calls


def test_a_request_that_was_answered_at_once_is_not_taken_back() -> None:
    peer = Peer(FORWARD)
    peer.feed(HEADERS, LAST)
    peer.exchange._resume(REPLY)  # what `resume` of the processor is
    assert peer.exchange.status is None


def test_trailers_that_come_while_an_answer_waits_are_answered_after_the_headers() -> None:
    peer = Peer(None)
    assert peer.feed(UNSEEN_BODY, TRAILERS) == []
    assert letters(peer.resume(FORWARD)) == "ht"
    assert peer.exchange.states[0] is Request.ANSWERED


@pytest.mark.parametrize("body", [b"x" * 1000, b"x" * 3_000_000], ids=["small", "large"])
def test_the_body_of_an_answer_that_waits_is_held_and_counted(body: bytes) -> None:
    peer = Peer(None)
    peer.feed(HEADERS, wire.request_body(body, end=True))
    assert peer.budget.held_bytes == len(body)
    replies = peer.resume(FORWARD)
    assert b"".join(part for part, _ in wire.pieces(replies, "request_body")) == body
    assert peer.budget.held_bytes == 0


INTERRUPTIONS = {
    "more body": PIECE,
    "headers again": HEADERS,
    "response body": RESPONSE_PIECE,
    "response trailers": RESPONSE_TRAILERS,
    "unknown": UNKNOWN,
    "malformed": MALFORMED,
    "response headers": RESPONSE,
    "response of headers only": RESPONSE_END,
    "stream end": None,
}


@pytest.mark.parametrize("interruption", INTERRUPTIONS.values(), ids=INTERRUPTIONS.keys())
@pytest.mark.parametrize("messages", ASKS.values(), ids=ASKS.keys())
def test_an_interruption_cancels_the_answer_that_waits_and_frees_the_body(
    messages: tuple[bytes, ...], interruption: bytes | None
) -> None:
    peer = Peer(None)
    peer.feed(*messages)
    if interruption is None:
        peer.close()
    else:
        peer.feed(interruption)
    assert peer.processor.waiting.cancelled == 1
    assert not peer.exchange.waits
    assert peer.budget.held_bytes == 0
    assert peer.resume(FORWARD) == []
    peer.close()
    assert len(peer.processor.endings) == 1
    assert peer.processor.waiting.cancelled == 1


# Pieces and budget


@given(cuts=st.lists(st.integers(0, 200_000), max_size=6), trailers=st.booleans(), waits=st.booleans())
@settings(deadline=None, max_examples=50)
def test_any_split_of_a_body_comes_back_whole_in_pieces(cuts: list[int], trailers: bool, waits: bool) -> None:
    body = bytes(range(250)) * 800
    edges = [0, *sorted(cuts), len(body)]
    parts = [body[start:end] for start, end in pairwise(edges)]
    peer = Peer(None if waits else FORWARD)
    peer.feed(HEADERS, *(wire.request_body(part, end=False) for part in parts))
    assert peer.budget.held_bytes == len(body)
    peer.feed(TRAILERS if trailers else END)
    if waits:
        peer.resume(FORWARD)
    got = wire.pieces(peer.replies, "request_body")
    assert b"".join(part for part, _ in got) == body
    assert [end for _, end in got] == [False] * (len(got) - 1) + [not trailers]
    assert max(len(part) for part, _ in got) <= CHUNK_BYTES
    assert letters(peer.replies) == "h" + "b" * len(got) + "t" * trailers
    assert peer.budget.held_bytes == 0


@pytest.mark.parametrize("edit", [None, Edit(0, 1, b"A"), Edit(HEAP_BYTES - 7, HEAP_BYTES + 9, b"BB")])
@pytest.mark.parametrize("size", [1, 40_000, 65_536, HEAP_BYTES + 1], ids=str)
def test_a_body_that_is_too_large_for_the_heap_comes_back_whole(size: int, edit: Edit | None) -> None:
    body = random.Random(1).randbytes(HEAP_BYTES + 2_500_000)
    forward = Forward(b"")
    forward.edit = edit
    peer = Peer(forward)
    starts = range(0, len(body), max(size, 40_000))
    peer.feed(HEADERS, *(wire.request_body(body[at : at + max(size, 40_000)], end=False) for at in starts))
    peer.feed(*(wire.request_body(b"z" * size, end=False) for _ in range(3)), END)
    whole = body + 3 * size * b"z"
    if edit is not None:
        whole = whole[: edit.start] + edit.text + whole[edit.end :]
    assert b"".join(part for part, _ in wire.pieces(peer.replies, "request_body")) == whole
    assert peer.budget.held_bytes == 0


def test_a_large_body_is_handed_out_in_batches() -> None:
    peer = Peer()
    peer.exchange.received(HEADERS, 1.0)
    first = peer.exchange.received(wire.request_body(b"x" * 3_000_000, end=True), 2.0)
    assert len(first) < 20
    assert peer.exchange.backlog is not None


@pytest.mark.parametrize("response", [(RESPONSE_END,), (RESPONSE, RESPONSE_LAST)], ids=["headers", "body"])
def test_a_response_before_the_body_is_sent_leaves_the_body_counted_until_it_is(
    response: tuple[bytes, ...],
) -> None:
    peer, body = Peer(), b"x" * 3_000_000
    exchange = peer.exchange
    exchange.received(HEADERS, 1.0)
    exchange.received(wire.request_body(body, end=True), 2.0)
    for message in response:
        exchange.received(message, 3.0)
    assert peer.processor.endings == [Ending.COMPLETED]
    assert exchange.backlog is not None
    assert peer.budget.held_bytes == len(body)
    peer.drain()
    assert peer.budget.held_bytes == 0


def test_the_end_of_the_stream_frees_a_body_that_is_half_sent() -> None:
    peer = Peer()
    peer.exchange.received(HEADERS, 1.0)
    peer.exchange.received(wire.request_body(b"x" * 3_000_000, end=True), 2.0)
    peer.exchange.received(RESPONSE_END, 3.0)
    peer.close()
    assert peer.budget.held_bytes == 0
    assert peer.exchange.backlog is None


def test_a_body_over_its_limit_is_refused_by_the_processor() -> None:
    peer = Peer(budget=BodyBudget(max_request_bytes=1000))
    peer.feed(HEADERS, wire.request_body(b"x" * 600, end=False))
    assert letters(peer.feed(wire.request_body(b"x" * 600, end=False))) == "i"
    assert peer.processor.calls == ["request_headers", "body_too_large", "ended"]
    assert (peer.exchange.status, peer.budget.held_bytes) == (OK, 0)


def test_a_full_budget_refuses_a_body_and_leaves_the_others() -> None:
    budget = BodyBudget(max_held_bytes=1000)
    first, second = Peer(budget=budget), Peer(budget=budget)
    first.feed(HEADERS, wire.request_body(b"x" * 700, end=False))
    assert letters(second.feed(HEADERS, wire.request_body(b"x" * 700, end=False))) == "i"
    assert "buffers_full" in second.processor.calls
    assert letters(first.feed(END)) == "hb"
    assert budget.held_bytes == 0


def test_a_response_piece_above_the_limit_is_split() -> None:
    peer = at(Request.ANSWERED)
    replies = peer.feed(RESPONSE, wire.response_body(b"x" * (CHUNK_BYTES + 1), end=True))
    assert [(len(part), end) for part, end in wire.pieces(replies, "response_body")] == [
        (CHUNK_BYTES, False),
        (1, True),
    ]


# Ends

ALL = (
    HEADERS, ONLY_HEADERS, UNSEEN_BODY, PIECE, LAST, END, TRAILERS, RESPONSE, RESPONSE_END, RESPONSE_PIECE,
    RESPONSE_LAST, RESPONSE_BODY_END, RESPONSE_TRAILERS, BUFFERED, STREAMED, UNKNOWN, MALFORMED, FORWARD,
    REPLY, None,
)  # fmt: skip
NORMAL = (HEADERS, PIECE, LAST, FORWARD, RESPONSE, RESPONSE_PIECE, RESPONSE_BODY_END)
IN_STEPS = (wire.request_headers(body_modes=(1, 1)), PIECE, FORWARD, LAST, RESPONSE, RESPONSE_LAST)
IN_ONE = (wire.request_headers(body_modes=(2, 2)), LAST, FORWARD, RESPONSE, RESPONSE_PIECE, RESPONSE_TRAILERS)


@given(
    usual=st.sampled_from([NORMAL, IN_STEPS, IN_ONE]),
    start=st.integers(0, len(NORMAL)),
    rest=st.lists(st.sampled_from(ALL), max_size=8),
    answer=st.sampled_from([FORWARD, REPLY, None]),
)
@settings(deadline=None, max_examples=500)
def test_any_sequence_ends_once_and_holds_nothing(
    usual: tuple[bytes | Forward, ...],
    start: int,
    rest: list[bytes | Forward | Reply | None],
    answer: Forward | Reply | None,
) -> None:
    peer = Peer(answer)
    waited = False
    for event in (*usual[:start], *rest):
        if event is None:
            peer.close()
        elif isinstance(event, bytes):
            peer.feed(event)
        elif peer.exchange.waits:
            peer.resume(event)
        waited |= peer.exchange.waits
    resumed = "resumed" in peer.processor.calls
    peer.close()
    peer.close()
    assert len(peer.processor.endings) == 1
    assert peer.processor.waiting.cancelled == (waited and not resumed)
    assert peer.budget.held_bytes == 0
    assert peer.exchange.backlog is None
    assert letters(peer.replies).count("h") <= 1


METHODS = {
    "request_headers": (HEADERS,),
    "request": (HEADERS, LAST),
    "response_headers": (HEADERS, LAST, RESPONSE),
    "response_body": (HEADERS, LAST, RESPONSE, RESPONSE_PIECE),
    "ended": (HEADERS, LAST, RESPONSE, RESPONSE_LAST),
}


@pytest.mark.parametrize(("method", "messages"), METHODS.items(), ids=METHODS.keys())
def test_a_processor_that_fails_hears_of_the_end_and_nothing_is_held(
    method: str, messages: tuple[bytes, ...]
) -> None:
    peer = Peer(fails_in=method)
    with pytest.raises(ZeroDivisionError):
        peer.feed(*messages)
    if method == "ended":
        peer.exchange.closed(Ending.INTERNAL_ERROR, 9.0)
        assert peer.processor.endings == [Ending.COMPLETED]
    else:
        peer.exchange.closed(Ending.INTERNAL_ERROR, 9.0)
        assert peer.processor.endings == [Ending.INTERNAL_ERROR]
    assert peer.budget.held_bytes == 0
    assert peer.feed(RESPONSE) == []


@pytest.mark.parametrize(
    ("messages", "kinds"),
    [
        pytest.param((RESPONSE_END,), "H", id="no body"),
        pytest.param((RESPONSE, RESPONSE_LAST), "HB", id="body"),
        pytest.param((RESPONSE, wire.response_body(b"x" * 150_000, end=True)), "HBBB", id="split piece"),
        pytest.param((RESPONSE, RESPONSE_PIECE, RESPONSE_TRAILERS), "HBT", id="trailers"),
    ],
)
def test_the_processors_headers_and_metadata_go_along_with_the_response(
    messages: tuple[bytes, ...], kinds: str
) -> None:
    peer = Peer(FORWARD)
    peer.processor.mutation = ext_proc_wire.set_header("x-served", b"here")
    peer.processor.metadata = ext_proc_wire.dynamic_numbers([("s", "a", 1.5), ("t", "b", 2), ("s", "c", 3)])
    peer.feed(HEADERS, LAST)
    replies = peer.feed(*messages)
    assert letters(replies) == kinds
    first, *_, last = wire.read([replies[0], replies[-1]])
    (header,) = first.response_headers.response.header_mutation.set_headers
    assert (header.header.key, header.header.raw_value) == ("x-served", b"here")
    assert dict(last.dynamic_metadata["s"].items()) == {"a": 1.5, "c": 3.0}
    assert dict(last.dynamic_metadata["t"].items()) == {"b": 2.0}
    for between in wire.read(replies[:-1]):
        assert not between.HasField("dynamic_metadata")
    assert peer.processor.calls[-2:] == ["response_complete", "ended"]


def test_a_response_that_breaks_off_is_not_complete() -> None:
    peer = Peer(FORWARD)
    peer.feed(HEADERS, LAST, RESPONSE, RESPONSE_PIECE)
    peer.close()
    assert "response_complete" not in peer.processor.calls


def test_what_the_processor_puts_in_a_pieces_place_goes_to_the_client() -> None:
    peer = Peer()
    peer.processor.edit = lambda piece: piece.replace(b"ab", b"")
    peer.feed(wire.request_headers(end=True), wire.response_headers())
    assert wire.pieces(peer.feed(wire.response_body(b"xaby", end=False)), "response_body") == [(b"xy", False)]
    assert peer.feed(wire.response_body(b"ab", end=False)) == []
    peer.processor.rest = b"kept"
    assert wire.pieces(peer.feed(wire.response_body(b"z", end=True)), "response_body") == [(b"zkept", True)]
    assert peer.processor.endings == [Ending.COMPLETED]


def test_what_is_kept_back_goes_before_the_trailers() -> None:
    peer = Peer()
    peer.processor.rest = b"kept"
    peer.feed(wire.request_headers(end=True), wire.response_headers(), wire.response_body(b"z", end=False))
    replies = peer.feed(wire.trailers("response_trailers"))
    assert wire.kinds(replies) == ["response_body", "response_trailers"]
    assert wire.pieces(replies, "response_body") == [(b"kept", False)]
