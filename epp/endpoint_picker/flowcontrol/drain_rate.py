"""The rate at which requests leave, measured; `Retry-After` comes from it. Pure: the clock is passed in."""

from math import ceil, exp, inf
from typing import Final

#: Time constant of the mean, seconds.
TAU_S: Final = 10.0
#: Seconds without an event after which the rate is unknown: what is left of the mean says nothing then.
SILENT_S: Final = 3 * TAU_S
#: Bounds of `Retry-After`, seconds.
SHORTEST_S: Final = 1
LONGEST_S: Final = 300
#: `Retry-After` while no request has left in the measured time, and while the pool has no endpoint.
UNKNOWN_S: Final = 10


class DrainRate:
    """An exponentially weighted mean of events a second. It costs nothing between two events."""

    __slots__ = ("_at", "_since", "_sum")

    def __init__(self, now: float) -> None:
        self._since = self._at = now
        self._sum = 0.0

    def note(self, now: float, events: int = 1) -> None:
        """Count events."""
        self._sum = self._sum * exp((self._at - now) / TAU_S) + events
        self._at = now

    def per_second(self, now: float) -> float:
        """Return the mean rate, 0 after `SILENT_S` without an event. The time before the first call counts
        for nothing.
        """
        age = now - self._since
        if age <= 0.0 or not self._sum or now - self._at > SILENT_S:
            return 0.0
        return self._sum * exp((self._at - now) / TAU_S) / (TAU_S * (1.0 - exp(-age / TAU_S)))

    def observed_s(self, now: float) -> float:
        """Return for how long the rate has been measured."""
        return now - self._since

    def seconds_for(self, requests: int, now: float) -> float:
        """Return how long as many requests take to leave at the present rate; infinite at a rate of 0."""
        rate = self.per_second(now)
        return requests / rate if rate > 0.0 else inf

    def retry_after(self, requests: int, now: float) -> int:
        """Return whole seconds after which as many requests have left, within the bounds."""
        wait = self.seconds_for(requests, now)
        return UNKNOWN_S if wait == inf else min(LONGEST_S, max(SHORTEST_S, ceil(wait)))
