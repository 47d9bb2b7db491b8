"""Figures of known results, and intervals of known values."""

import math

import pytest

from pool_simulation.figures import figures, interval, paired
from pool_simulation.results import Fate, Results
from pool_simulation.workload import Segment, SimulatedRequest


def asked(number: int, arrival_s: float, slo_ttft_ms: float | None = None) -> SimulatedRequest:
    return SimulatedRequest(
        request_id=str(number),
        arrival_s=arrival_s,
        prompt=(Segment(number, 100),),
        output_tokens=11,
        output_segment=1_000 + number,
        model="m",
        slo_ttft_ms=slo_ttft_ms,
        slo_tpot_ms=150.0,
    )


def four() -> Results:
    """Two served, the second too late for its SLO; one refused, one failed; one after the window."""
    results = Results()
    served = {"prompt_tokens": 100, "output_tokens": 11}
    results.add(asked(1, 1.0, 300), Fate.SERVED, 2.2, server=0, first_token_s=1.2, cached_tokens=50, **served)
    results.add(asked(2, 2.0, 300), Fate.SERVED, 4.4, server=1, first_token_s=2.4, **served)
    results.add(asked(3, 3.0), Fate.REFUSED, 3.0)
    results.add(asked(4, 4.0), Fate.FAILED, 5.0, server=0, prompt_tokens=100)
    results.add(asked(5, 11.0), Fate.SERVED, 99.0, server=0, first_token_s=98.0, **served)
    return results


def test_figures_of_the_requests_that_arrived_in_the_window() -> None:
    made = figures(four(), 2, since_s=1.0, until_s=11.0)
    assert (made.requests, made.refused, made.failed) == (4, 1, 1)
    assert made.served_per_s == pytest.approx(0.2)
    assert made.ttft_mean_s == pytest.approx(0.3)
    assert made.tpot_mean_s == pytest.approx((0.1 + 0.2) / 2)
    assert made.e2e_p50_s == pytest.approx((1.2 + 2.4) / 2)
    assert made.goodput == pytest.approx(1 / 4)
    assert made.prefix_hit == pytest.approx(50 / 300)
    assert made.imbalance == pytest.approx((100 - 50 + 11 + 100) / ((161 + 111) / 2))


def test_an_empty_window_has_no_figures() -> None:
    made = figures(four(), 2, since_s=50.0)
    assert made.requests == 0
    assert math.isnan(made.goodput)
    assert math.isnan(made.ttft_p99_s)


def test_intervals() -> None:
    made = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert made.mean == 3.0
    assert made.half == pytest.approx(1.963, abs=1e-3)  # 2.776 * 1.5811 / sqrt(5)
    assert math.isnan(interval([1.0]).half)
    assert paired([1.0, 2.0, 3.0], [0.5, 1.5, 2.5]) == (0.5, 0.0)
