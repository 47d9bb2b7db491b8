"""A model that was just fitted, with the samples that judge it: held-out ones and those of its validation."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from latency_contract.matrix import Matrix
from latency_contract.regimes import regimes_of
from latency_contract.schema import Target
from latency_predictor.learning.fit import Fitted
from latency_predictor.learning.model import LogModel
from latency_predictor.learning.promotion import HoldoutErrors, median_error
from latency_predictor.learning.strata import Samples

#: Newest samples of the judges that are the recent hold-out.
RECENT = 100


@dataclass(frozen=True, slots=True)
class Judges:
    """Samples that a candidate was not fitted to, oldest first."""

    time_s: NDArray[np.float64]
    matrix: Matrix
    logs: NDArray[np.float32]
    """Log seconds that came."""
    regimes: NDArray[np.intp]
    is_held: NDArray[np.bool_]
    """Of the stratified hold-out, which no model is ever fitted to."""

    def __len__(self) -> int:
        return len(self.logs)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One target's fitted model and its judges."""

    fitted: Fitted
    model: LogModel
    judges: Judges
    raw: NDArray[np.float32]
    """float32[heads, judges] log seconds, by a model that has not seen the judges."""


def candidate(target: Target, fitted: Fitted, kept: Samples, held: Samples, since_s: float) -> Candidate:
    """Return the candidate, judged by samples of requests that were picked at `since_s` or later.

    `kept` is what it was fitted to, `held` the hold-out. With fewer than 20 such samples all are taken.
    """
    model = LogModel(target, fitted.coefficients, fitted.trees, len(fitted.quantiles))
    mine = kept.where(np.isfinite(kept.actual[:, target]))
    others = held.where(np.isfinite(held.actual[:, target]))
    rows = fitted.checked_rows
    time_s = np.concatenate([mine.time_s[rows], others.time_s])
    order = np.argsort(time_s, kind="stable")
    if (time_s >= since_s).sum() >= 20:
        order = order[time_s[order] >= since_s]
    matrix = np.vstack([mine.matrix[rows], others.matrix])[order]
    actual = np.concatenate([mine.actual[rows, target], others.actual[:, target]])[order]
    raw = np.hstack([fitted.checked, model.raw(others.matrix)])[:, order]
    is_held = (np.arange(len(time_s)) >= len(rows))[order]
    judges = Judges(time_s[order], matrix, np.log(actual), regimes_of(matrix), is_held)
    return Candidate(fitted, model, judges, raw)


def errors(median: NDArray[np.float32], judges: Judges) -> HoldoutErrors:
    """Return the errors of log medians: over the held-out judges, and over the newest of all."""
    predicted, actual = np.exp(median), np.exp(judges.logs)
    held = judges.is_held
    return HoldoutErrors(
        median_error(predicted[held], actual[held]), median_error(predicted[-RECENT:], actual[-RECENT:])
    )
