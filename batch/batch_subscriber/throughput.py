"""The concurrency that replicas and their measured throughput justify. Pure.

By Little's law a pool that serves `r` requests a second, each in `t` seconds, has `r * t` of them in flight.
With `r` the best rate measured of one replica times the replicas, and `t` `stretch` times the shortest mean
time measured, more in flight would only lengthen their wait: requests would take more than `stretch` times as
long as on a pool with room, and no more of them would end in a second.
"""

from collections import deque
from typing import Final

#: A window has at least these many requests and seconds; the best of the last windows counts.
WINDOW_REQUESTS: Final = 20
WINDOW_S: Final = 10.0
WINDOWS: Final = 10


class Throughput:
    """Rates and times of the last windows."""

    __slots__ = ("_count", "_seconds", "_since", "_stretch", "_windows")

    def __init__(self, stretch: float) -> None:
        self._stretch = stretch
        self._windows: deque[tuple[float, float]] = deque(maxlen=WINDOWS)
        """Requests a second and replica, mean seconds of a request."""
        self._since: float | None = None
        self._count = 0
        self._seconds = 0.0

    def served(self, now: float, seconds: float, replicas: int | None) -> None:
        """Note a request that took `seconds` on a pool of `replicas`; None counts as one."""
        if self._since is None:
            self._since = now
            return
        self._count += 1
        self._seconds += seconds
        length = now - self._since
        if self._count >= WINDOW_REQUESTS and length >= WINDOW_S:
            self._windows.append((self._count / length / max(replicas or 1, 1), self._seconds / self._count))
            self._since, self._count, self._seconds = now, 0, 0.0

    def idle(self) -> None:
        """Note a request that was not served: its window shows the refusals, not the pool's rate."""
        self._since, self._count, self._seconds = None, 0, 0.0

    def bound(self, replicas: int | None) -> float | None:
        """Return the requests that so many replicas justify; None until there are enough windows."""
        if len(self._windows) < 3:
            return None
        rate = max(rate for rate, _ in self._windows)
        seconds = min(seconds for _, seconds in self._windows)
        return max(1.0, rate * max(replicas or 1, 1) * seconds * self._stretch)
