"""Which model serves a request, and what of the request's bytes changes."""

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import brotli
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import envoy_messages as wire
from counting_router import CountingRouter
from endpoint_picker.decision import BodyReading
from endpoint_picker.extproc.picking import Picking
from endpoint_picker.observability.metrics import PickerMetrics
from endpoint_picker.rewrites import Rewrites
from endpoint_picker.routing import build_router
from ext_proc.body.reading import WHOLE_BYTES
from ext_proc.budget import BodyBudget
from ext_proc.exchange import Exchange
from ext_proc.turns import Turns
from inference_api.priority_table import PriorityTable, RewriteEntry, RewriteTarget


def entry(*models: str, **targets: int) -> RewriteEntry:
    made = tuple(RewriteTarget(model=name, weight=weight) for name, weight in targets.items())
    return RewriteEntry(models=models, targets=made)


def target(rewrites: Rewrites, model: str) -> str | None:
    choice = rewrites.choose(model)
    return None if choice is None else choice.target


def test_an_exact_rule_wins_over_a_generic_one_and_the_first_of_equals_counts() -> None:
    rewrites = Rewrites([entry(any=1), entry("a", x=1), entry("a", "b", y=1), entry(other=1)], lambda: 0.0)
    assert [target(rewrites, model) for model in ("a", "b", "c")] == ["x", "y", "any"]
    choices = [rewrites.choose(model) for model in ("a", "c")]
    assert [each.matched for each in choices if each] == ["a", "*"]
    assert Rewrites([entry("a", x=1)], lambda: 0.0).choose("b") is None


def test_traffic_splits_by_weight() -> None:
    rng = np.random.default_rng(1)
    rewrites = Rewrites([entry("m", old=90, new=10)], lambda: float(rng.random()))
    shares = Counter(target(rewrites, "m") for _ in range(10_000))
    assert 880 < shares["new"] < 1120  # 10 % of 10,000, four standard deviations
    edges = Rewrites([entry("m", a=1, b=1)], iter([0.0, 0.4999, 0.5, 0.9999999]).__next__)
    assert [target(edges, "m") for _ in range(4)] == ["a", "a", "b", "b"]


def test_a_table_brings_the_rules_to_the_router() -> None:
    router = build_router(priorities_text=PriorityTable(rewrites=(entry("m", t=1),)).dump())
    rewrites = router.reading().rewrites
    assert rewrites is not None
    assert target(rewrites, "m") == "t"
    router.apply_config("plugins: [{type: queue-scorer}]")
    assert router.reading().rewrites is rewrites
    router.apply_priorities("")
    assert router.reading().rewrites is None


def sent(pieces: list[bytes], target: str = "served", **more: Any) -> tuple[bytes, dict[str, str], Picking]:
    """Return the body that goes on, the headers that are set on it, and the processor."""
    router = CountingRouter("10.0.0.1:8000")
    rules = Rewrites([RewriteEntry(targets=(RewriteTarget(model=target),))], lambda: 0.0)
    router.reads = BodyReading(router.reads.parsers, rewrites=rules)
    picking = Picking(router, PickerMetrics(), 1.0, lambda: 1.0, Turns(None, 1 << 28))
    exchange = Exchange(picking, BodyBudget())
    replies = [*exchange.received(wire.request_headers(**more), 1.0)]
    for piece in pieces:
        replies += exchange.received(wire.request_body(piece, end=False), 1.0)
    replies += exchange.received(wire.request_body(b"", end=True), 1.0)
    while exchange.backlog is not None:
        replies += exchange.more()
    body = b"".join(part for part, _ in wire.pieces(replies, "request_body"))
    return body, wire.set_headers(wire.read(replies)[0]) if body else {}, picking


ODD = (
    b'{"seed":9007199254740993,"a":1e400,"b":-0,"c":1.10,"model":"m","model" : "asked" ,"d":"\\u00e9"}',
    b'\xef\xbb\xbf {\r\n"mod\\u0065l"\t:\t"asked","x":"<>&","y":"\xff"}\n',
    b'{"nested":{"model":"inner"},"list":[{"model":"inner"}],"model":"asked"}',
    b'{"model":"asked","prompt":"' + b"line\\n" * 200_000 + b'"}',
    b'{"prompt":"' + b"x" * 2_000_000 + b'","model":"asked"}',
)


