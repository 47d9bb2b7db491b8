"""When the picker waits for a body, and which bodies it reads."""

import gzip
import json
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any

import brotli
import pytest
import zstandard

import envoy_messages as wire
from counting_router import CountingRouter
from endpoint_picker.extproc.picking import Late, Picking
from endpoint_picker.observability.metrics import PickerMetrics
from endpoint_picker.outcomes import Outcome
from ext_proc.body.reading import WHOLE_BYTES
from ext_proc.budget import BodyBudget
from ext_proc.exchange import Exchange
from ext_proc.processor import Ending
from ext_proc.turns import Turns

A = "10.0.0.1:8000"
JSON = {"content-type": "application/json"}


class Peer:
    """Feeds an exchange whose large bodies are read in turns that the test takes."""

    def __init__(self, limit: int = 1 << 28) -> None:
        self.router = CountingRouter(A)
        self.soon: deque[Callable[[], None]] = deque()
        self.budget = BodyBudget(limit)
        turns = Turns(self.soon.append, limit)
        self.picking = Picking(self.router, PickerMetrics(), 1.0, lambda: 1.0, turns)
        self.exchange = Exchange(self.picking, self.budget)
        self.replies: list[bytes] = []

    def feed(self, *messages: bytes) -> list[str]:
        got: list[bytes] = []
        for message in messages:
            got += self.exchange.received(message, 2.0)
            if self.exchange.waits:
                self.exchange.on_resume = self._resumed
            got += self._rest()
        self.replies += got
        return wire.kinds(got)

    def turn(self, most: int = 1 << 20) -> int:
        """Take turns of the event loop until there are none left; return how many."""
        count = 0
        while self.soon and count < most:
            self.soon.popleft()()
            count += 1
        return count

    def _resumed(self, late: Late) -> None:
        self.exchange.resumed(late, 3.0)
        self.replies += self._rest()

    def _rest(self) -> list[bytes]:
        got: list[bytes] = []
        while self.exchange.backlog is not None:
            got += self.exchange.more()
        return got

    @property
    def body(self) -> bytes:
        return b"".join(part for part, _ in wire.pieces(self.replies, "request_body"))


@pytest.mark.parametrize(
    ("method", "headers"),
    [("GET", {}), ("OPTIONS", {}), ("DELETE", {}), ("POST", {"expect": "100-continue"})],
)
def test_a_body_that_is_not_waited_for_goes_on_piece_by_piece(method: str, headers: dict[str, str]) -> None:
    peer = Peer()
    assert peer.feed(wire.request_headers(headers, method=method)) == ["request_headers"]
    assert peer.feed(wire.request_body(b"some", end=False)) == ["request_body"]
    assert peer.feed(wire.request_body(b"thing", end=True)) == ["request_body"]
    assert wire.pieces(peer.replies, "request_body") == [(b"some", False), (b"thing", True)]
    assert "content-length" not in wire.set_headers(wire.read(peer.replies)[0])
    assert peer.router.requests[0].model == ""


@pytest.mark.parametrize("path", ["/v1/models", "/v1/load_lora_adapter", "/v2/models/x/infer", "/tokenize"])
def test_calls_that_need_no_model_are_scheduled(path: str) -> None:
    for body in (b"{}", b"[1]", b"no json", b""):
        peer = Peer()
        peer.feed(wire.request_headers(JSON, path=path), wire.request_body(body, end=True))
        assert peer.body == body
        assert len(peer.router.requests) == 1


ENCODE: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.compress,
}


