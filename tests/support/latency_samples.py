"""Samples of a made-up engine, for the predictor's tests: seconds that follow a known rule, with noise."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from latency_contract.matrix import build
from latency_contract.sample_wire import SampleBatch
from latency_contract.schema import COLUMN, TARGETS
from latency_contract.states import Ended, Policy

#: Seconds since the epoch at which the samples begin.
START_S = 1_750_000_000.0


def rows(count: int, seed: int = 1, **columns: ArrayLike) -> NDArray[np.float32]:
    """Return a matrix of `count` random rows; `columns` replace inputs."""
    chance = np.random.default_rng(seed)
    inputs: dict[str, Any] = {
        "input_tokens": chance.integers(50, 4000, count),
        "expected_output_tokens": 100,
        "prefix_hit": chance.choice([0.0, 0.0, 0.5], count),
        "waiting_requests": chance.choice([0, 0, 1, 2, 6], count),
        "running_requests": chance.integers(0, 40, count),
        "kv_usage": chance.random(count),
        "kv_capacity_tokens": 64_000,
        "metrics_age_s": 0.05,
        "inflight_requests": chance.integers(0, 40, count),
        "awaiting_requests": 1,
        "unseen_requests": 0,
        "prefill_tokens_in_flight": chance.integers(0, 4000, count),
        "decode_tokens_in_flight": chance.integers(0, 60_000, count),
        "recent_tpot_s": 0.012,
        "recent_prefill_rate": chance.integers(0, 5000, count),
        "quiet_s": 0.0,
        "adapter_state": 1,
        "role": 1,
        **columns,
    }
    return build(inputs, count)


def latencies(matrix: NDArray[np.float32], slowness: float = 1.0, seed: int = 2) -> NDArray[np.float32]:
    """Return float32[rows, targets]: 10 ms + 40 us a token of work + 20 ms a request ahead; 8 ms + 0.2 ms a
    running request a token; log-normal noise of 10 %."""
    noise = np.exp(0.1 * np.random.default_rng(seed).standard_normal((len(matrix), 2)))
    column: Mapping[str, Any] = {name: matrix[:, at] for name, at in COLUMN.items()}
    ttft = 0.010 + 40e-6 * column["prefill_work_tokens"] + 0.020 * column["ahead_requests"]
    tpot = 0.008 + 0.0002 * column["running_requests"]
    actual = np.empty((len(matrix), len(TARGETS)), np.float32)
    actual[:, 0] = slowness * ttft * noise[:, 0]
    actual[:, 1] = slowness * tpot * noise[:, 1]
    actual[:, 2] = actual[:, 0] + 100 * actual[:, 1]
    return actual


def batch(
    count: int,
    *,
    seed: int = 1,
    at_s: float = START_S,
    slowness: float = 1.0,
    predicted: NDArray[np.float32] | None = None,
    matrix: NDArray[np.float32] | None = None,
    **columns: ArrayLike,
) -> SampleBatch:
    """Return a batch of requests that were served, one every 10 ms from `at_s` on."""
    made = rows(count, seed, **columns) if matrix is None else matrix
    count = len(made)
    return SampleBatch(
        versions=(),
        time_s=at_s + 0.01 * np.arange(count, dtype=np.float64),
        policy=np.full(count, Policy.PREDICTED, np.uint8),
        ended=np.full(count, Ended.SERVED, np.uint8),
        version=np.full(count, 255, np.uint8),
        actual=latencies(made, slowness, seed + 1000),
        predicted=np.full((count, len(TARGETS), 2), np.nan, np.float32) if predicted is None else predicted,
        matrix=made,
    )
