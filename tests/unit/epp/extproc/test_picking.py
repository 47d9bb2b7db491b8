"""The life of a request: every case that a proxy can bring about, without a transport."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

import envoy_messages as wire
from counting_router import CountingRouter
from endpoint_picker.decision import BodyReading, Decision, Hooks, Refusal, Resume, Waiting
from endpoint_picker.extproc.picking import Late, Picking
from endpoint_picker.outcomes import Outcome
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from ext_proc.budget import BodyBudget
from ext_proc.exchange import CHUNK_BYTES, OK, Exchange
from ext_proc.processor import Ending
from ext_proc.turns import Turns
from lean_grpc import StatusCode

A, B = "10.0.0.1:8000", "10.0.0.2:8000"


class Tally:
    """An observer that keeps records, gaps and decisions."""

    def __init__(self) -> None:
        self.begun = 0
        self.seconds: list[float] = []
        self.fails_after = False
        self.records: list[Record] = []
        self.gaps: list[float] = []
        self.decisions: list[Outcome | None] = []

    def started(self) -> None:
        self.begun += 1

    def decided(self, record: Record, seconds: float) -> None:
        self.decisions.append(record.outcome)
        self.seconds.append(seconds)

    def rewritten(self, rewrite: str, model: str, target: str) -> None:
        raise AssertionError("no router here has rewrites")

    def gap_counter(self, record: Record) -> Callable[[float], None]:
        return self.gaps.append

    def ended(self, record: Record) -> None:
        self.records.append(record)
        if self.fails_after:
            raise ZeroDivisionError


class Peer:
    """Feeds an exchange and takes all of its replies."""

    def __init__(self, router: CountingRouter | None = None, budget: BodyBudget | None = None) -> None:
        self.router = router or CountingRouter(A)
        self.budget = budget or BodyBudget()
        self.tally = Tally()
        self.now = 100.0
        turns = Turns(None, self.budget.max_request_bytes)
        self.picking = Picking(self.router, self.tally, self.now, lambda: self.now, turns)
        self.exchange = Exchange(self.picking, self.budget)
        self.replies: list[bytes] = []

    def feed(self, *payloads: bytes) -> list[bytes]:
        got: list[bytes] = []
        for payload in payloads:
            self.now += 1.0
            got += self.exchange.received(payload, self.now)
            if self.exchange.waits:
                self.exchange.on_resume = self._resumed
            while self.exchange.backlog is not None:
                got += self.exchange.more()
        self.replies += got
        return got

    def _resumed(self, late: Late) -> None:
        self.exchange.resumed(late, self.now)
        while self.exchange.backlog is not None:
            self.replies += self.exchange.more()

    def close(self) -> None:
        self.exchange.closed(Ending.DISCONNECTED, self.now)

    @property
    def immediate(self) -> Any:
        (message,) = wire.read(self.replies)
        assert message.WhichOneof("response") == "immediate_response"
        return message.immediate_response

    @property
    def record(self) -> Record:
        (record,) = self.tally.records
        return record


def post(body: bytes, **more: Any) -> tuple[bytes, bytes]:
    return wire.request_headers(**more), wire.request_body(body, end=True)


def test_headers_and_body_are_answered_with_a_destination_then_the_body() -> None:
    body = wire.body_of()
    peer = Peer(CountingRouter(A, B))
    assert peer.feed(wire.request_headers()) == []
    replies = peer.feed(wire.request_body(body, end=True))
    head = wire.read(replies)[0]
    assert wire.kinds(replies) == ["request_headers", "request_body"]
    assert wire.set_headers(head) == {
        "x-gateway-destination-endpoint": f"{B},{A}",
        "content-length": str(len(body)),
    }
    assert head.request_headers.response.clear_route_cache
    assert all(
        option.append_action == option.OVERWRITE_IF_EXISTS_OR_ADD
        for option in head.request_headers.response.header_mutation.set_headers
    )
    assert dict(head.dynamic_metadata["envoy.lb"]) == {"x-gateway-destination-endpoint": f"{B},{A}"}
    assert wire.pieces(replies, "request_body") == [(body, True)]
    assert peer.budget.held_bytes == 0


def test_the_router_gets_what_the_body_says() -> None:
    peer = Peer()
    peer.feed(*post(wire.body_of("llama", "abc", stream=True)))
    (request,) = peer.router.requests
    assert (request.model, request.prompt, request.stream) == ("llama", b"abc", True)
    assert request.request_id == "r-1"
    assert request.body_bytes == len(wire.body_of("llama", "abc", stream=True))


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ({"x-llm-d-inference-objective": "new"}, "new"),
        ({"x-gateway-inference-objective": "old"}, "old"),
        ({"x-gateway-inference-objective": "old", "x-llm-d-inference-objective": "new"}, "new"),
        ({"X-LLM-D-Inference-Objective": "cased"}, "cased"),
        ({}, ""),
    ],
)
def test_the_objective_header_new_name_wins(sent: dict[str, str], read: str) -> None:
    peer = Peer()
    peer.feed(*post(wire.body_of(), headers=sent))
    assert peer.router.requests[0].objective == read


def test_control_headers_of_a_client_are_removed_and_others_left() -> None:
    peer = Peer()
    sent = {
        "x-gateway-destination-endpoint": "6.6.6.6:1",
        "x-prefiller-host-port": "6.6.6.6:2",
        "x-llm-d-inference-objective": "o",
        "test-epp-endpoint-selection": A,
    }
    (head, _) = wire.read(peer.feed(*post(wire.body_of(), headers=sent)))
    removed = set(head.request_headers.response.header_mutation.remove_headers)
    assert removed == set(sent) - {"test-epp-endpoint-selection"}
    assert wire.set_headers(head)["x-gateway-destination-endpoint"] == A


@pytest.mark.parametrize(
    ("sent", "asks"),
    [
        ({"prefer": "if-available"}, True),
        ({"Prefer": "respond-async, If-Available; wait=1"}, True),
        ({"prefer": "respond-async"}, False),
        ({"prefer": "x-if-available"}, False),
        ({}, False),
    ],
)
def test_a_client_may_prefer_an_answer_from_the_cache(sent: dict[str, str], asks: bool) -> None:
    peer = Peer()
    peer.feed(*post(wire.body_of(), headers=sent))
    assert peer.router.requests[0].if_available is asks


def test_a_prompt_that_is_not_cached_is_no_dropped_request() -> None:
    peer = Peer(CountingRouter(A, refusal=Refusal(Outcome.NOT_CACHED, "because")))
    peer.feed(*post(wire.body_of()))
    answer = peer.immediate
    assert answer.status.code == 412
    assert json.loads(answer.body)["error"]["code"] == "rejected-not-cached"
    assert [h.header.key for h in answer.headers.set_headers] == ["content-type"]


def test_headers_of_a_decision_replace_a_clients_copies() -> None:
    router = CountingRouter(A)
    router.headers = (("x-prefiller-host-port", B),)
    sent = {"x-prefiller-host-port": "6.6.6.6:2", "x-encoder-hosts-ports": "6.6.6.6:3"}
    (head, _) = wire.read(Peer(router).feed(*post(wire.body_of(), headers=sent)))
    assert set(head.request_headers.response.header_mutation.remove_headers) == set(sent)
    assert wire.set_headers(head)["x-prefiller-host-port"] == B


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
def test_a_request_without_body_is_picked_for_at_once(method: str) -> None:
    peer = Peer()
    replies = peer.feed(wire.request_headers(end=True, method=method, path="/v1/models"))
    (head,) = wire.read(replies)
    assert wire.set_headers(head) == {"x-gateway-destination-endpoint": A}
    assert peer.router.requests[0].model == ""


def test_a_bodyless_post_is_refused_by_the_apis_and_routed_elsewhere() -> None:
    refused = Peer()
    refused.feed(wire.request_headers(end=True))
    assert refused.immediate.status.code == 400
    routed = Peer()
    assert wire.kinds(routed.feed(wire.request_headers(end=True, path="/reset_prefix_cache"))) == [
        "request_headers"
    ]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"no json", id="not JSON"),
        pytest.param(b"", id="empty"),
        pytest.param(b'{"prompt": "x"}', id="no model"),
        pytest.param(b'{"model": 3}', id="model is no string"),
        pytest.param(b'{"model": ""}', id="model is empty"),
        pytest.param(b'["model"]', id="no object"),
        pytest.param(b'{"model": "\xff"}', id="not UTF-8"),
        pytest.param(b'{"model": "m", "prompt": ' + b"[" * 100_000, id="deep"),
    ],
)
def test_a_body_that_cannot_be_routed_gets_400(body: bytes) -> None:
    peer = Peer()
    peer.feed(*post(body))
    answer = peer.immediate
    assert answer.status.code == 400
    error = json.loads(answer.body)["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "bad-request")
    assert error["message"]
    assert [(h.header.key, h.header.raw_value) for h in answer.headers.set_headers] == [
        ("content-type", b"application/json")
    ]
    assert peer.exchange.status is OK
    assert peer.record.ending is Ending.REFUSED


@pytest.mark.parametrize(
    ("outcome", "status", "kind", "retry_after"),
    [
        (Outcome.NO_ENDPOINTS, 503, "server_error", "2"),
        (Outcome.SATURATED, 429, "rate_limit_error", "1"),
    ],
)
def test_a_refusal_names_its_reason(outcome: Outcome, status: int, kind: str, retry_after: str) -> None:
    peer = Peer(CountingRouter(A, refusal=Refusal(outcome, "because")))
    peer.feed(*post(wire.body_of()))
    answer = peer.immediate
    assert answer.status.code == status
    assert json.loads(answer.body) == {
        "error": {"message": "because", "type": kind, "param": None, "code": outcome.value}
    }
    assert {h.header.key: h.header.raw_value.decode() for h in answer.headers.set_headers} == {
        "content-type": "application/json",
        "x-llm-d-request-dropped-reason": outcome.value,
        "retry-after": retry_after,
    }
    assert peer.exchange.status is OK


@pytest.mark.parametrize(
    ("hint", "seen"),
    [
        ([A, B], (A, B)),
        (f"{A}, {B}", (A, B)),
        ([f"{A},{B}", " 10.0.0.3 "], (A, B, "10.0.0.3")),
        ([], ()),
        ("", ()),
        (7, ()),
        (None, None),
    ],
)
def test_the_subset_hint_in_all_its_forms(hint: object, seen: tuple[str, ...] | None) -> None:
    peer = Peer()
    peer.feed(*post(wire.body_of(), subset=hint))
    assert peer.router.subsets == [seen]


def test_a_subset_that_matches_nothing_gets_503() -> None:
    peer = Peer(CountingRouter(A, B))
    peer.feed(*post(wire.body_of(), subset=["10.9.9.9:8000"]))
    assert peer.immediate.status.code == 503


def test_a_get_is_held_to_the_subset_too() -> None:
    peer = Peer(CountingRouter(A, B))
    peer.feed(wire.request_headers(end=True, method="GET", subset=[]))
    assert peer.immediate.status.code == 503


def test_an_upload_is_routed_without_a_model() -> None:
    peer = Peer()
    body = b"--x\r\n\x00\xff\r\n--x--"
    replies = peer.feed(
        wire.request_headers({"content-type": "multipart/form-data; boundary=x"}, path="/v1/files"),
        wire.request_body(body, end=True),
    )
    assert wire.pieces(replies, "request_body") == [(body, True)]
    assert peer.router.requests[0].model == ""


def test_an_empty_opaque_body_still_gets_its_one_piece() -> None:
    peer = Peer()
    replies = peer.feed(
        wire.request_headers({"content-type": "text/plain"}, path="/x"), wire.request_body(b"", end=True)
    )
    assert wire.kinds(replies) == ["request_headers", "request_body"]
    assert wire.pieces(replies, "request_body") == [(b"", True)]


def test_the_last_empty_piece_sent_twice_is_answered_once() -> None:
    peer = Peer()
    body = wire.body_of()
    peer.feed(wire.request_headers(), wire.request_body(body, end=False), wire.request_body(b"", end=True))
    assert peer.feed(wire.request_body(b"", end=True)) == []
    peer.feed(
        wire.response_headers(), wire.response_body(b"{}", end=False), wire.response_body(b"", end=True)
    )
    assert peer.feed(wire.response_body(b"", end=True)) == []
    assert wire.pieces(peer.replies, "request_body") == [(body, True)]
    assert wire.pieces(peer.replies, "response_body") == [(b"{}", False), (b"", True)]
    assert peer.exchange.status is None


def test_trailers_end_the_body_and_are_answered_last() -> None:
    peer = Peer()
    body = wire.body_of()
    peer.feed(wire.request_headers(), wire.request_body(body, end=False))
    replies = peer.feed(wire.trailers("request_trailers"))
    assert wire.kinds(replies) == ["request_headers", "request_body", "request_trailers"]
    assert wire.pieces(replies, "request_body") == [(body, False)]
    assert "content-length" not in wire.set_headers(wire.read(replies)[0])
    peer.feed(wire.response_headers(), wire.response_body(b"x", end=False))
    assert wire.kinds(peer.feed(wire.trailers("response_trailers"))) == ["response_trailers"]
    assert peer.record.ending is Ending.COMPLETED
    assert peer.router.ends == 1


def test_a_large_body_comes_back_whole_in_pieces() -> None:
    body = wire.body_of(prompt="x" * (20 * 1024 * 1024))
    peer = Peer()
    parts = [body[at : at + 1_000_000] for at in range(0, len(body), 1_000_000)]
    peer.feed(wire.request_headers(), *(wire.request_body(part, end=False) for part in parts))
    assert peer.budget.held_bytes == len(body)
    replies = peer.feed(wire.request_body(b"", end=True))
    got = wire.pieces(replies, "request_body")
    assert b"".join(part for part, _ in got) == body
    assert [end for _, end in got] == [False] * (len(got) - 1) + [True]
    assert max(len(part) for part, _ in got) <= CHUNK_BYTES
    assert peer.budget.held_bytes == 0


def test_a_body_over_the_limit_gets_413() -> None:
    peer = Peer(budget=BodyBudget(max_request_bytes=1000))
    peer.feed(wire.request_headers(), wire.request_body(b"x" * 600, end=False))
    peer.feed(wire.request_body(b"x" * 600, end=False))
    assert peer.immediate.status.code == 413
    assert peer.budget.held_bytes == 0


def test_a_full_buffer_gets_503_and_the_others_go_on() -> None:
    budget = BodyBudget(max_held_bytes=1000)
    first, second = Peer(budget=budget), Peer(budget=budget)
    first.feed(wire.request_headers(), wire.request_body(wire.body_of(prompt="x" * 700), end=False))
    second.feed(wire.request_headers(), wire.request_body(b"x" * 700, end=False))
    assert second.immediate.status.code == 503
    assert second.exchange.status is OK
    assert "request_headers" in wire.kinds(first.feed(wire.request_body(b"", end=True)))
    assert budget.held_bytes == 0


def routed(router: CountingRouter | None = None) -> Peer:
    peer = Peer(router)
    peer.feed(*post(wire.body_of()))
    peer.replies.clear()
    return peer


def test_a_json_response_passes_untouched_and_its_usage_is_read() -> None:
    peer = routed()
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    body = json.dumps({"choices": [{"text": 'a "usage": {} b'}], "usage": usage}).encode()
    peer.feed(
        wire.response_headers(served=A),
        wire.response_body(body[:20], end=False),
        wire.response_body(body[20:], end=True),
    )
    assert wire.pieces(peer.replies, "response_body") == [(body[:20], False), (body[20:], True)]
    assert peer.replies[0] == b"\x12\x00"
    record = peer.record
    assert record.usage is not None
    assert (record.usage.input_tokens, record.usage.output_tokens, record.usage.cached_tokens) == (7, 3, 4)
    assert record.served_by == A
    assert record.response_bytes == len(body)
    assert peer.router.ends == 1
    assert peer.router.first_bytes == 1


def test_a_stream_passes_piece_by_piece_and_is_timed() -> None:
    peer = routed()
    role, *tokens = (
        b'data: {"choices":[{"delta":%b}]}\n\n' % delta
        for delta in (b'{"role":"assistant","content":""}', b'{"content":"a"}', b'{"content":"b"}')
    )
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n'
    peer.feed(wire.response_headers("text/event-stream; charset=utf-8"))
    for event in (role, *tokens, usage):
        assert peer.router.first_bytes == (0 if event in {role, tokens[0]} else 1)
        assert wire.pieces(peer.feed(wire.response_body(event, end=False)), "response_body") == [
            (event, False)
        ]
    peer.feed(wire.response_body(b"data: [DONE]\n\n", end=False), wire.response_body(b"", end=True))
    record = peer.record
    assert record.streaming
    assert record.first_byte_at - record.started_at == 4.0
    assert record.first_token_at - record.started_at == 5.0
    assert record.last_token_at - record.started_at == 6.0
    assert peer.tally.gaps == [1.0]
    assert record.usage is not None
    assert (record.output_tokens, record.tokens_seen) == (2, 2)


def test_a_stream_without_usage_counts_its_events() -> None:
    peer = routed()
    events = b"".join(b'data: {"choices":[{"text":"%d"}]}\n\n' % number for number in range(3))
    peer.feed(wire.response_headers("text/event-stream"), wire.response_body(events, end=True))
    assert peer.record.usage is None
    assert peer.record.output_tokens == 3


def test_a_stream_of_an_unknown_form_has_its_first_byte_for_its_first_token() -> None:
    peer = routed()
    peer.feed(wire.response_headers("text/event-stream"), wire.response_body(b"data: [DONE]\n\n", end=False))
    peer.feed(wire.response_body(b'data: {"choices":[],"usage":{"completion_tokens":5}}\n\n', end=True))
    record = peer.record
    assert record.first_token_at == record.first_byte_at > 0
    empty = routed()
    empty.feed(wire.response_headers("text/event-stream"), wire.response_body(b"data: [DONE]\n\n", end=True))
    assert empty.record.first_token_at == 0


def test_a_stream_that_reports_a_failure_is_counted_as_one() -> None:
    peer = routed()
    event = b'data: {"error":{"message":"out of memory","code":500}}\n\n'
    peer.feed(wire.response_headers("text/event-stream"), wire.response_body(event, end=True))
    assert wire.pieces(peer.replies, "response_body") == [(event, True)]
    assert peer.record.failed_in_body
    assert peer.record.ending is Ending.COMPLETED


def test_the_id_of_a_response_is_recorded() -> None:
    peer = routed()
    body = b'{"id":"resp_7","object":"response","output":[]}'
    peer.feed(wire.response_headers(), wire.response_body(body, end=True))
    assert peer.record.response_id == "resp_7"


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream"])
def test_the_model_that_the_client_asked_for_is_put_back(content_type: str) -> None:
    peer = routed()
    peer.picking._restore = ("asked", "sent")
    start = b"data: " if content_type != "application/json" else b""
    body = start + b'{"id":"1","model": "sent","n":1.10,"usage":{"completion_tokens":2}}\n\n'
    head, *pieces = peer.feed(
        wire.response_headers(content_type),
        *(wire.response_body(body[at : at + 7], end=False) for at in range(0, len(body), 7)),
        wire.response_body(b"", end=True),
    )
    (reply,) = wire.read([head])
    assert reply.response_headers.response.header_mutation.remove_headers == ["content-length"]
    sent = b"".join(piece for piece, _ in wire.pieces(pieces, "response_body"))
    assert sent == body.replace(b'"sent"', b'"asked"')
    assert peer.record.output_tokens == 2


def test_a_name_cut_off_by_the_end_goes_out_as_it_came() -> None:
    peer = routed()
    peer.picking._restore = ("asked", "sent")
    replies = peer.feed(wire.response_headers(), wire.response_body(b'{"model":"sen', end=True))
    assert wire.pieces(replies, "response_body") == [(b'{"model":"sen', True)]


def test_an_invalid_json_response_passes_untouched() -> None:
    peer = routed()
    peer.feed(wire.response_headers(), wire.response_body(b'{"usage": {"prompt', end=True))
    assert wire.pieces(peer.replies, "response_body") == [(b'{"usage": {"prompt', True)]
    assert peer.record.usage is None


def test_a_response_without_body_completes() -> None:
    peer = routed()
    peer.feed(wire.response_headers(status="204", end=True))
    assert wire.kinds(peer.replies) == ["response_headers"]
    assert peer.record.ending is Ending.COMPLETED
    assert peer.router.ends == 1


def test_served_by_another_endpoint_gives_the_reservation_back() -> None:
    peer = routed(CountingRouter(A, B))
    peer.feed(wire.response_headers(served=A), wire.response_body(b"{}", end=True))
    assert peer.record.endpoint == B
    assert peer.record.served_by == A
    assert peer.router.ends == 1


def test_the_router_hears_of_the_error_of_a_model_server() -> None:
    for status in ("404", "200"):
        peer = Peer()
        peer.feed(wire.request_headers(), wire.request_body(wire.body_of(), end=True))
        peer.feed(wire.response_headers(status=status, end=True))
        assert peer.router.failures == ([("r-1", 404)] if status == "404" else [])


def test_a_local_reply_of_the_proxy_before_the_body_is_complete() -> None:
    peer = Peer()
    peer.feed(wire.request_headers(), wire.request_body(b"{", end=False))
    peer.feed(wire.response_headers(status="408"), wire.response_body(b"late", end=True))
    assert wire.kinds(peer.replies) == ["response_headers", "response_body"]
    assert peer.feed(wire.request_body(b"more", end=True)) == []
    assert peer.record.outcome is None
    assert peer.budget.held_bytes == 0


@pytest.mark.parametrize("payload", [b"\xff\xff", b"", b"\x42\x00"])
def test_garbage_fails_the_stream(payload: bytes) -> None:
    peer = Peer()
    peer.feed(payload)
    assert peer.exchange.status is not None
    assert peer.exchange.status.code is StatusCode.INVALID_ARGUMENT
    assert peer.record.ending is Ending.PROTOCOL_ERROR


def test_a_proxy_that_does_not_send_bodies_gets_its_pick_at_once() -> None:
    message = wire.pb.ProcessingRequest.FromString(wire.request_headers())
    message.protocol_config.request_body_mode = 0
    message.protocol_config.response_body_mode = 4
    peer = Peer()
    assert wire.kinds(peer.feed(message.SerializeToString())) == ["request_headers"]


def test_a_proxy_that_does_not_send_response_bodies_completes_with_the_stream() -> None:
    message = wire.pb.ProcessingRequest.FromString(wire.request_headers(end=True, method="GET"))
    message.protocol_config.request_body_mode = 4
    message.protocol_config.response_body_mode = 0
    peer = Peer()
    peer.feed(message.SerializeToString(), wire.response_headers())
    assert peer.router.held
    peer.close()
    assert peer.record.ending is Ending.COMPLETED
    assert peer.router.ends == 1


WHOLE = wire.body_of(prompt="grüße " * 40)


@given(cuts=st.lists(st.integers(0, len(WHOLE)), max_size=6))
@settings(deadline=None)
def test_any_split_of_the_request_body_gives_the_same_replies(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(WHOLE)]
    parts = [WHOLE[start:end] for start, end in pairwise(edges)]
    whole, split = Peer(), Peer()
    whole.feed(*post(WHOLE))
    split.feed(wire.request_headers())
    split.feed(*(wire.request_body(part, end=at == len(parts)) for at, part in enumerate(parts, 1)))
    assert split.replies == whole.replies
    assert split.router.requests[0].prompt == whole.router.requests[0].prompt


SSE = b"".join(b'data: {"t":%d,"usage":null}\n\n' % at for at in range(5))
SSE += b'data: {"usage": {"prompt_tokens": 11, "completion_tokens": 5}}\n\ndata: [DONE]\n\n'


@given(cuts=st.lists(st.integers(0, len(SSE)), max_size=8), twice=st.booleans(), by_trailers=st.booleans())
@settings(deadline=None)
def test_every_response_piece_is_answered_once_whatever_the_split(
    cuts: list[int], twice: bool, by_trailers: bool
) -> None:
    edges = [0, *sorted(cuts), len(SSE)]
    parts = [SSE[start:end] for start, end in pairwise(edges)]
    peer = routed()
    peer.feed(wire.response_headers("text/event-stream"))
    for part in parts:
        assert wire.pieces(peer.feed(wire.response_body(part, end=False)), "response_body") == [(part, False)]
    last = wire.trailers("response_trailers") if by_trailers else wire.response_body(b"", end=True)
    assert len(peer.feed(last)) == 1
    if twice:
        assert peer.feed(wire.response_body(b"", end=True)) == []
    assert peer.record.usage is not None
    assert peer.record.usage.output_tokens == 5
    assert peer.record.usage.input_tokens == 11


_ALL = (
    wire.request_headers(),
    wire.request_headers(end=True, method="GET"),
    wire.request_body(wire.body_of(), end=True),
    wire.request_body(b"{", end=False),
    wire.request_body(b"", end=True),
    wire.trailers("request_trailers"),
    wire.response_headers(served=A),
    wire.response_headers(served=B),
    wire.response_body(b"x", end=False),
    wire.response_body(b"", end=True),
    wire.trailers("response_trailers"),
    b"\xff",
)
_NORMAL = (*post(wire.body_of()), wire.response_headers(), *_ALL[8:10])


@given(start=st.integers(0, len(_NORMAL)), rest=st.lists(st.sampled_from(_ALL), max_size=8))
@settings(deadline=None, max_examples=300)
def test_any_sequence_of_messages_releases_exactly_once(start: int, rest: list[bytes]) -> None:
    peer = Peer(CountingRouter(A, B))
    peer.feed(*_NORMAL[:start], *rest)
    peer.close()
    peer.close()
    assert peer.router.held == []
    assert peer.tally.begun == len(peer.tally.records) == 1
    assert peer.budget.held_bytes == 0
    assert len(peer.tally.decisions) <= 1


def test_an_answer_of_the_proxy_to_a_request_that_it_did_not_understand_passes() -> None:
    peer = Peer()
    replies = peer.feed(wire.response_headers(), wire.response_body(b"no", end=True))
    assert wire.kinds(replies) == ["response_headers", "response_body"]
    assert peer.exchange.status is None
    assert [each.ending for each in peer.tally.records] == [Ending.COMPLETED]
    assert peer.tally.decisions == []


def test_trailers_after_a_body_that_is_not_shown_pass() -> None:
    message = wire.pb.ProcessingRequest.FromString(wire.request_headers())
    message.protocol_config.request_body_mode = 0
    message.protocol_config.response_body_mode = 4
    peer = Peer()
    peer.feed(message.SerializeToString())
    assert wire.kinds(peer.feed(wire.trailers("request_trailers"))) == ["request_trailers"]
    assert peer.exchange.status is None
    peer.feed(wire.trailers("request_trailers"))
    assert peer.exchange.status is not None


class Ticket(Waiting):
    """A decision that waits in a `QueueingRouter`."""

    def __init__(self, request: InferenceRequest, subset: Sequence[str] | None, resume: Resume) -> None:
        self.request, self.subset, self.resume = request, subset, resume
        self.cancelled = 0

    @override
    def cancel(self) -> None:
        self.cancelled += 1


class QueueingRouter(CountingRouter):
    """Has every request wait until `let_in` decides on it."""

    def __init__(self, *endpoints: str, refusal: Refusal | None = None) -> None:
        super().__init__(*endpoints, refusal=refusal)
        self.tickets: list[Ticket] = []

    @override
    def decide(
        self, request: InferenceRequest, subset: Sequence[str] | None, resume: Resume
    ) -> Decision | Refusal | Waiting:
        self.tickets.append(Ticket(request, subset, resume))
        return self.tickets[-1]

    def let_in(self) -> None:
        for ticket in self.tickets:
            if not ticket.cancelled:
                ticket.request.priority = 7
                decision = super().decide(ticket.request, ticket.subset, ticket.resume)
                assert not isinstance(decision, Waiting)
                ticket.resume(decision)
        self.tickets.clear()


def queued(router: QueueingRouter) -> Peer:
    peer = Peer(router)
    assert peer.feed(*post(wire.body_of())) == []
    assert peer.tally.decisions == []
    return peer


def test_a_request_that_waited_is_picked_for_like_one_that_did_not() -> None:
    router = QueueingRouter(A, B)
    late, at_once = queued(router), Peer(CountingRouter(A, B))
    router.let_in()
    at_once.feed(*post(wire.body_of()))
    assert late.replies == at_once.replies
    assert late.tally.decisions == [Outcome.PICKED]
    assert late.tally.seconds == [0.0]
    late.feed(wire.response_headers(served=B), wire.response_body(b"{}", end=True))
    assert (late.record.endpoint, late.record.priority) == (B, 7)
    assert late.record.decided_at > late.record.started_at
    assert (router.held, router.ends, router.first_bytes) == ([], 1, 1)


def test_a_request_that_waited_can_be_refused() -> None:
    router = QueueingRouter(A, refusal=Refusal(Outcome.SATURATED, "because"))
    peer = queued(router)
    router.let_in()
    assert peer.immediate.status.code == 429
    assert (peer.record.ending, peer.record.outcome) == (Ending.REFUSED, Outcome.SATURATED)
    assert peer.record.priority == 7
    assert peer.exchange.status is OK


def test_a_client_that_goes_away_takes_its_request_out_of_the_queue() -> None:
    router = QueueingRouter(A)
    peer = queued(router)
    (ticket,) = router.tickets
    peer.close()
    assert ticket.cancelled == 1
    router.let_in()
    assert (peer.replies, router.held) == ([], [])
    assert (peer.record.ending, peer.record.outcome) == (Ending.DISCONNECTED, None)
    assert peer.budget.held_bytes == 0


class FailingReader:
    """A reader that fails at the end."""

    def feed(self, piece: bytes) -> bool:
        return False

    def close(self) -> None:
        raise ZeroDivisionError


@pytest.mark.parametrize("fault", ["usage", "router", "observer"])
def test_a_fault_at_the_end_leaves_no_reservation_and_no_open_exchange(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = Peer()
    if fault == "usage":
        monkeypatch.setattr("endpoint_picker.extproc.picking.DocumentReader", FailingReader)
    elif fault == "router":
        peer.router.fails_after = True
    else:
        peer.tally.fails_after = True
    peer.feed(*post(wire.body_of()), wire.response_headers(), wire.response_body(b"{}", end=False))
    with pytest.raises(ZeroDivisionError):
        peer.feed(wire.response_body(b"", end=True))
    peer.close()
    assert (peer.router.held, peer.router.ends) == ([], 1)
    assert len(peer.tally.records) == 1


def follow(peer: Peer, **hooks: Any) -> None:
    """Give the decision that the peer is on these hooks."""
    (decision,) = peer.router.held
    decision.hooks = Hooks(**hooks)


def test_plugins_set_response_headers_and_report_the_usage() -> None:
    peer = routed()
    seen: list[Record] = []

    def report(_decision: Decision, record: Record) -> list[tuple[str, str, float]]:
        assert record.usage is not None
        assert record.ending is None
        seen.append(record)
        return [("space", "tokens", record.usage.input_tokens)]

    follow(
        peer,
        response_headers=(lambda _decision, record: [("x-served", record.served_by)],),
        response_complete=(report,),
    )
    body = json.dumps({"usage": {"prompt_tokens": 7, "completion_tokens": 3}}).encode()
    peer.feed(wire.response_headers(served=A), wire.response_body(body, end=True))
    first, last = wire.read(peer.replies)
    (header,) = first.response_headers.response.header_mutation.set_headers
    assert (header.header.key, header.header.raw_value) == ("x-served", A.encode())
    assert last.dynamic_metadata["space"]["tokens"] == 7
    assert seen == [peer.record]


def test_a_response_without_a_decision_passes_as_it_is() -> None:
    peer = Peer()
    peer.feed(wire.request_headers())
    peer.feed(wire.response_headers(status="408", end=True))
    assert peer.replies == [b"\x12\x00"]


@pytest.mark.parametrize(
    ("parsers", "path", "status"),
    [
        pytest.param({"openai-parser"}, "/v1/completions", 400, id="demands a model"),
        pytest.param({"openai-parser"}, "/v1/images/generations", 200, id="demands none"),
        pytest.param({"openai-parser"}, "/v1/messages", 200, id="of another parser"),
        pytest.param({"anthropic-parser"}, "/v1/messages", 400, id="of this parser"),
        pytest.param({"openai-parser"}, "/load_lora_adapter", 200, id="unknown path"),
        pytest.param(set(), "/v1/completions", 200, id="none"),
    ],
)
def test_only_an_api_that_demands_a_model_refuses_a_body(parsers: set[str], path: str, status: int) -> None:
    router = CountingRouter(A)
    router.reads = BodyReading(frozenset(parsers))
    peer = Peer(router)
    replies = peer.feed(*post(b'["no", "object"]', path=path))
    if status == 200:
        assert wire.kinds(replies) == ["request_headers", "request_body"]
        assert (router.requests[0].model, router.requests[0].prompt) == ("", b"")
    else:
        assert peer.immediate.status.code == status


def test_metadata_that_is_none_fails_the_stream() -> None:
    """It stands behind the headers and is read only where it is needed."""
    peer = Peer()
    peer.feed(wire.request_headers() + b"B\x03\n\x05x")
    assert peer.exchange.status is not None
    assert peer.exchange.status.code is StatusCode.INVALID_ARGUMENT
    assert peer.record.ending is Ending.PROTOCOL_ERROR
