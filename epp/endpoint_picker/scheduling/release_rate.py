"""When a saturated pool will have room, by how fast requests end; for refusals without flow control. Pure."""

from math import ceil
from typing import Final

from endpoint_picker.datalayer.ledger import Ledger

#: Bounds of the answer, seconds, and the answer while no request has ended.
SHORTEST_S: Final = 1
LONGEST_S: Final = 60
UNKNOWN_S: Final = 10
#: The rate is measured anew when the last measurement is this old, seconds.
_EVERY_S: Final = 1.0


class ReleaseRate:
    """Looks at the ledger's counter when a request is refused; it costs other requests nothing."""

    __slots__ = ("_at", "_ledger", "_rate", "_released")

    def __init__(self, ledger: Ledger, now: float) -> None:
        self._ledger = ledger
        self._at = now
        self._released = 0
        self._rate = 0.0

    def retry_after(self, load: float, now: float) -> int:
        """Return whole seconds after which so many requests have ended that a load above 1 is below it."""
        ledger, passed = self._ledger, now - self._at
        if passed >= _EVERY_S:
            self._rate = (ledger.released - self._released) / passed
            self._at, self._released = now, ledger.released
        if not self._rate:
            return UNKNOWN_S
        excess = max(1.0, (load - 1.0) / load * ledger.held)
        return min(LONGEST_S, max(SHORTEST_S, ceil(excess / self._rate)))
