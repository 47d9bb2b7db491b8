"""The other project's JSON: its fields in this contract's units, bad entries alone refused."""

from typing import Any

import numpy as np
import pytest

from latency_contract.matrix import columns_of
from latency_contract.schema import Role, Target
from latency_predictor.training.upstream import batches_of

NOW = 1_750_000_000.0
ENTRY: dict[str, Any] = {
    "kv_cache_percentage": 0.25,
    "input_token_length": 800,
    "num_request_waiting": 2,
    "num_request_running": 5,
    "actual_ttft_ms": 120.5,
    "actual_tpot_ms": 0,
    "num_tokens_generated": 0,
    "prefix_cache_score": 0.5,
    "pod_type": "prefill",
    "prefill_tokens_in_flight": 300,
    "decode_tokens_in_flight": 0,
    "timestamp": "2025-06-15T15:06:40Z",
}


def test_an_entry_in_this_contracts_units() -> None:
    (made,), errors = batches_of([ENTRY], NOW)
    assert errors == []
    columns = {name: float(values[0]) for name, values in columns_of(made.matrix).items()}
    assert columns["kv_usage"] == 0.25
    assert columns["input_tokens"] == 800
    assert columns["waiting_requests"] == 2
    assert columns["inflight_requests"] == 5
    assert columns["running_requests"] == 3
    assert columns["prefix_hit"] == 0.5
    assert columns["prefill_tokens_in_flight"] == 300
    assert columns["role"] == Role.PREFILL
    assert made.actual[0, Target.TTFT] == pytest.approx(0.1205)
    assert np.isnan(made.actual[0, Target.TPOT])
    assert made.time_s.tolist() == [1_750_000_000.0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kv_cache_percentage": 25}, "kv_cache_percentage: 25 must be from 0 to 1"),
        ({"kv_cache_percentage": float("nan")}, "kv_cache_percentage: nan"),
        ({"input_token_length": None}, "input_token_length: missing"),
        ({"input_token_length": "many"}, "input_token_length: must be a number"),
        ({"num_request_waiting": 1.5}, "num_request_waiting: 1.5 must be a whole number"),
        ({"num_request_running": True}, "num_request_running: must be a number"),
        ({"actual_ttft_ms": 0}, "one must be above 0"),
        ({"timestamp": "yesterday"}, "timestamp"),
        ({"pod_type": 3}, "pod_type: must be a string"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_one_bad_entry_costs_only_itself(change: Any, said: Any) -> None:
    made, errors = batches_of([ENTRY, {**ENTRY, **change}, ENTRY], NOW)
    assert [len(each) for each in made] == [2]
    assert len(errors) == 1
    assert errors[0].startswith("entries[1]: ")
    assert said in errors[0]


def test_an_unknown_role_has_a_bucket_of_its_own() -> None:
    (made,), errors = batches_of([{**ENTRY, "pod_type": "monolith-9"}, {**ENTRY, "pod_type": None}], NOW)
    assert errors == []
    assert columns_of(made.matrix)["role"].tolist() == [Role.OTHER, Role.BOTH]


def test_entries_that_are_no_objects_and_none_at_all() -> None:
    assert batches_of([], NOW) == ([], [])
    assert batches_of(["x", 3, None], NOW)[1] == [
        f"entries[{each}]: an entry must be an object" for each in range(3)
    ]