@pytest.mark.parametrize("size", [10, 3_000_000])
@pytest.mark.parametrize("name", ENCODE)
def test_an_encoded_body_is_read_and_goes_on_as_it_came(name: str, size: int) -> None:
    sent = ENCODE[name](json.dumps({"model": "m", "prompt": "word " * (size // 5)}).encode())
    peer = Peer()
    peer.feed(wire.request_headers({"content-encoding": name}), wire.request_body(sent, end=True))
    peer.turn()
    (request,) = peer.router.requests
    assert (request.model, request.prompt[:10]) == ("m", b"word word ")
    assert peer.body == sent


def test_an_encoding_that_is_not_read_is_named_where_a_model_is_needed() -> None:
    peer = Peer()
    headers = {"content-encoding": "compress"}
    peer.feed(wire.request_headers(headers), wire.request_body(b"x", end=True))
    (refused,) = wire.read(peer.replies)
    assert refused.immediate_response.status.code == 415
    assert b'content-encoding \\"compress\\"' in refused.immediate_response.body
    other = Peer()
    other.feed(wire.request_headers(headers, path="/else"), wire.request_body(b"x", end=True))
    assert other.body == b"x"


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b'{"model":5}', b"the model must be a string"),
        (b'{"model":{"id":"m"}}', b"the model must be a string"),
        (b'{"model":null}', b"model not found"),
        (b"{}", b"model not found"),
    ],
)
def test_a_model_that_is_no_string_is_told_from_one_that_is_not_there(body: bytes, word: bytes) -> None:
    peer = Peer()
    peer.feed(wire.request_headers(JSON), wire.request_body(body, end=True))
    (refused,) = wire.read(peer.replies)
    assert refused.immediate_response.status.code == 400
    assert word in refused.immediate_response.body
    assert b'"param":"model"' in refused.immediate_response.body


@pytest.mark.parametrize(
    ("fields", "size", "status"),
    [(256 - 4, 1, 200), (256 - 3, 1, 431), (1, 4_194_100, 200), (1, 4_194_400, 431)],
    ids=["as many as may be", "one more", "as large as may be", "larger"],
)
def test_request_headers_beyond_a_limit_get_431(fields: int, size: int, status: int) -> None:
    """Four of the 256 fields are those of every call here."""
    peer = Peer()
    sent = {f"x-{number}": "v" * size for number in range(fields - 1)} | {"x-model": "v" * size}
    peer.feed(wire.request_headers(sent), wire.request_body(b'{"model":"m"}', end=True))
    (first, *_) = wire.read(peer.replies)
    if status == 200:
        assert first.WhichOneof("response") == "request_headers"
        return
    assert first.immediate_response.status.code == 431
    assert b"more than 256 header fields" in first.immediate_response.body
    assert peer.picking.record.outcome is Outcome.HEADERS_TOO_LARGE
    assert peer.exchange.status is not None


def test_the_grpc_engines_usage_and_first_token_are_read() -> None:
    peer = Peer()
    grpc = {"content-type": "application/grpc"}
    request = b"\0\0\0\0\x06\x1a\x02hi\x28\x01"  # text "hi", stream
    peer.feed(
        wire.request_headers(grpc, path="/vllm.grpc.engine.VllmEngine/Generate"),
        wire.request_body(request, end=True),
        wire.response_headers("application/grpc"),
    )
    empty = b"\0\0\0\0\x04\x0a\x02\x10\x07"  # chunk: 7 tokens of prompt
    chunk = b"\0\0\0\0\x09\x0a\x07\x0a\x01\x05\x10\x07\x18\x01"  # chunk: token 5; 7 and 1 tokens
    whole = b"\0\0\0\0\x08\x12\x06\x18\x07\x20\x02\x28\x03"  # complete: 7, 2 and 3 cached
    peer.feed(wire.response_body(empty, end=False))
    record = peer.picking.record
    assert (record.first_byte_at, record.first_token_at) == (2.0, 0.0)
    peer.feed(wire.response_body(chunk, end=False))
    assert record.first_token_at == 2.0
    peer.feed(wire.response_body(whole, end=False), wire.trailers("response_trailers"))
    assert record.usage is not None
    assert (record.usage.input_tokens, record.usage.output_tokens, record.usage.cached_tokens) == (7, 2, 3)


@pytest.mark.parametrize("name", ENCODE)
def test_a_bomb_is_refused_in_steps(name: str) -> None:
    peer = Peer(limit=2_000_000)
    bomb = ENCODE[name](b'{"model":"m","prompt":"' + bytes(20_000_000) + b'"}')
    peer.feed(wire.request_headers({"content-encoding": name}), wire.request_body(bomb, end=True))
    assert 0 < peer.turn() < 100
    assert peer.picking.record.outcome is Outcome.TOO_LARGE
    assert peer.budget.held_bytes == 0


def large(**more: Any) -> bytes:
    return json.dumps({"prompt": "word " * WHOLE_BYTES, "model": "late", **more}).encode()


def test_a_large_body_is_read_while_it_comes_one_step_a_turn() -> None:
    peer, body = Peer(), large()
    peer.feed(wire.request_headers())
    for at in range(0, len(body), 65_536):
        peer.feed(wire.request_body(body[at : at + 65_536], end=False))
        peer.turn(1)
    peer.feed(wire.request_body(b"", end=True))
    assert peer.router.requests == []
    peer.turn()
    assert peer.router.requests[0].model == "late"
    assert peer.body == body
    assert peer.budget.held_bytes == 0


def test_other_requests_are_answered_between_the_steps() -> None:
    peer, body = Peer(), large()
    peer.feed(wire.request_headers(), wire.request_body(body, end=True))
    turns = peer.turn()
    assert turns > len(body) // 65_536  # no step looks at more


def test_a_client_that_leaves_ends_the_reading() -> None:
    peer = Peer()
    peer.feed(wire.request_headers(), wire.request_body(large(), end=True))
    peer.turn(2)
    peer.exchange.closed(Ending.DISCONNECTED, 5.0)
    assert peer.turn() <= 1
    assert peer.router.requests == []
    assert peer.budget.held_bytes == 0


def test_a_fault_in_a_large_body_is_answered() -> None:
    peer = Peer()
    peer.feed(wire.request_headers(), wire.request_body(large()[:-1] + b",]", end=True))
    peer.turn()
    assert peer.picking.record.outcome is Outcome.BAD_REQUEST
    assert wire.kinds(peer.replies) == ["immediate_response"]
