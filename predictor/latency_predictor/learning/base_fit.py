"""Fits the physical base model: non-negative coefficients, relative errors, outliers weighted down. Pure."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from latency_contract.base_model import FLOOR_S

Floats = NDArray[np.float64]

_ROUNDS: Final = 8
#: Errors of the logarithm below this count alike; larger ones count by their root only.
_SMALL_ERROR: Final = 0.05


def fit_base(terms: Floats, seconds: Floats, weight: Floats) -> tuple[float, ...]:
    """Return coefficients that make `terms @ coefficients` close to `seconds` in median relative error.

    Iteratively reweighted least squares, each step solved by coordinate descent over the normal equations
    with all coefficients at least 0 (Lawson and Hanson's problem NNLS). O(rows x terms^2). Needs at least one
    row.
    """
    scale = np.maximum(np.abs(terms).mean(axis=0), 1e-12)
    scaled = terms / scale
    found = np.zeros(scaled.shape[1])
    factor = weight / seconds**2
    for _ in range(_ROUNDS):
        found = _non_negative(scaled, seconds, factor / factor.mean())
        fitted = np.maximum(scaled @ found, FLOOR_S)
        error = np.abs(np.log(seconds / fitted))
        factor = weight / (seconds * fitted * np.maximum(error, _SMALL_ERROR))
    return tuple((found / scale).tolist())


def _non_negative(terms: Floats, seconds: Floats, factor: Floats) -> Floats:
    """Return the coefficients of least weighted squares that are at least 0.

    Lawson and Hanson, "Solving Least Squares Problems" (1974), algorithm NNLS, on the normal equations.
    """
    weighted = terms * factor[:, None]
    gram = weighted.T @ terms / len(seconds)
    gram[np.diag_indices_from(gram)] += 1e-9 * (1 + gram.diagonal())
    right = weighted.T @ seconds / len(seconds)
    found = np.zeros(len(right))
    free = np.zeros(len(right), np.bool_)
    tolerance = 1e-10 * np.abs(right).max()
    for _ in range(3 * len(right)):
        gain = np.where(free, -np.inf, right - gram @ found)
        best = int(gain.argmax())
        if gain[best] <= tolerance:
            break
        free[best] = True
        while True:
            trial = np.zeros_like(found)
            trial[free] = np.linalg.solve(gram[np.ix_(free, free)], right[free])
            negative = free & (trial <= 0)
            if not negative.any():
                break
            step = (found[negative] / (found[negative] - trial[negative])).min()
            found += step * (trial - found)
            free &= found > 1e-15
            found[~free] = 0.0
            if not free.any():
                break
        found = trial if free.any() else found
    return found
