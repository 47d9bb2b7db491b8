"""Scores by position between the best and the worst candidate. Pure."""

import numpy as np

from endpoint_picker.datalayer.table import Counts, Floats


def lower_is_better(load: Floats, otherwise: Floats | Counts) -> Floats:
    """Return (max - x) / (max - min) of each value, all 1.0 when they are equal.

    NaN is unknown. An unknown value scores 0 while another one is known: a server whose metrics stopped must
    not look idle. When none is known, `otherwise` (one value each, never NaN) is scored instead of `load`.
    """
    low = np.minimum.reduce(load)  # faster than `min`, which calls this through Python
    if low != low:  # NaN: some value is unknown
        return _with_unknown(load, otherwise)
    high = np.maximum.reduce(load)
    if high == low:
        return np.ones(load.size)
    scores: Floats = (high - load) / (high - low)
    return scores


def _with_unknown(load: Floats, otherwise: Floats | Counts) -> Floats:
    unknown = np.isnan(load)
    if unknown.all():
        return lower_is_better(otherwise.astype(np.float64), otherwise)
    scores = np.zeros(load.size)
    known = ~unknown
    scores[known] = lower_is_better(load[known], otherwise)
    return scores
