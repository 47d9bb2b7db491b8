"""Scores by position between the best and the worst candidate. Pure."""

import numpy as np

from endpoint_picker.datalayer.table import Counts, Floats


def lower_is_better(load: Floats | Counts, otherwise: Floats | Counts) -> Floats:
    """Return (max - x) / (max - min) of each value, all 1.0 when they are equal.

    NaN is unknown. An unknown value scores 0 while another one is known: a server whose metrics stopped must
    not look idle. When none is known, `otherwise` (one value each, never NaN) is scored instead of `load`.
    """
    # argmin, which finds a NaN first, and argmax take a quarter of the time that a reduction takes.
    low = load.item(load.argmin())
    if low != low:  # NaN: some value is unknown
        return _with_unknown(load, otherwise)
    high = load.item(load.argmax())
    if high == low:
        scores = np.empty(load.size)
        scores.fill(1.0)
        return scores
    spread: Floats = np.true_divide(high - load, high - low)
    return spread


def _with_unknown(load: Floats | Counts, otherwise: Floats | Counts) -> Floats:
    unknown = np.isnan(load)
    if unknown.item(unknown.argmin()):  # all of them
        return lower_is_better(otherwise, otherwise)
    scores = np.zeros(load.size)
    known = ~unknown
    scores[known] = lower_is_better(load[known], otherwise)
    return scores
