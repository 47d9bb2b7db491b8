"""The matrix of features: order, units, derived columns, unknown values."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latency_contract.matrix import Matrix, bad_rows, build, clip, columns_of
from latency_contract.regimes import REGIME_NAMES, regimes_of
from latency_contract.schema import (
    COLUMN,
    FEATURES,
    INPUT_NAMES,
    INPUTS,
    NAMES,
    WIDTH,
    AdapterState,
    Role,
    class_code,
    role_of,
)


def column(matrix: Matrix, name: str) -> list[float]:
    return [float(each) for each in matrix[:, COLUMN[name]]]


def test_derived_columns_by_hand() -> None:
    """1,000 tokens, a quarter cached: 750 uncached; 250 in flight: 1,000 of work; 2 waiting and 1 unseen: 3
    ahead."""
    matrix = build(
        {
            "input_tokens": 1000,
            "prefix_hit": [0.25, 0.0],
            "waiting_requests": [2, np.nan],
            "running_requests": [4, np.nan],
            "kv_usage": [0.5, np.nan],
            "kv_capacity_tokens": 8000,
            "inflight_requests": [5, 7],
            "awaiting_requests": [3, 6],
            "unseen_requests": 1,
            "prefill_tokens_in_flight": 250,
            "decode_tokens_in_flight": 640,
        },
        rows=2,
    )
    assert matrix.dtype == np.float32
    assert matrix.shape == (2, WIDTH)
    assert matrix.flags.c_contiguous
    assert column(matrix, "uncached_tokens") == [750, 1000]
    assert column(matrix, "prefill_work_tokens") == [1000, 1250]
    assert column(matrix, "ahead_requests") == [3, 6]
    assert column(matrix, "batch_requests") == [7, 7]
    assert column(matrix, "kv_used_tokens") == [4000, 640]
    assert column(matrix, "kv_free_tokens")[0] == 8000 - 4000 - 750
    # Of 6 on the page the picker sent 4: 2 are foreign. Without a page nothing is known of them.
    assert column(matrix, "foreign_requests")[0] == 2
    assert np.isnan(column(matrix, "foreign_requests")[1])


def test_what_is_left_out_is_unknown_and_categories_have_a_known_bucket() -> None:
    matrix = build({"input_tokens": 1, "adapter_state": 99, "role": np.nan, "endpoint_class": -3}, rows=1)
    assert np.isnan(column(matrix, "kv_usage")[0])
    assert column(matrix, "adapter_state") == [AdapterState.UNKNOWN]
    assert column(matrix, "role") == [Role.OTHER]
    assert column(matrix, "endpoint_class") == [0]


def test_only_inputs_can_be_given() -> None:
    with pytest.raises(KeyError, match="uncached_tokens"):
        build({"uncached_tokens": 1}, rows=1)
    with pytest.raises(KeyError, match="speed"):
        build({"speed": 1}, rows=1)


@pytest.mark.parametrize(
    ("label", "role"),
    [
        ("prefill", Role.PREFILL),
        ("Decode ", Role.DECODE),
        ("", Role.BOTH),
        (None, Role.BOTH),
        ("x", Role.OTHER),
    ],
)
def test_roles_of_labels(label: Any, role: Any) -> None:
    assert role_of(label) is role


def test_a_class_is_the_same_in_every_process() -> None:
    assert class_code("") == class_code(None) == 0
    assert class_code("h100") == 36_073
    assert class_code("h100") != class_code("l40s")


def test_hostile_rows_are_found_and_clipped() -> None:
    matrix = build(
        {
            "input_tokens": [10, -1, np.nan, np.inf, 10],
            "kv_usage": [0.5, 0.5, 0.5, 0.5, 3.0],
        },
        rows=5,
    )
    assert bad_rows(matrix).tolist() == [False, True, True, True, True]
    assert not bad_rows(clip(matrix[[1, 3, 4]])).any()


def test_regimes_by_hand() -> None:
    matrix = build(
        {
            "input_tokens": [10, 10, 10, 1024, 1024, 4096, 10],
            "waiting_requests": [0, 1, 4, 0, 3, 9, np.nan],
            "unseen_requests": 0,
        },
        rows=7,
    )
    names = [REGIME_NAMES[each] for each in regimes_of(matrix)]
    assert names == [
        "idle-short",
        "queue-short",
        "backlog-short",
        "idle-long",
        "queue-long",
        "backlog-long",
        "idle-short",
    ]


def test_names_are_unique_and_each_feature_says_its_unit_and_range() -> None:
    assert len(set(NAMES)) == WIDTH
    assert len(INPUT_NAMES) == INPUTS
    assert all(each.unit and each.meaning and each.low < each.high for each in FEATURES)


values = st.floats(0, 1, width=32)


@given(rows=st.lists(st.tuples(values, values, values), min_size=1, max_size=20))
def test_a_batch_gives_the_rows_that_each_gives_alone(rows: Any) -> None:
    """Merging requests into one matrix does not change a prediction's features."""

    def make(part: list[tuple[float, float, float]]) -> Matrix:
        token, hit, usage = (np.array(each, dtype=np.float32) for each in zip(*part, strict=True))
        return build({"input_tokens": token * 1000, "prefix_hit": hit, "kv_usage": usage}, rows=len(part))

    together = make(rows)
    for index, row in enumerate(rows):
        np.testing.assert_array_equal(make([row])[0], together[index])
    assert set(columns_of(together)) == set(INPUT_NAMES)
