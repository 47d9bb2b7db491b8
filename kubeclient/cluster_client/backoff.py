"""How long to wait before the next attempt. Pure: the randomness is passed in."""

from collections.abc import Callable
from typing import Final

#: The first pause, and the longest: what is asked for again is back this soon after an outage. Seconds.
FIRST_S: Final = 0.2
LONGEST_S: Final = 5.0
#: The longest that a server may ask to be left alone, seconds.
LONGEST_ASKED_S: Final = 30.0


class Backoff:
    """Pauses that double from FIRST_S to LONGEST_S, each shortened by up to a half at random."""

    __slots__ = ("_pause", "_uniform")

    def __init__(self, uniform: Callable[[float, float], float]) -> None:
        """`uniform(low, high)` draws a number between the two, such as random.Random().uniform."""
        self._uniform = uniform
        self._pause = FIRST_S

    def next_s(self, asked_s: float = 0.0) -> float:
        """Return the next pause, in seconds; at least what the server asked for, within LONGEST_ASKED_S."""
        pause = self._uniform(self._pause / 2, self._pause)
        self._pause = min(2 * self._pause, LONGEST_S)
        # Upwards only, so that many clients that were asked for the same pause do not come back together.
        asked = min(asked_s, LONGEST_ASKED_S)
        return max(pause, self._uniform(asked, 1.25 * asked)) if asked > 0 else pause

    def reset(self) -> None:
        """Begin again with the first pause."""
        self._pause = FIRST_S
