"""Base model and calibration: numbers worked out by hand."""

import numpy as np
import pytest

from latency_contract.base_model import FLOOR_S, TERMS, margins, terms
from latency_contract.calibration import seconds
from latency_contract.matrix import build
from latency_contract.schema import COLUMN, AdapterState, Target

ROW = build(
    {
        "input_tokens": 1000,
        "expected_output_tokens": 100,
        "prefix_hit": 0.5,
        "waiting_requests": 2,
        "running_requests": 10,
        "kv_usage": 0.5,
        "kv_capacity_tokens": 10_000,
        "unseen_requests": 1,
        "prefill_tokens_in_flight": 300,
        "recent_tpot_s": 0.02,
        "recent_prefill_rate": 400,
        "adapter_state": AdapterState.LOADABLE,
    },
    rows=1,
)


def test_terms_by_hand() -> None:
    assert dict(zip(TERMS[Target.TTFT], terms(ROW, Target.TTFT)[0], strict=True)) == pytest.approx(
        {
            "constant": 1,
            "prefill_work_tokens": 800,
            "uncached_tokens": 500,
            "ahead_requests": 3,
            "batch_requests": 13,
            "kv_used_tokens": 5000,
            "adapter_load": 1,
            "waiting_by_pace": 0.04,
            "recent_tpot_s": 0.02,
            "adapter_wait": 0,
            "adapter_wait_x_ahead": 0,
            "unseen_requests": 1,
        }
    )
    assert terms(ROW, Target.TPOT)[0] == pytest.approx([1, 13, 5000, 400, 0.02, 8])
    assert terms(ROW, Target.E2E)[0, -1] == pytest.approx(100 * 8)


def test_a_request_whose_adapter_has_no_slot_waits_by_terms_of_its_own() -> None:
    row = ROW.copy()
    row[0, COLUMN["adapter_state"]] = AdapterState.FULL
    found = dict(zip(TERMS[Target.TTFT], terms(row, Target.TTFT)[0], strict=True))
    assert found["adapter_wait"] == 1
    assert found["adapter_wait_x_ahead"] == 3
    assert found["adapter_load"] == found["unseen_requests"] == 0


def test_margin_is_the_logarithm_of_the_sum() -> None:
    coefficients = [0.006, 40e-6] + [0.0] * (len(TERMS[Target.TTFT]) - 2)
    assert margins(ROW, Target.TTFT, coefficients) == pytest.approx([np.log(0.006 + 800 * 40e-6)])
    nothing = [0.0] * len(coefficients)
    assert margins(ROW, Target.TTFT, nothing) == pytest.approx([np.log(FLOOR_S)])
    with pytest.raises(ValueError, match="1 coefficients for the 6 terms of TPOT"):
        margins(ROW, Target.TPOT, [1.0])


def test_unknown_features_count_as_nothing() -> None:
    assert np.isfinite(terms(build({"input_tokens": 5}, rows=1), Target.E2E)).all()


def test_bounds_add_the_regimes_offset_and_do_not_cross() -> None:
    raw = np.log(np.array([[1.0, 2.0], [1.5, 1.0]], np.float32))
    offsets = np.zeros((2, 6), np.float32)
    offsets[1, 3] = np.log(2.0)
    got = seconds(raw, offsets, np.array([3, 0]))
    assert got == pytest.approx(np.array([[1.0, 2.0], [3.0, 2.0]]))


def test_seconds_stay_finite() -> None:
    got = seconds(np.array([[1e6, -1e6]], np.float32), np.zeros((1, 6), np.float32), np.array([0, 0]))
    assert got == pytest.approx(np.array([[21_600.0, 1e-4]]))
