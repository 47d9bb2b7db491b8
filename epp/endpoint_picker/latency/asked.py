"""How much is asked of the prediction servers, over the last half minute. Pure."""

import math
from collections import deque
from typing import Final, NamedTuple

#: Seconds of a slot, and how many slots before the present one count.
SLOT_S: Final = 5.0
SLOTS: Final = 6


class Rate(NamedTuple):
    """Each a second."""

    requests: float = 0.0
    rows: float = 0.0
    calls: float = 0.0


class _Slot:
    __slots__ = ("calls", "number", "requests", "rows")

    def __init__(self, number: int) -> None:
        self.number = number
        self.requests = self.rows = self.calls = 0


class Asked:
    """Counts calls by slots of time."""

    __slots__ = ("_first_at", "_slots")

    def __init__(self) -> None:
        self._first_at = math.inf
        self._slots: deque[_Slot] = deque(maxlen=SLOTS + 1)
        """The newest last; none for a slot without a call."""

    def add(self, requests: int, rows: int, now: float) -> None:
        """Note a call about this many rows of this many requests."""
        number = int(now // SLOT_S)
        slots = self._slots
        if not slots or slots[-1].number != number:
            slots.append(_Slot(number))
            self._first_at = min(self._first_at, now)
        slot = slots[-1]
        slot.requests += requests
        slot.rows += rows
        slot.calls += 1

    def rate(self, now: float) -> Rate:
        """Return the mean over the present slot and those before it, from the first call on."""
        oldest = int(now // SLOT_S) - SLOTS
        counted = [each for each in self._slots if each.number >= oldest]
        if not counted:
            return Rate()
        seconds = max(now - max(self._first_at, oldest * SLOT_S), 1.0)
        return Rate(
            sum(each.requests for each in counted) / seconds,
            sum(each.rows for each in counted) / seconds,
            sum(each.calls for each in counted) / seconds,
        )
