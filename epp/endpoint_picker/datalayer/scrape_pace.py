"""When a server is scraped again: often while busy, less often while idle or failing. Pure."""

from typing import Final, Protocol

#: Pauses after failures in a row: the first, and the longest; seconds.
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
#: Pause between two scrapes of an idle server, in intervals. At the default interval its metrics stay younger
#: than 200 ms; the utilization-detector counts an endpoint with older ones as full.
IDLE_INTERVALS: Final = 2.5
#: Longest pause between two scrapes of an idle server, in seconds, so that its metrics do not expire. A
#: longer interval overrides it.
LONGEST_IDLE_S: Final = 1.0
#: Bytes read from one server a second; a server with a long page is scraped less often.
MAX_BYTES_PER_SECOND: Final = 4 << 20
#: Random part added to or taken from an idle interval or a pause, so that servers are not scraped in step.
_IDLE_JITTER: Final = 0.1
_PAUSE_JITTER: Final = 0.25


class Chance(Protocol):
    """The part of random.Random that is used."""

    def random(self) -> float:
        """Return a float in [0, 1)."""
        ...


class Pace:
    """The times of one server's scrapes, in seconds of the caller's clock."""

    __slots__ = ("_chance", "_interval", "_least", "_pause", "_settled", "asked_at", "due", "is_slow")

    def __init__(self, interval: float, chance: Chance) -> None:
        self._interval = interval
        self._chance = chance
        self._pause = FIRST_PAUSE_S
        self._settled = False
        self._least = 0.0
        """Earliest time of the next scrape, by the length of the page."""
        self.asked_at = 0.0
        self.due = 0.0
        """When to ask again."""
        self.is_slow = False
        """The server is idle: the next scrape waits for `hurry` or the end of the idle interval."""

    def asked(self, now: float) -> None:
        """Note that a scrape starts."""
        self.asked_at = now

    def read(self, now: float, *, busy: bool, size: int) -> None:
        """Note that a page of `size` bytes came; `busy`: the server has requests, or was sent some."""
        self._pause = FIRST_PAUSE_S
        self.is_slow = not busy
        self._least = self.asked_at + size / MAX_BYTES_PER_SECOND
        if self.is_slow:
            idle = max(self._interval, min(self._interval * IDLE_INTERVALS, LONGEST_IDLE_S))
            due = self.asked_at + idle * self._around(_IDLE_JITTER)
        elif self._settled:
            # Count from the due time, not from the start: one late scrape must not delay all later ones.
            due = max(self.due + self._interval, self.asked_at + self._interval / 2)
        else:
            # First busy page: wait a random part of an interval, so that servers that appeared together are
            # scraped at different times from then on.
            due = self.asked_at + self._interval * (0.5 + self._chance.random() / 2)
        self._settled = not self.is_slow
        self.due = max(due, self._least)

    def failed(self, now: float) -> None:
        """Note a failed scrape; each failure in a row doubles the pause, up to LONGEST_PAUSE_S."""
        self.is_slow = False
        self._settled = False
        self.due = now + self._pause * self._around(_PAUSE_JITTER)
        self._pause = min(self._pause * 2, LONGEST_PAUSE_S)

    def hurry(self, now: float) -> None:
        """Make an idle server due now, within MAX_BYTES_PER_SECOND: a request has been sent to it."""
        if self.is_slow:
            self.is_slow = False
            self.due = max(now, self._least)

    def _around(self, part: float) -> float:
        return 1.0 - part + 2.0 * part * self._chance.random()
