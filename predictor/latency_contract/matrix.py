"""From columns to the matrix of features: float32, a row a candidate, a column a feature. Pure."""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from latency_contract.schema import CATEGORIES, COLUMN, FEATURES, INPUT_NAMES, INPUTS, WIDTH

Matrix = NDArray[np.float32]
"""float32[rows, WIDTH], C-contiguous."""

_LOW: Final = np.array([each.low for each in FEATURES], dtype=np.float32)
_HIGH: Final = np.array([each.high for each in FEATURES], dtype=np.float32)
_CATEGORIES: Final = tuple((COLUMN[name], highest) for name, highest in CATEGORIES.items())
# One indexing for all of them: small arrays cost by the call.
_FIRST_CATEGORY: Final = min(column for column, _ in _CATEGORIES)
_BEHIND_CATEGORIES: Final = max(column for column, _ in _CATEGORIES) + 1
_HIGHEST: Final = np.array([[highest] for _, highest in sorted(_CATEGORIES)], dtype=np.float32)
assert len(_HIGHEST) == _BEHIND_CATEGORIES - _FIRST_CATEGORY  # noqa: S101 - they are adjacent columns

_INPUT_TOKENS = COLUMN["input_tokens"]
_PREFIX_HIT = COLUMN["prefix_hit"]
_WAITING = COLUMN["waiting_requests"]
_RUNNING = COLUMN["running_requests"]
_KV_USAGE = COLUMN["kv_usage"]
_CAPACITY = COLUMN["kv_capacity_tokens"]
_INFLIGHT = COLUMN["inflight_requests"]
_AWAITING = COLUMN["awaiting_requests"]
_UNSEEN = COLUMN["unseen_requests"]
_PREFILL = COLUMN["prefill_tokens_in_flight"]
_DECODE = COLUMN["decode_tokens_in_flight"]
_UNCACHED = COLUMN["uncached_tokens"]
_WORK = COLUMN["prefill_work_tokens"]
_AHEAD = COLUMN["ahead_requests"]
_BATCH = COLUMN["batch_requests"]
_USED = COLUMN["kv_used_tokens"]
_FREE = COLUMN["kv_free_tokens"]
_FOREIGN = COLUMN["foreign_requests"]


def build(columns: Mapping[str, ArrayLike], rows: int) -> Matrix:
    """Return the matrix of `rows` candidates from inputs by name: arrays, or a scalar for all rows.

    An input that is left out is unknown (NaN; categories 0). Raises KeyError for a name that is no input, and
    ValueError for an array of another length.
    """
    matrix = empty(rows)
    for name, values in columns.items():
        column = COLUMN[name]
        if column >= INPUTS:
            raise KeyError(name)
        matrix[:, column] = values
    return derive(matrix)


def empty(rows: int) -> Matrix:
    """Return a matrix whose inputs are unknown; fill its input columns, then call `derive`."""
    matrix = np.full((rows, WIDTH), np.nan, dtype=np.float32)
    for column, _ in _CATEGORIES:
        matrix[:, column] = 0
    return matrix


def derive(matrix: Matrix) -> Matrix:
    """Write the derived columns from the inputs, and unknown category codes as 0, in place; return
    `matrix`."""
    column_of = matrix.T  # rows of the transposed view: plain indexing is quicker than [:, column]
    codes = column_of[_FIRST_CATEGORY:_BEHIND_CATEGORIES]
    known = (codes >= 0) & (codes <= _HIGHEST)
    if not known.all():
        codes[~known] = 0
    uncached = column_of[_INPUT_TOKENS] * (1 - _or_zero(column_of[_PREFIX_HIT]))
    unseen = column_of[_UNSEEN]
    waiting = column_of[_WAITING]
    load = waiting + column_of[_RUNNING]
    capacity = column_of[_CAPACITY]
    used = column_of[_KV_USAGE] * capacity
    column_of[_UNCACHED] = uncached
    column_of[_WORK] = uncached + _or_zero(column_of[_PREFILL])
    column_of[_AHEAD] = _known(waiting + unseen, column_of[_AWAITING])
    column_of[_BATCH] = _known(load + unseen, column_of[_INFLIGHT])
    column_of[_USED] = _known(used, column_of[_DECODE])
    column_of[_FREE] = capacity - used - uncached
    column_of[_FOREIGN] = np.maximum(load - (column_of[_INFLIGHT] - unseen), 0)
    return matrix


def _known(values: NDArray[np.float32], otherwise: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.where(np.isnan(values), otherwise, values)


def _or_zero(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.where(np.isnan(values), np.float32(0), values)


def bad_rows(matrix: Matrix) -> NDArray[np.bool_]:
    """Return a mask of the rows that hold a value outside its range, or an infinite one, or no prompt length.

    NaN is unknown and allowed everywhere else.
    """
    inputs = matrix[:, :INPUTS]
    outside = (inputs < _LOW[:INPUTS]) | (inputs > _HIGH[:INPUTS])
    return outside.any(axis=1) | np.isnan(matrix[:, _INPUT_TOKENS])


def clip(matrix: Matrix) -> Matrix:
    """Move inputs into their ranges in place, derive again, and return `matrix`."""
    np.clip(matrix[:, :INPUTS], _LOW[:INPUTS], _HIGH[:INPUTS], out=matrix[:, :INPUTS])
    return derive(matrix)


def columns_of(matrix: Matrix) -> dict[str, NDArray[np.float32]]:
    """Return the inputs of a matrix by name, as views."""
    return {name: matrix[:, COLUMN[name]] for name in INPUT_NAMES}
