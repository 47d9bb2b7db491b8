"""Which rows of a batch of samples can be used, and why the others cannot. Pure."""

from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from latency_contract.matrix import bad_rows, derive
from latency_contract.sample_wire import SampleBatch
from latency_contract.states import Ended, Policy

#: A sample may be this far ahead of the trainer's clock; above it the clocks differ, and receipt counts.
MAX_AHEAD_S: Final = 60.0
#: Samples of requests that were picked longer ago are refused: a request may take an hour, and a peer's day.
MAX_AGE_S: Final = 86_400.0
#: Longest latency that is believed, seconds.
LONGEST_S: Final = 21_600.0


@dataclass(slots=True)
class Counts:
    """Rows since the start of the process."""

    accepted: int = 0
    censored: int = 0
    """Of requests that failed, were aborted, timed out or refused: no labels."""
    rejected: int = 0
    """With a value outside its range, or no target at all."""
    skewed: int = 0
    """Of the accepted: picked in the trainer's future; taken as picked when they came."""
    stale: int = 0
    """Picked longer than MAX_AGE_S ago."""
    shed: int = 0
    """Dropped because more came than the trainer takes."""

    def add(self, other: "Counts") -> None:
        """Add the counts of another batch."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


def sift(batch: SampleBatch, now: float) -> tuple[SampleBatch, Counts]:
    """Return the rows that give labels, with their times corrected, and what became of all rows.

    `now` is the trainer's clock, seconds since the epoch, as `time_s` is. Derived features are computed anew,
    so that a picker cannot disagree about them.
    """
    matrix = derive(np.array(batch.matrix, dtype=np.float32))
    time_s = np.array(batch.time_s, dtype=np.float64)
    hostile = bad_rows(matrix) | ~np.isfinite(time_s) | _bad_targets(batch.actual)
    hostile |= (batch.policy > max(Policy)) | (batch.ended > max(Ended))
    censored = ~hostile & (batch.ended != Ended.SERVED)
    hostile |= ~censored & ~hostile & np.isnan(batch.actual).all(axis=1)
    stale = ~hostile & ~censored & (time_s < now - MAX_AGE_S)
    kept = ~(hostile | censored | stale)
    skewed = kept & (time_s > now + MAX_AHEAD_S)
    time_s[skewed] = now
    counts = Counts(
        accepted=int(kept.sum()),
        censored=int(censored.sum()),
        rejected=int(hostile.sum()),
        skewed=int(skewed.sum()),
        stale=int(stale.sum()),
    )
    predicted = np.array(batch.predicted, dtype=np.float32)
    predicted[~(np.isfinite(predicted) & (predicted > 0)).all(axis=2)] = np.nan
    return SampleBatch(
        batch.versions,
        time_s[kept],
        batch.policy[kept],
        batch.ended[kept],
        batch.version[kept],
        batch.actual[kept],
        predicted[kept],
        matrix[kept],
    ), counts


def _bad_targets(actual: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return the rows with a target that is no latency; NaN is one that was not observed."""
    with np.errstate(invalid="ignore"):
        bad = (actual <= 0) | (actual > LONGEST_S)
        contradictory = actual[:, 0] > actual[:, 2]  # a first byte after the last
    result: NDArray[np.bool_] = bad.any(axis=1) | contradictory
    return result
