"""Follows one target's errors by regime: calibrates its bounds, and tells where they do not hold. Pure.

Every pair of a prediction and its outcome is new to the model that predicted, so it may calibrate it.
Residuals are logarithms of actual over predicted seconds.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from latency_contract.regimes import REGIMES

Floats = NDArray[np.float32]

#: Residuals of a regime that calibrate it.
WINDOW: Final = 600
#: Fewest residuals of a regime that calibrate it alone; with fewer those of all regimes do.
_LEAST: Final = 40
#: Residuals whose signs tell that the model has moved away from the traffic.
_SIGNS: Final = 60
#: Of these on one side. Errors come in bursts: the 1 in 10 million of independent ones would be fewer.
_ONE_SIDED: Final = 55
#: Residuals that are kept when a regime has moved.
_AFTER_MOVE: Final = 40
#: Pairs over which errors and coverage are judged, and the fewest.
_JUDGED: Final = 100
_LEAST_JUDGED: Final = 24
#: Errors above the reference times this, and above the least, are degraded; below the second they are well
#: again.
_WORSE: Final = 2.2
_WELL: Final = 1.6
_LEAST_ERROR: Final = 0.15
#: Coverage that is this far below its goal is degraded, and half of it well again.
_COVERAGE_SLACK: Final = 0.3
#: Errors of a regime that is well, of which the usual error is the median, and the fewest.
_USUAL: Final = 400
_LEAST_USUAL: Final = 100
#: What served errors are above those of the samples that judged the model, which are spread over its past.
_SERVED_OVER_JUDGED: Final = 1.25
#: How far one bound that was missed, or held, moves the level at which bounds are taken.
_LEVEL_STEP: Final = 0.01


@dataclass(slots=True)
class _Pair:
    """A served prediction against its outcome."""

    error: float
    """Absolute logarithm of actual over predicted median."""
    is_covered: bool


class _Window:
    """The newest residuals of a regime: float32[heads] each."""

    __slots__ = ("_at", "_kept", "_values")

    def __init__(self, heads: int) -> None:
        self._values = np.zeros((WINDOW, heads), np.float32)
        self._kept = 0
        self._at = 0

    def __len__(self) -> int:
        return self._kept

    def add(self, residual: Floats) -> None:
        self._values[self._at] = residual
        self._at = (self._at + 1) % WINDOW
        self._kept = min(self._kept + 1, WINDOW)

    def restart(self, residuals: Floats) -> None:
        """Keep these alone, oldest first."""
        newest = residuals[-WINDOW:]
        self._kept = len(newest)
        self._values[: self._kept] = newest
        self._at = self._kept % WINDOW

    def newest(self, count: int) -> Floats:
        """Return at most so many of the newest, oldest first."""
        count = min(count, self._kept)
        return self._values[(self._at - count + np.arange(count)) % WINDOW]

    def values(self) -> Floats:
        """Return all of them in no order, as a view."""
        return self._values[: self._kept]


class TargetWatch:
    """One target. Times do not matter, only the order in which outcomes come."""

    def __init__(self, quantiles: tuple[float, ...], bound: int, median: int) -> None:
        self._quantiles = quantiles
        self._bound = bound
        self._median = median
        self._levels = np.tile(np.array(quantiles)[:, None], (1, REGIMES))
        """Levels at which offsets are taken: quantiles, moved by the coverage that was seen."""
        self._residuals = [_Window(len(quantiles)) for _ in range(REGIMES)]
        """By regime, outcomes against the heads without calibration."""
        self._signs: list[deque[bool]] = [deque(maxlen=_SIGNS) for _ in range(REGIMES)]
        self._pairs: list[deque[_Pair]] = [deque(maxlen=_JUDGED) for _ in range(REGIMES)]
        self._reference = np.full(REGIMES, np.nan)
        """Errors on the samples that judged the model."""
        self._usual: list[deque[float]] = [deque(maxlen=_USUAL) for _ in range(REGIMES)]
        self.degraded = [False] * REGIMES
        self.moves = 0
        """How often a regime's window was cut because the model had moved away."""

    def install(
        self, raw: Floats, logs: Floats, regimes: NDArray[np.intp], *, has_moved: bool = False
    ) -> None:
        """Start with another model, whose heads and outcomes on samples it was not fitted to are given.

        `raw` is float32[heads, rows], `logs` float32[rows]; oldest first. Served pairs are forgotten: they
        are those of the model before. `has_moved`: so are the usual errors, which are those of other traffic.
        """
        residuals = (logs - raw).T.astype(np.float32)
        errors = np.abs(residuals[:, self._median] - np.median(residuals[:, self._median]))
        overall = float(np.median(errors)) if len(errors) else np.nan
        for regime in range(REGIMES):
            mine = residuals[regimes == regime]
            self._residuals[regime].restart(mine)
            self._signs[regime].clear()
            self._pairs[regime].clear()
            if has_moved:
                self._usual[regime].clear()
            own = errors[regimes == regime]
            self._reference[regime] = np.median(own) if len(own) >= _LEAST else overall

    def observe(
        self, raw: Floats, logs: Floats, regimes: NDArray[np.intp], served: Floats, offsets: Floats
    ) -> None:
        """Take outcomes, oldest first.

        `raw` is float32[heads, rows] of the present model, `served` float32[rows, 2] the seconds (median,
        bound) that were predicted when the requests were picked, NaN where none were; `offsets`
        float32[heads, REGIMES] are the present ones.
        """
        residuals = (logs - raw).T.astype(np.float32)
        with np.errstate(invalid="ignore", divide="ignore"):
            errors = np.abs(logs - np.log(served[:, 0]))
            room: Floats = np.log(served[:, 1]) - logs
        covered = [each >= 0 for each in room.tolist()]
        was_served = np.isfinite(served[:, 0]) & np.isfinite(served[:, 1])
        for row, regime in enumerate(regimes.tolist()):
            residual = residuals[row]
            self._residuals[regime].add(residual)
            self._signs[regime].append(bool(residual[self._median] > offsets[self._median, regime]))
            if was_served[row]:
                self._pairs[regime].append(_Pair(float(errors[row]), covered[row]))
                if not self.degraded[regime]:
                    self._usual[regime].append(float(errors[row]))
                self._move_level(regime, covered=covered[row])
                self._judge(regime)
            self._look_for_move(regime)

    def offsets(self) -> Floats:
        """Return float32[heads, REGIMES]: what calibration adds in log seconds."""
        found = np.zeros((len(self._quantiles), REGIMES), np.float32)
        if not any(len(each) for each in self._residuals):
            return found
        pooled = None
        for regime, kept in enumerate(self._residuals):
            values = kept.values()
            if len(kept) < _LEAST:
                if pooled is None:
                    pooled = np.vstack([each.values() for each in self._residuals])
                values = pooled
            for head in range(len(self._quantiles)):
                found[head, regime] = _quantile(values[:, head], self._levels[head, regime])
        return found

    def reference(self) -> list[float]:
        """Return the median absolute residual of each regime when the model was installed; NaN is unknown."""
        return [float(each) for each in self._reference]

    def errors(self) -> list[tuple[int, float, float]]:
        """Return pairs, median error and coverage of each regime's latest served predictions; NaN without."""
        found = []
        for pairs in self._pairs:
            count = len(pairs)
            error = float(np.median([each.error for each in pairs])) if count else np.nan
            coverage = sum(each.is_covered for each in pairs) / count if count else np.nan
            found.append((count, error, coverage))
        return found

    def _move_level(self, regime: int, *, covered: bool) -> None:
        """Move the bound's level so that its coverage meets its goal (Gibbs, Candes 2021, equation 2)."""
        goal = self._quantiles[self._bound]
        level = self._levels[self._bound, regime] + _LEVEL_STEP * (goal - covered)
        self._levels[self._bound, regime] = min(max(level, goal - 0.15), goal + 0.95 * (1 - goal))

    def _look_for_move(self, regime: int) -> None:
        signs = self._signs[regime]
        if len(signs) < _SIGNS:
            return
        above = sum(signs)
        if above >= _ONE_SIDED or above <= _SIGNS - _ONE_SIDED:
            window = self._residuals[regime]
            window.restart(window.newest(_AFTER_MOVE))
            signs.clear()
            self.moves += 1

    def _expected(self, regime: int) -> float:
        """Return the error that is normal in a regime; infinite while nothing is known of it."""
        judged = _SERVED_OVER_JUDGED * self._reference[regime]
        usual = self._usual[regime]
        if len(usual) >= _LEAST_USUAL:
            judged = max(judged, float(np.median(usual)))
        return float(judged) if np.isfinite(judged) else np.inf

    def _judge(self, regime: int) -> None:
        pairs = self._pairs[regime]
        if len(pairs) < _LEAST_JUDGED:
            return
        error = float(np.median([each.error for each in pairs]))
        coverage = sum(each.is_covered for each in pairs) / len(pairs)
        allowed = max(self._expected(regime), _LEAST_ERROR / _WORSE)
        goal = self._quantiles[self._bound]
        if not self.degraded[regime]:
            self.degraded[regime] = error > _WORSE * allowed or coverage < goal - _COVERAGE_SLACK
        else:
            self.degraded[regime] = not (error < _WELL * allowed and coverage >= goal - _COVERAGE_SLACK / 2)


def _quantile(values: Floats, level: float) -> float:
    """Return the value that `level` of the next ones will not pass: rank ceil((n + 1) x level), as split
    conformal prediction takes it (Vovk; Romano, Patterson, Candes 2019); the middle one for the median."""
    count = len(values)
    if level == 0.5:
        return float(np.median(values))
    rank = min(int(np.ceil((count + 1) * level)), count)
    return float(np.partition(values, rank - 1)[rank - 1])
