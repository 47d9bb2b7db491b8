"""The bounded memory of samples by stratum."""

import numpy as np

from latency_contract.schema import COLUMN
from latency_predictor.learning.strata import STRATA, StratifiedSamples, strata_of
from latency_samples import START_S, batch, rows


def test_strata_by_hand() -> None:
    matrix = rows(
        3,
        waiting_requests=[0, 2, 50],
        unseen_requests=0,
        kv_usage=[0.0, 0.3, 0.95],
        prefix_hit=[0.0, 0.3, 0.9],
        input_tokens=[10, 300, 9000],
    )
    # ((queue x 5 + usage) x 4 + prefix) x 4 + length
    assert strata_of(matrix).tolist() == [0, ((1 * 5 + 1) * 4 + 1) * 4 + 1, STRATA - 1]


def test_rare_situations_survive_a_flood_of_common_ones() -> None:
    kept = StratifiedSamples(each=50, total=200, max_age_s=1e6)
    kept.add(batch(5, waiting_requests=30, kv_usage=0.99, input_tokens=9000))
    kept.add(batch(5000, waiting_requests=0, kv_usage=0.1, input_tokens=100, prefix_hit=0.0))
    samples = kept.samples(START_S)
    assert len(samples) == 55
    rare = samples.matrix[:, COLUMN["waiting_requests"]] == 30
    assert rare.sum() == 5
    # Of 5,000 common samples 50 are left: each stands for more of the traffic, ten times at most.
    assert samples.weight[~rare][0] / samples.weight[rare][0] == 10
    assert np.isclose(samples.weight.mean(), 1)


def test_the_total_is_bounded_by_the_fullest_stratum() -> None:
    kept = StratifiedSamples(each=1000, total=100, max_age_s=1e6)
    kept.add(batch(20, waiting_requests=30, kv_usage=0.99, input_tokens=9000, prefix_hit=0.0))
    kept.add(batch(500, waiting_requests=0, kv_usage=0.1, input_tokens=100, prefix_hit=0.0))
    assert len(kept) == 100
    assert sorted(each for each in kept.counts() if each) == [20, 80]


def test_the_newest_of_a_stratum_stay_in_order_of_time() -> None:
    kept = StratifiedSamples(each=3, total=100, max_age_s=1e6)
    kept.add(batch(10, waiting_requests=0, kv_usage=0.1, input_tokens=100, prefix_hit=0.0))
    assert np.allclose(kept.samples(START_S).time_s, START_S + 0.01 * np.arange(7, 10))


def test_old_samples_go() -> None:
    kept = StratifiedSamples(each=100, total=100, max_age_s=60)
    kept.add(batch(10))
    kept.add(batch(10, seed=2, at_s=START_S + 100))
    assert len(kept.samples(START_S + 110)) == 10
    assert kept.clear() == 10
    assert len(kept) == 0
    kept.add(batch(3))
    assert len(kept.samples(START_S)) == 3
