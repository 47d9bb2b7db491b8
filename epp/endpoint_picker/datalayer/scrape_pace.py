"""When a server is asked again: fast where requests go, slow where idle, ever slower on failure. Pure."""

from typing import Final, Protocol

#: Pauses after failures in a row: the first, and the longest; seconds.
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
#: Intervals between two scrapes of an idle server. At the default interval its metrics stay younger than the
#: utilization-detector's 200 ms, from which on an endpoint counts as full.
IDLE_INTERVALS: Final = 2.5
#: An idle server is asked this often at least, seconds, so that its metrics never become unknown.
LONGEST_IDLE_S: Final = 1.0
#: Bytes that are read of one server a second: one with a longer page than vLLM's is asked less often.
MAX_BYTES_PER_SECOND: Final = 4 << 20
#: Parts of a pause or an idle interval that chance adds or takes, so that servers are not asked in step.
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
        """Idle: the next scrape is put off until `hurry` or the idle interval's end."""

    def asked(self, now: float) -> None:
        """Note that a scrape starts."""
        self.asked_at = now

    def read(self, now: float, *, busy: bool, size: int) -> None:
        """Note that a page of `size` bytes came; `busy`: the server works, or is about to."""
        self._pause = FIRST_PAUSE_S
        self.is_slow = not busy
        self._least = self.asked_at + size / MAX_BYTES_PER_SECOND
        if self.is_slow:
            # Not shorter than the interval, not longer than what keeps metrics known.
            idle = max(self._interval, min(self._interval * IDLE_INTERVALS, LONGEST_IDLE_S))
            due = self.asked_at + idle * self._around(_IDLE_JITTER)
        elif self._settled:
            # By the time it was due, not asked: a late scrape does not delay those after it.
            due = max(self.due + self._interval, self.asked_at + self._interval / 2)
        else:
            # Once, a random part of an interval: servers that appeared together are asked apart from then on.
            due = self.asked_at + self._interval * (0.5 + self._chance.random() / 2)
        self._settled = not self.is_slow
        self.due = max(due, self._least)

    def failed(self, now: float) -> None:
        """Note that a scrape brought nothing; each failure in a row doubles the pause, up to the longest."""
        self.is_slow = False
        self._settled = False
        self.due = now + self._pause * self._around(_PAUSE_JITTER)
        self._pause = min(self._pause * 2, LONGEST_PAUSE_S)

    def hurry(self, now: float) -> None:
        """Ask an idle server at once: a request has been sent to it."""
        if self.is_slow:
            self.is_slow = False
            self.due = max(now, self._least)

    def _around(self, part: float) -> float:
        return 1.0 - part + 2.0 * part * self._chance.random()
