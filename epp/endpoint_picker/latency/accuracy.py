"""How right the predictions were: counts for metrics by target and regime, and the newest errors. Pure."""

from bisect import bisect_left
from collections import deque
from statistics import median
from typing import Final, NamedTuple

from latency_contract.regimes import REGIME_NAMES
from latency_contract.schema import TARGET_NAMES, Target

#: Bounds of (actual - predicted) / predicted.
ERROR_BOUNDS: Final = (-0.9, -0.75, -0.5, -0.3, -0.2, -0.1, -0.05, 0, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10)
#: Bounds of seconds, for the observed and the predicted times.
SECOND_BOUNDS: Final[dict[Target, tuple[float, ...]]] = {
    Target.TTFT: (
        0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60,
        120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600,
    ),
    Target.TPOT: (
        0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8,
        1, 1.5, 2, 3, 4.5, 6, 12, 18, 24, 30, 36, 48, 60, 90, 120, 180, 270, 360,
    ),
}  # fmt: skip


#: Newest judged requests of a target that `Accuracy.newest` rests on.
NEWEST: Final = 500


class Errors(NamedTuple):
    """Of the newest judged requests of one target."""

    judged: int
    median_absolute: float
    """Of |actual - predicted| / predicted."""
    median: float
    """The same with its sign: positive where requests take longer than predicted."""
    within_bound: float
    """Part of the requests that took no longer than the upper bound."""


class Spread:
    """Counts of values by bounds: a histogram without its labels."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Regime:
    """One target in one regime."""

    __slots__ = ("errors", "judged", "within")

    def __init__(self) -> None:
        self.errors = Spread(ERROR_BOUNDS)
        self.judged = 0
        self.within = 0
        """Of those judged, how many took no longer than the upper bound."""


class Accuracy:
    """Errors by (target, regime)."""

    __slots__ = ("_newest", "regimes")

    def __init__(self) -> None:
        self.regimes: dict[tuple[str, str], Regime] = {}
        self._newest: dict[str, deque[tuple[float, bool]]] = {}
        """By target: relative error, and whether it was within the bound."""

    def judge(self, target: Target, regime: int, actual: float, predicted: float, bound: float) -> None:
        """Note what a request took beside what was predicted; NaN in any of them is passed over."""
        if not (actual == actual and predicted > 0.0 and bound == bound):
            return
        name = TARGET_NAMES[target]
        key = (name, REGIME_NAMES[regime])
        found = self.regimes.get(key)
        if found is None:
            found = self.regimes[key] = Regime()
        error, within = (actual - predicted) / predicted, actual <= bound
        found.errors.add(error)
        found.judged += 1
        found.within += within
        newest = self._newest.get(name)
        if newest is None:
            newest = self._newest[name] = deque(maxlen=NEWEST)
        newest.append((error, within))

    def newest(self) -> dict[str, Errors]:
        """Return the errors of the newest requests by the target's name; targets not judged are absent."""
        return {
            name: Errors(
                len(each),
                median(abs(error) for error, _ in each),
                median(error for error, _ in each),
                sum(within for _, within in each) / len(each),
            )
            for name, each in self._newest.items()
        }
