"""Which candidates are promoted."""

from typing import Any

import numpy as np
import pytest

from latency_predictor.learning.promotion import LEAST, HoldoutErrors, may_replace, median_error

NAN = float("nan")


@pytest.mark.parametrize(
    ("candidate", "serving", "has_moved", "promoted"),
    [
        ((0.5, NAN), None, False, True),
        ((NAN, NAN), None, False, True),
        ((1.5, 0.1), None, False, False),
        ((0.19, 0.19), (0.2, 0.2), False, True),
        ((0.25, 0.10), (0.2, 0.2), False, False),
        ((0.10, 0.25), (0.2, 0.2), False, False),
        ((0.205, 0.20), (0.2, 0.2), False, True),
        ((NAN, 0.25), (NAN, 0.2), False, False),
        ((0.60, 0.10), (0.2, 0.4), True, True),
        ((0.10, 0.50), (0.2, 0.4), True, False),
    ],
    ids=[
        "first",
        "first, not measured",
        "first, worse than none",
        "better",
        "forgets rare situations",
        "worse on recent traffic",
        "within the slack",
        "only recent is known",
        "the traffic moved: the past does not count",
        "moved, and worse",
    ],
)
def test_promotion(candidate: Any, serving: Any, has_moved: Any, promoted: Any) -> None:
    old = None if serving is None else HoldoutErrors(*serving)
    assert may_replace(HoldoutErrors(*candidate), old, has_moved=has_moved) is promoted


def test_the_error_is_relative_to_what_came() -> None:
    actual = np.array([1.0, 2.0, 4.0] * LEAST, np.float32)
    predicted = np.array([1.1, 1.0, 4.0] * LEAST, np.float32)
    assert median_error(predicted, actual) == pytest.approx(0.1, abs=1e-6)
    assert np.isnan(median_error(predicted[: LEAST - 1], actual[: LEAST - 1]))
