"""Prediction and training on the wire: what goes in comes out; anything else is refused with its reason."""

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latency_contract.errors import SchemaMismatchError, WireError
from latency_contract.matrix import build
from latency_contract.prediction_wire import (
    Prediction,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)
from latency_contract.sample_wire import (
    Added,
    SampleBatch,
    decode_added,
    decode_batch,
    encode_added,
    encode_batch,
)
from latency_contract.schema import WIDTH, Target
from latency_contract.states import Ended, Policy, State

MATRIX = build({"input_tokens": [1, 2, 3], "kv_usage": 0.25}, rows=3)


def batch(rows: int = 3) -> SampleBatch:
    return SampleBatch(
        versions=("1700000000000-0123abcd", ""),
        time_s=np.arange(rows, dtype=np.float64),
        policy=np.full(rows, Policy.PREDICTED, np.uint8),
        ended=np.full(rows, Ended.SERVED, np.uint8),
        version=np.zeros(rows, np.uint8),
        actual=np.full((rows, 3), 0.5, np.float32),
        predicted=np.full((rows, 3, 2), 0.25, np.float32),
        matrix=build({"input_tokens": np.arange(rows)}, rows=rows),
    )


def test_a_prediction_request_comes_back() -> None:
    message = encode_request(MATRIX, (Target.TTFT, Target.TPOT), (0.5, 0.9))
    request = decode_request(message)
    assert request.targets == (Target.TTFT, Target.TPOT)
    assert request.quantiles == pytest.approx((0.5, 0.9))
    np.testing.assert_array_equal(request.matrix, MATRIX)
    # Header 20 bytes, two quantiles, three rows.
    assert len(message) == 20 + 8 + 3 * 4 * WIDTH


def test_a_prediction_comes_back() -> None:
    answer = Prediction(
        State.TRAINED,
        "1700000000000-0123abcd",
        (Target.TTFT, Target.E2E),
        np.array([0, 1, 0], np.uint8),
        np.arange(12, dtype=np.float32).reshape(2, 2, 3),
    )
    back = decode_answer(encode_answer(answer))
    assert (back.state, back.version, back.targets) == (answer.state, answer.version, answer.targets)
    np.testing.assert_array_equal(back.untrusted, answer.untrusted)
    np.testing.assert_array_equal(back.seconds, answer.seconds)


def test_a_batch_of_samples_comes_back() -> None:
    sent = batch()
    back = decode_batch(encode_batch(sent))
    assert back.versions == sent.versions
    for name in ("time_s", "policy", "ended", "version", "actual", "predicted", "matrix"):
        np.testing.assert_array_equal(getattr(back, name), getattr(sent, name))
    assert decode_added(encode_added(Added(3, 2, 1))) == Added(3, 2, 1)


@pytest.mark.parametrize(
    ("message", "decode"),
    [
        (encode_request(MATRIX, (Target.TTFT,), (0.5,)), decode_request),
        (encode_batch(batch()), decode_batch),
    ],
    ids=["request", "batch"],
)
def test_another_schema_is_refused_and_named(message: bytes, decode: Any) -> None:
    other = message[:4] + b"\xff" * 8 + message[12:]
    with pytest.raises(SchemaMismatchError, match=r"ffffffffffffffff.*must be of one version"):
        decode(other)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"HPQ1",
        encode_request(MATRIX, (Target.TTFT,), (0.5,))[:-1],
        encode_request(MATRIX, (), (0.5,)),
        encode_request(MATRIX, (Target.TTFT,), ()),
        encode_request(MATRIX, (Target.TTFT,), (0.9, 0.5)),
        encode_request(MATRIX, (Target.TTFT,), (float("nan"),)),
    ],
    ids=["empty", "magic", "short", "no target", "no quantile", "descending", "nan"],
)
def test_what_is_no_request_is_refused(message: bytes) -> None:
    with pytest.raises(WireError):
        decode_request(message)


@given(cut=st.integers(0, 400), noise=st.binary(max_size=40))
def test_no_bytes_do_more_than_raise(cut: Any, noise: Any) -> None:
    for message, decode in (
        (encode_request(MATRIX, (Target.TTFT,), (0.5, 0.9)), decode_request),
        (encode_batch(batch()), decode_batch),
        (encode_added(Added(1, 2, 3)), decode_added),
    ):
        changed = message[:cut] + noise + message[cut + len(noise) :]
        with contextlib.suppress(WireError, SchemaMismatchError):
            decode(changed)
