"""The proof of the gain: what two arms of given values come to; when prediction goes out and comes back."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endpoint_picker.latency.proof import ENOUGH, Gain, Proof, is_held_out


def fed(proof: Proof, predicted: list[float], heuristic: list[float], met: bool = False) -> Proof:
    """Feed latencies, or with `met` whether each request met its objective."""
    for arm, values in ((True, predicted), (False, heuristic)):
        for value in values:
            proof.served(1.0, predicted=arm, latency_s=value, met=bool(value) if met else None)
    proof.look(2.0)
    return proof


def gain(found: Gain | None) -> Gain:
    assert found is not None
    return found


def test_a_gain_in_latency_is_the_ratio_of_geometric_means() -> None:
    # Half of 1 s and half of 4 s: geometric mean 2. All 1 s: 1. 1 - 1/2.
    found = gain(fed(Proof(), [1.0] * 800, [1.0, 4.0] * 400).latency)
    assert found.mean == pytest.approx(0.5)
    # The logarithms spread by log(4)/2 on 800 requests.
    half = 1.959964 * math.log(4) / 2 / math.sqrt(799)
    assert found.low == pytest.approx(1 - 0.5 * math.exp(half))
    assert found.high == pytest.approx(1 - 0.5 * math.exp(-half))


def test_a_gain_in_goodput_is_a_difference_with_an_interval_also_when_all_were_met() -> None:
    found = gain(fed(Proof(), [1.0] * 19_999 + [0.0], [1.0] * 500, met=True).goodput)
    assert found.mean == pytest.approx(-1 / 20_000)
    assert found.low < 0 < found.high


def test_prediction_goes_out_when_it_is_significantly_worse_and_comes_back_by_new_evidence() -> None:
    proof = fed(Proof(), [2.0, 2.2] * 1000, [1.0, 1.1] * 200)
    assert proof.is_out
    # What came before counts no more.
    proof.look(3.0)
    assert proof.latency is None
    fed(proof, [1.0, 1.1] * 199, [1.0, 1.2] * 1000)
    assert proof.is_out
    assert not fed(proof, [1.0] * 2, []).is_out


def test_no_verdict_without_enough_held_out_requests() -> None:
    assert not fed(Proof(), [9.0] * 5000, [1.0] * (ENOUGH - 1)).is_out


def test_requests_with_an_objective_are_judged_by_goodput_alone() -> None:
    proof = Proof()
    for arm, latency in ((True, 9.0), (False, 1.0)):
        for _ in range(1000):
            proof.served(1.0, predicted=arm, latency_s=latency, met=True)
    proof.look(2.0)
    assert not proof.is_out
    assert proof.latency is None


def test_old_requests_leave_the_window() -> None:
    proof = fed(Proof(), [9.0] * 500, [1.0] * 300)
    proof.served(1.0 + 2 * 86_400, predicted=True, latency_s=1.0, met=None)
    proof.look(1.0 + 2 * 86_400)
    assert proof.latency is None


@given(st.integers(0, 2**32), st.floats(0.1, 1.0))
@settings(deadline=None, max_examples=30)
def test_equal_arms_rarely_look_different(seed: int, spread: float) -> None:
    rng = random.Random(seed)
    draws = [rng.lognormvariate(0.0, spread) for _ in range(2400)]
    found = gain(fed(Proof(), draws[400:], draws[:400]).latency)
    # A width of 4.5 standard errors on both sides of 0 leaves out one run in 100,000.
    reach = (found.high - found.low) / 2 * 4.5 / 1.96
    assert abs(found.mean) <= reach * 1.2


@given(st.text(max_size=40), st.floats(0, 50))
def test_the_same_request_is_always_on_the_same_side(request_id: str, percent: float) -> None:
    assert is_held_out(request_id, percent) == is_held_out(request_id, percent)
    assert not is_held_out(request_id, 0.0)
    assert is_held_out(request_id, 100.0)
