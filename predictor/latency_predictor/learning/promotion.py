"""Whether a model that was just fitted may replace the one that serves. Pure."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

#: Fewest samples of a hold-out that say anything.
LEAST: Final = 20
#: A candidate may be this much worse on one of the hold-outs, which are small.
SLACK: Final = 0.03
#: Highest median error of a first model.
FIRST_MODEL: Final = 1.0


@dataclass(frozen=True, slots=True)
class HoldoutErrors:
    """Median absolute relative errors of one model; NaN when its hold-out is too small."""

    stratified: float
    recent: float


def median_error(predicted: NDArray[np.float32], actual: NDArray[np.float32]) -> float:
    """Return the median of |predicted / actual - 1|; NaN for fewer than LEAST samples."""
    if len(actual) < LEAST:
        return float("nan")
    return float(np.median(np.abs(predicted / actual - 1)))


def may_replace(candidate: HoldoutErrors, serving: HoldoutErrors | None, *, has_moved: bool) -> bool:
    """Return whether the candidate is promoted.

    A first model has to be better than no answer. Another must not be worse than the serving one, by more
    than SLACK, on the stratified and on the recent hold-out. When the traffic has moved away from the serving
    model, the stratified hold-out holds the past, and the recent one alone decides.
    """
    if serving is None:
        known = [each for each in (candidate.stratified, candidate.recent) if np.isfinite(each)]
        return not known or max(known) < FIRST_MODEL
    if has_moved:
        return not candidate.recent > serving.recent
    not_worse = [
        not (ours > (1 + SLACK) * theirs)  # NaN is no reason against
        for ours, theirs in (
            (candidate.stratified, serving.stratified),
            (candidate.recent, serving.recent),
        )
    ]
    return all(not_worse)
