"""Whether prediction helps, measured in production: two arms of the same traffic, and the gain between them.

A small part of the requests is picked the other way than the rest: by the heuristic while prediction routes,
by prediction while it does not. Requests with an objective are judged by goodput alone, as the `least`
strategy takes the slowest endpoint that still meets the objective, on purpose. The others are judged by the
logarithm of their latency, so that the gain is a ratio and a few very long requests do not decide. Pure;
`now` in seconds.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Final
from zlib import crc32

#: Requests of the smaller arm in the window before which there is no verdict.
ENOUGH: Final = 400
#: The window ends where the smaller arm has this many, or after `WINDOW_S`.
PLENTY: Final = 2_000
#: Seconds of a bucket, and of the longest window.
BUCKET_S: Final = 60.0
WINDOW_S: Final = 86_400.0
#: Half the width of a 95 % interval, in standard errors.
Z_95: Final = 1.959964


@dataclass(frozen=True, slots=True)
class Gain:
    """By how much prediction does better, with its 95 % interval; positive is better."""

    mean: float
    low: float
    high: float
    predicted: int
    """Requests of each arm."""
    heuristic: int

    @property
    def enough(self) -> bool:
        """Tell whether there are enough requests for a verdict."""
        return min(self.predicted, self.heuristic) >= ENOUGH


class _Sum:
    """Requests of one arm and kind."""

    __slots__ = ("count", "square", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.square = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.square += value * value

    def join(self, other: "_Sum") -> None:
        self.count += other.count
        self.total += other.total
        self.square += other.square

    @property
    def mean(self) -> float:
        return self.total / self.count

    @property
    def error(self) -> float:
        """Return the variance of the mean."""
        spread = self.square - self.total * self.total / self.count
        return max(spread, 0.0) / max(self.count - 1, 1) / self.count


class _Bucket:
    """[arm: 1 predicted][kind: 0 goodput, 1 latency]."""

    __slots__ = ("begun", "sums")

    def __init__(self, begun: float) -> None:
        self.begun = begun
        self.sums = ((_Sum(), _Sum()), (_Sum(), _Sum()))


def is_held_out(request_id: str, percent: float) -> bool:
    """Tell whether a request belongs to the smaller arm, by the hash of its id."""
    return crc32(b"holdout" + request_id.encode(errors="replace")) % 10_000 < percent * 100.0


class Proof:
    """Collects both arms and decides whether prediction routes."""

    __slots__ = ("_buckets", "gains_at", "goodput", "is_out", "latency")

    def __init__(self) -> None:
        self._buckets: deque[_Bucket] = deque()
        self.is_out = False
        """Prediction does significantly worse and does not route."""
        self.goodput: Gain | None = None
        """Difference of the parts of requests that met their objectives; None: no requests in an arm."""
        self.latency: Gain | None = None
        """1 - predicted / heuristic, of the geometric means of the latency."""
        self.gains_at = -math.inf

    def served(self, now: float, *, predicted: bool, latency_s: float, met: bool | None) -> None:
        """Note a request that was served; `met`: whether it met its objectives, None: it had none."""
        buckets = self._buckets
        if not buckets or now - buckets[-1].begun >= BUCKET_S:
            buckets.append(_Bucket(now))
            while now - buckets[0].begun > WINDOW_S:
                buckets.popleft()
        goodput, latency = buckets[-1].sums[predicted]
        if met is not None:
            goodput.add(float(met))
        elif latency_s > 0.0:
            latency.add(math.log(latency_s))

    def look(self, now: float) -> None:
        """Work the gains out and decide; call it every few seconds.

        Prediction goes out when a gain is significantly negative. It comes back when none is negative any
        more, by at least `ENOUGH` requests since it went out.
        """
        self.gains_at = now
        self.goodput, self.latency = self._gain(0), self._gain(1)
        judged = [each for each in (self.goodput, self.latency) if each is not None and each.enough]
        if not judged:
            return
        worse = [each for each in judged if each.high < 0.0]
        if not self.is_out and worse:
            self.is_out = True
            self._buckets.clear()
        elif self.is_out and all(each.mean >= 0.0 for each in judged):
            self.is_out = False
            self._buckets.clear()

    def _gain(self, kind: int) -> Gain | None:
        """Return the gain over the newest buckets that have plenty in the smaller arm."""
        heuristic, predicted = _Sum(), _Sum()
        for bucket in reversed(self._buckets):
            heuristic.join(bucket.sums[False][kind])
            predicted.join(bucket.sums[True][kind])
            if min(heuristic.count, predicted.count) >= PLENTY:
                break
        if not heuristic.count or not predicted.count:
            return None
        difference = predicted.mean - heuristic.mean
        if kind:
            half = Z_95 * math.sqrt(predicted.error + heuristic.error)
            low, high = 1 - _exp(difference + half), 1 - _exp(difference - half)
            return Gain(1 - _exp(difference), low, high, predicted.count, heuristic.count)
        (low_1, high_1), (low_0, high_0) = _wilson(predicted), _wilson(heuristic)
        below = math.hypot(predicted.mean - low_1, high_0 - heuristic.mean)
        above = math.hypot(high_1 - predicted.mean, heuristic.mean - low_0)
        return Gain(difference, difference - below, difference + above, predicted.count, heuristic.count)


def _wilson(arm: _Sum) -> tuple[float, float]:
    """Return the 95 % interval of a proportion (Wilson 1927; Newcombe 1998 joins two of them).

    Unlike the normal interval it has a width also when all requests met their objectives.
    """
    count, mean, square = arm.count, arm.mean, Z_95 * Z_95
    centre = (mean + square / (2 * count)) / (1 + square / count)
    half = Z_95 / (1 + square / count) * math.sqrt(mean * (1 - mean) / count + square / (4 * count**2))
    return centre - half, centre + half


def _exp(value: float) -> float:
    return math.exp(min(value, 50.0))
