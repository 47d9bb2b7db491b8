"""The physical base model: a non-negative sum of a few terms, in seconds. Pure.

A trainer fits the coefficients; everything here only evaluates. Trees learn the logarithm of what is left.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from latency_contract.matrix import Matrix
from latency_contract.schema import COLUMN, AdapterState, Target

Floats = NDArray[np.float64]

_TTFT_TERMS: Final = (
    "constant",
    "prefill_work_tokens",
    "uncached_tokens",
    "ahead_requests",
    "batch_requests",
    "kv_used_tokens",
    "adapter_load",
    "waiting_by_pace",
    "recent_tpot_s",
    "adapter_wait",
    "adapter_wait_x_ahead",
    "unseen_requests",
)
_TPOT_TERMS: Final = (
    "constant",
    "batch_requests",
    "kv_used_tokens",
    "recent_prefill_rate",
    "recent_tpot_s",
    "work_by_output",
)
#: Names of each target's terms, in the order of its coefficients.
TERMS: Final[dict[Target, tuple[str, ...]]] = {
    Target.TTFT: _TTFT_TERMS,
    Target.TPOT: _TPOT_TERMS,
    Target.E2E: _TTFT_TERMS + tuple(f"output_x_{name}" for name in _TPOT_TERMS),
}
#: The least that the base model answers, seconds: its logarithm must exist.
FLOOR_S: Final = 1e-4
#: Taken for `expected_output_tokens` where it is unknown.
DEFAULT_OUTPUT_TOKENS: Final = 256.0


def terms(matrix: Matrix, target: Target) -> Floats:
    """Return float64[rows, terms]: the values that the coefficients multiply. Unknown features count as 0."""
    match target:
        case Target.TTFT:
            return _ttft_terms(matrix)
        case Target.TPOT:
            return _tpot_terms(matrix)
        case Target.E2E:
            return np.hstack([_ttft_terms(matrix), _outputs(matrix)[:, None] * _tpot_terms(matrix)])


def margins(matrix: Matrix, target: Target, coefficients: Sequence[float]) -> NDArray[np.float32]:
    """Return float32[rows]: the logarithm of the base model's seconds, to which trees add.

    Raises ValueError when there are not as many coefficients as terms.
    """
    if len(coefficients) != len(TERMS[target]):
        msg = f"{len(coefficients)} coefficients for the {len(TERMS[target])} terms of {target.name}"
        raise ValueError(msg)
    seconds = terms(matrix, target) @ np.asarray(coefficients, dtype=np.float64)
    return np.log(np.maximum(seconds, FLOOR_S)).astype(np.float32)


def _ttft_terms(matrix: Matrix) -> Floats:
    adapter = matrix[:, COLUMN["adapter_state"]]
    # Such a request waits until an adapter's last request ends; what is queued for the others' slots does not
    # delay requests that have theirs.
    waits = (adapter == AdapterState.FULL).astype(np.float64)
    pace = _column(matrix, "recent_tpot_s")
    return np.column_stack(
        [
            np.ones(len(matrix)),
            _column(matrix, "prefill_work_tokens"),
            _column(matrix, "uncached_tokens"),
            _column(matrix, "ahead_requests"),
            _column(matrix, "batch_requests"),
            _column(matrix, "kv_used_tokens"),
            (adapter == AdapterState.LOADABLE).astype(np.float64),
            _column(matrix, "waiting_requests") * pace,
            pace,
            waits,
            waits * _column(matrix, "ahead_requests"),
            (1 - waits) * _column(matrix, "unseen_requests"),
        ]
    )


def _tpot_terms(matrix: Matrix) -> Floats:
    return np.column_stack(
        [
            np.ones(len(matrix)),
            _column(matrix, "batch_requests"),
            _column(matrix, "kv_used_tokens"),
            _column(matrix, "recent_prefill_rate"),
            _column(matrix, "recent_tpot_s"),
            _column(matrix, "prefill_work_tokens") / _outputs(matrix),
        ]
    )


def _outputs(matrix: Matrix) -> Floats:
    expected = matrix[:, COLUMN["expected_output_tokens"]].astype(np.float64)
    return np.where(expected >= 1, expected, DEFAULT_OUTPUT_TOKENS)


def _column(matrix: Matrix, name: str) -> Floats:
    return np.nan_to_num(matrix[:, COLUMN[name]].astype(np.float64), nan=0.0)