@pytest.mark.parametrize("body", ODD, ids=range(len(ODD)))
@given(cuts=st.lists(st.integers(0, 3_000_000), max_size=4), target=st.sampled_from(["t", 'a "b" \\ é']))
@settings(max_examples=8, deadline=None)
def test_only_the_models_value_changes(body: bytes, cuts: list[int], target: str) -> None:
    edges = [0, *sorted(cut % len(body) for cut in cuts), len(body)]
    got, headers, picking = sent([body[a:b] for a, b in pairwise(edges) if a < b], target)
    start = body.rindex(b'"asked"')
    assert got == body[:start] + json.dumps(target, ensure_ascii=False).encode() + body[start + 7 :]
    assert headers["content-length"] == str(len(got))
    assert (picking.record.model, picking.record.target_model) == ("asked", target)


def test_a_model_that_stays_leaves_the_body_alone() -> None:
    body = b'{"model":"served","prompt":"x"}'
    got, headers, picking = sent([body])
    assert (got, headers["content-length"]) == (body, str(len(body)))
    assert picking.record.target_model == "served"


def test_an_upload_gets_the_name_as_it_is() -> None:
    part = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\n%b\r\n--b--\r\n'
    got, _, _ = sent(
        [part % b"asked"],
        headers={"content-type": "multipart/form-data; boundary=b"},
        path="/v1/audio/transcriptions",
    )
    assert got == part % b"served"


ENCODE: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.compress,
}


@pytest.mark.parametrize("size", [0, 3_000_000])
@pytest.mark.parametrize("name", ENCODE)
@given(cuts=st.lists(st.integers(0, 3_000_000), max_size=4))
@settings(max_examples=4, deadline=None)
def test_an_encoded_body_goes_on_decoded_with_the_new_name(name: str, size: int, cuts: list[int]) -> None:
    body = b'{"prompt":"%s" , "model" : "asked", "n":1.10}' % (b"text " * (size // 5))
    encoded = ENCODE[name](body)
    edges = [0, *sorted(cut % len(encoded) for cut in cuts), len(encoded)]
    pieces = [encoded[a:b] for a, b in pairwise(edges) if a < b]
    got, headers, picking = sent(pieces, headers={"content-encoding": name})
    assert got == body.replace(b'"asked"', b'"served"')
    assert headers["content-length"] == str(len(got))
    assert picking._headers is not None
    assert "content-encoding" in picking._headers.remove


def test_an_encoded_body_whose_model_stays_goes_on_as_it_came() -> None:
    encoded = gzip.compress(b'{"model":"served"}')
    got, _, picking = sent([encoded], headers={"content-encoding": "gzip"})
    assert got == encoded
    assert picking._headers is not None
    assert picking._headers.remove == []


GRPC = {"content-type": "application/grpc"}
VERTEX = "/google.cloud.aiplatform.v1.PredictionService/ChatCompletions"


@pytest.mark.parametrize(
    ("headers", "path", "body", "word"),
    [
        (GRPC, VERTEX, b"\0\0\0\0\x15\x12\x13\x12\x11" + b'{"model":"asked"}', b"send it as JSON over HTTP"),
        (
            {"content-type": "multipart/form-data; boundary=b", "content-encoding": "gzip"},
            "/v1/audio/transcriptions",
            gzip.compress(b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nasked\r\n--b--\r\n'),
            b"send it not encoded",
        ),
    ],
    ids=["gRPC", "encoded form"],
)
def test_what_cannot_be_rewritten_is_refused_with_what_to_do(
    headers: dict[str, str], path: str, body: bytes, word: bytes
) -> None:
    got, _, picking = sent([body], headers=headers, path=path)
    assert got == b""
    assert picking.record.status == 400


def test_the_engines_grpc_calls_name_no_model_and_go_on_as_they_are() -> None:
    body = b"\0\0\0\0\x04\x1a\x02hi"
    got, _, picking = sent([body], headers=GRPC, path="/vllm.grpc.engine.VllmEngine/Generate")
    assert got == body
    assert picking.record.target_model == ""


def test_choices_are_counted_by_rule() -> None:
    metrics = PickerMetrics()
    rewrites = Rewrites([entry("a", x=1), entry(any=1)], lambda: 0.0)
    for model in ("a", "a", "b", "c"):
        choice = rewrites.choose(model)
        assert choice is not None
        metrics.rewritten(choice.source, choice.matched, choice.target)
    (family,) = [each for each in metrics.collect() if each.name == "llm_d_epp_model_rewrite_decisions"]
    counts = {tuple(each.labels.values()): each.value for each in family.samples if each.name[-5:] == "total"}
    assert counts == {("", "a", "x"): 2, ("", "*", "any"): 2}


def test_a_large_body_is_rewritten_in_turns() -> None:
    body = b'{"prompt":"' + b"x" * (2 * WHOLE_BYTES) + b'","model":"asked"}'
    got, _, _ = sent([body[at : at + 60_000] for at in range(0, len(body), 60_000)])
    assert got == body.replace(b'"asked"', b'"served"')
