"""The pause before the next attempt. Pure: the randomness is passed in."""

from collections.abc import Callable
from typing import Final

#: First and longest pause, in seconds. The longest bounds the time from an outage's end to the next attempt.
FIRST_S: Final = 0.2
LONGEST_S: Final = 5.0
#: Longest Retry-After that is respected, in seconds.
LONGEST_ASKED_S: Final = 30.0


class Backoff:
    """Pauses that double from FIRST_S to LONGEST_S, each shortened by up to a half at random."""

    __slots__ = ("_pause", "_uniform")

    def __init__(self, uniform: Callable[[float, float], float]) -> None:
        """`uniform(low, high)` draws a number between the two, such as random.Random().uniform."""
        self._uniform = uniform
        self._pause = FIRST_S

    def next_s(self, asked_s: float = 0.0) -> float:
        """Return the next pause, in seconds; at least `asked_s`, of which at most LONGEST_ASKED_S counts."""
        pause = self._uniform(self._pause / 2, self._pause)
        self._pause = min(2 * self._pause, LONGEST_S)
        # Add up to a quarter: clients that got the same Retry-After must not come back at the same time.
        asked = min(asked_s, LONGEST_ASKED_S)
        return max(pause, self._uniform(asked, 1.25 * asked)) if asked > 0 else pause

    def reset(self) -> None:
        """Make FIRST_S the next pause."""
        self._pause = FIRST_S
